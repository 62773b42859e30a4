//go:build cuda

package driver

// #cgo CFLAGS: -O2 -std=gnu11
// #cgo LDFLAGS: -L${SRCDIR}/stub -Wl,--as-needed -ldl
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"gorgonia.org/cu"
)

// Error is what the driver, or cuBLAS, says of a call.
type Error struct {
	Code int
	Name string // "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // "out of memory"
	Call string // "allocate 4096 bytes"
}

func (e Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%s: %s", e.Call, e.Name)
	}
	return fmt.Sprintf("%s: %s (%s)", e.Call, e.Name, e.Text)
}

// failed is the error of a CUresult; nil for success. Calls of a step look for
// themselves, so that only errors allocate.
func failed(code C.int, call string, args ...any) error {
	if code == 0 {
		return nil
	}
	e := Error{Code: int(code), Name: C.GoString(C.z_error_name(code)), Text: C.GoString(C.z_error_text(code)), Call: fmt.Sprintf(call, args...)}
	if e.Name == "" {
		e.Name = fmt.Sprintf("CUDA error %d", code)
	}
	return e
}

// Available is nil where there is a driver that answers, else it says why there
// is none and what helps.
func Available() error {
	if C.z_loaded() == 0 {
		return fmt.Errorf("the NVIDIA driver's library was not found (%s): install the driver, or set ZEROTH_CUDA_PATH to its libcuda.so.1", C.GoString(C.z_why()))
	}
	if err := failed(C.z_init_code(), "start the NVIDIA driver %s", Path()); err != nil {
		return err
	}
	if n, err := Count(); err != nil || n == 0 {
		return errors.Join(errors.New("the NVIDIA driver knows no GPU that this process may use (CUDA_VISIBLE_DEVICES?)"), err)
	}
	return nil
}

// Path is the driver's library, as it was looked for.
func Path() string { return C.GoString(C.z_path()) }

// Version is the newest CUDA version the driver serves, 12040 for 12.4.
func Version() int { return cu.Version() }

// Count is the number of GPUs, 0 without a driver.
func Count() (int, error) { return cu.NumDevices() }

// Info is what a GPU is.
type Info struct {
	Ordinal      int
	Name         string
	Major, Minor int // compute capability
	Memory       int64
	Processors   int // streaming multiprocessors
	SharedMax    int // bytes of shared memory a block may ask for
	PCI          string
}

func (i Info) String() string { return fmt.Sprintf("GPU %d (%s)", i.Ordinal, i.Name) }

// Describe tells what a GPU is without opening it.
func Describe(ordinal int) (i Info, err error) {
	d, err := cu.GetDevice(ordinal)
	if err != nil {
		return i, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	var errs []error
	get := func(a cu.DeviceAttribute) int {
		v, err := d.Attribute(a)
		errs = append(errs, err)
		return v
	}
	i = Info{
		Ordinal: ordinal, Major: get(cu.ComputeCapabilityMajor), Minor: get(cu.ComputeCapabilityMinor),
		Processors: get(cu.MultiprocessorCount), SharedMax: get(97), // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
		PCI: fmt.Sprintf("%08x:%02x:%02x.0", get(cu.PciDomainID), get(cu.PciBusID), get(cu.PciDeviceID)),
	}
	var e error
	i.Name, e = d.Name()
	errs = append(errs, e)
	i.Memory, e = d.TotalMem()
	if err := errors.Join(append(errs, e)...); err != nil {
		return i, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	i.Name = strings.TrimRight(i.Name, "\x00")
	return i, nil
}

// GPU is an open one: its primary context, which is shared by all who open it.
type GPU struct {
	Info
	dev cu.Device
	ctx C.uintptr_t
}

// Open opens a GPU; Close ends it.
func Open(ordinal int) (*GPU, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	i, err := Describe(ordinal)
	if err != nil {
		return nil, err
	}
	d, err := cu.GetDevice(ordinal)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", i, err)
	}
	ctx, err := d.RetainPrimaryCtx()
	if err != nil {
		return nil, fmt.Errorf("%v: its primary context: %w", i, err)
	}
	return &GPU{i, d, C.uintptr_t(*(*uintptr)(unsafe.Pointer(&ctx)))}, nil
}

// A cu.CUContext is one word, which is the handle.
var _ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.CUContext{})]byte{}

// Close gives the primary context back.
func (g *GPU) Close() error { return g.dev.ReleasePrimaryCtx() }

// CanReach says whether kernels of g may address memory of another GPU.
func (g *GPU) CanReach(other *GPU) bool {
	if g.Ordinal == other.Ordinal {
		return true
	}
	ok, err := g.dev.CanAccessPeer(other.dev)
	return err == nil && ok != 0
}

// Reach lets kernels of g address memory of another GPU.
func (g *GPU) Reach(other *GPU) error {
	if g.Ordinal == other.Ordinal {
		return nil
	}
	return failed(C.z_peer(g.ctx, other.ctx), "let %v address the memory of %v", g, other)
}

// Alloc is n bytes of memory of the GPU with undefined contents.
func (g *GPU) Alloc(n int64) (unsafe.Pointer, error) {
	var p C.uintptr_t
	err := failed(C.z_alloc(g.ctx, &p, C.size_t(n)), "allocate %d bytes on %v", n, g)
	return pointer(p), err
}

// Free gives back what Alloc gave.
func (g *GPU) Free(p unsafe.Pointer) error {
	return failed(C.z_free(g.ctx, address(p)), "free memory of %v", g)
}

// AllocHost is n bytes of pinned host memory with undefined contents.
func (g *GPU) AllocHost(n int64) (unsafe.Pointer, error) {
	var p C.uintptr_t
	err := failed(C.z_host_alloc(g.ctx, &p, C.size_t(n)), "allocate %d bytes of pinned host memory", n)
	return pointer(p), err
}

// FreeHost gives back what AllocHost gave.
func (g *GPU) FreeHost(p unsafe.Pointer) error {
	return failed(C.z_host_free(g.ctx, address(p)), "free pinned host memory")
}

// Memory is what is free on the GPU, of all processes, and what there is; bytes.
func (g *GPU) Memory() (free, total int64, err error) {
	var f, t C.size_t
	err = failed(C.z_memory(g.ctx, &f, &t), "memory of %v", g)
	return int64(f), int64(t), err
}

// Memory of C's is addressed by unsafe.Pointer, and never the collector's.
func pointer(p C.uintptr_t) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }
func address(p unsafe.Pointer) C.uintptr_t { return C.uintptr_t(uintptr(p)) }

// Function is a kernel on a GPU, of a module.
type Function struct{ k *C.z_kernel }

// Module is kernels, loaded.
type Module struct {
	Log       string // the driver's compiler's notes, if any
	gpu       *GPU
	h         C.uintptr_t
	functions []Function
}

// Load compiles PTX, which ends with a zero byte, for the GPU; errors have the kernels'
// name. Unload ends it.
func (g *GPU) Load(name string, ptx []byte) (*Module, error) {
	var log [2][8192]byte
	m := &Module{gpu: g}
	code := C.z_module(g.ctx, &m.h, (*C.char)(unsafe.Pointer(&ptx[0])), (*C.char)(unsafe.Pointer(&log[0][0])), C.int(len(log[0])))
	said := func(log []byte) string {
		text, _, _ := strings.Cut(string(log), "\x00")
		return strings.TrimSpace(text)
	}
	m.Log = said(log[0][:])
	if err := failed(code, "load the kernels %s on %v", name, g); err != nil {
		if why := said(log[1][:]); why != "" {
			err = fmt.Errorf("%w: %s", err, why)
		}
		return nil, err
	}
	return m, nil
}

// Uses is the registers of a thread of the module's kernel, and its bytes of local memory:
// its stack and what the compiler spilled.
func (m *Module) Uses(f Function) (registers, local int, err error) {
	var r, l C.int
	err = failed(C.z_function_uses(m.gpu.ctx, f.k, &r, &l), "read the attributes of a kernel on %v", m.gpu)
	return int(r), int(l), err
}

// Unload ends a module: none of its kernels runs or is launched any more.
func (m *Module) Unload() error {
	for _, f := range m.functions {
		C.z_function_end(f.k)
	}
	return failed(C.z_module_end(m.gpu.ctx, m.h), "unload kernels from %v", m.gpu)
}

// Function is the kernel of a name, with blocks of so many threads in one dimension and
// parameters, one at least, that begin at so many bytes each. If shared, bytes of dynamic
// shared memory, is not 0, launches may ask for as much. It belongs to one goroutine at a
// time.
func (m *Module) Function(name string, threads uint32, params []int32, shared int) (f Function, err error) {
	c := append([]byte(name), 0)
	code := C.z_function(m.gpu.ctx, &f.k, m.h, (*C.char)(unsafe.Pointer(&c[0])), C.uint32_t(threads), (*C.int32_t)(unsafe.Pointer(&params[0])), C.int(len(params)), C.int(shared))
	if f.k != nil {
		m.functions = append(m.functions, f)
	}
	return f, failed(code, "find kernel %s, with %d bytes of shared memory, on %v", name, shared, m.gpu)
}

// Stream is an order of work on a GPU.
type Stream struct {
	gpu *GPU
	h   C.uintptr_t
}

// NewStream is a stream that does not wait for others. If it is urgent its work goes first
// wherever that of others could go on, too: of blocks that wait for a multiprocessor, not of
// those that run.
func (g *GPU) NewStream(urgent bool) (s Stream, err error) {
	s.gpu = g
	return s, failed(C.z_stream(g.ctx, &s.h, C.int(flag(urgent))), "make a stream on %v", g)
}

// Wait returns when all work put into the stream is done.
func (s Stream) Wait() error { return failed(C.z_stream_wait(s.gpu.ctx, s.h), "wait for a stream") }

// Close ends the stream.
func (s Stream) Close() error { return failed(C.z_stream_end(s.gpu.ctx, s.h), "end a stream") }

// Event is a point in a stream's order.
type Event struct {
	gpu *GPU
	h   C.uintptr_t
}

// NewEvent is an event; only timed ones know their time.
func (g *GPU) NewEvent(timed bool) (e Event, err error) {
	e.gpu = g
	var t C.int
	if timed {
		t = 1
	}
	return e, failed(C.z_event(g.ctx, &e.h, t), "make an event on %v", g)
}

// Await returns when the event's last Record is reached.
func (e Event) Await() error { return failed(C.z_await(e.gpu.ctx, e.h), "wait for an event") }

// Reached says whether the event's last Record is reached, or never will be: the
// context has failed.
func (e Event) Reached() bool {
	const notReady = 600 // CUDA_ERROR_NOT_READY
	return C.z_event_reached(e.gpu.ctx, e.h) != notReady
}

// Since is the time from another event of the same GPU, in milliseconds. Both
// have been reached.
func (e Event) Since(from Event) (ms float32, err error) {
	var t C.float
	err = failed(C.z_elapsed(e.gpu.ctx, &t, from.h, e.h), "time between events")
	return float32(t), err
}

// Close ends the event.
func (e Event) Close() error { return failed(C.z_event_end(e.gpu.ctx, e.h), "end an event") }
