package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"zeroth/device"
)

// threads is the number of threads per block of all kernels except flash.cu's.
const threads = 256

// Call is a launch of a kernel.
type Call struct {
	Kernel *Kernel
	Grid   [3]uint32 // blocks
	Shared uint32    // bytes of dynamic shared memory per block
	Cost   Cost

	args [maxArgs]byte
}

// maxArgs is the size in bytes of the longest parameter list, rope's: it contains the frequencies
// of all pairs of a head.
const maxArgs = 2112

// Cost is the minimum work of a launch: bytes of device memory read and written, counting each
// once, and floating-point operations, two per multiply-add.
type Cost struct{ Bytes, Flops int64 }

// Args returns the parameters, each at its Offset. They belong to the call: a Launcher copies them.
func (c *Call) Args() []byte {
	last := c.Kernel.Params[len(c.Kernel.Params)-1]
	return c.args[:last.Offset+last.Bytes]
}

// Launcher passes calls to a GPU, in order. The caller may reuse a call after Launch.
type Launcher interface{ Launch(*Call) }

// list is a call and its next parameter; the last one is followed by a parameter of 0 bytes. It
// is passed by value, so that the position of each parameter stays in registers instead of
// memory.
type list struct {
	c *Call
	p *Param
}

// slot returns where to store the next parameter, which must have that many bytes. TestTable
// checks that all parameters fit the arguments.
func (l list) slot(bytes int) unsafe.Pointer {
	if l.p.Bytes != bytes {
		l.misfit(bytes)
	}
	return unsafe.Add(unsafe.Pointer(&l.c.args), l.p.Offset)
}

// then returns the list after the current parameter.
func (l list) then() list {
	return list{l.c, (*Param)(unsafe.Add(unsafe.Pointer(l.p), unsafe.Sizeof(Param{})))}
}

// misfit panics. It is a separate function so that place, which is called for every parameter,
// can be inlined.
func (l list) misfit(bytes int) {
	k := l.c.Kernel
	panic(fmt.Sprintf("kernel: a parameter of %d bytes of %s, where %d come, of %v", bytes, k.Name, l.p.Bytes, k.Params))
}

// put32 and put64 write words in the GPU's byte order.
func put32(to unsafe.Pointer, x uint32) { binary.LittleEndian.PutUint32((*[4]byte)(to)[:], x) }

func put64(to unsafe.Pointer, x uint64) { binary.LittleEndian.PutUint64((*[8]byte)(to)[:], x) }

func (l list) i32(x int) list {
	if x != int(int32(x)) {
		l.tooMany(x)
	}
	to := l.slot(4)
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
	to := l.slot(8)
	put64(to, uint64(x))
	return l.then()
}

func (l list) f32(x float32) list {
	to := l.slot(4)
	put32(to, math.Float32bits(x))
	return l.then()
}

func (l list) f64(x float64) list {
	to := l.slot(8)
	put64(to, math.Float64bits(x))
	return l.then()
}

// floats passes a struct of float32 fields.
func (l list) floats(x ...float32) list {
	to := l.slot(4 * len(x))
	for i, v := range x {
		put32(unsafe.Add(to, 4*i), math.Float32bits(v))
	}
	return l.then()
}

// ptr passes the address of a buffer, or null if it is empty.
func (l list) ptr(b *device.Buffer) list {
	to := l.slot(8)
	put64(to, begins(b))
	return l.then()
}

// begins returns the address of a buffer, or 0 if it is empty.
func begins(b *device.Buffer) uint64 {
	if b.N > 0 {
		return uint64(uintptr(b.Ptr))
	}
	return 0
}

// mat passes rt.cuh's Mat. Elements are accessed in words if they are aligned.
func (l list) mat(m *device.Mat) list { return l.rows(&m.Buf, m.Ld, 2) }

// matUpTo is like mat, with words of at most 4·words elements.
func (l list) matUpTo(m *device.Mat, words int) list { return l.rows(&m.Buf, m.Ld, words) }

// vec passes a Mat of one row.
func (l list) vec(b *device.Buffer) list { return l.rows(b, 0, 2) }

func (l list) rows(b *device.Buffer, ld, words int) list {
	putMat(l.slot(16), b, ld, words)
	return l.then()
}

func putMat(to unsafe.Pointer, b *device.Buffer, ld, words int) {
	put64(to, begins(b))
	put64(unsafe.Add(to, 8), uint64(uint32(ld))|uint64(b.Type)<<32|uint64(min(words, aligned(b, ld)))<<48)
}

// aligned returns the number of groups of four elements, a power of two, that fit in one word or,
// for eight float32, in two.
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
