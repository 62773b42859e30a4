//go:build !amd64 && !arm64

package cpu

// nativeVecs: only amd64 and arm64 have assembly.
func nativeVecs() []*vecISA { return nil }
