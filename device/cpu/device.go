// Package cpu implements the device interfaces on host memory: a goroutine per queue, workers that
// share the pieces of a kernel, and methods that issue kernels. The kernels themselves are in
// package kernel.
//
// A kernel call writes a task into the queue's ring and returns. A task is a static function over a
// range of independent pieces of work, with its arguments by value, so issuing it allocates
// nothing. Neither the worker that computes a piece nor the number of workers changes a bit of the
// result: a piece is always computed as a whole, in a fixed order.
//
// Start reading with Queue.issue and Queue.kernel in queue.go, then pool.split; Queue.Gelu is one
// of the shortest methods.
package cpu

import (
	"fmt"
	"sync"
	"unsafe"

	"zeroth/device"
)

// Device is one rank's share of the machine: an account of its memory, a worker pool shared by
// its queues, and the workers' working space.
type Device struct {
	pool     *pool
	products products
	rope     rotary
	scratch  int  // floats reserved for each worker
	host     bool // its memory is host memory
	mem      Memory
	shared   Memory // memory that other processes can read; nil: use mem
	bind     func() // called by each goroutine that computes

	mu     sync.Mutex
	usage  device.Usage
	budget int64 // bytes; 0: unlimited
	held   map[unsafe.Pointer][]byte
}

// New returns a device that divides kernels between a number of workers. If a process has several
// ranks, use max(1, cores/ranks) for each. The host can address the device's memory unless
// Separate is true.
func New(workers int) *Device { return newDevice(workers, !Separate, pages{}) }

// NewHost returns a device for host memory.
func NewHost(workers int) *Device { return newDevice(workers, true, pages{}) }

// Memory allocates memory for a device.
type Memory interface {
	Take(bytes int) ([]byte, error) // zeroed, aligned to 4096 bytes
	Give([]byte)                    // frees memory from Take
}

// Near is a Memory of some processors: Bind binds the calling goroutine, which computes on it, to them.
type Near interface{ Bind() }

// NewHostFrom is like NewHost with another source of memory, which may be Near, for example memory
// pinned for a GPU's copies. All buffers must be freed before the source is closed.
func NewHostFrom(workers int, mem Memory) *Device { return newDevice(workers, true, mem) }

// pages allocates from the operating system.
type pages struct{}

func (pages) Take(bytes int) ([]byte, error) { return allocate(bytes) }
func (pages) Give(mem []byte)                { release(mem) }

// Share makes the device allocate the memory used by collectives (parameters at rest, gradients,
// bounce memory) from mem, which other processes can read. It must be called before the first
// such allocation.
func (d *Device) Share(mem Memory) { d.shared = mem }

// from returns the source of memory for a use.
func (d *Device) from(use device.Use) Memory {
	switch use {
	case device.Params, device.Grads, device.UnitGrads, device.Bounce:
		if d.shared != nil {
			return d.shared
		}
	}
	return d.mem
}

func newDevice(workers int, host bool, mem Memory) *Device {
	d := &Device{host: host, mem: mem, held: map[unsafe.Pointer][]byte{}, bind: func() {}}
	if near, ok := mem.(Near); ok {
		d.bind = near.Bind
	}
	d.products.dev, d.rope.dev = d, d
	others := make([]*workspace, max(0, workers-1))
	for i := range others {
		others[i] = newWorkspace(d)
	}
	d.pool = newPool(others, d.bind)
	return d
}

// Budget limits the bytes allocated at once, like a GPU's memory; 0 means unlimited. It must be
// called before the first Alloc.
func (d *Device) Budget(bytes int64) { d.budget = bytes }

// Alloc implements device.Device. It charges only the n elements to the account. Memory is
// aligned to 4096 bytes, so that disks can be read into it directly.
func (d *Device) Alloc(t device.DType, n int, use device.Use) (device.Buffer, error) {
	b := device.Buffer{Type: t, Host: d.host, Use: use, N: n}
	if n == 0 {
		return b, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if live := d.usage.Live.Total(); d.budget > 0 && live+int64(b.Bytes()) > d.budget {
		return device.Buffer{}, fmt.Errorf("%s budget: %s of %v do not fit in addition to %s", size(d.budget), size(int64(b.Bytes())), use, size(live))
	}
	mem, err := d.from(use).Take(b.Bytes())
	if err != nil {
		return device.Buffer{}, fmt.Errorf("allocate %d bytes of %v: %w", b.Bytes(), use, err)
	}
	b.Ptr = unsafe.Pointer(unsafe.SliceData(mem))
	d.held[b.Ptr] = mem
	d.usage.Add(use, int64(b.Bytes()))
	return b, nil
}

// size formats a number of bytes, exactly or with three digits.
func size(n int64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		one := int64(1) << (30 - 10*i)
		switch {
		case n >= one && n%one == 0:
			return fmt.Sprintf("%d %s", n/one, unit)
		case n >= 100*one:
			return fmt.Sprintf("%.0f %s", float64(n)/float64(one), unit)
		case n >= one:
			return fmt.Sprintf("%.3g %s", float64(n)/float64(one), unit)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// Free implements device.Device.
func (d *Device) Free(b device.Buffer) {
	if b.N == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	mem := d.held[b.Ptr]
	if len(mem) != b.Bytes() {
		panic(fmt.Sprintf("cpu: free of %d bytes of %v that Alloc did not return", b.Bytes(), b.Use))
	}
	delete(d.held, b.Ptr)
	d.usage.Add(b.Use, -int64(b.Bytes()))
	d.from(b.Use).Give(mem)
}

// Usage implements device.Device.
func (d *Device) Usage() device.Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usage
}

// Close stops the device's workers and frees their working space. Its queues must be closed
// first.
func (d *Device) Close() {
	d.pool.close()
	for _, h := range d.pool.workers {
		d.Free(h.w.mem)
	}
	d.Free(d.products.packed)
	d.Free(d.products.acc)
	d.Free(d.rope.mem)
}
