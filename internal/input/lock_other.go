//go:build !unix

package input

import (
	"fmt"
	"os"
	"runtime"
)

const noFollow, noWait = 0, 0

// Lock fails: without flock, a file of a dead process is indistinguishable from one that
// is in use.
func Lock(*os.File) error {
	return fmt.Errorf("file locks are not supported on %s; use a Unix system", runtime.GOOS)
}

// Look fails like Lock.
func Look(f *os.File) error { return Lock(f) }
