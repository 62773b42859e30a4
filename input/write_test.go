package input

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// Where writing fails an older file stays as it was, and nothing is left beside it.
func TestWriteIsWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "a"), filepath.Join(dir, "link")
	if err := WriteBytes(path, []byte("older")); err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space left on device")
	err := Write(path, func(w io.Writer) error {
		_, err := io.WriteString(w, "half of a newer one")
		return errors.Join(err, full)
	})
	if !errors.Is(err, full) {
		t.Errorf("%v, want %v", err, full)
	}
	holds(t, dir, path, "older")
	if err := os.Symlink("a", link); err != nil {
		t.Skip(err)
	}
	if err := WriteBytes(link, []byte("newer")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().IsRegular() {
		t.Errorf("the link is replaced: %v", err)
	}
	holds(t, dir, path, "newer", "link")
	if err := WriteBytes(filepath.Join(dir, "none", "a"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a folder that is not there: %v", err)
	}
}

// holds fails unless a file has this content, and its folder nothing else but others.
func holds(t *testing.T, dir, path, want string, others ...string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s holds %q, want %q: %v", path, got, want, err)
	}
	if in, err := os.ReadDir(dir); err != nil || len(in) != 1+len(others) {
		t.Errorf("beside it: %v, %v", in, err)
	}
}
