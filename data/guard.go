package data

import (
	"fmt"
	"runtime/debug"
	"unsafe"
)

// guard runs read, which reads the corpus. Token files are mapped: what cannot be
// read of one is told by the system as a fault in memory, which becomes an error with
// the file's name.
func (c *Corpus) guard(read func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // of this goroutine alone
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface{ Addr() uintptr })
		if !ok {
			panic(r)
		}
		name, ok := c.holds(fault.Addr())
		if !ok {
			panic(r)
		}
		err = fmt.Errorf("%s can no longer be read as it was when it was opened: it has become shorter, or its disk fails", name)
	}()
	return read()
}

// holds is the name of the segment that has an address in it, if there is one.
func (c *Corpus) holds(at uintptr) (string, bool) {
	for _, s := range c.segments {
		if begin := uintptr(unsafe.Pointer(unsafe.SliceData(s.data))); at >= begin && at-begin < uintptr(len(s.data)) {
			return s.name, true
		}
	}
	return "", false
}
