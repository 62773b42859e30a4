package data

import (
	"fmt"
	"runtime/debug"
	"unsafe"
)

// guard runs read, which reads the corpus. Token files are mapped, so the system reports read
// errors as memory faults; guard turns them into errors that name the file.
func (c *Corpus) guard(read func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // affects only this goroutine
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface{ Addr() uintptr })
		if !ok {
			panic(r)
		}
		name, ok := c.segmentAt(fault.Addr())
		if !ok {
			panic(r)
		}
		err = fmt.Errorf("%s can no longer be read: it was truncated, or its disk fails", name)
	}()
	return read()
}

// segmentAt returns the name of the segment that contains an address, if there is one.
func (c *Corpus) segmentAt(at uintptr) (string, bool) {
	for _, s := range c.segments {
		if begin := uintptr(unsafe.Pointer(unsafe.SliceData(s.data))); at >= begin && at-begin < uintptr(len(s.data)) {
			return s.name, true
		}
	}
	return "", false
}
