//go:build !linux

package bench

import "os"

// forget returns false: this system has no way to drop a file's cache.
func forget(*os.File) bool { return false }
