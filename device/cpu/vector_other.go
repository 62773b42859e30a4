//go:build !amd64

package cpu

// nativeVecs: only amd64 has assembly yet.
func nativeVecs() []*vecISA { return nil }
