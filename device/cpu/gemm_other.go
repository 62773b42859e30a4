//go:build !amd64 && !arm64

package cpu

// Only amd64 and arm64 have assembly.
func nativeISAs() []*isa { return nil }
func nativeBF16() []*isa { return nil }
