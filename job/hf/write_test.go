package hf

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zeroth/checkpoint"
)

// A config.json is exported with every key unchanged, including the spelling of numbers,
// except for the element type, under the names in the file, and the class.
func TestExportedConfig(t *testing.T) {
	for in, want := range map[string]string{
		`{"model_type": "llama", "b": 1, "torch_dtype": "float32", "a": {"x": [1e400, "<&>\u2028"]}}`: `{"model_type": "llama", "b": 1, "torch_dtype": "float16", "a": {"x": [1e400, "<&>\u2028"]}}`,
		`{"model_type": "gpt2", "dtype": "bfloat16"}`:                                                 `{"model_type": "gpt2", "dtype": "float16"}`,
		`{"model_type": "gpt2", "dtype": null, "torch_dtype": "bfloat16"}`:                            `{"model_type": "gpt2", "dtype": "float16", "torch_dtype": "float16"}`,
		`{"model_type": "gpt2", "attn_pdrop": 0.0, "n_inner": null}`:                                  `{"model_type": "gpt2", "attn_pdrop": 0.0, "n_inner": null, "torch_dtype": "float16"}`,
		`{"model_type": "qwen2", "architectures": ["Qwen2Model"], "dtype": "float16"}`:                `{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "dtype": "float16"}`,
		`{"model_type": "gpt2", "architectures": null, "dtype": "float16"}`:                           `{"model_type": "gpt2", "architectures": null, "dtype": "float16"}`,
	} {
		got := ExportedConfig([]byte(in), checkpoint.F16)
		var a, b map[string]json.RawMessage
		if err := json.Unmarshal(got, &a); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(want), &b); err != nil {
			t.Fatal(err)
		}
		for key := range a {
			a[key] = []byte(shown(a[key]))
		}
		for key := range b {
			b[key] = []byte(shown(b[key]))
		}
		if d := cmp.Diff(b, a); d != "" {
			t.Errorf("%s: %s", in, d)
		}
	}
}
