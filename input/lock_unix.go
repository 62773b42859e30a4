//go:build unix

package input

import (
	"errors"
	"os"
	"syscall"
)

// noFollow and noWait are flags for open: fail on a symbolic link, and do not block on a
// pipe.
const (
	noFollow = syscall.O_NOFOLLOW
	noWait   = syscall.O_NONBLOCK
)

// Lock acquires the exclusive flock(2) lock of a file without blocking, or returns
// ErrLocked. The kernel releases the lock when the last descriptor is closed, even after
// kill -9.
func Lock(f *os.File) error {
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrLocked
		default:
			return err
		}
	}
}
