//go:build !unix

package vfs

import (
	"fmt"
	"os"
	"runtime"
)

const noFollow = 0

// lock is refused where there is no flock: two savers in one folder could
// then not be told apart from one.
func lock(f *os.File) error {
	return fmt.Errorf("lock %s: no file locks on %s; use a Unix system", f.Name(), runtime.GOOS)
}
