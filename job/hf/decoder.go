package hf

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"strings"

	"zeroth/device"
	"zeroth/job/show"
	"zeroth/nn"
)

// decoder is what a class whose models are made of Llama's blocks takes where its
// config.json does not say: transformers' defaults.
type decoder struct {
	layers, heads, width, ffn, vocab, longest int
	kv                                        int // heads of keys and values; 0: as many as heads
	head                                      int // width of a head; 0: width/heads
	eps                                       float64
	tied                                      bool
	padded                                    bool // there is a padding token:
	pad                                       int
	act                                       string   // the key of the activation; empty: hidden_act
	acts                                      []string // what it may be; nil: silu
}

// read reads what all these classes have; what only some have the caller reads.
func (d decoder) read(o *object) (m Model, notes []string) {
	m = Model{
		Family: "llama",
		Shape: nn.Shape{
			Layers: o.count("num_hidden_layers", "", d.layers), Heads: o.count("num_attention_heads", "", d.heads),
			Width: o.count("hidden_size", "", d.width), Context: o.count("max_position_embeddings", "", d.longest),
			Vocab: o.count("vocab_size", "", d.vocab), Eps: o.number("rms_norm_eps", d.eps, normEps),
		},
		Llama: nn.Llama{FFN: o.count("intermediate_size", "", d.ffn), Tied: get(o, "tie_word_embeddings", d.tied)},
	}
	m.KV = m.Heads
	if raw := o.raw("num_key_value_heads"); raw == nil && d.kv > 0 {
		m.KV = d.kv // whatever there are of queries
	} else if !o.null("num_key_value_heads") {
		m.KV = o.count("num_key_value_heads", "", m.Heads)
	}
	o.heads(&m, d.head)
	o.padding(&m, d)
	acts := d.acts
	if acts == nil {
		acts = []string{"silu", "swish"}
	}
	o.activation(cmp.Or(d.act, "hidden_act"), acts)
	return m, o.weights(0, "attention_dropout")
}

// activation refuses a key that says another activation than that of acts, all of
// which name one.
func (o *object) activation(key string, acts []string) {
	if f := get(o, key, acts[0]); !slices.Contains(acts, f) {
		o.refuse("%s \"%s\" is not supported; want %s", key, show.Brief(f), acts[0])
	}
}

// heads reads the width of heads, and checks that they fit the width and each other.
func (o *object) heads(m *Model, otherwise int) {
	m.Llama.Head = otherwise
	if !o.null("head_dim") {
		m.Llama.Head = o.count("head_dim", "", 1)
	}
	if m.Llama.Head*m.Heads == m.Width {
		m.Llama.Head = 0
	}
	switch {
	case m.Llama.Head == 0 && m.Width%m.Heads != 0:
		o.refuse("num_attention_heads %d does not divide hidden_size %d", m.Heads, m.Width)
		return
	case m.Head()%2 != 0:
		o.refuse("hidden_size %d / num_attention_heads %d, or head_dim, is odd; rotary positions turn pairs", m.Width, m.Heads)
	case m.Heads%m.KV != 0:
		o.refuse("num_key_value_heads %d does not divide num_attention_heads %d", m.KV, m.Heads)
	}
	if m.Head()*m.Heads > Most {
		o.refuse("%d heads of width %d are out of range", m.Heads, m.Head())
	}
}

// layerKinds are the values of layer_types.
var layerKinds = map[string]byte{"full_attention": nn.Full, "sliding_attention": nn.Windowed}

// layers reads what each layer is, where the class has windows: layer_types, or
// where that is not there what otherwise says of each. It is false where layer_types
// is refused.
func (o *object) layers(m *Model, window int, otherwise func(layer int) byte) bool {
	layout := make([]byte, 0, m.Layers)
	for i := range m.Layers {
		layout = append(layout, otherwise(i))
	}
	if types := maybe[[]string](o, "layer_types", nil); types != nil {
		layout = layout[:0]
		if len(types) != m.Layers {
			o.refuse("layer_types is of %d layers, num_hidden_layers is %d", len(types), m.Layers)
		}
		for _, name := range types {
			kind, ok := layerKinds[name]
			if !ok {
				o.refuse("layer_types with \"%s\" is not supported; want full_attention or sliding_attention", show.Brief(name))
				return false
			}
			layout = append(layout, kind)
		}
	}
	if strings.Trim(string(layout), string(nn.Full)) == "" {
		return len(layout) == m.Layers // all see all
	}
	if m.Layout = string(layout); strings.Contains(m.Layout, string(nn.Windowed)) {
		if m.Window = window; window < 1 {
			o.refuse("layer_types has sliding_attention, and there is no sliding_window")
		}
	}
	return len(layout) == m.Layers
}

// alike is layers for a class whose layers all have a window, or none where it is 0.
// Its models pass layer_types over, so it must say the same.
func (o *object) alike(m *Model, window int) {
	kind := byte(nn.Full)
	if window > 0 {
		kind = nn.Windowed
	}
	known := o.layers(m, window, func(int) byte { return kind })
	if window > 0 && known && m.Layout != strings.Repeat(string(nn.Windowed), m.Layers) {
		o.refuse("layer_types has full_attention, and all layers of such a model go by sliding_window %d: leave one of them out", window)
	}
}

// window reads sliding_window; 0 is none, which null says.
func (o *object) window(otherwise int) int {
	if o.raw("sliding_window") != nil && o.null("sliding_window") {
		return 0
	}
	return o.count("sliding_window", "", otherwise)
}

// sliding reads sliding_window, which counts where use_sliding_window says so, from
// layer max_window_layers on, as Qwen's classes do.
func (o *object) sliding(m *Model, window, from int) {
	used := maybe(o, "use_sliding_window", false)
	if !used {
		o.raw("sliding_window") // of no account
		o.raw("max_window_layers")
		o.layers(m, 0, func(int) byte { return nn.Full })
		return
	}
	window, from = o.window(window), get(o, "max_window_layers", from)
	o.layers(m, window, func(layer int) byte {
		if layer >= from && window != 0 {
			return nn.Windowed
		}
		return nn.Full
	})
}

// padding reads the token whose embedding is not trained, which may be counted
// from the end of the vocabulary: what nn.Embedding's padding_idx takes.
func (o *object) padding(m *Model, d decoder) {
	if raw := o.raw("pad_token_id"); o.null("pad_token_id") && (raw != nil || !d.padded) {
		return
	}
	id := get(o, "pad_token_id", d.pad)
	if id < -m.Vocab || id >= m.Vocab {
		o.refuse("pad_token_id %d is not in a vocabulary of %d", id, m.Vocab)
		return
	}
	m.Padded, m.Pad = true, id
	if id < 0 {
		m.Pad += m.Vocab
	}
}

// turning is how rotary positions turn.
type turning struct {
	theta   float64
	scaling device.RopeScaling
}

// rope reads the rotary positions of either generation of files: theta beside
// rope_scaling, or both in rope_parameters. Where a file has both, readers do
// not agree which counts, so they must say the same.
func (o *object) rope(m *Model, theta float64) {
	inside := o.object("rope_parameters") // transformers 5 reads theta there, 4 above
	if !o.null("rope_theta") || inside == nil || inside.null("rope_theta") {
		theta = o.number("rope_theta", theta, Positive)
	}
	var all []turning
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		if r := o.object(key); r != nil {
			all = append(all, r.turning(o, theta, m))
		}
	}
	if len(all) == 2 && !reflect.DeepEqual(all[0], all[1]) {
		o.refuse("rope_scaling and rope_parameters say different things: keep the one that the model was trained with")
	}
	all = append(all, turning{theta: theta})
	m.Theta, m.Scaling = all[0].theta, all[0].scaling
}

// ropes reads rotary positions that differ by what a layer is: in rope_parameters,
// as transformers 5 writes them, each with its own default of theta; or, as 4 does,
// those of layers without a window alone: then it is false.
func (o *object) ropes(m *Model, theta, local float64) bool {
	both := o.object("rope_parameters")
	if both == nil {
		if s := o.object("rope_scaling"); s != nil && s.null("rope_type") && !s.null("type") {
			o.refuse("rope_scaling.type is passed over by transformers 5 in such a model, and not by 4: say rope_scaling.rope_type")
		}
		o.rope(m, theta)
		return false
	}
	read := func(key string, theta float64) turning {
		if r := both.object(key); r != nil {
			return r.turning(both, theta, m)
		}
		return turning{theta: theta}
	}
	full, window := read("full_attention", theta), read("sliding_attention", local)
	for _, key := range both.rest() {
		o.refuse("rope_parameters with %q is not supported; want full_attention and sliding_attention", key)
	}
	for _, key := range []string{"rope_theta", "rope_local_base_freq", "rope_scaling"} {
		if !o.null(key) {
			o.refuse("%s beside rope_parameters: keep the one that the model was trained with", key)
		}
	}
	if window.scaling.Kind != device.RopeUnscaled {
		o.refuse("rope_parameters.sliding_attention is scaled, which is not supported")
	}
	m.Theta, m.Scaling, m.LocalTheta = full.theta, full.scaling, window.theta
	return true
}

// turning reads one of the two; above is the config it is in.
func (o *object) turning(above *object, theta float64, m *Model) turning {
	t := turning{theta: o.number("rope_theta", theta, Positive)}
	if t.theta != theta && !above.null("rope_theta") {
		o.refuse("rope_theta %v and %srope_theta %v differ: keep the one that the model was trained with", theta, o.in, t.theta)
	}
	if p := maybe(o, "partial_rotary_factor", 1.0); !o.null("partial_rotary_factor") && int(p*float64(m.Head())) != cmp.Or(m.Turned, m.Head()) {
		o.refuse("%spartial_rotary_factor %v is not supported; want %v", o.in, p, float64(cmp.Or(m.Turned, m.Head()))/float64(m.Head()))
	}
	name, old := maybe(o, "rope_type", ""), maybe(o, "type", "")
	if name != "" && old != "" && name != old {
		o.refuse("%srope_type \"%s\" and %stype \"%s\" differ: keep the one that the model was trained with", o.in, show.Brief(name), o.in, show.Brief(old))
	}
	kind := cmp.Or(name, old, "default")
	if m.Fused && (kind == "su" || kind == "yarn") {
		kind = "longrope" // as Phi3Config has it
	}
	switch kind {
	case "default":
	case "linear":
		t.scaling = device.RopeScaling{Kind: device.RopeLinear, Factor: o.number("factor", 0, atLeastOne)}
	case "dynamic": // changes nothing up to max_position_embeddings, which no sequence exceeds here
		o.number("factor", 0, atLeastOne)
	case "llama3":
		t.scaling = o.llama3(above)
	case "yarn":
		t.scaling = o.yarn(above, t.theta, m)
	case "longrope":
		t.scaling = o.longrope(above, m)
	default:
		o.refuse("rope_type \"%s\" is not supported; want default, linear, dynamic, llama3, yarn or longrope", show.Brief(kind))
	}
	for _, key := range o.rest() {
		if o.null(key) {
			continue
		}
		o.refuse("%s%s %s is not supported with this rope_type", o.in, show.Brief(key), shown(o.raw(key)))
	}
	return t
}

func (o *object) llama3(above *object) device.RopeScaling {
	const context = "original_max_position_embeddings"
	outside := maybe(above, context, 0)
	s := device.RopeScaling{Kind: device.RopeLlama3, Factor: get(o, "factor", 0.0), Low: get(o, "low_freq_factor", 0.0), High: get(o, "high_freq_factor", 0.0), Context: get(o, context, outside)}
	if outside != 0 && s.Context != outside {
		o.refuse("%s %d and %s%s %d differ: keep the one that the model was trained with", context, outside, o.in, context, s.Context)
	}
	if !(s.Factor >= 1 && s.Low > 0 && s.High > s.Low && s.Context > 0) {
		o.refuse("rope_type llama3 with factor %v, low_freq_factor %v, high_freq_factor %v, %s %d; want a factor of at least 1, 0 < low < high, and positions",
			s.Factor, s.Low, s.High, context, s.Context)
	}
	return s
}

func atLeastOne(x float64) bool { return x >= 1 && !math.IsInf(x, 0) }

// yarn is as transformers' _compute_yarn_parameters has it: Low and High are the
// pairs that turn beta_fast and beta_slow times in the positions the model was first
// trained on.
func (o *object) yarn(above *object, theta float64, m *Model) device.RopeScaling {
	const context = "original_max_position_embeddings"
	s := device.RopeScaling{Kind: device.RopeYaRN, Factor: o.number("factor", 0, atLeastOne), Context: m.Context}
	if inside, outside := maybe(o, context, 0), maybe(above, context, 0); inside != 0 || outside != 0 {
		if s.Context = cmp.Or(inside, outside); inside != 0 && outside != 0 && inside != outside {
			o.refuse("%s %d and %s%s %d differ: keep the one that the model was trained with", context, outside, o.in, context, inside)
		}
	}
	fast, slow := cmp.Or(maybe(o, "beta_fast", 32.0), 32), cmp.Or(maybe(o, "beta_slow", 1.0), 1)
	if !(fast >= slow && slow > 0 && s.Context > 0 && theta > 1) {
		o.refuse("rope_type yarn with beta_fast %v, beta_slow %v, %s %d, rope_theta %v; want betas above 0, the fast one not below, positions, and a theta above 1", fast, slow, context, s.Context, theta)
		return s
	}
	dim := float64(m.Head())
	pair := func(turns float64) float64 {
		return dim * math.Log(float64(s.Context)/(turns*2*math.Pi)) / (2 * math.Log(theta))
	}
	s.Low, s.High = pair(fast), pair(slow)
	if maybe(o, "truncate", true) {
		s.Low, s.High = math.Floor(s.Low), math.Ceil(s.High)
	}
	s.Low, s.High = max(s.Low, 0), min(s.High, dim-1)
	if s.Low == s.High {
		s.High += 0.001
	}
	s.Amplitude = o.amplitude(s.Factor)
	return s
}

// amplitude is what YaRN multiplies cosines and sines by.
func (o *object) amplitude(factor float64) float64 {
	of := func(by float64) float64 {
		if factor <= 1 {
			return 1
		}
		return 0.1*by*math.Log(factor) + 1
	}
	a, all, given := maybe(o, "mscale", 0.0), maybe(o, "mscale_all_dim", 0.0), maybe(o, "attention_factor", 0.0)
	x := of(1)
	if a != 0 && all != 0 {
		x = of(a) / of(all)
	}
	if !o.null("attention_factor") {
		x = given
	}
	if !Positive(x) {
		o.refuse("rope_type yarn with an attention factor of %v; want one above 0", x)
		return 1
	}
	return x
}
