package hf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"zeroth/checkpoint"
	"zeroth/input"
)

// replace writes a file, of which there is never half under its name.
func replace(path string, content []byte) error {
	err := os.WriteFile(path+".tmp", content, 0o644)
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		_ = os.Remove(path + ".tmp") // err is the one to report
		return fmt.Errorf("write %s: %w", path, input.Cause(err))
	}
	return nil
}

// ConfigJSON is config.json of a model that comes from no folder, with
// parameters in float32.
func (m Model) ConfigJSON() []byte {
	all := map[string]any{
		"tie_word_embeddings": m.Tied, "vocab_size": m.Vocab, "initializer_range": 0.02, "torch_dtype": "float32",
		"bos_token_id": nil, "eos_token_id": nil,
	}
	switch m.Family {
	case "gpt2":
		m.writeGPT2(all)
	case "llama":
		m.writeLlama(all)
	default:
		panic(fmt.Sprintf("hf: config.json of family %q", m.Family))
	}
	for key, id := range map[string]string{"bos_token_id": m.BOS, "eos_token_id": m.EOS} {
		if id != "" {
			all[key] = json.RawMessage(id)
		}
	}
	return append(MustJSON(all), '\n')
}

// writeGPT2 says that there is no dropout, because GPT2Config's default is some.
func (m Model) writeGPT2(all map[string]any) {
	fill(all, map[string]any{
		"model_type": "gpt2", "architectures": []string{classNames["gpt2"][0]}, "tie_word_embeddings": true,
		"n_positions": max(m.Context, m.Longest), "n_embd": m.Width, "n_layer": m.Layers, "n_head": m.Heads, "n_inner": nil,
		"activation_function": "gelu_new", "layer_norm_epsilon": m.NormEps, "scale_attn_weights": true,
		"scale_attn_by_inverse_layer_idx": false, "add_cross_attention": false, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
	})
	if m.Vocab > 50256 {
		all["bos_token_id"], all["eos_token_id"] = json.RawMessage(endOfText), json.RawMessage(endOfText)
	}
}

// writeLlama describes rotary positions as transformers 4 does, which 5 reads
// too.
func (m Model) writeLlama(all map[string]any) {
	fill(all, map[string]any{
		"max_position_embeddings": max(m.Context, m.Longest), "hidden_size": m.Width, "intermediate_size": m.FFN,
		"num_hidden_layers": m.Layers, "num_attention_heads": m.Heads, "num_key_value_heads": m.KVHeads, "hidden_act": "silu",
		"rms_norm_eps": m.NormEps, "rope_theta": m.Theta, "rope_scaling": nil,
	})
	if s := m.Scaling; s.Factor != 0 {
		all["rope_scaling"] = map[string]any{"rope_type": "llama3", "factor": s.Factor, "low_freq_factor": s.Low, "high_freq_factor": s.High,
			"original_max_position_embeddings": s.Context}
	}
	if m.Padded {
		all["pad_token_id"] = m.Pad
	}
	family := "llama"
	if m.Bias {
		family, all["use_sliding_window"] = "qwen2", false
	} else {
		all["attention_bias"], all["mlp_bias"] = false, false
	}
	all["model_type"], all["architectures"] = family, []string{classNames[family][0]}
}

func fill(all, more map[string]any) {
	for key, value := range more {
		all[key] = value
	}
}

// torchNames are PyTorch's names of element types.
var torchNames = map[checkpoint.DType]string{checkpoint.F32: "float32", checkpoint.BF16: "bfloat16", checkpoint.F16: "float16"}

// ExportedConfig is a model's config.json as it is written next to parameters of
// an element type under all their names: every key as it was, but for that type,
// called torch_dtype or, newer, dtype, and the class that has an output layer.
func ExportedConfig(config []byte, t checkpoint.DType) []byte {
	var all map[string]json.RawMessage
	var family string
	err := json.Unmarshal(config, &all)
	if err == nil {
		err = json.Unmarshal(all["model_type"], &family)
	}
	if err != nil {
		panic(fmt.Sprintf("hf: config.json: %v", err)) // it has been read as one
	}
	if have := all["architectures"]; len(have) > 0 && string(have) != "null" {
		all["architectures"] = MustJSON([]string{classNames[family][0]})
	}
	name := MustJSON(torchNames[t])
	for _, key := range []string{"torch_dtype", "dtype"} {
		if all[key] != nil {
			all[key] = name
		}
	}
	if all["torch_dtype"] == nil && all["dtype"] == nil {
		all["torch_dtype"] = name
	}
	return append(MustJSON(all), '\n')
}

// MustJSON is a value of ours as indented JSON, without a newline at the end.
func MustJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("hf: JSON of %T: %v", v, err)) // ours always encode
	}
	return bytes.TrimSpace(b.Bytes())
}
