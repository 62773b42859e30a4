package hf

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zeroth/device"
	"zeroth/input"
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
	refused(t, "llama", map[string]string{
		`"num_hidden_layers": 0`:                  "num_hidden_layers 0 is out of range",
		`"hidden_size": "wide"`:                   `hidden_size "wide" is not a whole number`,
		`"num_key_value_heads": 0`:                "num_key_value_heads 0 is out of range",
		`"intermediate_size": -1`:                 "intermediate_size -1 is out of range",
		`"num_attention_heads": 5`:                "num_attention_heads 5 does not divide hidden_size 4096",
		`"hidden_size": 96`:                       "hidden_size 96 / num_attention_heads 32, or head_dim, is odd; rotary positions rotate pairs of elements",
		`"num_key_value_heads": 5`:                "num_key_value_heads 5 does not divide num_attention_heads 32",
		`"head_dim": 65`:                          "hidden_size 4096 / num_attention_heads 32, or head_dim, is odd; ",
		`"head_dim": 0`:                           "head_dim 0 is out of range",
		`"head_dim": 1000000`:                     "32 heads of width 1000000 are out of range",
		`"rms_norm_eps": 0`:                       "rms_norm_eps 0 is out of range",
		`"hidden_act": "relu2"`:                   `hidden_act "relu2" is not supported; want gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish or tanh`,
		`"attention_bias": 1`:                     "attention_bias 1 is not true or false",
		`"mlp_bias": "yes"`:                       `mlp_bias "yes" is not true or false`,
		`"use_sliding_window": true`:              "use_sliding_window true is not supported; want false or null, or remove the key",
		`"sliding_window": 4096`:                  "sliding_window 4096 is not supported; want null, or remove the key",
		`"attention_chunk_size": 8192`:            "attention_chunk_size 8192 is not supported; want null, or remove the key",
		`"layer_types": ["full_attention"]`:       "layer_types lists 1 layers, but num_hidden_layers is 32",
		`"layer_types": "full_attention"`:         `layer_types "full_attention" is not a list of strings`,
		`"partial_rotary_factor": 0.5`:            "partial_rotary_factor 0.5 is not supported; want 1 or null, or remove the key",
		`"attention_dropout": 1.5`:                "attention_dropout 1.5 is out of range",
		`"attention_dropout": "much"`:             `attention_dropout "much" is not a number`,
		`"tie_word_embeddings": null`:             "tie_word_embeddings null is not true or false",
		`"tie_word_embeddings": 1`:                "tie_word_embeddings 1 is not true or false",
		`"pad_token_id": 32000`:                   "pad_token_id 32000 is not in a vocabulary of 32000",
		`"pad_token_id": -32001`:                  "pad_token_id -32001 is not in a vocabulary of 32000",
		`"pad_token_id": [0]`:                     "pad_token_id [0] is not a whole number",
		`"pad_token_id": 1.5`:                     "pad_token_id 1.5 is not a whole number",
		`"num_local_experts": 8`:                  "num_local_experts 8 is not supported; want 0 or null, or remove the key",
		`"architectures": ["MistralForCausalLM"]`: `architectures "MistralForCausalLM" is not supported; want LlamaForCausalLM`,
		`"architectures": ["LlamaForCausalLM", "LlamaForSequenceClassification"]`: `architectures "LlamaForSequenceClassification" is not supported; want LlamaForCausalLM`,

		`"rope_theta": 0`:     "rope_theta 0 is out of range",
		`"rope_theta": null`:  "rope_theta null is not a number",
		`"rope_theta": 1e999`: "rope_theta 1e999 is not a number",
		`"rope_scaling": {"type": "linear", "factor": 0.5}`:                               "rope_scaling.factor 0.5 is out of range",
		`"rope_scaling": {"type": "su", "factor": 2}`:                                     `rope_type "su" is not supported; want default, linear, dynamic, llama3, yarn or longrope`,
		`"rope_scaling": {"type": "longrope", "short_factor": "1"}`:                       `rope_scaling.short_factor "1" is not a list of numbers`,
		`"rope_scaling": {"type": "longrope", "factor": 2}`:                               "rope_scaling.factor 2 differs from max_position_embeddings 2048 / original_max_position_embeddings 2048: programs disagree",
		`"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2}`:   "rope_type yarn with beta_fast 1, beta_slow 2, ",
		`"rope_scaling": {"type": "yarn", "factor": 2, "attention_factor": -1}`:           "rope_type yarn with an attention factor of -1; want one above 0",
		`"rope_scaling": {"type": "yarn", "factor": 2, "speed": 1}`:                       "rope_scaling.speed 1 is not supported with this rope_type",
		`"rope_scaling": "linear"`:                                                        `rope_scaling "linear" is not an object`,
		`"rope_parameters": {"rope_type": "yarn", "rope_theta": 1, "factor": 2}`:          "rope_type yarn with beta_fast 32, beta_slow 1, original_max_position_embeddings 2048, rope_theta 1; want ",
		`"rope_parameters": {"full_attention": {"rope_theta": 7}}`:                        `rope_parameters.full_attention {"rope_theta":7} is not supported with this rope_type`,
		`"rope_scaling": {"rope_type": "default", "factor": 2}`:                           "rope_scaling.factor 2 is not supported with this rope_type",
		`"rope_scaling": {"rope_type": "default", "type": "linear"}`:                      `rope_scaling.rope_type "default" and rope_scaling.type "linear" ` + differ,
		`"rope_parameters": {"partial_rotary_factor": 0.5}`:                               "rope_parameters.partial_rotary_factor 0.5 is not supported; want 1",
		`"rope_theta": 5, "rope_parameters": {"rope_theta": 7}`:                           "rope_theta 5 and rope_parameters.rope_theta 7 " + differ,
		`"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 7}`:       "rope_scaling and rope_parameters differ: keep ",
		`"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4}`:      "rope_type llama3 with factor 8, low_freq_factor 4, high_freq_factor 0, original_max_position_embeddings 0; want ",
		`"rope_parameters": {"rope_type": "llama3", "factor": 0.5, "low_freq_factor": 1}`: "rope_type llama3 with factor 0.5, ",
		`"original_max_position_embeddings": 512, "rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 256}`: "original_max_position_embeddings 512 and rope_scaling.original_max_position_embeddings 256 " + differ,
	})
	refused(t, "qwen2", map[string]string{
		`"use_sliding_window": true, "sliding_window": 0`:              "sliding_window 0 is out of range",
		`"layer_types": ["sliding_attention"], "num_hidden_layers": 1`: "layer_types has sliding_attention, but sliding_window is missing",
		`"num_attention_heads": 16`:                                    "num_key_value_heads 32 does not divide num_attention_heads 16", // 32 is Qwen2Config's default
	})
}

const differ = "differ: keep the one that the model was trained with"

// Settings of the other families that are not computed as in their classes are refused.
func TestFamilyRefusals(t *testing.T) {
	refused(t, "mistral", map[string]string{
		`"sliding_window": 0`: "sliding_window 0 is out of range",
		`"num_hidden_layers": 2, "layer_types": ["full_attention", "full_attention"]`: "layer_types has full_attention, but all layers of this model use sliding_window 4096: remove one of the two",
		`"layer_types": ["full"]`:         "layer_types lists 1 layers, but num_hidden_layers is 32; layer_types with \"full\" is not supported; want full_attention or sliding_attention",
		`"num_attention_heads": 4`:        "num_key_value_heads 8 does not divide num_attention_heads 4",
		`"hidden_act": "quick_gelu"`:      `hidden_act "quick_gelu" is not supported; want gelu, `,
		`"quantization_config": {"a": 1}`: "quantization_config ",
	})
	refused(t, "phi3", map[string]string{
		`"rope_scaling": {"type": "longrope", "short_factor": [1]}`:                                                                                                 `rope_scaling.short_factor has 1 numbers; want one for each of the 48 rotated pairs; rope_scaling.long_factor has 0 numbers; `,
		`"num_attention_heads": 1536, "num_key_value_heads": 1536, "rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [0]}`:                         `rope_scaling.long_factor has 0, which is out of range`,
		`"num_attention_heads": 1536, "num_key_value_heads": 1536, "rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [1], "short_mscale": 1.2}`:    `rope_scaling.short_mscale 1.2 is not supported with this rope_type`,
		`"num_attention_heads": 1536, "num_key_value_heads": 1536, "rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [1], "attention_factor": -1}`: `rope_scaling.attention_factor -1 is out of range`,
		`"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 9}`:                                                                               "original_max_position_embeddings 4096 and rope_scaling.original_max_position_embeddings 9 " + differ,
		`"original_max_position_embeddings": 8, "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 9}`:                                            "original_max_position_embeddings 8 and rope_scaling.original_max_position_embeddings 9 " + differ,
		`"original_max_position_embeddings": 1, "rope_scaling": {"type": "yarn"}`:                                                                                   "original_max_position_embeddings 1 is out of range",
		`"rope_scaling": {"type": "linear", "factor": 2}`:                                                                                                           "rotary positions of a phi3 can only be scaled by longrope",
		`"partial_rotary_factor": 0.77`: "partial_rotary_factor 0.77 is out of range: it rotates 73 of the 96 elements of a head",
		`"partial_rotary_factor": 0.01`: "partial_rotary_factor 0.01 is out of range: it rotates 0 of the 96 elements of a head",
		`"partial_rotary_factor": 1.5`:  "partial_rotary_factor 1.5 is out of range",
		`"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.75}`: "rope_parameters.partial_rotary_factor 0.75 is not supported; want 0.5",
		`"vocab_size": 100`: "pad_token_id 32000 is not in a vocabulary of 100",
		`"sliding_window": 5, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]`: "layer_types has full_attention, but all layers of this model use sliding_window 5: remove one of the two",
		`"sliding_window": -1`: "sliding_window -1 is out of range",
	})
	refused(t, "smollm3", map[string]string{
		`"use_sliding_window": true`:  "use_sliding_window true is not supported in a smollm3",
		`"no_rope_layers": [1, 0]`:    "no_rope_layers lists 2 layers, but num_hidden_layers is 36",
		`"no_rope_layer_interval": 0`: "no_rope_layer_interval 0 is out of range",
		`"no_rope_layers": [0.5]`:     "no_rope_layers [0.5] is not a list of whole numbers",
	})
	refused(t, "gemma3_text", map[string]string{
		`"attn_logit_softcapping": 50.0`:                                                 "attn_logit_softcapping 50.0 is not supported",
		`"hidden_activation": "gelu"`:                                                    `hidden_activation "gelu" is not supported; want gelu_pytorch_tanh`,
		`"rope_scaling": {"type": "linear", "factor": 8}`:                                "transformers 5 ignores rope_scaling.type in this model, but 4 does not: use rope_scaling.rope_type",
		`"query_pre_attn_scalar": 0`:                                                     "query_pre_attn_scalar 0 is out of range",
		`"_sliding_window_pattern": 2`:                                                   "_sliding_window_pattern 2 differs from sliding_window_pattern 6, which transformers uses",
		`"use_bidirectional_attention": true`:                                            "use_bidirectional_attention true is not supported",
		`"rope_theta": 5, "rope_parameters": {"full_attention": {"rope_theta": 5}}`:      "rope_theta in addition to rope_parameters: keep ",
		`"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}`: "rope_parameters.sliding_attention is scaled, which is not supported",
		`"rope_parameters": {"rope_theta": 5}`:                                           `rope_parameters with "rope_theta" is not supported; want full_attention and sliding_attention`,
	})
	refused(t, "olmo2", map[string]string{
		`"clip_qkv": 8.0`: "clip_qkv 8.0 is not supported",
		`"num_hidden_layers": 1, "layer_types": ["sliding_attention"]`: "layer_types has sliding_attention, but sliding_window is missing",
	})
	refused(t, "gemma2", map[string]string{
		`"attn_logit_softcapping": 0`:         "attn_logit_softcapping 0 is out of range",
		`"final_logit_softcapping": "30"`:     `final_logit_softcapping "30" is not a number`,
		`"sliding_window": null`:              "layer_types has sliding_attention, but sliding_window is missing",
		`"sliding_window": 0`:                 "sliding_window 0 is out of range",
		`"use_bidirectional_attention": true`: "use_bidirectional_attention true is not supported",
		`"hidden_activation": null`:           "hidden_activation null is not a string",
	})
	refused(t, "gemma", map[string]string{
		`"hidden_act": "silu"`:                `hidden_act "silu" is not supported; want gelu_pytorch_tanh`,
		`"hidden_activation": "gelu"`:         `hidden_activation "gelu" is not supported; want gelu_pytorch_tanh`,
		`"use_bidirectional_attention": true`: "use_bidirectional_attention true is not supported",
		`"sliding_window": 5`:                 "sliding_window 5 is not supported",
		`"query_pre_attn_scalar": 144`:        "query_pre_attn_scalar 144 is not supported",
	})
	refused(t, "olmo3", map[string]string{
		`"rope_theta": 10000`:    "rope_theta 10000 in an olmo3 without rope_parameters: transformers 4 also applies it to layers with a window, but 5 does not: use rope_parameters",
		`"sliding_window": null`: "layer_types has sliding_attention, but sliding_window is missing",
		`"clip_qkv": 8.0`:        "clip_qkv 8.0 is not supported",
	})
	refused(t, "granite", map[string]string{
		`"logits_scaling": 0`:           "logits_scaling 0 is out of range",
		`"attention_multiplier": null`:  "attention_multiplier null is not a number",
		`"num_local_experts": 4`:        "num_local_experts 4 is not supported",
		`"embedding_multiplier": "two"`: `embedding_multiplier "two" is not a number`,
	})
	refused(t, "phi", map[string]string{`"a": 1`: `model_type "phi" is not supported; want gpt2, llama, `})
	refused(t, "deepseek_v3", map[string]string{`"a": 1`: `model_type "deepseek_v3" is not supported: it needs queries and keys of low rank`})
	refused(t, "mixtral", map[string]string{
		`"num_local_experts": 8, "num_experts": 4`: "num_local_experts 8 and num_experts 4 differ: keep the one that the model was trained with",
		`"num_experts_per_tok": 9`:                 "num_experts_per_tok 9 is more than the 8 experts, or more than 64",
		`"num_local_experts": 5000`:                "5000 experts are more than 4096",
		`"num_local_experts": 0`:                   "num_local_experts 0 is out of range",
		`"router_jitter_noise": 0.1`:               "router_jitter_noise 0.1 is not supported; want 0 or null, or remove the key",
		`"output_router_logits": true`:             "output_router_logits true is not supported; want false or null, or remove the key",
		`"attention_bias": true`:                   "attention_bias true is not supported; want false or null, or remove the key",
	})
	refused(t, "qwen3_moe", map[string]string{
		`"decoder_sparse_step": 0`:                          "decoder_sparse_step 0 is out of range",
		`"num_hidden_layers": 2, "mlp_only_layers": [0, 1]`: "mlp_only_layers and decoder_sparse_step leave no layer with experts",
		`"moe_intermediate_size": null`:                     "moe_intermediate_size null is not a whole number",
		`"use_sliding_window": true, "layer_types": ["full_attention"], "num_hidden_layers": 1`: "layer_types has full_attention, but all layers of this model use sliding_window 4096",
	})
	refused(t, "glm4_moe", map[string]string{
		`"n_group": 3`:                               "n_group 3 and topk_group 1 do not leave 8 of 128 experts",
		`"n_group": 32, "topk_group": 1`:             "n_group 32 and topk_group 1 do not leave 8 of 128 experts",
		`"first_k_dense_replace": 46`:                "first_k_dense_replace 46 leaves no layer of 46 with experts",
		`"routed_scaling_factor": 0`:                 "routed_scaling_factor 0 is out of range",
		`"n_routed_experts": 128, "num_experts": 64`: "num_experts 64 and n_routed_experts 128 differ",
	})
	refused(t, "olmoe", map[string]string{`"clip_qkv": 8.0`: "clip_qkv 8.0 is not supported; want null, or remove the key"})
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
	for _, c := range []struct{ config, want string }{
		{`{"model_type": "gemma3"}`, "text_config is missing"},
		{`{"model_type": "gemma3", "architectures": ["Gemma3ForSequenceClassification"], "text_config": {"vocab_size": 9}}`, `architectures "Gemma3ForSequenceClassification" is not supported; want Gemma3ForConditionalGeneration`},
		{`{"model_type": "gemma3", "text_config": {"model_type": "llama"}}`, `text_config.model_type "llama" is not supported; want gemma3_text`},
		{`{"model_type": "gemma3", "text_config": {"final_logit_softcapping": 30.0}}`, "text_config.final_logit_softcapping 30.0 applies in the language model, but not in a Gemma3ForConditionalGeneration"},
		{`{"model_type": "gemma3", "text_config": {"tie_word_embeddings": false}}`, "tie_word_embeddings true and text_config.tie_word_embeddings false differ"},
		{`{"model_type": "gemma3", "vocab_size": 10, "text_config": {"vocab_size": 9}}`, "vocab_size 10 and text_config.vocab_size 9 differ"},
		{`{"model_type": "gemma3", "quantization_config": {"bits": 4}, "text_config": {"vocab_size": 9}}`, "quantization_config"},
		{`{"model_type": "gemma3", "text_config": {"use_bidirectional_attention": true}}`, "use_bidirectional_attention true is not supported"},
	} {
		dir := t.TempDir()
		jobtest.Write(t, dir+"/config.json", c.config)
		if _, _, err := ReadConfig(dir); err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %s", c.config, err, c.want)
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
