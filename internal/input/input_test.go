package input_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/internal/input"
)

func write(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRead reads files up to the limit, also through links, and refuses larger ones.
func TestRead(t *testing.T) {
	for _, size := range []int{0, 1, 99, 100} {
		want := bytes.Repeat([]byte("x"), size)
		path := write(t, want)
		link := path + "-link"
		if err := os.Symlink(path, link); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{path, link} {
			if got, err := input.Read(p, 100); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes: %q, %v", size, got, err)
			}
		}
	}
	_, err := input.Read(write(t, make([]byte, 101)), 100)
	if err == nil || !strings.Contains(err.Error(), "larger than the limit of 100 bytes") {
		t.Errorf("101 bytes: %v", err)
	}
}

// TestOpen checks that Open returns the file itself and passes on the system's errors.
func TestOpen(t *testing.T) {
	f, err := input.Open(write(t, []byte("abc")), 3)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || string(got) != "abc" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := input.Open(filepath.Join(t.TempDir(), "none"), 3); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "open ") {
		t.Errorf("no file: %v", err)
	}
	if _, err := input.Open(t.TempDir(), 3); err == nil || !strings.Contains(err.Error(), "it is a folder, not a regular file") {
		t.Errorf("a folder: %v", err)
	}
}
