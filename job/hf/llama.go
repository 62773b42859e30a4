package hf

import (
	"cmp"

	"zeroth/device"
	"zeroth/job/show"
)

// llama reads Hugging Face's LlamaConfig or Qwen2Config, with their defaults.
func (o *object) llama(family string) (m Model, notes []string) {
	vocab, ffn, longest := 32000, 11008, 2048
	if family == "qwen2" {
		vocab, ffn, longest = 151936, 22016, 32768
	}
	m = Model{
		Family: "llama", Bias: family == "qwen2",
		Layers: o.count("num_hidden_layers", "", 32), Heads: o.count("num_attention_heads", "", 32),
		Width: o.count("hidden_size", "", 4096), FFN: o.count("intermediate_size", "", ffn),
		Context: o.count("max_position_embeddings", "", longest), Vocab: o.count("vocab_size", "", vocab),
		NormEps: o.number("rms_norm_eps", 1e-6, normEps), Tied: get(o, "tie_word_embeddings", false),
	}
	m.KVHeads = m.Heads
	if raw := o.raw("num_key_value_heads"); raw == nil && m.Bias {
		m.KVHeads = 32 // Qwen2Config's default, whatever there are of queries
	} else if !o.null("num_key_value_heads") {
		m.KVHeads = o.count("num_key_value_heads", "", m.Heads)
	}
	o.heads(m)
	o.rope(&m)
	o.padding(&m)
	if f := get(o, "hidden_act", "silu"); f != "silu" {
		o.refuse("hidden_act \"%s\" is not supported; want silu", show.Brief(f))
	}
	if types := maybe[[]string](o, "layer_types", nil); types != nil {
		o.layerTypes(types, m.Layers)
	}
	return m, o.dropout(0, "attention_dropout")
}

// heads checks that heads fit the width and each other.
func (o *object) heads(m Model) {
	switch {
	case m.Width%m.Heads != 0:
		o.refuse("num_attention_heads %d does not divide hidden_size %d", m.Heads, m.Width)
		return
	case !m.HeadsFit(m.Heads):
		o.refuse("hidden_size %d / num_attention_heads %d is odd; rotary positions turn pairs", m.Width, m.Heads)
	case m.Heads%m.KVHeads != 0:
		o.refuse("num_key_value_heads %d does not divide num_attention_heads %d", m.KVHeads, m.Heads)
	}
	if d := maybe(o, "head_dim", m.Width/m.Heads); d != m.Width/m.Heads {
		o.refuse("head_dim %d is not supported; want hidden_size / num_attention_heads = %d", d, m.Width/m.Heads)
	}
}

func (o *object) layerTypes(types []string, layers int) {
	if len(types) != layers {
		o.refuse("layer_types is of %d layers, num_hidden_layers is %d", len(types), layers)
	}
	for _, kind := range types {
		if kind != "full_attention" {
			o.refuse("layer_types with \"%s\" is not supported; want full_attention", show.Brief(kind))
			return
		}
	}
}

// padding reads the token whose embedding is not trained, which may be counted
// from the end of the vocabulary: what nn.Embedding's padding_idx takes.
func (o *object) padding(m *Model) {
	if o.null("pad_token_id") {
		return
	}
	id := get(o, "pad_token_id", 0)
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
func (o *object) rope(m *Model) {
	theta := 10000.0
	inside := o.object("rope_parameters") // transformers 5 reads theta there, 4 above
	if !o.null("rope_theta") || inside == nil || inside.null("rope_theta") {
		theta = o.number("rope_theta", theta, Positive)
	}
	var all []turning
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		if r := o.object(key); r != nil {
			all = append(all, r.turning(o, theta))
		}
	}
	if len(all) == 2 && all[0] != all[1] {
		o.refuse("rope_scaling and rope_parameters say different things: keep the one that the model was trained with")
	}
	all = append(all, turning{theta: theta})
	m.Theta, m.Scaling = all[0].theta, all[0].scaling
}

// turning reads one of the two; above is the config it is in.
func (o *object) turning(above *object, theta float64) turning {
	t := turning{theta: o.number("rope_theta", theta, Positive)}
	if t.theta != theta && !above.null("rope_theta") {
		o.refuse("rope_theta %v and %srope_theta %v differ: keep the one that the model was trained with", theta, o.in, t.theta)
	}
	if p := maybe(o, "partial_rotary_factor", 1.0); p != 1 {
		o.refuse("%spartial_rotary_factor %v is not supported; want 1", o.in, p)
	}
	name, old := maybe(o, "rope_type", ""), maybe(o, "type", "")
	if name != "" && old != "" && name != old {
		o.refuse("%srope_type \"%s\" and %stype \"%s\" differ: keep the one that the model was trained with", o.in, show.Brief(name), o.in, show.Brief(old))
	}
	switch kind := cmp.Or(name, old, "default"); kind {
	case "default":
	case "llama3":
		t.scaling = o.llama3(above)
	default:
		o.refuse("rope_type \"%s\" is not supported; want default or llama3", show.Brief(kind))
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
	s := device.RopeScaling{Factor: get(o, "factor", 0.0), Low: get(o, "low_freq_factor", 0.0), High: get(o, "high_freq_factor", 0.0), Context: get(o, context, outside)}
	if outside != 0 && s.Context != outside {
		o.refuse("%s %d and %s%s %d differ: keep the one that the model was trained with", context, outside, o.in, context, s.Context)
	}
	if !(s.Factor >= 1 && s.Low > 0 && s.High > s.Low && s.Context > 0) {
		o.refuse("rope_type llama3 with factor %v, low_freq_factor %v, high_freq_factor %v, %s %d; want a factor of at least 1, 0 < low < high, and positions",
			s.Factor, s.Low, s.High, context, s.Context)
	}
	return s
}
