package hf

import (
	"maps"

	"zeroth/device"
)

var llama = family{
	kind: "llama", name: "Llama", class: [2]string{"LlamaForCausalLM", "LlamaModel"},
	ignored: words(`max_sequence_length max_window_layers`),
	base:    decoder{layers: 32, heads: 32, width: 4096, ffn: 11008, vocab: 32000, longest: 2048, eps: 1e-6},
	read:    readLlama, write: writeLlama,
}

func readLlama(o *object, m *Model) {
	o.rope(m, 10000)
	o.biases(m)
	m.BiasMLP = maybe(o, "mlp_bias", false)
	o.sameLayers(m, 0)
}

// writeLlama writes rotary positions in the format of transformers 4, which 5 also reads.
func writeLlama(m Model, all map[string]any) {
	maps.Copy(all, map[string]any{
		"max_position_embeddings": max(m.Context, m.Longest), "hidden_size": m.Width, "intermediate_size": m.FFN,
		"num_hidden_layers": m.Layers, "num_attention_heads": m.Heads, "num_key_value_heads": m.KV, "hidden_act": "silu",
		"rms_norm_eps": m.Eps, "rope_theta": m.Theta, "rope_scaling": nil,
	})
	if s := m.Scaling; s.Kind == device.RopeLlama3 {
		all["rope_scaling"] = map[string]any{"rope_type": "llama3", "factor": s.Factor, "low_freq_factor": s.Low, "high_freq_factor": s.High,
			"original_max_position_embeddings": s.Context}
	}
	if m.Padded {
		all["pad_token_id"] = m.Pad
	}
	if m.BiasQKV {
		all["use_sliding_window"] = false
	} else {
		all["attention_bias"], all["mlp_bias"] = false, false
	}
}

var mistral = family{
	kind: "mistral", name: "Mistral", class: [2]string{"MistralForCausalLM", "MistralModel"},
	base: decoder{layers: 32, heads: 32, kv: 8, width: 4096, ffn: 14336, vocab: 32000, longest: 4096 * 32, eps: 1e-6},
	read: readMistral,
}

// readMistral reads Hugging Face's MistralConfig. Every layer has a window, unless sliding_window is
// null.
func readMistral(o *object, m *Model) {
	o.rope(m, 10000)
	o.sameLayers(m, o.window(4096))
}

var granite = family{
	kind: "granite", name: "Granite", class: [2]string{"GraniteForCausalLM", "GraniteModel"},
	base: llama.base,
	read: readGranite,
}

// readGranite reads Hugging Face's GraniteConfig: Llama with multipliers of embeddings, attention
// scores (replacing their scale) and residual additions, and a divisor of logits.
func readGranite(o *object, m *Model) {
	readLlama(o, m)
	factor := func(key string) float64 { return o.number(key, 1, Positive) }
	scores := factor("attention_multiplier")
	m.Scale = 1 / (scores * scores)
	m.Factors.Embed, m.Factors.Residual, m.Factors.Logits = factor("embedding_multiplier"), factor("residual_multiplier"), 1/factor("logits_scaling")
	for _, f := range []*float64{&m.Factors.Embed, &m.Factors.Residual, &m.Factors.Logits} {
		if *f == 1 {
			*f = 0
		}
	}
}
