//go:build unix

package input

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Outputs replace only regular files: anything else is refused without blocking, and is
// unchanged. Nothing is written through a link.
func TestOutputsAreRegularFiles(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	l, err := net.Listen("unix", in("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, err := range []error{syscall.Mkfifo(in("pipe"), 0o600), os.Mkdir(in("folder"), 0o700), os.WriteFile(in("victim"), []byte("precious"), 0o600),
		os.Symlink("victim", in("link")), os.Symlink("none", in("nowhere")), os.Symlink("pipe", in("link to a pipe"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan bool)
	go func() {
		defer close(done)
		for path, what := range map[string]string{in("pipe"): "a pipe", in("socket"): "a socket", in("folder"): "a folder", in("link"): "a link", in("nowhere"): "a link", in("link to a pipe"): "a link", "/dev/null": "a device"} {
			_, appended := OpenOwn(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
			for _, err := range []error{WriteBytes(path, []byte("ours")), appended} {
				if err == nil || !strings.Contains(err.Error(), path+": it is "+what+", not a regular file") {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("opening an output blocks")
	}
	if err := Folder(in("link to the folder")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(in("link to the folder")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("folder", in("link to the folder")); err != nil {
		t.Fatal(err)
	}
	if err := Folder(in("link to the folder")); err == nil || !strings.Contains(err.Error(), "it is a link, not a folder") {
		t.Errorf("a link to a folder: %v", err)
	}
	holds(t, dir, in("victim"), "precious", "socket", "pipe", "folder", "link", "nowhere", "link to a pipe", "link to the folder")
}

// The leftovers of a killed process are removed by the next one that writes to the folder.
// Files being written, and files with similar names, remain.
func TestSweep(t *testing.T) {
	if path := os.Getenv("INPUT_KILLED"); path != "" {
		if _, err := Create(path); err != nil {
			panic(err)
		}
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	cmd := exec.Command(os.Args[0], "-test.run=TestSweep")
	cmd.Env = append(os.Environ(), "INPUT_KILLED="+path)
	_ = cmd.Run() // it is killed
	names := func() (all []string) {
		in, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range in {
			all = append(all, e.Name())
		}
		return all
	}
	leftovers := names()
	if len(leftovers) != 1 || !IsTemp(leftovers[0]) {
		t.Fatalf("leftovers of a killed process: %v", leftovers)
	}
	growing, err := Create(filepath.Join(dir, "b"))
	if err != nil {
		t.Fatal(err)
	}
	if now := names(); len(now) != 1 || now[0] == leftovers[0] {
		t.Errorf("%v is still there: %v", leftovers, now)
	}
	for _, name := range []string{tempPrefix, tempPrefix + "mine", tempPrefix + strings.Repeat("0", 26), "x" + tempPrefix + strings.Repeat("A", 26)} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("none", filepath.Join(dir, tempPrefix+strings.Repeat("B", 26))); err != nil {
		t.Fatal(err)
	}
	Sweep(dir)
	if err := growing.Keep(); err != nil {
		t.Errorf("a file that was being written: %v", err)
	}
	if now := names(); len(now) != 6 {
		t.Errorf("remaining: %v", now)
	}
}
