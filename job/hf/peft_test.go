package hf

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/internal/input"
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
	for more, fails := range map[string]bool{
		`"use_dora": true`:                        true,
		`"bias": "all"`:                           true,
		`"rank_pattern": {"q_proj": 4}`:           true,
		`"rank_pattern": {"q_proj": 1.5}`:         true,
		`"rank_pattern": 3`:                       true,
		`"alpha_pattern": {"(": 4}`:               true,
		`"alpha_pattern": {"q_proj": 4}`:          false,
		`"rank_pattern": {"v_proj": 4}`:           false,
		`"lora_dropout": 1`:                       true,
		`"lora_dropout": 0.5`:                     false,
		`"modules_to_save": ["lm_head"]`:          true,
		`"trainable_token_indices": [1]`:          true,
		`"lora_bias": true`:                       true,
		`"new_in_2027": 3`:                        true,
		`"init_lora_weights": "pissa"`:            true,
		`"peft_type": "IA3"`:                      true,
		`"r": 3`:                                  true,
		`"r": 0`:                                  true,
		`"lora_alpha": -1`:                        true,
		`"use_dora": false, "rank_pattern": {}  `: false,
	} {
		_, err := OpenAdapter(writeAdapter(t, `{"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"], `+more+`}`, q0, q1), adapterModel())
		if said.Fails(t, more, err, fails); err != nil && !input.IsInput(err) {
			t.Errorf("%s: %v", more, err)
		}
	}
	for _, layer := range []string{
		"base_model.model.lm_head",
		"base_model.model.layers.0.self_attn.q_proj",
		"model.layers.0.self_attn.q_proj",
		"base_model.model.model.layers.2.self_attn.q_proj",
		"base_model.model.model.embed_tokens.lora_embedding_A",
	} {
		_, err := OpenAdapter(writeAdapter(t, `{"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"]}`, q0, layer), adapterModel())
		if said.Same(t, layer, err); !input.IsInput(err) {
			t.Errorf("%s: %v", layer, err)
		}
	}
}
