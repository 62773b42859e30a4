//go:build !amd64

package cpu

// Only amd64 has assembly yet.
func nativeISAs() []*isa { return nil }
func nativeBF16() []*isa { return nil }
