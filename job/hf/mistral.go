package hf

var mistral = family{
	kind: "mistral", name: "Mistral", class: [2]string{"MistralForCausalLM", "MistralModel"},
	ignored: words(`original_max_position_embeddings`),
	read:    readMistral,
}

// readMistral reads Hugging Face's MistralConfig. Every layer has a window, unless sliding_window is
// null.
func readMistral(o *object) (Model, []string) {
	m, notes := decoder{layers: 32, heads: 32, kv: 8, width: 4096, ffn: 14336, vocab: 32000, longest: 4096 * 32, eps: 1e-6}.read(o)
	o.rope(&m, 10000)
	o.sameLayers(&m, o.window(4096))
	return m, notes
}
