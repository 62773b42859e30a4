//go:build unix

package vfs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// noFollow refuses a symbolic link.
const noFollow = syscall.O_NOFOLLOW

// lock takes the whole-file lock of flock(2), which the kernel drops when the
// last descriptor is closed, also by kill -9.
func lock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrLocked
		}
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
}
