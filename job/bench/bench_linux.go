package bench

import (
	"os"

	"golang.org/x/sys/unix"
)

// forget makes the system drop its cache of a file that is on disk, and reports whether it
// did.
func forget(f *os.File) bool { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) == nil }
