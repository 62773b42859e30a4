package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// TestCarry packs files, of which two are alike but far apart, and unpacks them.
func TestCarry(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new")
	program := make([]byte, 8<<20) // a window of the default size does not reach the second one
	rng := rand.NewChaCha8([32]byte{})
	_, _ = rng.Read(program)
	files := map[string][]byte{"a": program, "b": bytes.Clone(program), "empty": nil}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(from, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var packed bytes.Buffer
	if err := pack(&packed, from); err != nil {
		t.Fatal(err)
	}
	if n := packed.Len(); n > len(program)*11/10 {
		t.Errorf("%d bytes: the second program was not found to be the first", n)
	}
	if err := unpack(to, bytes.NewReader(packed.Bytes())); err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		data, err := os.ReadFile(filepath.Join(to, name))
		if info, _ := os.Stat(filepath.Join(to, name)); err != nil || !bytes.Equal(data, want) || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %d bytes, want %d (%v)", name, len(data), len(want), err)
		}
	}
	if err := unpack(to, bytes.NewReader(packed.Bytes())); !os.IsExist(err) {
		t.Errorf("into a folder that exists: %v", err)
	}
	if err := unpack(to+"2", bytes.NewReader(packed.Bytes()[:packed.Len()/2])); err == nil {
		t.Error("half of an archive was unpacked")
	}
}
