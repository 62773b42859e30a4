//go:build unix

package world

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// private returns an error if anybody but this process's user can access a file or folder.
func private(info fs.FileInfo) error {
	s, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("this system does not report its owner")
	case int(s.Uid) != os.Getuid():
		return fmt.Errorf("it belongs to user %d, but this process to user %d", s.Uid, os.Getuid())
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("it has mode %04o, so other users can use it; want %04o", info.Mode().Perm(), info.Mode().Perm()&0o700)
	}
	return nil
}
