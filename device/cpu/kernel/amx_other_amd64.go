//go:build !linux

package kernel

// permitAMX returns false: AMX is untested on other systems.
func permitAMX() bool { return false }
