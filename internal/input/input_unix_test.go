//go:build unix

package input_test

import (
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/internal/input"
)

// TestSpecialFilesAreRefused checks that files which would be read forever, or block, are
// refused at once, before they are opened.
func TestSpecialFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	pipe, socket := filepath.Join(dir, "pipe"), filepath.Join(dir, "socket")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for path, what := range map[string]string{pipe: "a pipe", socket: "a socket", "/dev/zero": "a device", "/dev/null": "a device"} {
		done := make(chan error, 1)
		go func() { _, err := input.Read(path, 1<<20); done <- err }()
		select {
		case err := <-done:
			if at := (*fs.PathError)(nil); !errors.As(err, &at) || at.Path != path || !strings.Contains(err.Error(), "it is "+what+", not a regular file") {
				t.Errorf("%s: %v", path, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("reading %s blocks", path)
		}
	}
}
