//go:build !unix

package input

import (
	"fmt"
	"os"
	"runtime"
)

const noFollow, noWait = 0, 0

// Lock fails: there is no flock here, and a file of a dead process could not be told
// from one that is in use.
func Lock(*os.File) error {
	return fmt.Errorf("no file locks on %s; use a Unix system", runtime.GOOS)
}
