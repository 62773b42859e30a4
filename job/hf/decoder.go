package hf

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"zeroth/device"
	"zeroth/internal/show"
	"zeroth/nn"
)

// decoder has the defaults, from transformers, of a class made of Llama's blocks.
type decoder struct {
	layers, heads, width, ffn, vocab, longest int
	kv                                        int // heads of keys and values; 0 means heads
	head                                      int // width of a head; 0 means width/heads
	eps                                       float64
	tied                                      bool
	padded                                    bool // whether pad is a padding token
	pad                                       int
	act                                       string   // key of the activation; default hidden_act
	acts                                      []string // names of Gemma's activation; nil: any of gates, by default silu
}

// read reads the keys common to all these classes.
func (d decoder) read(o *object) (m Model) {
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
		m.KV = d.kv // regardless of the number of query heads
	} else if !o.null("num_key_value_heads") {
		m.KV = o.count("num_key_value_heads", "", m.Heads)
	}
	o.heads(&m, d.head)
	o.padding(&m, d)
	key := cmp.Or(d.act, "hidden_act")
	if d.acts != nil {
		m.Gate = nn.GateGeluTanh
		o.activation(key, d.acts)
	} else {
		name, ok := get(o, key, "silu"), false
		if m.Gate, ok = gates[name]; !ok {
			o.refuse("%s \"%s\" is not supported; want %s", key, show.Brief(name), either(slices.Sorted(maps.Keys(gates))))
		}
	}
	o.weights(0, "attention_dropout")
	return m
}

// gates maps transformers' names of activations.
var gates = map[string]nn.Gate{
	"silu": nn.GateSilu, "swish": nn.GateSilu, "gelu": nn.GateGeluErf, "gelu_new": nn.GateGeluTanh, "gelu_pytorch_tanh": nn.GateGeluTanh,
	"relu": nn.GateRelu, "tanh": nn.GateTanh,
}

// activation refuses values of key other than acts, which all name the same activation.
func (o *object) activation(key string, acts []string) {
	if f := get(o, key, acts[0]); !slices.Contains(acts, f) {
		o.refuse("%s \"%s\" is not supported; want %s", key, show.Brief(f), acts[0])
	}
}

// heads reads the width of heads, and checks it against the model's width and number of heads.
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
		o.refuse("hidden_size %d / num_attention_heads %d, or head_dim, is odd; rotary positions rotate pairs of elements", m.Width, m.Heads)
	case m.Heads%m.KV != 0:
		o.refuse("num_key_value_heads %d does not divide num_attention_heads %d", m.KV, m.Heads)
	}
	if m.Head()*m.Heads > Most {
		o.refuse("%d heads of width %d are out of range", m.Heads, m.Head())
	}
}

// layerKinds maps the values of layer_types.
var layerKinds = map[string]byte{"full_attention": nn.Full, "sliding_attention": nn.Windowed}

// layers reads the kind of each layer, for classes with windows: from layer_types or, if that is
// missing, from windowed. It returns false if layer_types is refused.
func (o *object) layers(m *Model, window int, windowed func(layer int) bool) bool {
	layout := bytes.Repeat([]byte{nn.Full}, m.Layers)
	for i := range layout {
		if windowed(i) {
			layout[i] = nn.Windowed
		}
	}
	if types := maybe[[]string](o, "layer_types", nil); types != nil {
		layout = layout[:0]
		if len(types) != m.Layers {
			o.refuse("layer_types lists %d layers, but num_hidden_layers is %d", len(types), m.Layers)
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
		return len(layout) == m.Layers // no layer has a window
	}
	if m.Layout = string(layout); strings.Contains(m.Layout, string(nn.Windowed)) {
		if m.Window = window; window < 1 {
			o.refuse("layer_types has sliding_attention, but sliding_window is missing")
		}
	}
	return len(layout) == m.Layers
}

// sameLayers is layers for a class in which all layers have the same window, or none if window
// is 0. The class ignores layer_types, so that must agree.
func (o *object) sameLayers(m *Model, window int) {
	known := o.layers(m, window, func(int) bool { return window > 0 })
	if window > 0 && known && m.Layout != strings.Repeat(string(nn.Windowed), m.Layers) {
		o.refuse("layer_types has full_attention, but all layers of this model use sliding_window %d: remove one of the two", window)
	}
}

// window reads sliding_window; null means none, returned as 0.
func (o *object) window(otherwise int) int {
	if o.raw("sliding_window") != nil && o.null("sliding_window") {
		return 0
	}
	return o.count("sliding_window", "", otherwise)
}

// sliding reads sliding_window, which Qwen's classes apply if use_sliding_window is true, from layer
// max_window_layers on.
func (o *object) sliding(m *Model, window, from int) {
	used := maybe(o, "use_sliding_window", false)
	if !used {
		o.raw("sliding_window") // ignored
		o.raw("max_window_layers")
		o.layers(m, 0, func(int) bool { return false })
		return
	}
	window, from = o.window(window), get(o, "max_window_layers", from)
	o.layers(m, window, func(layer int) bool { return layer >= from && window != 0 })
}

// biases reads whether the projections of attention have biases.
func (o *object) biases(m *Model) {
	m.BiasQKV = maybe(o, "attention_bias", false)
	m.BiasOut = m.BiasQKV
}

// padding reads the token whose embedding is not trained. Like nn.Embedding's padding_idx it may be
// counted from the end of the vocabulary.
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

// rotation is the rotation of rotary positions.
type rotation struct {
	theta   float64
	scaling device.RopeScaling
}

// rope reads the rotary positions in files of transformers 4 or 5: rope_theta and rope_scaling, or
// both in rope_parameters. If a file has both forms they must agree, because programs differ in which
// one they use.
func (o *object) rope(m *Model, theta float64) {
	inside := o.object("rope_parameters") // transformers 5 reads theta there, 4 at the top level
	if !o.null("rope_theta") || inside == nil || inside.null("rope_theta") {
		theta = o.number("rope_theta", theta, Positive)
	}
	var all []rotation
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		if r := o.object(key); r != nil {
			all = append(all, r.rotation(o, theta, m))
		}
	}
	if len(all) == 2 && !reflect.DeepEqual(all[0], all[1]) {
		o.refuse("rope_scaling and rope_parameters differ: keep the one that the model was trained with")
	}
	all = append(all, rotation{theta: theta})
	m.Theta, m.Scaling = all[0].theta, all[0].scaling
}

// ropes reads rotary positions that differ by kind of layer. In rope_parameters, as written by
// transformers 5, each kind has its own default of theta. Without rope_parameters, as in
// transformers 4, ropes reads only those of layers without a window and returns false.
func (o *object) ropes(m *Model, theta, local float64) bool {
	both := o.object("rope_parameters")
	if both == nil {
		if s := o.object("rope_scaling"); s != nil && s.null("rope_type") && !s.null("type") {
			o.refuse("transformers 5 ignores rope_scaling.type in this model, but 4 does not: use rope_scaling.rope_type")
		}
		o.rope(m, theta)
		return false
	}
	read := func(key string, theta float64) rotation {
		if r := both.object(key); r != nil {
			return r.rotation(both, theta, m)
		}
		return rotation{theta: theta}
	}
	full, window := read("full_attention", theta), read("sliding_attention", local)
	for _, key := range both.rest() {
		o.refuse("rope_parameters with %q is not supported; want full_attention and sliding_attention", key)
	}
	for _, key := range []string{"rope_theta", "rope_local_base_freq", "rope_scaling"} {
		if !o.null(key) {
			o.refuse("%s in addition to rope_parameters: keep the one that the model was trained with", key)
		}
	}
	if window.scaling.Kind != device.RopeUnscaled {
		o.refuse("rope_parameters.sliding_attention is scaled, which is not supported")
	}
	m.Theta, m.Scaling, m.LocalTheta = full.theta, full.scaling, window.theta
	return true
}

// rotation reads one rotation; above is the enclosing config.
func (o *object) rotation(above *object, theta float64, m *Model) rotation {
	t := rotation{theta: o.number("rope_theta", theta, Positive)}
	if t.theta != theta && !above.null("rope_theta") {
		o.refuse("rope_theta %v and %srope_theta %v differ: keep the one that the model was trained with", theta, o.in, t.theta)
	}
	if p := maybe(o, "partial_rotary_factor", 1.0); !o.null("partial_rotary_factor") && int(p*float64(m.Head())) != cmp.Or(m.RotaryDim, m.Head()) {
		o.refuse("%spartial_rotary_factor %v is not supported; want %v", o.in, p, float64(cmp.Or(m.RotaryDim, m.Head()))/float64(m.Head()))
	}
	name, old := maybe(o, "rope_type", ""), maybe(o, "type", "")
	if name != "" && old != "" && name != old {
		o.refuse("%srope_type \"%s\" and %stype \"%s\" differ: keep the one that the model was trained with", o.in, show.Brief(name), o.in, show.Brief(old))
	}
	kind := cmp.Or(name, old, "default")
	if m.Fused && (kind == "su" || kind == "yarn") {
		kind = "longrope" // as in Phi3Config
	}
	switch kind {
	case "default":
	case "linear":
		t.scaling = device.RopeScaling{Kind: device.RopeLinear, Factor: o.number("factor", 0, atLeastOne)}
	case "dynamic": // no effect up to max_position_embeddings, which sequences never exceed
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
	outside := maybe(above, originalContext, 0)
	s := device.RopeScaling{Kind: device.RopeLlama3, Factor: get(o, "factor", 0.0), Low: get(o, "low_freq_factor", 0.0), High: get(o, "high_freq_factor", 0.0), Context: get(o, originalContext, outside)}
	o.sameContext(outside, s.Context)
	if !(s.Factor >= 1 && s.Low > 0 && s.High > s.Low && s.Context > 0) {
		o.refuse("rope_type llama3 with factor %v, low_freq_factor %v, high_freq_factor %v, %s %d; want a factor of at least 1, 0 < low < high, and positions",
			s.Factor, s.Low, s.High, originalContext, s.Context)
	}
	return s
}

// sameContext refuses a context of the original training in the enclosing config, unless it is 0, that
// differs from that of the rotary positions.
func (o *object) sameContext(outside, inside int) {
	if outside != 0 && outside != inside {
		o.refuse("%s %d and %s%s %d differ: keep the one that the model was trained with", originalContext, outside, o.in, originalContext, inside)
	}
}

func atLeastOne(x float64) bool { return x >= 1 && !math.IsInf(x, 0) }

// yarn follows transformers' _compute_yarn_parameters: Low and High are the pairs that rotate
// beta_fast and beta_slow times within the positions of the original training.
func (o *object) yarn(above *object, theta float64, m *Model) device.RopeScaling {
	s := device.RopeScaling{Kind: device.RopeYaRN, Factor: o.number("factor", 0, atLeastOne), Context: m.Context}
	inside, outside := maybe(o, originalContext, 0), maybe(above, originalContext, 0)
	if s.Context = cmp.Or(inside, outside, s.Context); inside != 0 {
		o.sameContext(outside, inside)
	}
	fast, slow := cmp.Or(maybe(o, "beta_fast", 32.0), 32), cmp.Or(maybe(o, "beta_slow", 1.0), 1)
	if !(fast >= slow && slow > 0 && s.Context > 0 && theta > 1) {
		o.refuse("rope_type yarn with beta_fast %v, beta_slow %v, %s %d, rope_theta %v; want 0 < beta_slow <= beta_fast, positions, and a theta above 1", fast, slow, originalContext, s.Context, theta)
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

// amplitude returns YaRN's factor of cosines and sines.
func (o *object) amplitude(factor float64) float64 {
	scale := func(by float64) float64 {
		if factor <= 1 {
			return 1
		}
		return 0.1*by*math.Log(factor) + 1
	}
	a, all, given := maybe(o, "mscale", 0.0), maybe(o, "mscale_all_dim", 0.0), maybe(o, "attention_factor", 0.0)
	x := scale(1)
	if a != 0 && all != 0 {
		x = scale(a) / scale(all)
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
