//go:build !linux

package job

// resident is not told by this system.
func resident() (peak, files int64) { return 0, 0 }

// machine is not told by this system.
func machine() memory { return memory{} }
