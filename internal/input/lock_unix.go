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
func Lock(f *os.File) error { return lock(f, syscall.LOCK_EX) }

// Look returns ErrLocked if a file is locked. It holds a shared lock for an instant, which other
// looks do not notice.
func Look(f *os.File) error {
	if err := lock(f, syscall.LOCK_SH); err != nil {
		return err
	}
	return lock(f, syscall.LOCK_UN)
}

func lock(f *os.File, how int) error {
	for {
		switch err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrLocked
		default:
			return err
		}
	}
}
