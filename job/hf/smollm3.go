package hf

import "zeroth/nn"

var smollm3 = family{
	kind: "smollm3", name: "SmolLM3", class: [2]string{"SmolLM3ForCausalLM", "SmolLM3Model"},
	ignored: words(`max_window_layers`),
	base:    decoder{layers: 36, heads: 16, kv: 4, width: 2048, ffn: 11008, vocab: 128256, longest: 32768, eps: 1e-6, tied: true, padded: true, pad: 128004},
	read:    readSmolLM3,
}

// readSmolLM3 reads Hugging Face's SmolLM3Config. Some layers have no positions: those with 0 in
// no_rope_layers or, without it, every no_rope_layer_interval-th.
func readSmolLM3(o *object, m *Model) {
	o.rope(m, 2_000_000)
	o.biases(m)
	m.BiasMLP = maybe(o, "mlp_bias", false)
	if maybe(o, "use_sliding_window", false) {
		o.refuse("use_sliding_window true is not supported in a smollm3")
	}
	o.raw("sliding_window") // ignored
	every := o.count("no_rope_layer_interval", "", 4)
	rotated := maybe[[]int](o, "no_rope_layers", nil)
	if rotated != nil && len(rotated) < m.Layers {
		o.refuse("no_rope_layers lists %d layers, but num_hidden_layers is %d", len(rotated), m.Layers)
		rotated = nil
	}
	o.sameLayers(m, 0) // all layer_types are full_attention
	layout := make([]byte, m.Layers)
	for i := range layout {
		layout[i] = nn.Full
		if rotated != nil && rotated[i] == 0 || rotated == nil && (i+1)%every == 0 {
			layout[i] = nn.NoPE
		}
	}
	m.Layout = string(layout)
}
