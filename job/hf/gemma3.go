package hf

import "zeroth/nn"

var gemma3 = family{
	kind: "gemma3_text", name: "Gemma 3", class: [2]string{"Gemma3ForCausalLM", "Gemma3TextModel"},
	ignored: words(`original_max_position_embeddings`),
	read:    readGemma3,
}

// readGemma3 reads Hugging Face's Gemma3TextConfig. Layers with a window have rotary positions
// of their own, without scaling.
func readGemma3(o *object) (Model, []string) {
	m, notes := decoder{
		layers: 26, heads: 8, kv: 4, head: 256, width: 2304, ffn: 9216, vocab: 262208, longest: 131072, eps: 1e-6, tied: true, padded: true, pad: 0,
		act: "hidden_activation", acts: gemmaActs,
	}.read(o)
	o.gemma(&m)
	m.Norms, m.Scale = nn.NormBoth, o.number("query_pre_attn_scalar", 256, Positive)
	m.HeadNorm, m.CapLogits = nn.EachHead, o.cap("final_logit_softcapping", 0) // its attention has no cap, even if its config gives one
	if !o.ropes(&m, 1_000_000, 10_000) {
		m.LocalTheta = o.number("rope_local_base_freq", 10_000, Positive)
	}
	pattern := o.count("sliding_window_pattern", "", 6)
	if p := maybe(o, "_sliding_window_pattern", pattern); p != pattern && o.null("layer_types") {
		o.refuse("_sliding_window_pattern %d differs from sliding_window_pattern %d, which transformers uses: set layer_types", p, pattern)
	}
	o.layers(&m, o.window(4096), func(layer int) byte {
		if (layer+1)%pattern != 0 {
			return nn.Windowed
		}
		return nn.Full
	})
	return m, notes
}
