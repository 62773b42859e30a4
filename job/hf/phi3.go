package hf

import "zeroth/device"

var phi3 = family{
	kind: "phi3", name: "Phi-3", class: [2]string{"Phi3ForCausalLM", "Phi3Model"},
	own:  words(`original_max_position_embeddings attention_bias embd_pdrop`), // it has no biases and does not drop embeddings, whatever they say
	read: readPhi3,
}

// readPhi3 reads Hugging Face's Phi3Config. Its rotary positions are default ones or
// LongRoPE's, for which it has three names, of a part of each head.
func readPhi3(o *object) (Model, []string) {
	m, notes := decoder{layers: 32, heads: 32, width: 3072, ffn: 8192, vocab: 32064, longest: 4096, eps: 1e-5, padded: true, pad: 32000}.read(o)
	m.Fused = true
	o.partial(&m)
	o.rope(&m, 10000)
	if k := m.Scaling.Kind; k != device.RopeUnscaled && k != device.RopeLong {
		o.refuse("rotary positions of a phi3 are scaled by longrope alone")
	}
	window := 0
	if !o.null("sliding_window") {
		window = o.window(1)
	}
	o.alike(&m, window)
	notes = append(notes, o.residual(&m, 0, "", "resid_pdrop")...)
	return m, notes
}
