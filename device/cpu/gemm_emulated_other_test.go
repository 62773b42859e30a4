//go:build !amd64

package cpu

func emulatedBF16() []*isa { return nil }
