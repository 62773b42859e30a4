//go:build !amd64

package cpu

// nativeISAs: only amd64 has assembly yet.
func nativeISAs() []*isa { return nil }
