//go:build unix

package vfs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// List and Lstat report links themselves; Stat and Open follow them; Remove removes only the
// link. Open refuses anything that is not a file, without blocking.
func TestLinksAndPipes(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{os.Mkdir(in("d"), 0o777), os.WriteFile(in("d/f"), []byte("words"), 0o666), os.Symlink("d", in("to-d")),
		os.Symlink("d/f", in("to-f")), os.Symlink("none", in("to-none")), syscall.Mkfifo(in("pipe"), 0o666), os.Symlink("/dev/zero", in("to-zero"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	kinds := map[string][2]Kind{"d": {Dir, Dir}, "to-d": {Link, Dir}, "to-f": {Link, Regular}, "pipe": {Other, Other}, "to-zero": {Link, Other}}
	list, err := OS{}.List(dir)
	if err != nil || len(list) != 6 {
		t.Fatalf("%v, %v", list, err)
	}
	for _, e := range list {
		if want, ok := kinds[e.Name]; ok && e.Kind != want[0] {
			t.Errorf("listed %+v", e)
		}
	}
	for name, want := range kinds {
		l, err := OS{}.Lstat(in(name))
		s, err2 := OS{}.Stat(in(name))
		if err != nil || err2 != nil || l.Kind != want[0] || s.Kind != want[1] {
			t.Errorf("%s: %v and %v, %v, %v", name, l, s, err, err2)
		}
	}
	done := make(chan bool)
	go func() {
		for _, name := range []string{"d", "to-d", "pipe", "to-zero"} {
			if _, err := (OS{}).Open(in(name)); err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("%s: %v", name, err)
			}
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("opening a pipe blocks")
	}
	if b, err := ReadFile(OS{}, in("to-f"), 5); err != nil || string(b) != "words" {
		t.Errorf("read through a link: %q, %v", b, err)
	}
	for _, name := range []string{"to-d", "to-f", "to-none"} {
		if err := (OS{}).Remove(in(name)); err != nil {
			t.Error(err)
		}
	}
	if b, err := os.ReadFile(in("d/f")); err != nil || string(b) != "words" {
		t.Errorf("the targets of links: %q, %v", b, err)
	}
}
