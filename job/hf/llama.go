package hf

import "zeroth/device"

var llama = family{
	kind: "llama", name: "Llama", class: [2]string{"LlamaForCausalLM", "LlamaModel"},
	ignored: words(`max_sequence_length max_window_layers original_max_position_embeddings`), // original_max_position_embeddings is read with the rotary positions if they are scaled
	read:    readLlama, write: writeLlama,
}

func readLlama(o *object) (Model, []string) {
	m, notes := decoder{layers: 32, heads: 32, width: 4096, ffn: 11008, vocab: 32000, longest: 2048, eps: 1e-6}.read(o)
	o.rope(&m, 10000)
	m.BiasQKV = maybe(o, "attention_bias", false)
	m.BiasOut, m.BiasMLP = m.BiasQKV, maybe(o, "mlp_bias", false)
	o.sameLayers(&m, 0)
	return m, notes
}

// writeLlama writes rotary positions in the format of transformers 4, which 5 also reads.
func writeLlama(m Model, all map[string]any) {
	fill(all, map[string]any{
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
