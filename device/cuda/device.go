//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"zeroth/device"
	"zeroth/device/cuda/driver"
)

// Device is one rank's share of a GPU: an account of its memory, and its queues.
type Device struct {
	gpu     *shared
	clear   driver.Stream    // on which new memory is cleared
	zeros   *driver.Commands // of that
	work    []device.Buffer  // of products, each of a queue
	parts   device.Buffer    // float32: partial sums of columns, of one queue at a time
	peers   []*shared        // GPUs whose memory it addresses
	table   driver.Table     // algorithms of products that were chosen
	product []*Queue         // the queues that compute products, which have the work space

	mu     sync.Mutex
	usage  device.Usage
	budget int64 // bytes; 0 is none
	plan   [device.Uses]*reservation
	known  *reservation // what NCCL can register, see ReserveKnown; nil: nothing
	held   map[unsafe.Pointer]held
}

// held is an allocation; its memory is its own or part of a reservation.
type held struct {
	bytes int
	from  *reservation
}

// reservation is memory of one category, taken at once and given out from its
// beginning. Its end gives it back, unless it is part of what NCCL knows.
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

// Info is what the GPU is.
func (d *Device) Info() driver.Info { return d.gpu.Info }

// Budget bounds the bytes that are held at once; 0 is no bound. It is set before
// the first Alloc.
func (d *Device) Budget(bytes int64) { d.budget = bytes }

// ReservePlan takes memory for a plan: each category at once, of which Alloc then
// gives out, in so many allocations at most.
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

// reserved is what a reservation takes for so many bytes in so many allocations at most.
func reserved(bytes int64, allocs int) int64 { return bytes + int64(allocs)*memoryAlign }

// Alloc implements device.Device. Accounted are the n elements themselves.
func (d *Device) Alloc(t device.DType, n int, use device.Use) (device.Buffer, error) {
	b := device.Buffer{Type: t, Use: use, N: n}
	if n == 0 {
		return b, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if live := d.usage.Live.Total(); d.budget > 0 && live+int64(b.Bytes()) > d.budget {
		return device.Buffer{}, fmt.Errorf("a budget of %d bytes: %d of %v do not fit beside %d", d.budget, b.Bytes(), use, live)
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
		return nil, fmt.Errorf("the plan has %d bytes, of which %d are taken, and %d more are asked for", r.size, r.used, bytes)
	}
	p := unsafe.Add(r.at, r.used)
	r.used += (bytes + memoryAlign - 1) / memoryAlign * memoryAlign
	return p, nil
}

// Free implements device.Device.
func (d *Device) Free(b device.Buffer) {
	if b.N == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.held[b.Ptr]
	if h.bytes != b.Bytes() {
		panic(fmt.Sprintf("cuda: free of %d bytes of %v that Alloc did not give", b.Bytes(), b.Use))
	}
	delete(d.held, b.Ptr)
	d.usage.Add(b.Use, -int64(b.Bytes()))
	if h.from == nil {
		_ = d.gpu.Free(b.Ptr) // it fails where the context has, which has been reported
	}
}

// Usage implements device.Device.
func (d *Device) Usage() device.Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usage
}

// Close gives back what Reserve took and the share of the GPU; queues are closed
// before.
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

// ReachAll lets the device's kernels address the memory of GPUs, its own among
// them, until Close.
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
			return fmt.Errorf("%v cannot address the memory of %v: choose GPUs of which each reaches the others (nvidia-smi topo -p2p r)", d, other)
		}
		if err := d.gpu.Reach(other.GPU); err != nil {
			return err
		}
	}
	return nil
}

// Pinned is host memory that copies to and from the device read and write
// directly, while both go on.
type Pinned struct{ gpu *shared }

// OpenPinned opens the host's memory beside a GPU.
func OpenPinned(ordinal int) (Pinned, error) {
	gpu, err := openShared(ordinal)
	return Pinned{gpu}, err
}

// Take is n cleared bytes, at a multiple of 4096.
func (p Pinned) Take(n int) ([]byte, error) {
	at, err := p.gpu.AllocHost(int64(n))
	if err != nil {
		return nil, err
	}
	mem := unsafe.Slice((*byte)(at), n)
	clear(mem)
	return mem, nil
}

// Give gives back what Take gave.
func (p Pinned) Give(mem []byte) { _ = p.gpu.FreeHost(unsafe.Pointer(unsafe.SliceData(mem))) }

// Close ends it; all memory has been given back.
func (p Pinned) Close() { p.gpu.close() }
