// Package device defines memory and order of execution on one machine: buffers, the devices that
// own them, and the queues on which work is issued.
//
// Three rules hold on every device:
//
//   - A Queue executes its work in order. Work on two queues is unordered
//     unless one waits for the other with Mark and After.
//   - An error sticks to its queue: later work is skipped, but marks still
//     fire, and a queue that waits for a mark adopts the error of a queue
//     that failed before it. So there are no deadlocks, and the first error
//     is reported.
//   - The host may access the elements of a buffer only after Wait on the
//     queue that writes it.
package device

import (
	"fmt"
	"unsafe"
)

// DType is the element type of a buffer.
type DType uint8

const (
	F32  DType = iota // IEEE binary32
	BF16              // upper half of a binary32, rounded to nearest even
	F16               // IEEE binary16
	I32               // token ids
	F64               // IEEE binary64
	I64               // exact sums and statistics
)

var dtypeNames = [...]string{"fp32", "bf16", "fp16", "int32", "fp64", "int64", "int8 in blocks", "uint8 in blocks"}
var dtypeSizes = [...]int{4, 2, 2, 4, 8, 8}

func (t DType) String() string { return dtypeNames[t] }

// Size returns the size in bytes of one element of a type that is not Coded.
func (t DType) Size() int { return dtypeSizes[t] }

// Integer reports whether the elements are integers: collectives move but never sum them.
func (t DType) Integer() bool { return t == I32 || t == I64 }

// Use is the accounting category of an allocation.
type Use uint8

const (
	Params      Use = iota // parameter shards at rest, compute dtype
	Gathered               // slots for whole units in use
	Grads                  // gradient shards, float32
	UnitGrads              // unsharded gradients of units, float32
	Master                 // float32 master copy of the shard, if Params has another type
	States                 // optimizer state of the shard
	Updates                // whole matrices during their update, and its working space
	Activations            // the arena: saved activations and working space
	Inputs                 // token ids
	Stats                  // losses and norms
	Staging                // offload staging
	Wires                  // staging for collectives between processes, in host memory
	Snapshot               // checkpoint staging
	Workspace              // of kernels
	Bounce                 // chunks in flight in collectives between processes
	Uses                   // number of categories
)

var useNames = [Uses]string{"params", "gathered", "grads", "unit_grads", "master",
	"optimizer", "whole_updates", "activations", "inputs", "stats", "offload_staging", "wire_staging", "checkpoint_staging", "workspace", "bounce"}

func (u Use) String() string { return useNames[u] }

// Bytes holds a number of bytes per category.
type Bytes [Uses]int64

// Total returns the sum over the categories.
func (b Bytes) Total() (n int64) {
	for _, x := range b {
		n += x
	}
	return n
}

// Usage is the state of a device's allocator: Live now, and Peak when the total was highest.
type Usage struct{ Live, Peak Bytes }

// Add accounts for an allocation of n bytes; a negative n is a free.
func (u *Usage) Add(use Use, n int64) {
	u.Live[use] += n
	if u.Live.Total() > u.Peak.Total() {
		u.Peak = u.Live
	}
}

// Buffer is a view of N elements of device memory, passed by value like a slice header. The zero
// Buffer is empty. A buffer does not own its memory; see Device.
type Buffer struct {
	Type DType
	Host bool // the host can address Ptr (after Wait)
	Use  Use  // category of the allocation
	N    int  // elements, not bytes
	Ptr  unsafe.Pointer
}

// Bytes returns the size of the buffer in bytes.
func (b Buffer) Bytes() int { return b.Type.Bytes(b.N) }

// Slice returns the view of elements [lo, hi); for a Coded type, lo must begin a block.
func (b Buffer) Slice(lo, hi int) Buffer {
	if lo < 0 || hi < lo || hi > b.N {
		panic(fmt.Sprintf("device: slice [%d:%d) of %d elements", lo, hi, b.N))
	}
	if b.Type.Coded() && lo%BlockLen != 0 && lo < hi {
		panic(fmt.Sprintf("device: a slice from element %d, which does not begin a block of %d", lo, BlockLen))
	}
	p := b.Ptr
	if lo < hi && p != nil { // a pointer past the end would refer to other memory
		p = unsafe.Add(p, b.Type.Bytes(lo))
	}
	return Buffer{b.Type, b.Host, b.Use, hi - lo, p}
}

// Neighbours returns the first n elements of buffers that lie one after another in memory.
func Neighbours(parts []Buffer, n int) Buffer {
	all := parts[0]
	for _, b := range parts[1:] {
		if all.N >= n {
			break
		}
		if b.Type != all.Type || all.Ptr != nil && uintptr(all.Ptr)+uintptr(all.Bytes()) != uintptr(b.Ptr) {
			panic(fmt.Sprintf("device: %d %v at %p do not follow %d %v at %p", b.N, b.Type, b.Ptr, all.N, all.Type, all.Ptr))
		}
		all.N += b.N
	}
	return all.Slice(0, n)
}

// F32 returns the host's view of a float32 buffer.
func (b Buffer) F32() []float32 { return host[float32](b, F32) }

// I32 returns the host's view of an int32 buffer.
func (b Buffer) I32() []int32 { return host[int32](b, I32) }

// F64 returns the host's view of a float64 buffer.
func (b Buffer) F64() []float64 { return host[float64](b, F64) }

// I64 returns the host's view of an int64 buffer.
func (b Buffer) I64() []int64 { return host[int64](b, I64) }

// U16 returns the host's view of the bits of a bf16 or fp16 buffer.
func (b Buffer) U16() []uint16 {
	if b.Type == F16 {
		return host[uint16](b, F16)
	}
	return host[uint16](b, BF16)
}

// Raw returns the host's view of the bytes of a buffer.
func (b Buffer) Raw() []byte {
	b.mustHost()
	return unsafe.Slice((*byte)(b.Ptr), b.Bytes())
}

func host[T any](b Buffer, t DType) []T {
	if b.Type != t {
		panic(fmt.Sprintf("device: a %v buffer viewed as %v", b.Type, t))
	}
	b.mustHost()
	return unsafe.Slice((*T)(b.Ptr), b.N)
}

func (b Buffer) mustHost() {
	if !b.Host {
		panic("device: the host looks into device memory")
	}
}

// OfF32, OfI32 and OfF64 view host slices as buffers; the slice must outlive the work issued on the
// buffer.
func OfF32(s []float32) Buffer { return bufferOf(F32, s) }
func OfI32(s []int32) Buffer   { return bufferOf(I32, s) }
func OfF64(s []float64) Buffer { return bufferOf(F64, s) }

// OfU16 views bf16 or fp16 bits as a buffer.
func OfU16(t DType, s []uint16) Buffer {
	if t != BF16 && t != F16 {
		panic(fmt.Sprintf("device: %v is not a 16-bit type", t))
	}
	return bufferOf(t, s)
}

func bufferOf[T any](t DType, s []T) Buffer {
	return Buffer{Type: t, Host: true, N: len(s), Ptr: unsafe.Pointer(unsafe.SliceData(s))}
}

// Device owns memory and accounts for it.
type Device interface {
	// Alloc returns n zeroed elements, aligned to 64 bytes, accounted under use.
	Alloc(t DType, n int, use Use) (Buffer, error)
	// Free frees a buffer from Alloc; its queues must not use it anymore.
	Free(Buffer)
	// Usage returns the device's account, exact at every instant.
	Usage() Usage
}

// Queue executes work in first-in-first-out order.
type Queue interface {
	Do(f func() error)    // run f; its error sticks
	Copy(dst, src Buffer) // equal type and length
	Mark() Event          // fires when all work issued before it is done
	After(Event)          // makes work issued later wait for the event
	Wait() error          // waits until all issued work is done; returns the sticky error
	Label(what string)    // names work issued later in its error and in traces
	Labelled() string     // the name of work issued next
}

// Event is a point in the order of one queue. The zero Event has fired.
type Event struct {
	On  Fence
	Seq uint64
}

// Await blocks until the event has fired and returns its queue's sticky error, at least if the queue failed before it.
func (e Event) Await() error {
	if e.On == nil {
		return nil
	}
	return e.On.Await(e.Seq)
}

// Fence lets the host wait for events.
type Fence interface {
	// Await blocks until seq has fired and returns the queue's sticky error.
	Await(seq uint64) error
}
