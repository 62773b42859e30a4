package data

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/tests/nightly"
)

// TestClassesAreTransformers checks that a tokenizer is read with the ids of the class that
// transformers chooses by tokenizer_class and the type of the model, or refused; see
// tests/interop/classes.py.
func TestClassesAreTransformers(t *testing.T) {
	nightly.Long(t)
	var all struct {
		Strings []string
		Cases   []struct {
			Family        string
			Config, Model json.RawMessage
			Plain         bool
			IDs           [][]int32
		}
	}
	readRecorded(t, "testdata/classes.json.gz", &all)
	equal := map[bool]int{} // by whether the class builds its own tokenizer of Llama's kind
	dir := t.TempDir()
	for _, c := range all.Cases {
		ownFolder(t, dir, c.Family, map[string]string{"tokenizer_config.json": string(c.Config), "config.json": string(c.Model)})
		if c.Plain {
			setJSON(t, filepath.Join(dir, "tokenizer.json"), "normalizer", nil)
		}
		tok, err := NewTokenizer(dir)
		if err != nil {
			continue
		}
		if c.IDs == nil {
			t.Errorf("%s %s %s: transformers cannot read it", c.Family, c.Config, c.Model)
			continue
		}
		for i, s := range all.Strings {
			if got := tok.Encode([]byte(s)); !slices.Equal(got, c.IDs[i]) {
				t.Errorf("%s %s %s: %q: %v, want %v", c.Family, c.Config, c.Model, s, got, c.IDs[i])
			}
		}
		f, ok := tok.(*Folder)
		equal[ok && strings.HasPrefix(f.as, "Llama")]++
	}
	if equal[true] < 50 || equal[false] < 150 {
		t.Errorf("only %d and %d of %d are read", equal[true], equal[false], len(all.Cases))
	}
	t.Logf("%d with a tokenizer of LlamaTokenizer's and %d others are equal, of %d", equal[true], equal[false], len(all.Cases))
}

// setJSON sets a key of a file with an object.
func setJSON(t *testing.T, path, key string, value any) {
	t.Helper()
	text, err := os.ReadFile(path)
	var all map[string]any
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	all[key] = value
	write(t, path, mustJSON(t, all))
}
