package job

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zeroth/device"
)

// config.json of published models, shortened by generation settings.
const (
	llama31JSON = `{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
"eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
"max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
"num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
"high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
"tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256}`
	qwen2JSON = `{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 896,
"intermediate_size": 4864, "max_position_embeddings": 131072, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
"num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
"tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936}`
	// As transformers 5 writes it.
	newJSON = `{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "vocab_size": 99, "rms_norm_eps": 1e-05, "dtype": "float32",
"rope_parameters": {"factor": 4.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 16,
"rope_theta": 1234.5, "rope_type": "llama3"}, "tie_word_embeddings": true}`
)

var (
	llama31 = Model{Family: "llama", Layers: 32, Heads: 32, KVHeads: 8, Width: 4096, FFN: 14336, Context: 131072, Vocab: 128256, NormEps: 1e-5,
		BOS: "128000", EOS: "128001", Theta: 500000, Scaling: device.RopeScaling{Factor: 8, Low: 1, High: 4, Context: 8192}}
	qwen2 = Model{Family: "llama", Layers: 24, Heads: 14, KVHeads: 2, Width: 896, FFN: 4864, Context: 131072, Vocab: 151936, NormEps: 1e-6,
		Theta: 1e6, Tied: true, Bias: true}
)

func TestModelConfigOfLlama(t *testing.T) {
	for raw, want := range map[string]Model{
		llama31JSON: llama31,
		qwen2JSON:   qwen2,
		newJSON: {Family: "llama", Layers: 2, Heads: 4, KVHeads: 2, Width: 64, FFN: 96, Context: 64, Vocab: 99, NormEps: 1e-5,
			Theta: 1234.5, Scaling: device.RopeScaling{Factor: 4, Low: 1, High: 4, Context: 16}, Tied: true},
		// The classes' defaults.
		`{"model_type": "llama"}`: {Family: "llama", Layers: 32, Heads: 32, KVHeads: 32, Width: 4096, FFN: 11008, Context: 2048, Vocab: 32000, NormEps: 1e-6, Theta: 10000},
		`{"model_type": "qwen2", "rope_scaling": null}`: {Family: "llama", Layers: 32, Heads: 32, KVHeads: 32, Width: 4096, FFN: 22016, Context: 32768,
			Vocab: 151936, NormEps: 1e-6, Theta: 10000, Bias: true},
		`{"model_type": "llama", "num_attention_heads": 64, "rope_scaling": {"type": "default"}}`: {Family: "llama", Layers: 32, Heads: 64, KVHeads: 64, Width: 4096,
			FFN: 11008, Context: 2048, Vocab: 32000, NormEps: 1e-6, Theta: 10000},
	} {
		got, err := parseModelConfig([]byte(raw))
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: %v %s", raw, err, d)
		}
	}
}

func TestLlamaConfigReadsBack(t *testing.T) {
	dir, short := t.TempDir(), llama31
	short.Context, short.Longest = 512, 131072 // trained on shorter sequences; the model takes long ones all the same
	for _, c := range []struct{ in, out Model }{{llama31, llama31}, {qwen2, qwen2}, {short, llama31}} {
		if err := WriteModelConfig(dir, c.in); err != nil {
			t.Fatal(err)
		}
		got, err := ReadModelConfig(dir)
		if d := cmp.Diff(c.out, got); err != nil || d != "" {
			t.Errorf("%v %s", err, d)
		}
	}
}

// What others read in it: keys and values LlamaConfig and Qwen2Config know.
func TestLlamaConfigKeys(t *testing.T) {
	for _, c := range []struct {
		m    Model
		want map[string]any
	}{
		{llama31, map[string]any{
			"model_type": "llama", "architectures": []any{"LlamaForCausalLM"}, "vocab_size": 128256.0, "max_position_embeddings": 131072.0,
			"hidden_size": 4096.0, "intermediate_size": 14336.0, "num_hidden_layers": 32.0, "num_attention_heads": 32.0, "num_key_value_heads": 8.0,
			"hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "rope_theta": 500000.0, "attention_bias": false, "mlp_bias": false,
			"rope_scaling": map[string]any{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
				"original_max_position_embeddings": 8192.0},
			"initializer_range": 0.02, "bos_token_id": 128000.0, "eos_token_id": 128001.0, "torch_dtype": "float32",
		}},
		{qwen2, map[string]any{
			"model_type": "qwen2", "architectures": []any{"Qwen2ForCausalLM"}, "vocab_size": 151936.0, "max_position_embeddings": 131072.0,
			"hidden_size": 896.0, "intermediate_size": 4864.0, "num_hidden_layers": 24.0, "num_attention_heads": 14.0, "num_key_value_heads": 2.0,
			"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "rope_theta": 1e6, "rope_scaling": nil, "use_sliding_window": false,
			"initializer_range": 0.02, "bos_token_id": nil, "eos_token_id": nil, "torch_dtype": "float32",
		}},
	} {
		dir := t.TempDir()
		if err := WriteModelConfig(dir, c.m); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(dir + "/config.json")
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Error(d)
		}
	}
}

func TestLlamaConfigRefusals(t *testing.T) {
	for keys, want := range map[string]string{
		`"num_hidden_layers": 0`:                                    "num_hidden_layers 0 is out of range",
		`"hidden_size": "wide"`:                                     "not a model's config: ",
		`"num_key_value_heads": 0`:                                  "num_key_value_heads 0 is out of range",
		`"intermediate_size": -1`:                                   "intermediate_size -1 is out of range",
		`"num_attention_heads": 5`:                                  "num_attention_heads 5 does not divide hidden_size 4096",
		`"hidden_size": 96`:                                         "hidden_size 96 / num_attention_heads 32 is odd; rotary positions turn pairs",
		`"num_key_value_heads": 5`:                                  "num_key_value_heads 5 does not divide num_attention_heads 32",
		`"head_dim": 64`:                                            "head_dim 64 is not supported; want hidden_size / num_attention_heads = 128",
		`"rms_norm_eps": 0`:                                         "rms_norm_eps 0 is out of range",
		`"hidden_act": "gelu"`:                                      `hidden_act "gelu" is not supported; want silu`,
		`"attention_bias": true`:                                    "attention_bias is not supported; biases of queries, keys and values alone are model_type qwen2",
		`"mlp_bias": true`:                                          "mlp_bias is not supported",
		`"use_sliding_window": true`:                                "use_sliding_window is not supported",
		`"layer_types": ["sliding_attention"]`:                      `layer_types with "sliding_attention" is not supported; want full_attention`,
		`"rope_theta": 0`:                                           "rope_theta 0 is out of range",
		`"rope_scaling": {"type": "linear", "factor": 2}`:           `rope_type "linear" is not supported; want default or llama3`,
		`"rope_parameters": {"rope_type": "yarn", "rope_theta": 1}`: `rope_type "yarn" is not supported; want default or llama3`,
		`"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4}`:      "rope_type llama3 with factor 8, low_freq_factor 4, high_freq_factor 0, original_max_position_embeddings 0; want ",
		`"rope_parameters": {"rope_type": "llama3", "factor": 0.5, "low_freq_factor": 1}`: "rope_type llama3 with factor 0.5, ",
	} {
		raw := `{"model_type": "llama", ` + keys + `}`
		if _, err := parseModelConfig([]byte(raw)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v; want %s", raw, err, want)
		}
	}
	if m, err := parseModelConfig([]byte(`{"model_type": "qwen2", "attention_bias": true}`)); err != nil || !m.Bias {
		t.Errorf("a Qwen2 that says it has biases: %+v, %v", m, err)
	}
}
