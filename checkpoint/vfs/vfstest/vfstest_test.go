package vfstest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"zeroth/checkpoint/vfs"
)

// Mem and OS give the same results, step by step.
func TestTwinsAgree(t *testing.T) {
	for what, f := range map[string]vfs.FS{"OS": vfs.OS{}, "Mem": &Mem{}, "Hook": Hook{FS: &Mem{}, Before: func(Op) error { return nil }}} {
		dir := t.TempDir()
		if err := vfs.MkdirAll(f, dir); err != nil {
			t.Fatal(what, err)
		}
		in := func(name string) string { return filepath.Join(dir, name) }
		is := func(err, want error) {
			t.Helper()
			if !errors.Is(err, want) || (want == nil && err != nil) {
				t.Errorf("%s: got %v, want %v", what, err, want)
			}
		}
		fails := func(err error) {
			t.Helper()
			if err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		file, err := f.Create(in("a"))
		is(err, nil)
		_, err = f.Create(in("a"))
		is(err, fs.ErrExist)
		_, err = f.Open(in("b"))
		is(err, fs.ErrNotExist)
		_, err = f.Stat(in("b/c"))
		is(err, fs.ErrNotExist)
		_, err = file.WriteAt([]byte("xyz"), 2)
		is(err, nil)
		is(file.Sync(), nil)
		is(file.Close(), nil)
		is(f.Mkdir(in("d")), nil)
		is(f.Mkdir(in("d")), fs.ErrExist)
		is(f.Mkdir(in("e/f")), fs.ErrNotExist)
		is(vfs.WriteFile(f, in("d/x"), []byte("one")), nil)
		fails(f.Remove(in("d")))
		is(f.Rename(in("a"), in("d/x")), nil)
		is(f.Rename(in("a"), in("q")), fs.ErrNotExist)
		is(f.SyncDir(in("d")), nil)
		b, err := vfs.ReadFile(f, in("d/x"), 5)
		is(err, nil)
		if !bytes.Equal(b, []byte("\x00\x00xyz")) {
			t.Errorf("%s: read %q", what, b)
		}
		_, err = vfs.ReadFile(f, in("d/x"), 4)
		fails(err)
		ro, err := f.Open(in("d/x"))
		is(err, nil)
		_, err = ro.WriteAt([]byte("no"), 0)
		fails(err)
		is(vfs.ReadFull(ro, make([]byte, 2), 4), io.ErrUnexpectedEOF)
		l, err := f.List(dir)
		is(err, nil)
		if len(l) != 1 || l[0] != (vfs.Entry{Name: "d", Kind: vfs.Dir, Bytes: l[0].Bytes}) {
			t.Errorf("%s: %+v", what, l)
		}
		fails(f.Rename(in("d"), in("d/x")))
		is(f.Mkdir(in("full")), nil)
		is(vfs.WriteFile(f, in("full/x"), nil), nil)
		fails(f.Rename(in("d"), in("full")))
		is(f.Remove(in("nope")), fs.ErrNotExist)
		_, err = f.Open(in("d"))
		fails(err)
		is(f.Remove(in("d/x")), nil)
		is(f.Remove(in("d")), nil)
		b = make([]byte, 3)
		is(vfs.ReadFull(ro, b, 2), nil) // an open file remains readable after its name is removed
		lock, err := f.Lock(in(".lock"))
		is(err, nil)
		_, err = f.Lock(in(".lock"))
		is(err, vfs.ErrLocked)
		is(lock.Close(), nil)
		again, err := f.Lock(in(".lock"))
		is(err, nil)
		is(again.Close(), nil)
		is(vfs.MkdirAll(f, in("g/h/i")), nil)
		is(vfs.MkdirAll(f, in("g/h/i")), nil)
		fails(vfs.MkdirAll(f, in(".lock")))
		if e, err := f.Stat(in("g/h")); err != nil || e.Kind != vfs.Dir {
			t.Errorf("%s: %+v, %v", what, e, err)
		}
		if e, err := f.Lstat(in("full/x")); err != nil || e != (vfs.Entry{Name: "x"}) {
			t.Errorf("%s: %+v, %v", what, e, err)
		}
		is(ro.Close(), nil)
	}
}

// If several race for a name, one creates the file and one renames a folder to it.
func TestConditionalCommit(t *testing.T) {
	for what, f := range map[string]vfs.FS{"OS": vfs.OS{}, "Mem": &Mem{}} {
		dir := t.TempDir()
		in := func(name string) string { return filepath.Join(dir, name) }
		if err := vfs.MkdirAll(f, dir); err != nil {
			t.Fatal(err)
		}
		var created, renamed atomic.Int32
		var all sync.WaitGroup
		for i := range 8 {
			mine := in(fmt.Sprint("mine", i))
			if err := errors.Join(f.Mkdir(mine), vfs.WriteFile(f, filepath.Join(mine, "x"), nil)); err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				if out, err := f.Create(in("file")); err == nil {
					created.Add(1)
					out.Close()
				}
				if f.Rename(mine, in("folder")) == nil {
					renamed.Add(1)
				}
			})
		}
		all.Wait()
		if created.Load() != 1 || renamed.Load() != 1 {
			t.Errorf("%s: %d created the file and %d renamed their folder", what, created.Load(), renamed.Load())
		}
	}
}

// After a power loss only synced changes must survive; others may.
func TestPowerLoss(t *testing.T) {
	m := &Mem{}
	a, _ := m.Create("/a")
	a.WriteAt([]byte("old!"), 0)
	a.Sync()
	m.SyncDir("/")
	a.WriteAt([]byte("new!"), 0)
	m.Rename("/a", "/b")
	n := m.Ops()
	state := func(content, name Outcome) (string, string) {
		c := m.AfterPowerLoss(n, func(c Change) Outcome {
			if c.Name {
				return name
			}
			return content
		})
		l, _ := c.List("/")
		b, _ := vfs.ReadFile(c, "/"+l[0].Name, 9)
		return l[0].Name, string(b)
	}
	for _, c := range []struct {
		content, name Outcome
		want, data    string
	}{{Lost, Lost, "a", "old!"}, {Lost, Kept, "b", "old!"}, {Kept, Lost, "a", "new!"}, {Torn, Torn, "a", "ned!"}} {
		if name, data := state(c.content, c.name); name != c.want || data != c.data {
			t.Errorf("outcomes %v: %s contains %q, want %s and %q", c, name, data, c.want, c.data)
		}
	}
	a.Sync()
	m.SyncDir("/")
	n = m.Ops()
	if name, data := state(Lost, Lost); name != "b" || data != "new!" {
		t.Errorf("after sync: %s contains %q", name, data)
	}
	gone := m.AfterPowerLoss(2, func(Change) Outcome { return Lost })
	if l, _ := gone.List("/"); len(l) != 0 {
		t.Errorf("a name that was never synced survived: %v", l)
	}
}

func TestHookFails(t *testing.T) {
	full := errors.New("disk full")
	var seen []string
	f := Hook{FS: vfs.OS{}, Before: func(o Op) error {
		seen = append(seen, o.Do)
		if o.Do == "write" && o.Off > 0 {
			return full
		}
		return nil
	}}
	path := filepath.Join(t.TempDir(), "x")
	file, err := f.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	file.WriteAt([]byte("abcd"), 0)
	if _, err := file.WriteAt([]byte("efgh"), 4); err != full {
		t.Errorf("got %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "abcdef" {
		t.Errorf("the file contains %q", b)
	}
	if len(seen) != 3 || !(Op{Do: "write"}).Changes() || (Op{Do: "read"}).Changes() {
		t.Errorf("saw %v", seen)
	}
}
