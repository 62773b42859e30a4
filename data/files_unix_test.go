//go:build unix

package data

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestPipesAreRefused: to read one would block.
func TestPipesAreRefused(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, s := range []Source{{Text: []string{"*"}}, {Tokens: []string{"pipe"}}} {
		s.Dir, s.Tokenizer, s.Context = dir, "bytes", 1
		if _, err := Open(t.Context(), s); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// TestTokenizersOfOtherFiles: to read a pipe would block, a device never end.
func TestTokenizersOfOtherFiles(t *testing.T) {
	for _, name := range []string{"vocab.json", "merges.txt", "tokenizer_config.json", "tokenizer.json", "added_tokens.json", "special_tokens_map.json"} {
		for what, make := range map[string]func(path string) error{
			"a pipe":   func(path string) error { return syscall.Mkfifo(path, 0o644) },
			"a device": func(path string) error { return os.Symlink("/dev/zero", path) },
			"a folder": func(path string) error { return os.Mkdir(path, 0o755) },
		} {
			dir := t.TempDir()
			if err := WriteTokenizer(dir, "bytes", Bytes{}); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, name)
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			if _, err := NewTokenizer(dir); err == nil || !strings.Contains(err.Error(), name+": it is "+what) {
				t.Errorf("%s as %s: %v", name, what, err)
			}
		}
	}
}
