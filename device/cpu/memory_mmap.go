//go:build linux && !race

package cpu

import "syscall"

// allocate maps zeroed pages outside the Go heap, so that a model's memory neither drives the
// garbage collector nor lingers after Free. With the race detector, memory comes from the Go heap
// instead, where accesses are checked.
func allocate(bytes int) ([]byte, error) {
	mem, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err == nil && bytes >= 4<<20 {
		_ = syscall.Madvise(mem, syscall.MADV_HUGEPAGE) // only a hint; a few percent slower without it
	}
	return mem, err
}

func release(mem []byte) {
	if err := syscall.Munmap(mem); err != nil {
		panic("cpu: unmap: " + err.Error())
	}
}
