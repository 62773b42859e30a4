//go:build !unix

package offload

import (
	"fmt"
	"os"
	"runtime"
)

// lock is refused where there is no flock: the file of a dead run could not be
// told from that of one alive.
func lock(*os.File) error {
	return fmt.Errorf("no file locks on %s: offload to the host instead", runtime.GOOS)
}
