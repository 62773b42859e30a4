package hf

import "zeroth/nn"

var qwen2 = family{
	kind: "qwen2", name: "Qwen2", class: [2]string{"Qwen2ForCausalLM", "Qwen2Model"},
	ignored: words(`attention_bias original_max_position_embeddings qkv_bias`), // it always has biases
	read:    readQwen2, write: writeLlama,
}

var qwen3 = family{
	kind: "qwen3", name: "Qwen3", class: [2]string{"Qwen3ForCausalLM", "Qwen3Model"},
	ignored: words(`original_max_position_embeddings`),
	read:    readQwen3,
}

func readQwen2(o *object) (Model, []string) {
	m, notes := decoder{layers: 32, heads: 32, kv: 32, width: 4096, ffn: 22016, vocab: 151936, longest: 32768, eps: 1e-6}.read(o)
	o.rope(&m, 10000)
	m.BiasQKV = true
	o.sliding(&m, 4096, 28)
	return m, notes
}

func readQwen3(o *object) (Model, []string) {
	m, notes := decoder{layers: 32, heads: 32, kv: 32, head: 128, width: 4096, ffn: 22016, vocab: 151936, longest: 32768, eps: 1e-6}.read(o)
	o.rope(&m, 10000)
	m.HeadNorm, m.BiasQKV = nn.EachHead, maybe(o, "attention_bias", false)
	m.BiasOut = m.BiasQKV
	o.sliding(&m, 4096, 28)
	return m, notes
}
