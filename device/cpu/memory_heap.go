//go:build !linux || race

package cpu

import "unsafe"

// allocate takes zeroed memory from the Go heap, aligned to 64 bytes.
func allocate(bytes int) ([]byte, error) {
	mem := make([]byte, bytes+63)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & 63)
	return mem[skip : skip+bytes : skip+bytes], nil
}

func release([]byte) {}
