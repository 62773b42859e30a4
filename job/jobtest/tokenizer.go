package jobtest

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// WriteTokenizer writes a tokenizer.json in the manner of a family, as
// data/tokenizer/testdata has it, and a tokenizer_config.json beside it.
func WriteTokenizer(t *testing.T, folder, family, config string) {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	f, err := os.Open(filepath.Join(filepath.Dir(here), "..", "..", "data", "tokenizer", "testdata", family+".json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	Write(t, filepath.Join(folder, "tokenizer.json"), string(text))
	Write(t, filepath.Join(folder, "tokenizer_config.json"), config)
}
