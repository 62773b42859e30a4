package job

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// gpt2JSON is config.json of openai-community/gpt2, shortened by generation settings.
const gpt2JSON = `{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
"bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257}`

var gpt2Small = Model{Family: "gpt2", Layers: 12, Heads: 12, Width: 768, Context: 1024, Vocab: 50257, NormEps: 1e-5}

func TestModelConfigOfGPT2(t *testing.T) {
	for _, raw := range []string{gpt2JSON, `{"model_type": "gpt2"}`, `{"model_type": "gpt2", "n_inner": null, "tie_word_embeddings": true}`} {
		got, err := parseModelConfig([]byte(raw))
		if d := cmp.Diff(gpt2Small, got); err != nil || d != "" {
			t.Errorf("%s: %v %s", raw, err, d)
		}
	}
}

func TestModelConfigReadsBack(t *testing.T) {
	dir := t.TempDir()
	for _, want := range []Model{gpt2Small, {Family: "gpt2", Layers: 1, Heads: 3, Width: 9, Context: 7, Vocab: 256, NormEps: 1e-6}} {
		if err := WriteModelConfig(dir, want); err != nil {
			t.Fatal(err)
		}
		got, err := ReadModelConfig(dir)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%v %s", err, d)
		}
	}
}

// What others read in it: keys and values GPT2Config knows.
func TestModelConfigKeys(t *testing.T) {
	dir := t.TempDir()
	if err := WriteModelConfig(dir, gpt2Small); err != nil {
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
	want := map[string]any{
		"model_type": "gpt2", "architectures": []any{"GPT2LMHeadModel"}, "vocab_size": 50257.0, "n_positions": 1024.0, "n_embd": 768.0,
		"n_layer": 12.0, "n_head": 12.0, "n_inner": nil, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
		"scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false, "add_cross_attention": false, "initializer_range": 0.02,
		"bos_token_id": 50256.0, "eos_token_id": 50256.0, "torch_dtype": "float32",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := WriteModelConfig(dir+"/gone", gpt2Small); err == nil {
		t.Error("wrote into a folder that is not there")
	}
}

func TestModelConfigRefusals(t *testing.T) {
	for raw, want := range map[string]string{
		`{"model_type": "bert"}`:               `model_type "bert" is not supported; want gpt2, llama or qwen2`,
		`{}`:                                   `model_type "" is not supported; want gpt2, llama or qwen2`,
		`[]`:                                   `not a model's config: `,
		`{"model_type": "gpt2", "n_layer": 0}`: "n_layer 0 is out of range",
		`{"model_type": "gpt2", "vocab_size": 99999999}`:                  "vocab_size 99999999 is out of range",
		`{"model_type": "gpt2", "n_head": 5}`:                             "n_head 5 does not divide n_embd 768",
		`{"model_type": "gpt2", "n_inner": 100}`:                          "n_inner 100 is not supported; want 4 × n_embd = 3072",
		`{"model_type": "gpt2", "activation_function": "relu"}`:           `activation_function "relu" is not supported; want gelu_new`,
		`{"model_type": "gpt2", "layer_norm_epsilon": 0}`:                 "layer_norm_epsilon 0 is out of range",
		`{"model_type": "gpt2", "tie_word_embeddings": false}`:            "tie_word_embeddings false is not supported",
		`{"model_type": "gpt2", "scale_attn_weights": false}`:             "scale_attn_weights false is not supported",
		`{"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true}`: "scale_attn_by_inverse_layer_idx is not supported",
		`{"model_type": "gpt2", "add_cross_attention": true}`:             "add_cross_attention is not supported",
	} {
		if _, err := parseModelConfig([]byte(raw)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v; want %s", raw, err, want)
		}
	}
	_, err := ReadModelConfig("gone")
	if err == nil || err.Error() != "gone/config.json cannot be read: no such file or directory" || !IsInput(err) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// The tokens that begin and end a text are those the model came with, also a
// list of them, or those that only generation_config.json has.
func TestTokensOfTextsAreKept(t *testing.T) {
	const llama = `"model_type": "llama", "vocab_size": 300, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8`
	for _, c := range []struct{ config, generation, bos, eos string }{
		{`{` + llama + `, "bos_token_id": 1, "eos_token_id": [2, 7]}`, ``, `1`, `[2,7]`},
		{`{` + llama + `, "bos_token_id": 1}`, `{"bos_token_id": 5, "eos_token_id": [3, 4]}`, `1`, `[3,4]`},
		{`{` + llama + `}`, `{"eos_token_id": "x"}`, `null`, `null`},
		{`{"model_type": "gpt2", "vocab_size": 300, "bos_token_id": 0, "eos_token_id": 299}`, ``, `0`, `299`},
		{`{"model_type": "gpt2"}`, `{"bos_token_id": 50256, "eos_token_id": 50256}`, `50256`, `50256`},
		{`{"model_type": "gpt2", "vocab_size": 300}`, ``, `null`, `null`},
	} {
		dir, out := t.TempDir(), t.TempDir()
		if err := os.WriteFile(dir+"/config.json", []byte(c.config), 0o666); err != nil {
			t.Fatal(err)
		}
		if c.generation != "" {
			if err := os.WriteFile(dir+"/generation_config.json", []byte(c.generation), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		m, err := ReadModelConfig(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := WriteModelConfig(out, m); err != nil {
			t.Fatal(err)
		}
		var got struct {
			BOS json.RawMessage `json:"bos_token_id"`
			EOS json.RawMessage `json:"eos_token_id"`
		}
		raw, err := os.ReadFile(out + "/config.json")
		if err == nil {
			err = json.Unmarshal(raw, &got)
		}
		flat := strings.NewReplacer(" ", "", "\n", "")
		if bos, eos := flat.Replace(string(got.BOS)), flat.Replace(string(got.EOS)); err != nil || bos != c.bos || eos != c.eos {
			t.Errorf("%s %s: written bos %s, eos %s (%v)", c.config, c.generation, bos, eos, err)
		}
	}
}
