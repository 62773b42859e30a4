//go:build !amd64 && !arm64

package kernel

// nativeVecs returns nil: only amd64 and arm64 have assembly.
func nativeVecs() []*VecISA { return nil }
