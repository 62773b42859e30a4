//go:build !linux

package machine

// Resident is not told by this system.
func Resident() (peak, files int64) { return 0, 0 }

// Machine is not told by this system.
func Machine() Memory { return Memory{} }

// Processors are not told by this system.
func Processors() Cores { return Cores{} }

// Ulimits are not told by this system.
func Ulimits() Bounds { return Bounds{} }
