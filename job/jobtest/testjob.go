package jobtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// InFolder makes a folder the current one, with a text file a.txt in it, and
// writes the job to job.yaml.
func InFolder(t testing.TB, job string) {
	t.Helper()
	t.Chdir(t.TempDir())
	Write(t, "a.txt", "to be, or not to be")
	Write(t, "job.yaml", job)
}

// Write writes a file; a failure ends the test.
func Write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// WriteVocabulary writes a byte-pair vocabulary without a merge, of which
// <|endoftext|> is the last token.
func WriteVocabulary(t *testing.T, folder string, last int) {
	t.Helper()
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	ids, other := map[string]int{"<|endoftext|>": last}, 256
	for b := range 256 {
		r := rune(b) // a byte is written as the character of its number if that prints, else as one from 256 on
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad {
			r = rune(other)
			other++
		}
		ids[string(r)] = b
	}
	raw, err := json.Marshal(ids)
	if err != nil {
		t.Fatal(err)
	}
	Write(t, filepath.Join(folder, "vocab.json"), string(raw))
	Write(t, filepath.Join(folder, "merges.txt"), "#version: 0.2\n")
	Write(t, filepath.Join(folder, "tokenizer_config.json"), `{"tokenizer_class": "GPT2Tokenizer"}`)
}

// Least is the smallest job file there is: a text, and defaults.
const Least = "data: {text: [a.txt]}\n"
