package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"zeroth/device"
)

// threads are in the blocks of all kernels but flash.cu's.
const threads = 256

// Call is a launch of a kernel.
type Call struct {
	Kernel *Kernel
	Grid   [3]uint32 // blocks
	Shared uint32    // bytes of dynamic shared memory of a block
	Cost   Cost

	args [maxArgs]byte
}

// maxArgs is the bytes of the longest parameter list, rope's: it has as many
// frequencies as a head may have pairs.
const maxArgs = 2112

// Cost is what a launch does at the least: bytes of device memory read and written
// once each, and operations of floating point, of which a multiply-add is two.
type Cost struct{ Bytes, Flops int64 }

// Args are the parameters, each at its Offset. They are the call's: a Launcher
// copies them.
func (c *Call) Args() []byte {
	last := c.Kernel.Params[len(c.Kernel.Params)-1]
	return c.args[:last.Offset+last.Bytes]
}

// Launcher brings calls to a GPU, in the order in which they are given. A call is
// the caller's again when Launch returns.
type Launcher interface{ Launch(*Call) }

// list is a call and its parameter that is to come, of 0 bytes behind the last one. It is
// a value, so that each parameter finds its place in registers and not where the one
// before has left it.
type list struct {
	c *Call
	p *Param
}

// place is where the next parameter goes, of so many bytes. TestTable holds that all of them
// are within the arguments.
func (l list) place(bytes int) unsafe.Pointer {
	if l.p.Bytes != bytes {
		l.misfit(bytes)
	}
	return unsafe.Add(unsafe.Pointer(&l.c.args), l.p.Offset)
}

// then is the list from behind a parameter that has been put down.
func (l list) then() list {
	return list{l.c, (*Param)(unsafe.Add(unsafe.Pointer(l.p), unsafe.Sizeof(Param{})))}
}

// misfit panics; it is apart so that place, which every parameter needs, is inlined.
func (l list) misfit(bytes int) {
	k := l.c.Kernel
	panic(fmt.Sprintf("kernel: a parameter of %d bytes of %s, where %d come, of %v", bytes, k.Name, l.p.Bytes, k.Params))
}

// put32 and put64 are how GPUs have words, whatever the host's are.
func put32(to unsafe.Pointer, x uint32) { binary.LittleEndian.PutUint32((*[4]byte)(to)[:], x) }

func put64(to unsafe.Pointer, x uint64) { binary.LittleEndian.PutUint64((*[8]byte)(to)[:], x) }

func (l list) i32(x int) list {
	if x != int(int32(x)) {
		l.tooMany(x)
	}
	to := l.place(4)
	put32(to, uint32(x))
	return l.then()
}

func (l list) tooMany(x int) {
	panic(fmt.Sprintf("kernel: %s of %d, which is more than kernels count", l.c.Kernel.Name, x))
}

func (l list) flag(x bool) list {
	if x {
		return l.i32(1)
	}
	return l.i32(0)
}

func (l list) i64(x int) list {
	to := l.place(8)
	put64(to, uint64(x))
	return l.then()
}

func (l list) f32(x float32) list {
	to := l.place(4)
	put32(to, math.Float32bits(x))
	return l.then()
}

func (l list) f64(x float64) list {
	to := l.place(8)
	put64(to, math.Float64bits(x))
	return l.then()
}

// floats is a struct of float32.
func (l list) floats(x ...float32) list {
	to := l.place(4 * len(x))
	for i, v := range x {
		put32(unsafe.Add(to, 4*i), math.Float32bits(v))
	}
	return l.then()
}

// ptr is where a buffer begins; an empty one is null.
func (l list) ptr(b *device.Buffer) list {
	to := l.place(8)
	put64(to, begins(b))
	return l.then()
}

// begins is the address of a buffer, or 0 of an empty one.
func begins(b *device.Buffer) uint64 {
	if b.N > 0 {
		return uint64(uintptr(b.Ptr))
	}
	return 0
}

// mat is rt.cuh's Mat: elements go in words where those are aligned.
func (l list) mat(m *device.Mat) list { return l.rows(&m.Buf, m.Ld, 2) }

// matUpTo is mat with words of so many fours of elements at the most.
func (l list) matUpTo(m *device.Mat, words int) list { return l.rows(&m.Buf, m.Ld, words) }

// vec is a Mat of one row.
func (l list) vec(b *device.Buffer) list { return l.rows(b, 0, 2) }

func (l list) rows(b *device.Buffer, ld, words int) list {
	to := l.place(16)
	put64(to, begins(b))
	put64(unsafe.Add(to, 8), uint64(uint32(ld))|uint64(b.Type)<<32|uint64(min(words, aligned(b, ld)))<<48)
	return l.then()
}

// aligned is how many fours of elements, whose size is a power of two, lie in one word or,
// eight of float32, in two.
func aligned(b *device.Buffer, ld int) int {
	four := uintptr(4*b.Type.Size() - 1)
	switch at := uintptr(b.Ptr) | uintptr(ld*b.Type.Size()); {
	case at&15 == 0:
		return 2
	case at&four == 0:
		return 1
	}
	return 0
}

const _ = uint(8 - unsafe.Sizeof(uintptr(0))) // pointers have 8 bytes
