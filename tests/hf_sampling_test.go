package tests

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"zeroth/job/generate"
)

// TestSamplingLikeTransformers checks that a model with a generation_config.json generates the tokens
// of transformers' generate, given the same random numbers; see sampling.py.
func TestSamplingLikeTransformers(t *testing.T) {
	raw, err := os.ReadFile("testdata/hf-families/sampling.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Config json.RawMessage
		Cases  []struct {
			Settings    json.RawMessage
			Prompt, IDs []rune // below 128, so that each is a byte of a text
			Seed        uint64
		}
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	folder, _ := writeFamily(t, all.Config)
	ended := 0
	for i, c := range all.Cases {
		if err := os.WriteFile(filepath.Join(folder, "generation_config.json"), c.Settings, 0o644); err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		o := generate.Options{Run: folder, Tokenizer: "bytes", Prompt: string(c.Prompt), Tokens: 40, Seed: c.Seed, Chosen: map[string]bool{}}
		if err := generate.Sample(t.Context(), o, &text); err != nil {
			t.Fatal(err)
		}
		want := string(c.Prompt) + string(c.IDs)
		if len(c.IDs) < o.Tokens { // the last one ended the text, which is not written
			want = want[:len(want)-1]
			ended++
		}
		if text.String() != want {
			t.Errorf("case %d, %s: %q, want %q", i, c.Settings, text.String(), want)
		}
	}
	if ended == 0 {
		t.Error("no text ended early")
	}
}
