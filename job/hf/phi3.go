package hf

import "zeroth/device"

var phi3 = family{
	kind: "phi3", name: "Phi-3", class: [2]string{"Phi3ForCausalLM", "Phi3Model"},
	ignored: words(`attention_bias embd_pdrop`), // its biases and dropout of embeddings are never used
	base:    decoder{layers: 32, heads: 32, width: 3072, ffn: 8192, vocab: 32064, longest: 4096, eps: 1e-5, padded: true, pad: 32000},
	read:    readPhi3,
}

// readPhi3 reads Hugging Face's Phi3Config. Its rotary positions cover a part of each head and
// are either default ones or LongRoPE's, which have three names.
func readPhi3(o *object, m *Model) {
	m.Fused = true
	o.partial(m, 1)
	o.rope(m, 10000)
	if k := m.Scaling.Kind; k != device.RopeUnscaled && k != device.RopeLong {
		o.refuse("rotary positions of a phi3 can only be scaled by longrope")
	}
	window := 0
	if !o.null("sliding_window") {
		window = o.window(1)
	}
	o.sameLayers(m, window)
	o.residual(m, 0, "", "resid_pdrop")
}
