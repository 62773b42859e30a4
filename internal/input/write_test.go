package input

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// If writing fails, an older file is unchanged and no temporary file remains.
func TestWriteIsWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
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
	if err := WriteBytes(path, []byte("newer")); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, path, "newer")
	if err := WriteBytes(filepath.Join(dir, "none", "a"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a missing folder: %v", err)
	}
}

// holds checks the content of a file, and that its folder contains only it and others.
func holds(t *testing.T, dir, path, want string, others ...string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s holds %q, want %q: %v", path, got, want, err)
	}
	if in, err := os.ReadDir(dir); err != nil || len(in) != 1+len(others) {
		t.Errorf("the folder contains %v, %v", in, err)
	}
}

// Concurrent writers of one file do not disturb each other: the last one to finish wins,
// with its complete content.
func TestWritersOfOneFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for range 20 {
				if err := WriteBytes(path, bytes.Repeat([]byte{byte('a' + n)}, 1000)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	got, err := os.ReadFile(path)
	if err != nil || len(got) != 1000 || bytes.Count(got, got[:1]) != 1000 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	holds(t, dir, path, string(got))
}

// Exactly one of several concurrent writers of a new file succeeds.
func TestWritersOfANewFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	var files []*File
	for range 8 {
		f, err := Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("content")); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	var all sync.WaitGroup
	var kept atomic.Int64
	for _, f := range files {
		all.Go(func() {
			if err := f.KeepNew(); err == nil {
				kept.Add(1)
			} else if !errors.Is(err, fs.ErrExist) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if kept.Load() != 1 {
		t.Errorf("%d of 8 were kept", kept.Load())
	}
	holds(t, dir, path, "content")
}

// Abandon removes files that are being written and spares completed ones.
func TestAbandon(t *testing.T) {
	if dir := os.Getenv("INPUT_ABANDON"); dir != "" {
		_, err := Create(filepath.Join(dir, "half"))
		temp, wrong := TempDir("zeroth-test-")
		if err := errors.Join(err, wrong, WriteBytes(filepath.Join(dir, "whole"), []byte("x")), os.WriteFile(filepath.Join(temp, "x"), nil, 0o600)); err != nil {
			panic(err)
		}
		os.Stdout.WriteString(temp)
		Abandon()
		os.Exit(0)
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=TestAbandon")
	cmd.Env = append(os.Environ(), "INPUT_ABANDON="+dir)
	temp, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	holds(t, dir, filepath.Join(dir, "whole"), "x")
	if len(temp) == 0 || Exists(string(temp)) {
		t.Errorf("the temporary folder %q is still there", temp)
	}
}
