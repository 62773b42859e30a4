//go:build unix

package input

import (
	"errors"
	"os"
	"syscall"
)

// noFollow and noWait are flags of open: fail on a symbolic link, and do not wait for
// the other end of a pipe.
const (
	noFollow = syscall.O_NOFOLLOW
	noWait   = syscall.O_NONBLOCK
)

// Lock takes the whole-file lock of flock(2) without waiting, or returns ErrLocked. The
// kernel drops it when the last descriptor is closed, also by kill -9.
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
