package hf

import "zeroth/nn"

var gemma2 = family{
	kind: "gemma2", name: "Gemma 2", class: [2]string{"Gemma2ForCausalLM", "Gemma2Model"},
	ignored: words(`cache_implementation hidden_act original_max_position_embeddings`), // its activation is in hidden_activation
	read:    readGemma2,
}

// readGemma2 reads Hugging Face's Gemma2Config. Every other layer, starting with the first, has a
// window.
func readGemma2(o *object) (Model, []string) {
	m, notes := decoder{
		layers: 26, heads: 8, kv: 4, head: 256, width: 2304, ffn: 9216, vocab: 256000, longest: 8192, eps: 1e-6, tied: true, padded: true, pad: 0,
		act: "hidden_activation", acts: gemmaActs,
	}.read(o)
	o.rope(&m, 10000)
	o.gemma(&m)
	m.Norms, m.Scale = nn.NormBoth, o.number("query_pre_attn_scalar", 256, Positive)
	m.CapScores, m.CapLogits = o.cap("attn_logit_softcapping", 50), o.cap("final_logit_softcapping", 30)
	o.layers(&m, o.window(4096), func(layer int) byte {
		if layer%2 == 0 {
			return nn.Windowed
		}
		return nn.Full
	})
	return m, notes
}

// gemmaActs are the names of the activation of Gemma, Gemma 2 and Gemma 3.
var gemmaActs = []string{"gelu_pytorch_tanh", "gelu_new"}

// gemma reads the keys common to Gemma, Gemma 2 and Gemma 3.
func (o *object) gemma(m *Model) {
	m.Gemma = true
	m.BiasQKV = maybe(o, "attention_bias", false)
	m.BiasOut = m.BiasQKV
}

// cap reads a soft cap; null means none, returned as 0.
func (o *object) cap(key string, otherwise float64) float64 {
	switch raw := o.raw(key); {
	case raw == nil:
		return otherwise
	case o.null(key):
		return 0
	}
	return o.number(key, 0, Positive)
}
