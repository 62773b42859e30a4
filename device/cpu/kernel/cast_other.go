//go:build !amd64 && !arm64

package kernel

// nativeCasts returns nil: only amd64 and arm64 have assembly.
func nativeCasts() []*CastISA { return nil }
