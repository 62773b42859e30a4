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

// Commands is work for a stream that the driver is given in one call: to go to C and back
// takes as long as half a dozen launches take us. They are in memory of Go's that C reads,
// each with its parameters. They belong to one goroutine.
type Commands struct {
	s      Stream
	n, end int // commands; the bytes of them
	buf    [bufferLen / 8]uint64
}

const (
	// mostCommands bounds how long the first of them waits while others are put behind
	// it, to a part of what the driver takes for one launch.
	mostCommands = 16
	bufferLen    = 8192 // bytes
	longest      = 2560 // of a command: the longest list of parameters has 2,112
)

// Commands is a place for work of the stream, with nothing in it.
func (s Stream) Commands() *Commands { return &Commands{s: s} }

// Full says whether Run has to come before anything is put behind the commands.
func (c *Commands) Full() bool { return c.n >= mostCommands || c.end > bufferLen-longest }

// next is the room of a command, behind those that there are, with its kind and size.
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

// Launch launches a kernel: grid blocks, with shared bytes of dynamic shared memory each.
// The parameters are copied.
func (c *Commands) Launch(f Function, grid [3]uint32, shared uint32, params []byte) {
	const head = unsafe.Sizeof(C.z_launch{})
	p := c.next(C.Z_LAUNCH, head+uintptr(len(params)))
	l := (*C.z_launch)(p)
	l.kernel, l.shared = C.uintptr_t(uintptr(unsafe.Pointer(f.k))), C.uint32_t(shared)
	l.grid = [3]C.uint32_t{C.uint32_t(grid[0]), C.uint32_t(grid[1]), C.uint32_t(grid[2])}
	copy(unsafe.Slice((*byte)(unsafe.Add(p, head)), len(params)), params)
}

// ToDevice, ToHost and OnDevice copy n bytes. Host memory that is not pinned may be
// copied before Run returns, and stays as it is until then.
func (c *Commands) ToDevice(dst, src unsafe.Pointer, n int) { c.copy(C.Z_TO_DEVICE, dst, src, n) }

func (c *Commands) ToHost(dst, src unsafe.Pointer, n int) { c.copy(C.Z_TO_HOST, dst, src, n) }

func (c *Commands) OnDevice(dst, src unsafe.Pointer, n int) { c.copy(C.Z_ON_DEVICE, dst, src, n) }

// Zero clears n bytes of the device's.
func (c *Commands) Zero(p unsafe.Pointer, n int) { c.copy(C.Z_ZERO, p, nil, n) }

func (c *Commands) copy(kind C.uint32_t, dst, src unsafe.Pointer, n int) {
	m := (*C.z_copy)(c.next(kind, unsafe.Sizeof(C.z_copy{})))
	m.dst, m.src, m.n = address(dst), address(src), C.size_t(n)
}

// Record puts the event behind what was put into the stream before.
func (c *Commands) Record(e Event) { c.event(C.Z_RECORD, e) }

// After has what is put into the stream later wait for what the event's last Record, of
// those that have been run, is behind. It waits for nothing if there was none.
func (c *Commands) After(e Event) { c.event(C.Z_AFTER, e) }

func (c *Commands) event(kind C.uint32_t, e Event) {
	(*C.z_event_command)(c.next(kind, unsafe.Sizeof(C.z_event_command{}))).event = e.h
}

// Run puts the commands into the stream, in their order. Once one fails, with the error
// that Run returns, only events are still recorded and waited for.
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

// failure is what the command at so many bytes, or what all of them wanted, has failed with.
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
