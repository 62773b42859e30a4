//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"zeroth/device"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/kernel"
)

// Device is one rank's share of a GPU: an account of its memory, and its queues.
type Device struct {
	gpu     *shared
	clear   driver.Stream    // clears new memory
	zeros   *driver.Commands // of clear
	work    []device.Buffer  // working space of products, per queue
	parts   device.Buffer    // float32: partial sums of columns, used by one queue at a time
	peers   []*shared        // GPUs whose memory it can address
	table   driver.Table     // chosen algorithms of products
	product []*Queue         // the queues that compute products, which use work
	choice  kernel.Choice    // of attention's kernels

	mu     sync.Mutex
	usage  device.Usage
	budget int64 // bytes; 0: unlimited
	plan   [device.Uses]*reservation
	known  *reservation // memory for registration with NCCL, see ReserveKnown; may be nil
	held   map[unsafe.Pointer]held
}

// held is an allocation: separate memory or part of a reservation.
type held struct {
	bytes int
	from  *reservation
}

// reservation is memory of one category, allocated at once and handed out from its beginning. It is
// freed with its end, unless it is part of the memory known to NCCL.
type reservation struct {
	at         unsafe.Pointer
	size, used int64 // bytes
	known      bool
}

// Open opens a GPU, or another share of one.
func Open(ordinal int) (*Device, error) {
	gpu, err := openShared(ordinal)
	if err != nil {
		return nil, err
	}
	d := &Device{gpu: gpu, held: map[unsafe.Pointer]held{}}
	if d.clear, err = gpu.NewStream(false); err != nil {
		gpu.close()
		return nil, err
	}
	d.zeros = d.clear.Commands()
	return d, nil
}

// Info describes the GPU.
func (d *Device) Info() driver.Info { return d.gpu.Info }

// Budget limits the bytes allocated at once; 0 means unlimited. It must be called before the first
// Alloc.
func (d *Device) Budget(bytes int64) { d.budget = bytes }

// ReservePlan allocates the memory of each category in a plan at once; Alloc then hands it out, in
// at most allocs allocations.
func (d *Device) ReservePlan(plan device.Bytes, allocs int) error {
	for use, bytes := range plan {
		if bytes == 0 {
			continue
		}
		size := reserved(bytes, allocs)
		p, err := d.gpu.Alloc(size)
		if err != nil {
			return fmt.Errorf("%v: %w", device.Use(use), err)
		}
		d.plan[use] = &reservation{at: p, size: size}
	}
	return nil
}

// reserved returns the bytes to reserve for an amount in at most allocs allocations.
func reserved(bytes int64, allocs int) int64 { return bytes + int64(allocs)*memoryAlign }

// Alloc implements device.Device. It accounts for the n elements only.
func (d *Device) Alloc(t device.DType, n int, use device.Use) (device.Buffer, error) {
	b := device.Buffer{Type: t, Use: use, N: n}
	if n == 0 {
		return b, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if live := d.usage.Live.Total(); d.budget > 0 && live+int64(b.Bytes()) > d.budget {
		return device.Buffer{}, fmt.Errorf("budget of %d bytes: %d bytes of %v do not fit in addition to %d", d.budget, b.Bytes(), use, live)
	}
	h := held{bytes: b.Bytes(), from: d.plan[use]}
	var err error
	if h.from != nil {
		b.Ptr, err = h.from.take(int64(b.Bytes()))
	} else {
		b.Ptr, err = d.gpu.Alloc(int64(b.Bytes()))
	}
	if err == nil {
		d.zeros.Zero(b.Ptr, b.Bytes())
		err = errors.Join(d.zeros.Run(), d.clear.Wait())
	}
	if err != nil {
		return device.Buffer{}, fmt.Errorf("%v: %w", use, err)
	}
	d.held[b.Ptr] = h
	d.usage.Add(use, int64(b.Bytes()))
	return b, nil
}

func (r *reservation) take(bytes int64) (unsafe.Pointer, error) {
	if r.used+bytes > r.size {
		return nil, fmt.Errorf("the plan has %d bytes, of which %d are in use; %d more were requested", r.size, r.used, bytes)
	}
	p := unsafe.Add(r.at, r.used)
	r.used += (bytes + memoryAlign - 1) / memoryAlign * memoryAlign
	return p, nil
}

func (d *Device) Free(b device.Buffer) {
	if b.N == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.held[b.Ptr]
	if h.bytes != b.Bytes() {
		panic(fmt.Sprintf("cuda: free of %d bytes of %v that Alloc did not return", b.Bytes(), b.Use))
	}
	delete(d.held, b.Ptr)
	d.usage.Add(b.Use, -int64(b.Bytes()))
	if h.from == nil {
		_ = d.gpu.Free(b.Ptr) // it fails if the context has failed, which has been reported
	}
}

func (d *Device) Usage() device.Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usage
}

// Close frees the reserved memory and the share of the GPU; queues must be closed before.
func (d *Device) Close() {
	for _, b := range d.work {
		d.Free(b)
	}
	d.Free(d.parts)
	for _, r := range d.plan {
		if r != nil && !r.known {
			_ = d.gpu.Free(r.at)
		}
	}
	if d.known != nil {
		_ = d.gpu.FreeNCCL(d.known.at)
	}
	_ = d.clear.Close()
	for _, p := range d.peers {
		p.close()
	}
	d.gpu.close()
}

func (d *Device) String() string { return d.gpu.Info.String() }

// ReachAll lets the device's kernels address the memory of other GPUs until Close. Its own GPU may
// be among them.
func (d *Device) ReachAll(ordinals []int) error {
	for _, o := range ordinals {
		if o == d.gpu.Ordinal {
			continue
		}
		other, err := openShared(o)
		if err != nil {
			return err
		}
		d.peers = append(d.peers, other)
		if !d.gpu.CanReach(other.GPU) {
			return fmt.Errorf("%v cannot address the memory of %v: choose GPUs with peer access to each other (nvidia-smi topo -p2p r)", d, other)
		}
		if err := d.gpu.Reach(other.GPU); err != nil {
			return err
		}
	}
	return nil
}

// Pinned allocates pinned host memory, which the GPU copies directly and asynchronously.
type Pinned struct {
	gpu  *shared
	near *unix.CPUSet // where memory is allocated and used; empty: anywhere
}

// OpenPinned opens the pinned host memory of a GPU.
func OpenPinned(ordinal int) (Pinned, error) {
	gpu, err := openShared(ordinal)
	if err != nil {
		return Pinned{}, err
	}
	set := near(gpu.PCI)
	return Pinned{gpu, &set}, nil
}

const pinnedAlign = 4096 // bytes; a power of two

// Take returns n cleared bytes, aligned to 4096, of the GPU's NUMA node if possible. The driver aligns small allocations only to 512.
func (p Pinned) Take(n int) ([]byte, error) {
	var at unsafe.Pointer
	var err error
	done := make(chan struct{})
	go func() { // its thread, if bound, ends with it
		defer close(done)
		p.Bind()
		at, err = p.gpu.AllocHost(int64(n) + pinnedAlign)
	}()
	<-done
	if err != nil {
		return nil, err
	}
	skip := -uintptr(at) & (pinnedAlign - 1)
	mem := unsafe.Slice((*byte)(unsafe.Add(at, skip)), n)
	clear(mem)
	p.gpu.pinned.Store(unsafe.SliceData(mem), at)
	return mem, nil
}

// Give frees memory from Take.
func (p Pinned) Give(mem []byte) {
	if at, ok := p.gpu.pinned.LoadAndDelete(unsafe.SliceData(mem)); ok {
		_ = p.gpu.FreeHost(at.(unsafe.Pointer))
	}
}

// Close ends it; all memory must have been freed.
func (p Pinned) Close() { p.gpu.close() }
