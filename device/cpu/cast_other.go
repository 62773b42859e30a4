//go:build !amd64

package cpu

// nativeCasts: only amd64 has assembly yet.
func nativeCasts() []*castISA { return nil }
