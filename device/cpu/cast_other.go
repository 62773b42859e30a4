//go:build !amd64 && !arm64

package cpu

// nativeCasts: only amd64 and arm64 have assembly.
func nativeCasts() []*castISA { return nil }
