package hf

import (
	"zeroth/device"
	"zeroth/nn"
)

var gemma3 = family{
	kind: "gemma3_text", name: "Gemma 3", class: [2]string{"Gemma3ForCausalLM", "Gemma3TextModel"},
	own:  words(`original_max_position_embeddings`),
	read: readGemma3,
}

// readGemma3 reads Hugging Face's Gemma3TextConfig. Layers with a window have rotary
// positions of their own, which are not scaled.
func readGemma3(o *object) (Model, []string) {
	m, notes := decoder{
		layers: 26, heads: 8, kv: 4, head: 256, width: 2304, ffn: 9216, vocab: 262208, longest: 131072, eps: 1e-6, tied: true, padded: true, pad: 0,
		act: "hidden_activation", acts: gemmaActs,
	}.read(o)
	o.gemma(&m)
	m.HeadNorm, m.CapLogits = nn.EachHead, o.cap("final_logit_softcapping", 0) // its attention caps nothing, whatever its config says
	o.ropes(&m)
	pattern := o.count("sliding_window_pattern", "", 6)
	if p := maybe(o, "_sliding_window_pattern", pattern); p != pattern && o.null("layer_types") {
		o.refuse("_sliding_window_pattern %d is not what transformers goes by, sliding_window_pattern %d: say layer_types", p, pattern)
	}
	o.layers(&m, o.window(4096), func(layer int) byte {
		if (layer+1)%pattern != 0 {
			return nn.Windowed
		}
		return nn.Full
	})
	return m, notes
}

// ropes reads rotary positions that differ by what a layer is: in rope_parameters,
// as transformers 5 writes them, or beside each other, as 4 does.
func (o *object) ropes(m *Model) {
	const theta, local = 1_000_000, 10_000
	both := o.object("rope_parameters")
	if both == nil {
		o.rope(m, theta)
		m.LocalTheta = o.number("rope_local_base_freq", local, Positive)
		return
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
}
