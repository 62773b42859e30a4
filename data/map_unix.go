//go:build linux || darwin || freebsd

package data

import (
	"fmt"
	"math"
	"syscall"

	"zeroth/internal/input"
)

// identity returns a value that is equal for all names of the same file.
func identity(f file) any {
	if f.object != nil {
		return f.path
	}
	if s, ok := f.info.Sys().(*syscall.Stat_t); ok {
		return [2]uint64{uint64(s.Dev), uint64(s.Ino)}
	}
	return f.path
}

// mapFile maps a file into memory. Read it under Corpus.guard: if the file is truncated,
// reading causes a fault.
func mapFile(f file) (data []byte, unmap func() error, err error) {
	if f.size > math.MaxInt {
		return nil, nil, fmt.Errorf("%s: %d bytes do not fit the address space; split the file", f.path, f.size)
	}
	h, err := input.Open(f.path, math.MaxInt64)
	if err != nil {
		return nil, nil, err
	}
	defer h.Close()
	info, err := h.Stat()
	if err != nil {
		return nil, nil, err
	}
	if info.Size() != f.size {
		return nil, nil, changed(f, info.Size())
	}
	data, err = syscall.Mmap(int(h.Fd()), 0, int(f.size), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: map %d bytes: %w", f.path, f.size, err)
	}
	return data, func() error { return syscall.Munmap(data) }, nil
}
