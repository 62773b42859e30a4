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
	"time"
	"unsafe"

	"gorgonia.org/cu"
)

// Error is an error of the driver or cuBLAS.
type Error struct {
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

// failed returns the error of a CUresult; nil for success. Calls during a step check the code
// themselves, so that only errors allocate.
func failed(code C.int, call string, args ...any) error {
	if code == 0 {
		return nil
	}
	e := Error{Name: C.GoString(C.z_error_name(code)), Text: C.GoString(C.z_error_text(code)), Call: fmt.Sprintf(call, args...)}
	if e.Name == "" {
		e.Name = fmt.Sprintf("CUDA error %d", code)
	}
	return e
}

// Available returns nil if there is a working driver, else an error that describes the problem and
// the remedy.
func Available() error {
	if C.z_loaded() == 0 {
		return fmt.Errorf("the NVIDIA driver's library was not found (%s): install the driver, or set ZEROTH_CUDA_PATH to its libcuda.so.1", C.GoString(C.z_why()))
	}
	if err := failed(C.z_init_code(), "start the NVIDIA driver %s", Path()); err != nil {
		return err
	}
	if n, err := Count(); err != nil || n == 0 {
		return errors.Join(errors.New("the NVIDIA driver has no GPU for this process (check CUDA_VISIBLE_DEVICES)"), err)
	}
	return nil
}

// Path returns the driver's library that was searched for.
func Path() string { return C.GoString(C.z_path()) }

// Version returns the newest CUDA version that the driver supports, 12040 for 12.4.
func Version() int { return cu.Version() }

// Count returns the number of GPUs, 0 without a driver.
func Count() (int, error) { return cu.NumDevices() }

// Info describes a GPU.
type Info struct {
	Ordinal      int
	Name         string
	Major, Minor int // compute capability
	Memory       int64
	Processors   int // streaming multiprocessors
	PCI          string
}

func (i Info) String() string { return fmt.Sprintf("GPU %d (%s)", i.Ordinal, i.Name) }

// Describe returns the description of a GPU without opening it.
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
		Processors: get(cu.MultiprocessorCount),
		PCI:        fmt.Sprintf("%08x:%02x:%02x.0", get(cu.PciDomainID), get(cu.PciBusID), get(cu.PciDeviceID)),
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

// GPU is an open GPU: its primary context, which is shared by all who open it.
type GPU struct {
	Info
	dev cu.Device
	ctx C.uintptr_t
}

// Open opens a GPU; Close closes it.
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

// Close releases the primary context.
func (g *GPU) Close() error { return g.dev.ReleasePrimaryCtx() }

// CanReach reports whether kernels of g may address memory of another GPU.
func (g *GPU) CanReach(other *GPU) bool {
	if g.Ordinal == other.Ordinal {
		return true
	}
	return reaches(g.dev, other.dev)
}

// Reaches reports whether kernels of a GPU may address the memory of another, without opening them.
func Reaches(ordinal, other int) bool {
	a, err := cu.GetDevice(ordinal)
	b, err2 := cu.GetDevice(other)
	return err == nil && err2 == nil && reaches(a, b)
}

func reaches(a, b cu.Device) bool {
	ok, err := a.CanAccessPeer(b)
	return err == nil && ok != 0
}

// Reach lets kernels of g address memory of another GPU.
func (g *GPU) Reach(other *GPU) error {
	if g.Ordinal == other.Ordinal {
		return nil
	}
	return failed(C.z_peer(g.ctx, other.ctx), "let %v address the memory of %v", g, other)
}

// Alloc returns n bytes of GPU memory with undefined contents.
func (g *GPU) Alloc(n int64) (unsafe.Pointer, error) {
	var p C.uintptr_t
	err := failed(C.z_alloc(g.ctx, &p, C.size_t(n)), "allocate %d bytes on %v", n, g)
	return pointer(p), err
}

// Free frees memory from Alloc.
func (g *GPU) Free(p unsafe.Pointer) error {
	return failed(C.z_free(g.ctx, address(p)), "free memory of %v", g)
}

// AllocHost returns n bytes of pinned host memory with undefined contents.
func (g *GPU) AllocHost(n int64) (unsafe.Pointer, error) {
	var p C.uintptr_t
	err := failed(C.z_host_alloc(g.ctx, &p, C.size_t(n)), "allocate %d bytes of pinned host memory", n)
	return pointer(p), err
}

// FreeHost frees memory from AllocHost.
func (g *GPU) FreeHost(p unsafe.Pointer) error {
	return failed(C.z_host_free(g.ctx, address(p)), "free pinned host memory")
}

// Memory returns the free and the total memory of the GPU, for all processes, in bytes.
func (g *GPU) Memory() (free, total int64, err error) {
	var f, t C.size_t
	err = failed(C.z_memory(g.ctx, &f, &t), "memory of %v", g)
	return int64(f), int64(t), err
}

// C memory is addressed by unsafe.Pointer, and is never collected.
func pointer(p C.uintptr_t) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }
func address(p unsafe.Pointer) C.uintptr_t { return C.uintptr_t(uintptr(p)) }

// Function is a kernel of a module on a GPU.
type Function struct{ k *C.z_kernel }

// Module is a set of loaded kernels.
type Module struct {
	Log       string // notes of the driver's compiler
	Refused   error  // why the driver refused the images before the one that it loaded
	gpu       *GPU
	h         C.uintptr_t
	functions []Function
}

// Load loads the first of some images that the driver accepts: a cubin, or PTX, which must end with
// a zero byte and is compiled for the GPU. Errors contain name. Unload unloads the module.
func (g *GPU) Load(name string, images ...[]byte) (*Module, error) {
	m := &Module{gpu: g}
	for _, image := range images {
		err := m.load(name, image)
		if err == nil {
			return m, nil
		}
		m.Refused = errors.Join(m.Refused, err)
	}
	return nil, m.Refused
}

func (m *Module) load(name string, image []byte) error {
	var log [2][8192]byte
	code := C.z_module(m.gpu.ctx, &m.h, (*C.char)(unsafe.Pointer(&image[0])), (*C.char)(unsafe.Pointer(&log[0][0])), C.int(len(log[0])))
	said := func(log []byte) string {
		text, _, _ := strings.Cut(string(log), "\x00")
		return strings.TrimSpace(text)
	}
	m.Log = said(log[0][:])
	what := "kernels"
	if image[0] == '\x7f' { // ELF
		what = "cubin of the kernels"
	}
	err := failed(code, "load the %s %s on %v", what, name, m.gpu)
	if why := said(log[1][:]); err != nil && why != "" {
		err = fmt.Errorf("%w: %s", err, why)
	}
	return err
}

// Uses returns the registers per thread of the module's kernel, and its bytes of local memory, for
// its stack and spilled registers.
func (m *Module) Uses(f Function) (registers, local int, err error) {
	var r, l C.int
	err = failed(C.z_function_uses(m.gpu.ctx, f.k, &r, &l), "read the attributes of a kernel on %v", m.gpu)
	return int(r), int(l), err
}

// Unload unloads a module: none of its kernels may be running or launched anymore.
func (m *Module) Unload() error {
	for _, f := range m.functions {
		C.z_function_end(f.k)
	}
	return failed(C.z_module_end(m.gpu.ctx, m.h), "unload kernels from %v", m.gpu)
}

// Function returns the kernel with a name, for one-dimensional blocks of threads threads. Params
// are the byte offsets of its parameters, at least one. If shared is not 0, launches may use that
// many bytes of dynamic shared memory. It belongs to one goroutine at a time.
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

// NewStream returns a stream that does not wait for others. If urgent, its blocks that wait for a
// multiprocessor take precedence over those of other streams; running blocks are not interrupted.
func (g *GPU) NewStream(urgent bool) (s Stream, err error) {
	s.gpu = g
	return s, failed(C.z_stream(g.ctx, &s.h, C.int(flag(urgent))), "make a stream on %v", g)
}

// Wait returns when all work of the stream is done.
func (s Stream) Wait() error { return failed(C.z_stream_wait(s.gpu.ctx, s.h), "wait for a stream") }

// Close ends the stream.
func (s Stream) Close() error { return failed(C.z_stream_end(s.gpu.ctx, s.h), "end a stream") }

// Event is a point in a stream's order.
type Event struct {
	gpu *GPU
	h   C.uintptr_t
}

// NewEvent returns an event; only timed ones have a time.
func (g *GPU) NewEvent(timed bool) (e Event, err error) {
	e.gpu = g
	var t C.int
	if timed {
		t = 1
	}
	return e, failed(C.z_event(g.ctx, &e.h, t), "make an event on %v", g)
}

// Await returns when the event's last Record is reached. The thread sleeps, unless that is within
// spin.
func (e Event) Await(spin time.Duration) error {
	return failed(C.z_await(e.gpu.ctx, e.h, C.int(spin.Microseconds())), "wait for an event")
}

// Reached reports whether the event's last Record is reached, or never will be because the context
// has failed.
func (e Event) Reached() bool {
	const notReady = 600 // CUDA_ERROR_NOT_READY
	return C.z_event_reached(e.gpu.ctx, e.h) != notReady
}

// Since returns the time since another event of the same GPU, in milliseconds. Both must have been
// reached.
func (e Event) Since(from Event) (ms float32, err error) {
	var t C.float
	err = failed(C.z_elapsed(e.gpu.ctx, &t, from.h, e.h), "time between events")
	return float32(t), err
}

// Close ends the event.
func (e Event) Close() error { return failed(C.z_event_end(e.gpu.ctx, e.h), "end an event") }
