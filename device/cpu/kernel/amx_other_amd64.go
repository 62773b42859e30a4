//go:build !linux

package kernel

// permitAMX: other systems are not asked, because nothing here could test it.
func permitAMX() bool { return false }
