//go:build unix

package data

import (
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
