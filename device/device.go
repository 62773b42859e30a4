// Package device is memory and order on one machine: buffers, the devices that
// own them, and the queues on which work over them is issued.
//
// Three rules hold on every device:
//
//   - A Queue runs what it is given in order. Work on two queues is unordered
//     unless one waits for the other with Mark and After.
//   - An error sticks to its queue: later work is skipped, but marks still
//     fire, and a queue that waits for a mark of a failed queue takes over the
//     error. So nobody hangs and the first error is the one reported.
//   - The host touches the elements of a buffer only after Wait on the queue
//     that writes it.
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

// Size is the number of bytes of one element of a type that is not Coded.
func (t DType) Size() int { return dtypeSizes[t] }

// Integer says whether the elements are integers: they are moved, never summed
// by collectives.
func (t DType) Integer() bool { return t == I32 || t == I64 }

// Use is the category an allocation is accounted under.
type Use uint8

const (
	Params      Use = iota // parameter shards at rest, compute dtype
	Gathered               // slots that hold whole units while they are used
	Grads                  // gradient shards, float32
	UnitGrads              // unsharded gradients of units, float32
	Master                 // float32 master copy of the shard, where Params is not it
	States                 // optimizer state of the shard
	Updates                // of whole matrices on their way to their update, and its work space
	Activations            // the arena: saved activations and work space
	Inputs                 // token ids
	Stats                  // losses and norms
	Staging                // offload staging
	Wires                  // what collectives between processes pass through, in host memory
	Snapshot               // checkpoint staging
	Workspace              // of kernels
	Bounce                 // of collectives between processes: what is on its way
	Uses                   // number of categories
)

var useNames = [Uses]string{"params", "gathered", "grads", "unit_grads", "master",
	"optimizer", "whole_updates", "activations", "inputs", "stats", "offload_staging", "wire_staging", "checkpoint_staging", "workspace", "bounce"}

func (u Use) String() string { return useNames[u] }

// Bytes is a number of bytes in each category.
type Bytes [Uses]int64

// Total is the sum over the categories.
func (b Bytes) Total() (n int64) {
	for _, x := range b {
		n += x
	}
	return n
}

// Usage is what a device's allocator holds: Live now; Peak at the instant its
// total was highest.
type Usage struct{ Live, Peak Bytes }

// Add accounts an allocation of n bytes (negative: a free).
func (u *Usage) Add(use Use, n int64) {
	u.Live[use] += n
	if u.Live.Total() > u.Peak.Total() {
		u.Peak = u.Live
	}
}

// Buffer is a view of N elements of device memory, a value like a slice
// header. The zero Buffer is empty. A buffer does not own its memory; see
// Device.
type Buffer struct {
	Type DType
	Host bool // the host may address Ptr (after Wait)
	Use  Use  // what it was allocated for
	N    int  // elements, not bytes
	Ptr  unsafe.Pointer
}

// Bytes is the size of the buffer in bytes.
func (b Buffer) Bytes() int { return b.Type.Bytes(b.N) }

// Slice is the view of elements [lo, hi); of a Coded type lo begins a block.
func (b Buffer) Slice(lo, hi int) Buffer {
	if lo < 0 || hi < lo || hi > b.N {
		panic(fmt.Sprintf("device: slice [%d:%d) of %d elements", lo, hi, b.N))
	}
	if b.Type.Coded() && lo%BlockLen != 0 && lo < hi {
		panic(fmt.Sprintf("device: a slice from element %d on of blocks of %d", lo, BlockLen))
	}
	if lo < hi && b.Ptr != nil { // no pointer goes past the end of its memory, where other memory begins
		b.Ptr = unsafe.Add(b.Ptr, b.Type.Bytes(lo))
	}
	b.N = hi - lo
	return b
}

// F32 is the host's view of a float32 buffer.
func (b Buffer) F32() []float32 { return host[float32](b, F32) }

// I32 is the host's view of an int32 buffer.
func (b Buffer) I32() []int32 { return host[int32](b, I32) }

// F64 is the host's view of a float64 buffer.
func (b Buffer) F64() []float64 { return host[float64](b, F64) }

// I64 is the host's view of an int64 buffer.
func (b Buffer) I64() []int64 { return host[int64](b, I64) }

// U16 is the host's view of the bits of a bf16 or fp16 buffer.
func (b Buffer) U16() []uint16 {
	if b.Type == F16 {
		return host[uint16](b, F16)
	}
	return host[uint16](b, BF16)
}

// Raw is the host's view of the bytes of a buffer.
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

// OfF32, OfI32 and OfF64 view host slices as buffers; the slice must
// outlive the work issued on the buffer.
func OfF32(s []float32) Buffer { return of(F32, s) }
func OfI32(s []int32) Buffer   { return of(I32, s) }
func OfF64(s []float64) Buffer { return of(F64, s) }

// OfU16 views bf16 or fp16 bits as a buffer.
func OfU16(t DType, s []uint16) Buffer {
	if t != BF16 && t != F16 {
		panic(fmt.Sprintf("device: 16-bit elements called %v", t))
	}
	return of(t, s)
}

func of[T any](t DType, s []T) Buffer {
	return Buffer{Type: t, Host: true, N: len(s), Ptr: unsafe.Pointer(unsafe.SliceData(s))}
}

// Device owns memory and accounts for it.
type Device interface {
	// Alloc returns n zeroed elements, aligned to 64 bytes, accounted under use.
	Alloc(t DType, n int, use Use) (Buffer, error)
	// Free returns what Alloc gave; its queues must be idle on it.
	Free(Buffer)
	// Usage is the device's account, exact at every instant.
	Usage() Usage
}

// Queue is a first-in-first-out order of work.
type Queue interface {
	Do(f func() error)    // run f; its error sticks
	Copy(dst, src Buffer) // equal type and length
	Mark() Event          // fires when all work issued before it is done
	After(Event)          // work issued later waits for the event
	Wait() error          // until all issued work is done; the sticky error
	Label(what string)    // names work issued later in its error and in traces
	Labelled() string     // the name of work issued next
}

// Event is a point in the order of one queue. The zero Event has happened.
type Event struct {
	On  Fence
	Seq uint64
}

// Await blocks until the event has fired and returns its queue's sticky error.
func (e Event) Await() error {
	if e.On == nil {
		return nil
	}
	return e.On.Await(e.Seq)
}

// Fence is what an event belongs to: it can be waited for from the host.
type Fence interface {
	// Await blocks until seq has fired and returns the queue's sticky error.
	Await(seq uint64) error
}
