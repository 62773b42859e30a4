package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// control runs an operation on a file's descriptor.
func control(f *os.File, op func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := c.Control(func(fd uintptr) { failed = op(int(fd)) }); err != nil {
		return err
	}
	return failed
}

func allocate(f *os.File, n int64) error {
	err := control(f, func(fd int) error { return unix.Fallocate(fd, 0, 0, n) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return errors.ErrUnsupported
	}
	return err
}

func direct(f *os.File, on bool) bool {
	err := control(f, func(fd int) error {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			return err
		}
		flags &^= unix.O_DIRECT
		if on {
			flags |= unix.O_DIRECT
		}
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
		return err
	})
	return on && err == nil
}
