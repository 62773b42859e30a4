package hf

import "zeroth/nn"

var olmo2 = family{
	kind: "olmo2", name: "OLMo 2", class: [2]string{"Olmo2ForCausalLM", "Olmo2Model"},
	ignored: words(`original_max_position_embeddings`),
	read:    readOLMo2,
}

func readOLMo2(o *object) (Model, []string) {
	m, notes := decoder{layers: 32, heads: 32, width: 4096, ffn: 11008, vocab: 50304, longest: 2048, eps: 1e-5, padded: true, pad: 1}.read(o)
	o.rope(&m, 10000)
	m.HeadNorm, m.Norms, m.BiasQKV = nn.AllHeads, nn.NormAfter, maybe(o, "attention_bias", false)
	m.BiasOut = m.BiasQKV
	o.sameLayers(&m, 0) // no windows
	return m, notes
}
