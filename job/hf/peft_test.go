package hf

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/input"
	"zeroth/nn"
)

// adapterModel is a model of two layers.
func adapterModel() Model {
	return Model{Family: "llama", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 8, Vocab: 16, Eps: 1e-5}, Llama: nn.Llama{KV: 2, FFN: 16, Theta: 1e4}}
}

// writeAdapter writes an adapter of rank 2 for layers, with an adapter_config.json.
func writeAdapter(t *testing.T, config string, layers ...string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "adapter_config.json"), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}
	var specs []safetensors.Spec
	for _, layer := range layers {
		specs = append(specs, safetensors.Spec{Name: layer + ".lora_A.weight", DType: safetensors.F32, Shape: []int{2, 8}}, safetensors.Spec{Name: layer + ".lora_B.weight", DType: safetensors.F32, Shape: []int{8, 2}})
	}
	w, err := safetensors.Create(filepath.Join(folder, "adapter_model.safetensors"), specs, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		if err := w.WriteF32(s.Name, 0, make([]float32, 16)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return folder
}

const (
	q0 = "base_model.model.model.layers.0.self_attn.q_proj"
	q1 = "base_model.model.model.layers.1.self_attn.q_proj"
)

// The tensors show which layers have an adapter, whatever target_modules, layers_to_transform and
// exclude_modules say.
func TestAdapterLayers(t *testing.T) {
	first := []string{"model.layers.0.self_attn.q_proj"}
	for config, want := range map[string][]string{
		`"target_modules": ["q_proj"]`:                             first,
		`"target_modules": ["q_proj"], "layers_to_transform": [0]`: first,
		`"target_modules": ".*\\.0\\..*q_proj"`:                    first,
	} {
		a, err := OpenAdapter(writeAdapter(t, `{"peft_type": "LORA", "r": 2, "lora_alpha": 6, `+config+`}`, q0), adapterModel())
		if err != nil {
			t.Fatal(config, err)
		}
		a.Close()
		if !slices.Equal(a.LoRA.Targets, want) || a.LoRA.Scale("model.layers.0.self_attn.q_proj") != 3 {
			t.Errorf("%s: %+v", config, a.LoRA)
		}
	}
	a, err := OpenAdapter(writeAdapter(t, `{"peft_type": "LORA", "r": 2, "lora_alpha": 6, "use_rslora": true, "target_modules": ["q_proj"]}`, q0, q1), adapterModel())
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	if !slices.Equal(a.LoRA.Targets, []string{"q_proj"}) || a.LoRA.Scale("model.layers.0.self_attn.q_proj") != 6/math.Sqrt2 {
		t.Errorf("%+v", a.LoRA)
	}
}

// TestAdapterRefusals checks that settings that would change the computation are refused by name.
func TestAdapterRefusals(t *testing.T) {
	for more, want := range map[string]string{
		`"use_dora": true`:                        "use_dora: true is not supported",
		`"bias": "all"`:                           "bias: all is not supported; want none",
		`"rank_pattern": {"q_proj": 4}`:           "q_proj.lora_A.weight has shape [2 8] and type F32, want [4 8] of floats",
		`"rank_pattern": {"q_proj": 1.5}`:         "rank_pattern: line 1, column 12: q_proj: 1.5; want at most 256 names",
		`"rank_pattern": 3`:                       "rank_pattern: line 1, column 1",
		`"alpha_pattern": {"(": 4}`:               `"(" is not a name or a regular expression`,
		`"alpha_pattern": {"q_proj": 4}`:          "",
		`"rank_pattern": {"v_proj": 4}`:           "",
		`"lora_dropout": 1`:                       "lora_dropout: 1; want 0, or a number",
		`"lora_dropout": 0.5`:                     "",
		`"modules_to_save": ["lm_head"]`:          "lm_head.weight has shape [] and type , want ",
		`"trainable_token_indices": [1]`:          "trainable_token_indices: [1] is not supported",
		`"lora_bias": true`:                       "lora_bias: true is not supported",
		`"new_in_2027": 3`:                        "new_in_2027: 3 is not supported",
		`"init_lora_weights": "pissa"`:            "init_lora_weights: pissa changes the base model",
		`"peft_type": "IA3"`:                      `peft_type: "IA3" is not supported; want LORA`,
		`"r": 3`:                                  "q_proj.lora_A.weight has shape [2 8]",
		`"r": 0`:                                  "r: 0; want 1 to",
		`"lora_alpha": -1`:                        "lora_alpha is missing or not positive",
		`"use_dora": false, "rank_pattern": {}  `: "",
	} {
		_, err := OpenAdapter(writeAdapter(t, `{"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"], `+more+`}`, q0, q1), adapterModel())
		if want == "" && err != nil || want != "" && (!input.IsInput(err) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %s", more, err, want)
		}
	}
	for layer, want := range map[string]string{
		"base_model.model.lm_head":                             "lm_head has an adapter, which only the linear layers of the model's blocks can have",
		"base_model.model.layers.0.self_attn.q_proj":           "layers.0.self_attn.q_proj has an adapter, which only",
		"model.layers.0.self_attn.q_proj":                      "is neither a matrix of a LoRA adapter nor in modules_to_save",
		"base_model.model.model.layers.2.self_attn.q_proj":     "layers.2.self_attn.q_proj has an adapter, which only",
		"base_model.model.model.embed_tokens.lora_embedding_A": "embed_tokens.lora_embedding_A has an adapter",
	} {
		_, err := OpenAdapter(writeAdapter(t, `{"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"]}`, q0, layer), adapterModel())
		if !input.IsInput(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", layer, err, want)
		}
	}
}
