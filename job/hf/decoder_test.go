package hf

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/job/jobtest"
	"zeroth/nn"
)

// config.json of published models, without generation settings.
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
	// As written by transformers 5.
	newJSON = `{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "vocab_size": 99, "rms_norm_eps": 1e-05, "dtype": "float32",
"rope_parameters": {"factor": 4.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 16,
"rope_theta": 1234.5, "rope_type": "llama3"}, "tie_word_embeddings": true}`
)

var (
	llama31    = Model{Family: "llama", BOS: "128000", EOS: "128001", Shape: nn.Shape{Layers: 32, Heads: 32, Width: 4096, Context: 131072, Vocab: 128256, Eps: 1e-5}, Llama: nn.Llama{KV: 8, FFN: 14336, Theta: 500000, Scaling: device.RopeScaling{Kind: device.RopeLlama3, Factor: 8, Low: 1, High: 4, Context: 8192}}}
	qwen2Model = Model{Family: "llama", Shape: nn.Shape{Layers: 24, Heads: 14, Width: 896, Context: 131072, Vocab: 151936, Eps: 1e-6}, Llama: nn.Llama{KV: 2, FFN: 4864, Theta: 1e6, Tied: true, BiasQKV: true}}
)

func TestModelConfigOfLlama(t *testing.T) {
	for raw, want := range map[string]Model{
		llama31JSON: llama31,
		qwen2JSON:   qwen2Model,
		newJSON:     {Family: "llama", Shape: nn.Shape{Layers: 2, Heads: 4, Width: 64, Context: 64, Vocab: 99, Eps: 1e-5}, Llama: nn.Llama{KV: 2, FFN: 96, Theta: 1234.5, Scaling: device.RopeScaling{Kind: device.RopeLlama3, Factor: 4, Low: 1, High: 4, Context: 16}, Tied: true}},
		// Defaults of the classes.
		`{"model_type": "llama"}`:                       {Family: "llama", Shape: nn.Shape{Layers: 32, Heads: 32, Width: 4096, Context: 2048, Vocab: 32000, Eps: 1e-6}, Llama: nn.Llama{KV: 32, FFN: 11008, Theta: 10000}},
		`{"model_type": "qwen2", "rope_scaling": null}`: {Family: "llama", Shape: nn.Shape{Layers: 32, Heads: 32, Width: 4096, Context: 32768, Vocab: 151936, Eps: 1e-6}, Llama: nn.Llama{KV: 32, FFN: 22016, Theta: 10000, BiasQKV: true}},
		`{"model_type": "llama", "num_attention_heads": 64, "rope_scaling": {"type": "default"}}`: {Family: "llama", Shape: nn.Shape{Layers: 32, Heads: 64, Width: 4096, Context: 2048, Vocab: 32000, Eps: 1e-6}, Llama: nn.Llama{KV: 64, FFN: 11008, Theta: 10000}},
	} {
		got, err := parseModelConfig([]byte(raw))
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: %v %s", raw, err, d)
		}
	}
}

func TestLlamaConfigReadsBack(t *testing.T) {
	dir, short := t.TempDir(), llama31
	short.Context, short.Longest = 512, 131072 // trained on shorter sequences than the model supports
	for _, c := range []struct{ in, out Model }{{llama31, llama31}, {qwen2Model, qwen2Model}, {short, llama31}} {
		jobtest.Write(t, dir+"/config.json", string(c.in.ConfigJSON()))
		got, err := ReadModelConfig(dir)
		if d := cmp.Diff(c.out, got); err != nil || d != "" {
			t.Errorf("%v %s", err, d)
		}
	}
}

// The file has the keys and values that LlamaConfig and Qwen2Config expect.
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
		{qwen2Model, map[string]any{
			"model_type": "qwen2", "architectures": []any{"Qwen2ForCausalLM"}, "vocab_size": 151936.0, "max_position_embeddings": 131072.0,
			"hidden_size": 896.0, "intermediate_size": 4864.0, "num_hidden_layers": 24.0, "num_attention_heads": 14.0, "num_key_value_heads": 2.0,
			"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "rope_theta": 1e6, "rope_scaling": nil, "use_sliding_window": false,
			"initializer_range": 0.02, "bos_token_id": nil, "eos_token_id": nil, "torch_dtype": "float32",
		}},
	} {
		dir := t.TempDir()
		jobtest.Write(t, dir+"/config.json", string(c.m.ConfigJSON()))
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
	refused(t, "llama", []string{
		`"num_hidden_layers": 0`,
		`"hidden_size": "wide"`,
		`"num_key_value_heads": 0`,
		`"intermediate_size": -1`,
		`"num_attention_heads": 5`,
		`"hidden_size": 96`,
		`"num_key_value_heads": 5`,
		`"head_dim": 65`,
		`"head_dim": 0`,
		`"head_dim": 1000000`,
		`"rms_norm_eps": 0`,
		`"hidden_act": "relu2"`,
		`"attention_bias": 1`,
		`"mlp_bias": "yes"`,
		`"use_sliding_window": true`,
		`"sliding_window": 4096`,
		`"attention_chunk_size": 8192`,
		`"layer_types": ["full_attention"]`,
		`"layer_types": "full_attention"`,
		`"partial_rotary_factor": 0.5`,
		`"attention_dropout": 1.5`,
		`"attention_dropout": "much"`,
		`"tie_word_embeddings": null`,
		`"tie_word_embeddings": 1`,
		`"pad_token_id": 32000`,
		`"pad_token_id": -32001`,
		`"pad_token_id": [0]`,
		`"pad_token_id": 1.5`,
		`"num_local_experts": 8`,
		`"architectures": ["MistralForCausalLM"]`,
		`"architectures": ["LlamaForCausalLM", "LlamaForSequenceClassification"]`,

		`"rope_theta": 0`,
		`"rope_theta": null`,
		`"rope_theta": 1e999`,
		`"rope_scaling": {"type": "linear", "factor": 0.5}`,
		`"rope_scaling": {"type": "su", "factor": 2}`,
		`"rope_scaling": {"type": "longrope", "short_factor": "1"}`,
		`"rope_scaling": {"type": "longrope", "factor": 2}`,
		`"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2}`,
		`"rope_scaling": {"type": "yarn", "factor": 2, "attention_factor": -1}`,
		`"rope_scaling": {"type": "yarn", "factor": 2, "speed": 1}`,
		`"rope_scaling": "linear"`,
		`"rope_parameters": {"rope_type": "yarn", "rope_theta": 1, "factor": 2}`,
		`"rope_parameters": {"full_attention": {"rope_theta": 7}}`,
		`"rope_scaling": {"rope_type": "default", "factor": 2}`,
		`"rope_scaling": {"rope_type": "default", "type": "linear"}`,
		`"rope_parameters": {"partial_rotary_factor": 0.5}`,
		`"rope_theta": 5, "rope_parameters": {"rope_theta": 7}`,
		`"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 7}`,
		`"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4}`,
		`"rope_parameters": {"rope_type": "llama3", "factor": 0.5, "low_freq_factor": 1}`,
		`"original_max_position_embeddings": 512, "rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 256}`,
	})
	refused(t, "qwen2", []string{
		`"use_sliding_window": true, "sliding_window": 0`,
		`"layer_types": ["sliding_attention"], "num_hidden_layers": 1`,
		`"num_attention_heads": 16`, // 32 is Qwen2Config's default
	})
}

// Settings of the other families that are not computed as in their classes are refused.
func TestFamilyRefusals(t *testing.T) {
	refused(t, "mistral", []string{
		`"sliding_window": 0`,
		`"num_hidden_layers": 2, "layer_types": ["full_attention", "full_attention"]`,
		`"layer_types": ["full"]`,
		`"num_attention_heads": 4`,
		`"hidden_act": "quick_gelu"`,
		`"quantization_config": {"a": 1}`,
	})
	refused(t, "phi3", []string{
		`"rope_scaling": {"type": "longrope", "short_factor": [1]}`,
		`"num_attention_heads": 1536, "num_key_value_heads": 1536, "rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [0]}`,
		`"num_attention_heads": 1536, "num_key_value_heads": 1536, "rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [1], "short_mscale": 1.2}`,
		`"num_attention_heads": 1536, "num_key_value_heads": 1536, "rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [1], "attention_factor": -1}`,
		`"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 9}`,
		`"original_max_position_embeddings": 8, "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 9}`,
		`"original_max_position_embeddings": 1, "rope_scaling": {"type": "yarn"}`,
		`"rope_scaling": {"type": "linear", "factor": 2}`,
		`"partial_rotary_factor": 0.77`,
		`"partial_rotary_factor": 0.01`,
		`"partial_rotary_factor": 1.5`,
		`"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.75}`,
		`"vocab_size": 100`,
		`"sliding_window": 5, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]`,
		`"sliding_window": -1`,
	})
	refused(t, "smollm3", []string{
		`"use_sliding_window": true`,
		`"no_rope_layers": [1, 0]`,
		`"no_rope_layer_interval": 0`,
		`"no_rope_layers": [0.5]`,
	})
	refused(t, "gemma3_text", []string{
		`"attn_logit_softcapping": 50.0`,
		`"hidden_activation": "gelu"`,
		`"rope_scaling": {"type": "linear", "factor": 8}`,
		`"query_pre_attn_scalar": 0`,
		`"_sliding_window_pattern": 2`,
		`"use_bidirectional_attention": true`,
		`"rope_theta": 5, "rope_parameters": {"full_attention": {"rope_theta": 5}}`,
		`"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}`,
		`"rope_parameters": {"rope_theta": 5}`,
	})
	refused(t, "olmo2", []string{
		`"clip_qkv": 8.0`,
		`"num_hidden_layers": 1, "layer_types": ["sliding_attention"]`,
	})
	refused(t, "gemma2", []string{
		`"attn_logit_softcapping": 0`,
		`"final_logit_softcapping": "30"`,
		`"sliding_window": null`,
		`"sliding_window": 0`,
		`"use_bidirectional_attention": true`,
		`"hidden_activation": null`,
	})
	refused(t, "gemma", []string{
		`"hidden_act": "silu"`,
		`"hidden_activation": "gelu"`,
		`"use_bidirectional_attention": true`,
		`"sliding_window": 5`,
		`"query_pre_attn_scalar": 144`,
	})
	refused(t, "olmo3", []string{
		`"rope_theta": 10000`,
		`"sliding_window": null`,
		`"clip_qkv": 8.0`,
	})
	refused(t, "granite", []string{
		`"logits_scaling": 0`,
		`"attention_multiplier": null`,
		`"num_local_experts": 4`,
		`"embedding_multiplier": "two"`,
	})
	refused(t, "phi", []string{`"a": 1`})
	refused(t, "deepseek_v3", []string{`"a": 1`})
	refused(t, "mixtral", []string{
		`"num_local_experts": 8, "num_experts": 4`,
		`"num_experts_per_tok": 9`,
		`"num_local_experts": 5000`,
		`"num_local_experts": 0`,
		`"router_jitter_noise": 0.1`,
		`"output_router_logits": true, "router_aux_loss_coef": -1`,
		`"attention_bias": true`,
	})
	refused(t, "qwen3_moe", []string{
		`"decoder_sparse_step": 0`,
		`"num_hidden_layers": 2, "mlp_only_layers": [0, 1]`,
		`"moe_intermediate_size": null`,
		`"use_sliding_window": true, "layer_types": ["full_attention"], "num_hidden_layers": 1`,
	})
	refused(t, "glm4_moe", []string{
		`"n_group": 3`,
		`"n_group": 32, "topk_group": 1`,
		`"first_k_dense_replace": 46`,
		`"routed_scaling_factor": 0`,
		`"n_routed_experts": 128, "num_experts": 64`,
	})
	refused(t, "olmoe", []string{`"clip_qkv": 8.0`})
}

// Accepted settings are read as in transformers: the expected values are those of its configurations
// and of the frequencies in its models.
func TestLlamaConfigReadings(t *testing.T) {
	const three = `"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4`
	llama3 := func(context int) device.RopeScaling {
		return device.RopeScaling{Kind: device.RopeLlama3, Factor: 8, Low: 1, High: 4, Context: context}
	}
	for keys, want := range map[string]func(m *Model){
		`"rope_theta": 7, "rope_parameters": {"rope_theta": 7, "rope_type": "default"}`:                                    func(m *Model) { m.Theta = 7 },
		`"rope_theta": null, "rope_parameters": {"rope_theta": 7}`:                                                         func(m *Model) { m.Theta = 7 },
		`"rope_theta": 7, "rope_scaling": null, "rope_parameters": null`:                                                   func(m *Model) { m.Theta = 7 },
		`"rope_theta": 7, "rope_scaling": {}, "rope_parameters": {"partial_rotary_factor": 1.0}`:                           func(m *Model) { m.Theta = 7 },
		`"rope_scaling": {"rope_type": "llama3", "type": "llama3", ` + three + `}, "original_max_position_embeddings": 64`: func(m *Model) { m.Scaling = llama3(64) },
		`"rope_scaling": {"type": "llama3", ` + three + `, "original_max_position_embeddings": 64}, "original_max_position_embeddings": 64,
		 "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000, ` + three + `, "original_max_position_embeddings": 64}`: func(m *Model) { m.Scaling = llama3(64) },
		`"original_max_position_embeddings": 64`:            func(*Model) {}, // not scaled
		`"pad_token_id": 0`:                                 func(m *Model) { m.Padded = true },
		`"pad_token_id": -1`:                                func(m *Model) { m.Padded, m.Pad = true, 31999 },
		`"pad_token_id": null, "num_key_value_heads": null`: func(*Model) {},
		`"is_causal": true, "quantization_config": null, "attention_bias": false, "partial_rotary_factor": 1.0, "pruned_heads": {}`: func(*Model) {},
		`"architectures": ["LLaMAForCausalLM"], "auto_map": {"AutoTokenizer": ["a.py", null]}`:                                      func(*Model) {},
	} {
		w := Model{Family: "llama", Shape: nn.Shape{Layers: 32, Heads: 32, Width: 4096, Context: 2048, Vocab: 32000, Eps: 1e-6}, Llama: nn.Llama{KV: 32, FFN: 11008, Theta: 10000}}
		want(&w)
		got, notes, err := ReadModel([]byte(`{"model_type": "llama", ` + keys + `}`))
		if d := cmp.Diff(w, got); err != nil || d != "" || len(notes) > 0 {
			t.Errorf("%s: %v %s %q", keys, err, d, notes)
		}
	}
	if m, err := parseModelConfig([]byte(`{"model_type": "qwen2", "attention_bias": false, "pad_token_id": 9}`)); err != nil || !m.BiasQKV || m.Pad != 9 {
		t.Errorf("a Qwen2, which always has biases: %+v, %v", m, err)
	}
}

// TestWrapperRefusals checks that a wrapper whose language model would compute something else without
// it is refused.
func TestWrapperRefusals(t *testing.T) {
	for _, config := range []string{
		`{"model_type": "gemma3"}`,
		`{"model_type": "gemma3", "architectures": ["Gemma3ForSequenceClassification"], "text_config": {"vocab_size": 9}}`,
		`{"model_type": "gemma3", "text_config": {"model_type": "llama"}}`,
		`{"model_type": "gemma3", "text_config": {"final_logit_softcapping": 30.0}}`,
		`{"model_type": "gemma3", "text_config": {"tie_word_embeddings": false}}`,
		`{"model_type": "gemma3", "vocab_size": 10, "text_config": {"vocab_size": 9}}`,
		`{"model_type": "gemma3", "quantization_config": {"bits": 4}, "text_config": {"vocab_size": 9}}`,
		`{"model_type": "gemma3", "text_config": {"use_bidirectional_attention": true}}`,
	} {
		dir := t.TempDir()
		jobtest.Write(t, dir+"/config.json", config)
		_, _, err := ReadConfig(dir)
		if said.Same(t, config, err); !input.IsInput(err) {
			t.Errorf("%s: %v", config, err)
		}
	}
}

// TestExpertsConfigs checks what the classes with experts read: which layers have them, their windows, and a fresh
// model's config.
func TestExpertsConfigs(t *testing.T) {
	for config, want := range map[string]func(m Model) bool{
		`{"model_type": "qwen2_moe", "num_hidden_layers": 4, "use_sliding_window": true, "sliding_window": 9, "max_window_layers": 3}`: func(m Model) bool {
			return m.Layout == "wfwf" && m.Window == 9 && m.Experts.Dense == nil && m.FFN == 0 && m.Experts.FFN == 1408 && !m.Experts.Router.Normalize
		},
		`{"model_type": "qwen3_moe", "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3], "num_local_experts": 16, "num_experts": 16}`: func(m Model) bool {
			return slices.Equal(m.Experts.Dense, []bool{true, false, true, true}) && m.FFN == 6144 && m.Experts.Count == 16 && m.Experts.FFN == 768
		},
		`{"model_type": "mixtral"}`: func(m Model) bool { return m.Window == 0 && m.Theta == 1e6 && m.Experts.FFN == 14336 && m.Type == "" },
		`{"model_type": "mixtral", "sliding_window": 7, "num_hidden_layers": 1}`: func(m Model) bool { return m.Window == 7 && m.Layout == "w" },
		`{"model_type": "glm4_moe", "num_hidden_layers": 3, "head_dim": 64, "n_shared_experts": 2, "n_group": 8, "topk_group": 4, "num_nextn_predict_layers": 1}`: func(m Model) bool {
			r := m.Experts.Router
			return m.RotaryDim == 32 && m.Experts.Shared == 2816 && r.Groups == 8 && r.TopGroups == 4 && r.Bias && r.Normalize && slices.Equal(m.Experts.Dense, []bool{true, false, false}) && m.Predicting == 1
		},
		`{"model_type": "dots1", "num_hidden_layers": 3, "n_routed_experts": 16, "num_experts_per_tok": 4, "max_window_layers": 2, "sliding_window": 5}`: func(m Model) bool {
			return m.Layout == "ffw" && m.Window == 5 && m.Experts.Count == 16 && !m.Experts.Router.Normalize && m.Experts.Single
		},
		`{"model_type": "minimax_m2", "rotary_dim": 64}`:                     func(m Model) bool { return m.RotaryDim == 64 && m.Experts.Router.Bias && !m.Experts.Single },
		`{"model_type": "granitemoeshared", "shared_intermediate_size": 0}`:  func(m Model) bool { return m.Experts.Shared == 0 && m.Experts.Router.Normalize },
		`{"model_type": "granitemoeshared", "shared_intermediate_size": 24}`: func(m Model) bool { return m.Experts.Shared == 24 && !m.Experts.Gated },
	} {
		m, err := parseModelConfig([]byte(config))
		if err != nil || !want(m) {
			t.Errorf("%s: %v, %+v", config, err, m)
		}
	}
	fresh := Model{Family: "llama", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 32, Context: 16, Vocab: 99, Eps: 1e-5}, Llama: nn.Llama{KV: 2, Theta: 10000, Experts: FreshExperts(8, 2, 24)}}
	got, err := parseModelConfig(fresh.ConfigJSON())
	if d := cmp.Diff(fresh, got); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
}
