//go:build !linux

package machine

// Resident returns 0: this system does not report it.
func Resident() (peak, files int64) { return 0, 0 }

// Machine returns nothing: this system does not report it.
func Machine() Memory { return Memory{} }

// Processors returns nothing: this system does not report it.
func Processors() Cores { return Cores{} }

// Ulimits returns nothing: this system does not report it.
func Ulimits() Bounds { return Bounds{} }
