package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The committed assembly is what the generator writes.
func TestCommittedFilesMatch(t *testing.T) {
	dir := t.TempDir()
	for _, f := range files {
		if err := generate(dir, f.name, f.body); err != nil {
			t.Fatal(err)
		}
		for _, suffix := range []string{"_amd64.s", "_stubs_amd64.go"} {
			want, err := os.ReadFile(filepath.Join(dir, f.name+suffix))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join("..", f.name+suffix))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs from what the generator writes: go run -C device/cpu/asm .", f.name+suffix)
			}
		}
	}
}
