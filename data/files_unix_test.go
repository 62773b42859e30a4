//go:build unix

package data

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestPipesAreRefused checks that no pipe is opened, which would block.
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

// TestTokenizerFilesMustBeRegular checks that reading a tokenizer refuses pipes and devices, which
// would block or never end.
func TestTokenizerFilesMustBeRegular(t *testing.T) {
	for _, name := range []string{"vocab.json", "merges.txt", "tokenizer_config.json", "tokenizer.json", "added_tokens.json", "special_tokens_map.json"} {
		for what, make := range map[string]func(path string) error{
			"a pipe":   func(path string) error { return syscall.Mkfifo(path, 0o644) },
			"a device": func(path string) error { return os.Symlink("/dev/zero", path) },
			"a folder": func(path string) error { return os.Mkdir(path, 0o755) },
		} {
			dir := t.TempDir()
			if err := writeTokenizer(dir, "bytes", Bytes{}); err != nil {
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

// Truncating or overwriting a token file in use is an error that names it, whoever reads it:
// no fault, and no id without an embedding in the model.
func TestTokenFileChangesWhileItIsUsed(t *testing.T) {
	const ids = 100_000
	for name, change := range map[string]func(path string) error{
		"it was truncated": func(path string) error { return os.Truncate(path, 5000) },
		"id 65535":         func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte{255}, 2*ids), 0o644) },
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "x.bin")
		if err := os.WriteFile(path, bytes.Repeat([]byte{7, 0, 9, 0}, ids/2), 0o644); err != nil {
			t.Fatal(err)
		}
		set, err := Open(t.Context(), Source{Tokens: []string{"x.bin"}, Dir: dir, DType: "uint16", Context: 4, Validation: 0.1})
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		input, target := make([]int32, 4), make([]int32, 4)
		if err := set.Train.Batch(Tokens(input, target, nil), 0); err != nil {
			t.Error(err)
		}
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		_, _, err = set.Train.corpus.scan(t.Context(), 10, func(int64, int64) {})
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: scanned: %v", name, err)
		}
		for part, s := range map[string]*Split{"training": set.Train, "validation": set.Validation} {
			err = nil
			for i := int64(0); i < s.Windows() && err == nil; i++ {
				err = s.Batch(Tokens(input, target, nil), i)
			}
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s, %s: %v", name, part, err)
			}
		}
	}
}

// The error for a folder that cannot be searched contains its whole path.
func TestUnreadableFolders(t *testing.T) {
	dir := tree(t, map[string]string{"sub/a.txt": "a"})
	if err := os.Symlink("loop", filepath.Join(dir, "sub", "loop")); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Source{Text: []string{"sub/loop/*.txt"}, Dir: dir, Tokenizer: "bytes", Context: 1})
	if want := filepath.Join(dir, "sub", "loop") + ": too many levels of symbolic links"; err == nil || !strings.Contains(err.Error(), "open "+want) {
		t.Errorf("%v\nwant %s", err, want)
	}
}
