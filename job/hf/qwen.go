package hf

import "zeroth/nn"

var qwen2 = family{
	kind: "qwen2", name: "Qwen2", class: [2]string{"Qwen2ForCausalLM", "Qwen2Model"},
	ignored: words(`attention_bias qkv_bias`), // it always has biases
	base:    decoder{layers: 32, heads: 32, kv: 32, width: 4096, ffn: 22016, vocab: 151936, longest: 32768, eps: 1e-6},
	read:    readQwen2, write: writeLlama,
}

var qwen3 = family{
	kind: "qwen3", name: "Qwen3", class: [2]string{"Qwen3ForCausalLM", "Qwen3Model"},
	base: decoder{layers: 32, heads: 32, kv: 32, head: 128, width: 4096, ffn: 22016, vocab: 151936, longest: 32768, eps: 1e-6},
	read: readQwen3,
}

func readQwen2(o *object, m *Model) {
	o.rope(m, 10000)
	m.BiasQKV = true
	o.sliding(m, 4096, 28)
}

func readQwen3(o *object, m *Model) {
	o.rope(m, 10000)
	m.HeadNorm = nn.EachHead
	o.biases(m)
	o.sliding(m, 4096, 28)
}
