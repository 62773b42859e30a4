// Package cpu is the device contract on host memory: a goroutine for each queue,
// workers that share a kernel's pieces, and methods that hand kernels to them.
// What a kernel computes is in package kernel.
//
// A kernel call writes a task into the queue's ring and returns. A task is a
// static function over a range of independent pieces of work and its
// arguments by value, so issuing one allocates nothing. Which worker computes
// a piece, and how many workers there are, never changes a bit of the result:
// a piece is always computed whole, in one order.
//
// Begin with Queue.issue and Queue.do in queue.go, then pool.split; a method as
// short as any is Queue.Gelu.
package cpu

import (
	"fmt"
	"sync"
	"unsafe"

	"zeroth/device"
)

// Device is one rank's share of the machine: an account of its memory, a worker pool
// of workers that its queues share, and their work space.
type Device struct {
	pool     *pool
	products products
	turns    rotary
	scratch  int  // floats that Reserve promised each worker
	host     bool // its memory is the host's own
	mem      Memory
	shared   Memory // of what other processes read; nil: mem is

	mu     sync.Mutex
	usage  device.Usage
	budget int64 // bytes; 0 is none
	held   map[unsafe.Pointer][]byte
}

// New is a device whose kernels are split over the given number of workers;
// several ranks in one process take max(1, cores/ranks) each. The host may
// address its memory unless it is Separate.
func New(workers int) *Device { return newDevice(workers, !Separate) }

// NewHost is the host's own memory as a device.
func NewHost(workers int) *Device { return newDevice(workers, true) }

// Memory is where a device takes its memory from.
type Memory interface {
	Take(bytes int) ([]byte, error) // cleared, from a multiple of 4096 on
	Give([]byte)                    // what Take gave
}

// NewHostFrom is NewHost with memory from elsewhere, such as what is pinned for the
// copies of a GPU. Close gives back nothing of it: all is freed before.
func NewHostFrom(workers int, mem Memory) *Device {
	d := newDevice(workers, true)
	d.mem = mem
	return d
}

// pages are the system's.
type pages struct{}

func (pages) Take(bytes int) ([]byte, error) { return allocate(bytes) }
func (pages) Give(mem []byte)                { release(mem) }

// Share has memory of what collectives send from now on come from elsewhere, where
// other processes can read it: parameters at rest, gradients, bounce memory. It is
// set before the first of them is allocated.
func (d *Device) Share(mem Memory) { d.shared = mem }

// from is where memory for a use comes from.
func (d *Device) from(use device.Use) Memory {
	switch use {
	case device.Params, device.Grads, device.UnitGrads, device.Bounce:
		if d.shared != nil {
			return d.shared
		}
	}
	return d.mem
}

func newDevice(workers int, host bool) *Device {
	d := &Device{host: host, mem: pages{}, held: map[unsafe.Pointer][]byte{}}
	d.products.dev, d.turns.dev = d, d
	others := make([]*workspace, max(0, workers-1))
	for i := range others {
		others[i] = newWorkspace(d)
	}
	d.pool = newPool(others)
	return d
}

// Budget bounds the bytes that are held at once, as a GPU's memory would be; 0
// is no bound. It is set before the first Alloc.
func (d *Device) Budget(bytes int64) { d.budget = bytes }

// Alloc implements device.Device. Accounted are the n elements themselves.
// Memory begins at a multiple of 4096 bytes, so that disks can be read into it
// directly.
func (d *Device) Alloc(t device.DType, n int, use device.Use) (device.Buffer, error) {
	b := device.Buffer{Type: t, Host: d.host, Use: use, N: n}
	if n == 0 {
		return b, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if live := d.usage.Live.Total(); d.budget > 0 && live+int64(b.Bytes()) > d.budget {
		return device.Buffer{}, fmt.Errorf("%s budget: %s of %v do not fit beside %s", size(d.budget), size(int64(b.Bytes())), use, size(live))
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

// size is a number of bytes in words, exact or to three digits.
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
		panic(fmt.Sprintf("cpu: free of %d bytes of %v that Alloc did not give", b.Bytes(), b.Use))
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

// Close ends the device's workers and gives back their work space; its queues
// must be closed before.
func (d *Device) Close() {
	d.pool.close()
	for _, h := range d.pool.workers {
		d.Free(h.w.mem)
	}
	d.Free(d.products.packed)
	d.Free(d.products.acc)
	d.Free(d.turns.mem)
}
