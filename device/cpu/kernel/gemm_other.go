//go:build !amd64 && !arm64

package kernel

// Only amd64 and arm64 have assembly.
func nativeISAs() []*ISA { return nil }
func nativeBF16() []*ISA { return nil }
