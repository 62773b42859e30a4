//go:build !linux || race

package cpu

import "unsafe"

// allocate returns zeroed memory from the Go heap, aligned to a page.
func allocate(bytes int) ([]byte, error) {
	mem := make([]byte, bytes+4095)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & 4095)
	return mem[skip : skip+bytes : skip+bytes], nil
}

func release([]byte) {}
