//go:build cuda

package driver

// #cgo noescape z_run
// #cgo nocallback z_run
// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Commands collects work for a stream that is passed to the driver in one call, since a call of C
// takes as long as half a dozen of our launches. They are stored with their parameters in Go memory
// that C reads. They belong to one goroutine.
type Commands struct {
	s      Stream
	n, end int // number of commands; their bytes
	buf    [bufferLen / 8]uint64
}

const (
	// mostCommands limits how long the first of them waits while others are added, to a fraction of
	// the time that the driver takes for one launch.
	mostCommands = 16
	bufferLen    = 8192 // bytes
	longest      = 2560 // maximum length of a command: the longest list of parameters has 2,112
)

// Commands returns an empty list of commands for the stream.
func (s Stream) Commands() *Commands { return &Commands{s: s} }

// Full reports whether Run must be called before further commands are added.
func (c *Commands) Full() bool { return c.n >= mostCommands || c.end > bufferLen-longest }

// next returns memory for a command with that kind and size, after the existing ones.
func (c *Commands) next(kind C.uint32_t, bytes uintptr) unsafe.Pointer {
	bytes = (bytes + 7) &^ 7
	if c.n >= mostCommands || uintptr(c.end)+bytes > bufferLen {
		panic(fmt.Sprintf("driver: a command of %d bytes behind %d with %d", bytes, c.n, c.end))
	}
	p := unsafe.Pointer(&c.buf[c.end/8])
	*(*C.z_command)(p) = C.z_command{kind: kind, bytes: C.uint32_t(bytes)}
	c.n, c.end = c.n+1, c.end+int(bytes)
	return p
}

// Launch launches a kernel with grid blocks and shared bytes of dynamic shared memory each. The
// parameters are copied.
func (c *Commands) Launch(f Function, grid [3]uint32, shared uint32, params []byte) {
	const head = unsafe.Sizeof(C.z_launch{})
	p := c.next(C.Z_LAUNCH, head+uintptr(len(params)))
	l := (*C.z_launch)(p)
	l.kernel, l.shared = C.uintptr_t(uintptr(unsafe.Pointer(f.k))), C.uint32_t(shared)
	l.grid = [3]C.uint32_t{C.uint32_t(grid[0]), C.uint32_t(grid[1]), C.uint32_t(grid[2])}
	copy(unsafe.Slice((*byte)(unsafe.Add(p, head)), len(params)), params)
}

// ToDevice, ToHost and OnDevice copy n bytes. Host memory that is not pinned may be copied before
// Run returns, and must not change until then.
func (c *Commands) ToDevice(dst, src unsafe.Pointer, n int) { c.copy(C.Z_TO_DEVICE, dst, src, n) }

func (c *Commands) ToHost(dst, src unsafe.Pointer, n int) { c.copy(C.Z_TO_HOST, dst, src, n) }

func (c *Commands) OnDevice(dst, src unsafe.Pointer, n int) { c.copy(C.Z_ON_DEVICE, dst, src, n) }

// Zero clears n bytes of device memory.
func (c *Commands) Zero(p unsafe.Pointer, n int) { c.copy(C.Z_ZERO, p, nil, n) }

func (c *Commands) copy(kind C.uint32_t, dst, src unsafe.Pointer, n int) {
	m := (*C.z_copy)(c.next(kind, unsafe.Sizeof(C.z_copy{})))
	m.dst, m.src, m.n = address(dst), address(src), C.size_t(n)
}

// Record records the event after the previous work of the stream.
func (c *Commands) Record(e Event) { c.event(C.Z_RECORD, e) }

// After makes later work of the stream wait for the event's last Record that has been run. It waits
// for nothing if there was none.
func (c *Commands) After(e Event) { c.event(C.Z_AFTER, e) }

func (c *Commands) event(kind C.uint32_t, e Event) {
	(*C.z_event_command)(c.next(kind, unsafe.Sizeof(C.z_event_command{}))).event = e.h
}

// Run passes the commands to the stream, in order. If one fails, Run returns its error, and of the
// remaining ones only events are still recorded and waited for.
func (c *Commands) Run() error {
	if c.n == 0 {
		return nil
	}
	r := C.z_run(c.s.gpu.ctx, c.s.h, (*C.z_command)(unsafe.Pointer(&c.buf[0])), C.uint32_t(c.end))
	c.n, c.end = 0, 0
	if r.code == 0 {
		return nil
	}
	return c.failure(int(r.at), C.int(r.code))
}

// failure returns the error of the command at a byte offset or, if negative, of all of them.
func (c *Commands) failure(at int, code C.int) error {
	if at < 0 {
		return failed(code, "make the context of %v current", c.s.gpu)
	}
	p := unsafe.Pointer(&c.buf[at/8])
	switch kind := (*C.z_command)(p).kind; kind {
	case C.Z_LAUNCH:
		return failed(code, "launch %s", C.GoString(C.z_kernel_name((*C.z_launch)(p).kernel)))
	case C.Z_PRODUCT:
		s := &(*C.z_product)(p).s
		return refused(code, "product (%d,%d) by (%d,%d)", s.n, s.k, s.k, s.m)
	case C.Z_FUSED:
		s := C.z_lt_shape((*C.z_fused)(p).plan)
		return refused(code, "product (%d,%d) by (%d,%d) with %v", s.n, s.k, s.k, s.m, Epilogue(s.epilogue))
	case C.Z_RECORD:
		return failed(code, "record an event")
	case C.Z_AFTER:
		return failed(code, "wait for an event")
	default:
		return failed(code, copies[kind], (*C.z_copy)(p).n)
	}
}

var copies = map[C.uint32_t]string{
	C.Z_TO_DEVICE: "copy %d bytes to the device", C.Z_TO_HOST: "copy %d bytes to the host", C.Z_ON_DEVICE: "copy %d bytes on the device", C.Z_ZERO: "clear %d bytes",
}
