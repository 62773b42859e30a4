package hf

import "slices"

var gemma = family{
	kind: "gemma", name: "Gemma", class: [2]string{"GemmaForCausalLM", "GemmaModel"},
	ignored: words(`original_max_position_embeddings`),
	read:    readGemma,
}

// readGemma reads Hugging Face's GemmaConfig. The first files say gelu but mean the tanh
// approximation, which versions before transformers 5 take from hidden_activation.
func readGemma(o *object) (Model, []string) {
	m, notes := decoder{
		layers: 28, heads: 16, kv: 16, head: 256, width: 3072, ffn: 24576, vocab: 256000, longest: 8192, eps: 1e-6, tied: true, padded: true, pad: 0,
		acts: slices.Concat(gemmaActs, []string{"gelu"}),
	}.read(o)
	o.rope(&m, 10000)
	o.gemma(&m)
	if !o.null("hidden_activation") {
		o.activation("hidden_activation", gemmaActs)
	}
	o.sameLayers(&m, 0) // no windows
	return m, notes
}
