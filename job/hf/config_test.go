package hf

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zeroth/internal/input"
	"zeroth/job/jobtest"
	"zeroth/nn"
)

// gpt2JSON is the config.json of openai-community/gpt2, without generation settings.
const gpt2JSON = `{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
"bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257}`

var gpt2Small = Model{Family: "gpt2", Shape: nn.Shape{Layers: 12, Heads: 12, Width: 768, Context: 1024, Vocab: 50257, Eps: 1e-5, Dropout: nn.Dropout{Embed: 0.1, Residual: 0.1}}}

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
	for _, want := range []Model{gpt2Small, {Family: "gpt2", Shape: nn.Shape{Layers: 1, Heads: 3, Width: 9, Context: 7, Vocab: 256, Eps: 1e-6}}} {
		jobtest.Write(t, dir+"/config.json", string(want.ConfigJSON()))
		got, err := ReadModelConfig(dir)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%v %s", err, d)
		}
	}
}

// The file has the keys and values that GPT2Config expects.
func TestModelConfigKeys(t *testing.T) {
	dir := t.TempDir()
	jobtest.Write(t, dir+"/config.json", string(gpt2Small.ConfigJSON()))
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
		"bos_token_id": 50256.0, "eos_token_id": 50256.0, "torch_dtype": "float32", "attn_pdrop": 0.0, "embd_pdrop": 0.1, "resid_pdrop": 0.1,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// refused checks that a config of the family with some keys is refused with the table's message.
func refused(t *testing.T, family string, keys []string) {
	t.Helper()
	for _, in := range keys {
		raw := fmt.Sprintf(`{"model_type": %q, %s}`, family, in)
		_, err := parseModelConfig([]byte(raw))
		said.Same(t, raw, err)
	}
}

func TestModelConfigRefusals(t *testing.T) {
	refused(t, "bert", []string{`"n_layer": 0`})
	refused(t, "gpt2", []string{
		`"n_layer": 0`,
		`"torch_dtype": 32`,
		`"dtype": {"": "float32"}`,
		`"n_layer": -1`,
		`"n_layer": 10001`,
		`"n_layer": null`,
		`"n_layer": 2.5`,
		`"n_layer": "two"`,
		`"n_layer": 1e40`,
		`"n_layer": [12]`,
		`"n_layer": "\u202e` + strings.Repeat("x", 199) + `"`,
		`"vocab_size": 99999999`,
		`"n_head": 5`,
		`"n_head": 12, "num_attention_heads": 6`,
		`"num_hidden_layers": 0`,
		`"n_inner": 0`,
		`"activation_function": "mish"`,
		`"layer_norm_epsilon": 0`,
		`"tie_word_embeddings": null`,
		`"scale_attn_weights": 0`,
		`"scale_attn_by_inverse_layer_idx": null`,
		`"add_cross_attention": true`,
		`"is_causal": false`,
		`"per_layer_config": {"0": {"n_head": 6}}`,
		`"quantization_config": {"bits": 4}`,
		`"is_causal": null`,
		`"is_encoder_decoder": true`,
		`"pruned_heads": {"0": [1]}`,
		`"architectures": ["GPT2ForSequenceClassification"]`,
		`"architectures": "GPT2LMHeadModel"`,
		`"auto_map": {"AutoModelForCausalLM": "a.B"}`,
		`"attn_pdrop": -0.1`,
		`"eos_token_id": "x"`,
		`"n_layer": 0, "n_head": 5, "is_causal": false`,
	})
	for _, raw := range []string{
		`{}`,
		`{"model_type": "phi"}`,
		`{"model_type": "starcoder2"}`,
		`{"model_type": 2}`,
		`[]`,
		`null`,
		"{\n\"model_type\":\n\"gpt2\",}",
		`{"model_type": "gpt2"} 5`,
		`{"model_type": "gpt2", "n_head": 4, "n_head": 2}`,
		`{"model_type": "gpt2", "a": [{"b": 1, "b": 2}]}`,
		`{"a": ` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`,
		"\xef\xbb\xbf{}",
		"{\"model_type\": \"gpt\xff\"}",
		"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
	} {
		_, err := parseModelConfig([]byte(raw))
		said.Same(t, raw, err)
	}
	_, err := ReadModelConfig("gone")
	if err == nil || err.Error() != "gone/config.json cannot be read: no such file or directory" || !input.IsInput(err) {
		t.Errorf("a missing folder: %v", err)
	}
}

// GPT2Config also accepts the names that other families use.
func TestGPT2Aliases(t *testing.T) {
	got, notes, err := ReadModel([]byte(`{"model_type": "gpt2", "num_hidden_layers": 3, "num_attention_heads": 2, "n_head": 2, "hidden_size": 8,
		"max_position_embeddings": 16, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0.0, "pad_token_id": -7}`))
	want := Model{Family: "gpt2", Shape: nn.Shape{Layers: 3, Heads: 2, Width: 8, Context: 16, Vocab: 50257, Eps: 1e-5}} // GPT-2 ignores pad_token_id
	if d := cmp.Diff(want, got); err != nil || d != "" || len(notes) > 0 {
		t.Errorf("%v %s %q", err, d, notes)
	}
}

// Accepted settings that may surprise are noted.
func TestModelConfigNotes(t *testing.T) {
	none := `"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0`
	for raw, want := range map[string]string{
		`"model_type": "gpt2"`: "config.json sets dropout of attention weights (attn_pdrop 0.1): training applies none, unless model.attention_dropout is set|" +
			"config.json sets dropout (embd_pdrop 0.1, resid_pdrop 0.1): training applies it, unless model.dropout is set",
		`"model_type": "gpt2", "attn_pdrop": 0.25, "embd_pdrop": 0, "resid_pdrop": 0.0`: "config.json sets dropout of attention weights (attn_pdrop 0.25): training applies none, unless model.attention_dropout is set",
		`"model_type": "gpt2", "reorder_and_upcast_attn": true, ` + none:                "config.json has reorder_and_upcast_attn: attention always sums in float32",
		`"model_type": "llama", "attention_dropout": 0.1`:                               "config.json sets dropout of attention weights (attention_dropout 0.1): training applies none, unless model.attention_dropout is set",
		`"model_type": "phi3", "resid_pdrop": 0.25, "embd_pdrop": 0.5`:                  "config.json sets dropout (resid_pdrop 0.25): training applies it, unless model.dropout is set",
		`"model_type": "llama", "attention_dropout": null`:                              "",
		`"model_type": "llama", "NUM_HIDDEN_LAYERS": 3, "x\u0007y": {}`:                 "config.json has unknown keys, which are ignored: NUM_HIDDEN_LAYERS, x\\ay",
	} {
		_, notes, err := ReadModel([]byte("{" + raw + "}"))
		if err != nil || strings.Join(notes, "|") != want {
			t.Errorf("%s: %v %q, want %q", raw, err, notes, want)
		}
	}
}

// Every key that transformers writes for the families is known, in two major versions, and its
// default values give the default model.
func TestKeysOfTransformers(t *testing.T) {
	raw, err := os.ReadFile("testdata/transformers-configs.json")
	if err != nil {
		t.Fatal(err)
	}
	var versions map[string]map[string]json.RawMessage
	if err := json.Unmarshal(raw, &versions); err != nil || len(versions) != 2 {
		t.Fatal(len(versions), err)
	}
	for version, families := range versions {
		for family, config := range families {
			got, notes, err := ReadModel(config)
			want, _, wrong := ReadModel(fmt.Appendf(nil, `{"model_type": %q}`, family))
			got.BOS, got.EOS, want.BOS, want.EOS = "", "", "", "" // for these, a missing key does not mean the class's default
			if d := cmp.Diff(want, got); err != nil || wrong != nil || d != "" {
				t.Errorf("%s %s: %v %v %s", version, family, err, wrong, d)
			}
			for _, note := range notes {
				if !strings.Contains(note, "dropout") {
					t.Errorf("%s %s: %s", version, family, note)
				}
			}
		}
	}
}

// The tokens that begin and end a text are preserved, including lists, and tokens that only
// generation_config.json gives.
func TestTextTokensArePreserved(t *testing.T) {
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
		jobtest.Write(t, out+"/config.json", string(m.ConfigJSON()))
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

// The reference lists every key that is read or refused, and every carried file.
func TestModelPage(t *testing.T) {
	raw, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	names := slices.Concat(slices.Collect(maps.Keys(neutral)), carriedNames)
	for _, family := range Families() {
		o, err := readObject(fmt.Appendf(nil, `{"model_type": %q, "rope_scaling": {"type": "llama3"}}`, family))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := o.model(); err == nil && family != "gpt2" {
			t.Errorf("%s: a llama3 without numbers was read", family)
		}
		names = append(names, slices.Collect(maps.Keys(o.asked))...)
	}
	for _, name := range names {
		if !strings.Contains(string(raw), "`"+name+"`") {
			t.Errorf("docs/reference.md has no `%s`", name)
		}
	}
}

// The size of a config.json is limited, and checked before it is read.
func TestModelConfigHasALimit(t *testing.T) {
	dir := t.TempDir()
	jobtest.Write(t, dir+"/config.json", strings.Repeat(" ", maxJSON+1))
	if _, err := ReadModelConfig(dir); err == nil || !input.IsInput(err) || !strings.HasSuffix(err.Error(), "config.json cannot be read: it is larger than the limit of 2097152 bytes for such a file") {
		t.Errorf("%v", err)
	}
}

func parseModelConfig(raw []byte) (Model, error) {
	m, _, err := ReadModel(raw)
	return m, err
}
