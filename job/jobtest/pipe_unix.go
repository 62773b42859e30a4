//go:build unix

package jobtest

import (
	"syscall"
	"testing"
)

// Pipe makes a pipe that nobody writes to.
func Pipe(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}
