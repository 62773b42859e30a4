//go:build !linux

package job

// resident is not told by this system.
func resident() (peak, files int64) { return 0, 0 }

// machineMemory is not told by this system.
func machineMemory() (bytes int64) { return 0 }
