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

	put  int // parameters so far
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

// next is the room of the next parameter.
func (c *Call) next(bytes int) []byte {
	if c.put >= len(c.Kernel.Params) || c.Kernel.Params[c.put].Bytes != bytes {
		c.misfit(bytes)
	}
	at := c.Kernel.Params[c.put].Offset
	c.put++
	return c.args[at : at+bytes]
}

// misfit panics; it is apart so that next, which every parameter needs, is inlined.
func (c *Call) misfit(bytes int) {
	panic(fmt.Sprintf("kernel: parameter %d of %s has other than %d bytes: %v", c.put, c.Kernel.Name, bytes, c.Kernel.Params))
}

func (c *Call) i32(x int) *Call {
	if x != int(int32(x)) {
		panic(fmt.Sprintf("kernel: %s of %d, which is more than kernels count", c.Kernel.Name, x))
	}
	binary.LittleEndian.PutUint32(c.next(4), uint32(x))
	return c
}

func (c *Call) flag(x bool) *Call {
	if x {
		return c.i32(1)
	}
	return c.i32(0)
}

func (c *Call) i64(x int) *Call {
	binary.LittleEndian.PutUint64(c.next(8), uint64(x))
	return c
}

func (c *Call) f32(x float32) *Call {
	binary.LittleEndian.PutUint32(c.next(4), math.Float32bits(x))
	return c
}

func (c *Call) f64(x float64) *Call {
	binary.LittleEndian.PutUint64(c.next(8), math.Float64bits(x))
	return c
}

// floats is a struct of float32.
func (c *Call) floats(x ...float32) *Call {
	to := c.next(4 * len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(to[4*i:], math.Float32bits(v))
	}
	return c
}

// ptr is where a buffer begins; an empty one is null.
func (c *Call) ptr(b *device.Buffer) *Call {
	putPtr(c.next(8), b)
	return c
}

func putPtr(to []byte, b *device.Buffer) {
	var at uintptr
	if b.N > 0 {
		at = uintptr(b.Ptr)
	}
	binary.LittleEndian.PutUint64(to, uint64(at))
}

// mat is rt.cuh's Mat: four elements go in one word where that is aligned.
func (c *Call) mat(m *device.Mat) *Call { return c.rows(&m.Buf, m.Ld, true) }

// matIf is mat whose words of four are used if the kernel's columns begin at
// multiples of four.
func (c *Call) matIf(m *device.Mat, wide bool) *Call { return c.rows(&m.Buf, m.Ld, wide) }

// vec is a Mat of one row.
func (c *Call) vec(b *device.Buffer) *Call { return c.rows(b, 0, true) }

func (c *Call) rows(b *device.Buffer, ld int, wide bool) *Call {
	to := c.next(16)
	var at uint64
	if b.N > 0 {
		at = uint64(uintptr(b.Ptr))
	}
	words := uint64(0)
	if wide && ld%4 == 0 && aligned(b) {
		words = 1
	}
	binary.LittleEndian.PutUint64(to, at)
	binary.LittleEndian.PutUint64(to[8:], uint64(uint32(ld))|uint64(b.Type)<<32|words<<48)
	return c
}

// aligned is whether four elements, whose size is a power of two, lie in one word.
func aligned(b *device.Buffer) bool {
	return uintptr(b.Ptr)&uintptr(4*b.Type.Size()-1) == 0
}

const _ = uint(8 - unsafe.Sizeof(uintptr(0))) // pointers have 8 bytes
