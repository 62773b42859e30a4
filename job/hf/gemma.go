package hf

import (
	"slices"

	"zeroth/nn"
)

var gemma = family{
	kind: "gemma", name: "Gemma", class: [2]string{"GemmaForCausalLM", "GemmaModel"},
	base: decoder{
		layers: 28, heads: 16, kv: 16, head: 256, width: 3072, ffn: 24576, vocab: 256000, longest: 8192, eps: 1e-6, tied: true, padded: true, pad: 0,
		acts: slices.Concat(gemmaActs, []string{"gelu"}),
	},
	read: readGemma,
}

// readGemma reads Hugging Face's GemmaConfig. The first files say gelu but mean the tanh
// approximation, which versions before transformers 5 take from hidden_activation.
func readGemma(o *object, m *Model) {
	o.rope(m, 10000)
	o.gemma(m)
	if !o.null("hidden_activation") {
		o.activation("hidden_activation", gemmaActs)
	}
	o.sameLayers(m, 0) // no windows
}

var gemma2 = family{
	kind: "gemma2", name: "Gemma 2", class: [2]string{"Gemma2ForCausalLM", "Gemma2Model"},
	ignored: words(`cache_implementation hidden_act`), // its activation is in hidden_activation
	base: decoder{
		layers: 26, heads: 8, kv: 4, head: 256, width: 2304, ffn: 9216, vocab: 256000, longest: 8192, eps: 1e-6, tied: true, padded: true, pad: 0,
		act: "hidden_activation", acts: gemmaActs,
	},
	read: readGemma2,
}

// readGemma2 reads Hugging Face's Gemma2Config. Every other layer, starting with the first, has a
// window.
func readGemma2(o *object, m *Model) {
	o.rope(m, 10000)
	o.gemma(m)
	m.Norms, m.Scale = nn.NormBoth, o.number("query_pre_attn_scalar", 256, Positive)
	m.CapScores, m.CapLogits = o.cap("attn_logit_softcapping", 50), o.cap("final_logit_softcapping", 30)
	o.layers(m, o.window(4096), func(layer int) bool { return layer%2 == 0 })
}

// gemmaActs are the names of the activation of Gemma, Gemma 2 and Gemma 3.
var gemmaActs = []string{"gelu_pytorch_tanh", "gelu_new"}

// gemma reads the keys common to Gemma, Gemma 2 and Gemma 3.
func (o *object) gemma(m *Model) {
	m.Gemma = true
	o.biases(m)
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

var gemma3 = family{
	kind: "gemma3_text", name: "Gemma 3", class: [2]string{"Gemma3ForCausalLM", "Gemma3TextModel"},
	base: decoder{
		layers: 26, heads: 8, kv: 4, head: 256, width: 2304, ffn: 9216, vocab: 262208, longest: 131072, eps: 1e-6, tied: true, padded: true, pad: 0,
		act: "hidden_activation", acts: gemmaActs,
	},
	read: readGemma3,
}

// readGemma3 reads Hugging Face's Gemma3TextConfig. Layers with a window have rotary positions
// of their own, without scaling.
func readGemma3(o *object, m *Model) {
	o.gemma(m)
	m.Norms, m.Scale = nn.NormBoth, o.number("query_pre_attn_scalar", 256, Positive)
	m.HeadNorm, m.CapLogits = nn.EachHead, o.cap("final_logit_softcapping", 0) // its attention has no cap, even if its config gives one
	if !o.ropes(m, 1_000_000, 10_000) {
		m.LocalTheta = o.number("rope_local_base_freq", 10_000, Positive)
	}
	pattern := o.count("sliding_window_pattern", "", 6)
	if p := maybe(o, "_sliding_window_pattern", pattern); p != pattern && o.null("layer_types") {
		o.refuse("_sliding_window_pattern %d differs from sliding_window_pattern %d, which transformers uses: set layer_types", p, pattern)
	}
	o.layers(m, o.window(4096), func(layer int) bool { return (layer+1)%pattern != 0 })
}
