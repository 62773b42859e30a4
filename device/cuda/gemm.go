//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"math/bits"

	"zeroth/device"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/kernel"
)

// ReserveWork takes the work space for kernels of the given sizes.
func (d *Device) ReserveWork(s device.Sizes) (err error) {
	if s == (device.Sizes{}) {
		return nil
	}
	if d.work, err = d.Alloc(device.F32, productWork/4, device.Workspace); err == nil {
		d.parts, err = d.Alloc(device.F32, kernel.WorkLen, device.Workspace)
	}
	return err
}

// ownsWork panics if another queue of the device uses its work space: the two would
// write over each other.
func (q *Queue) ownsWork(op string) {
	if q.dev.product == nil {
		q.dev.product = q
	}
	if q.dev.product != q {
		panic(fmt.Sprintf("cuda: %s on queue %s, while the device's work space is that of queue %s", op, q.name, q.dev.product.name))
	}
}

// MatMul sets c = a·b, plus bias in every row if bias is not empty, plus the old c
// if add is set. a and b are of one float type, c of that or float32, the bias of
// c's; sums are in float32. c is not transposed and shares no memory with the
// others.
func (q *Queue) MatMul(c, a, b device.Mat, bias device.Buffer, add bool) {
	const op = "matmul"
	g, ok := gemm(c, a, b, add)
	if !ok {
		panic(fmt.Sprintf("cuda: a product of %v (%d, %d) and %v (%d, %d), transposed %v and %v, into %v (%d, %d)", a.Buf.Type, a.Rows, a.Cols, b.Buf.Type, b.Rows, b.Cols, a.Trans, b.Trans, c.Buf.Type, c.Rows, c.Cols))
	}
	pa, pb, pc := a.Buf.Ptr, b.Buf.Ptr, c.Buf.Ptr
	if bias.N > 0 {
		if bias.N != c.Cols || bias.Type != c.Buf.Type {
			panic(fmt.Sprintf("cuda: a bias of %d %v for %d columns of %v", bias.N, bias.Type, c.Cols, c.Buf.Type))
		}
	}
	if g.M == 0 || g.N == 0 || q.failed() != nil {
		return
	}
	if q.blas == nil {
		q.openBLAS()
		if q.blas == nil {
			return
		}
	}
	done := q.spans.begin(q, op)
	if bias.N == 0 {
		q.fail(q.blas.Product(g, pb, pa, pc))
	} else {
		pv := bias.Ptr
		g.Align = alignment(uintptr(pa) | uintptr(pb) | uintptr(pc) | uintptr(pv))
		q.fail(q.blas.WithBias(g, pb, pa, pc, pv))
	}
	done()
}

// openBLAS makes the queue's handle, with the device's work space.
func (q *Queue) openBLAS() {
	q.ownsWork("matmul")
	if q.dev.work.N == 0 {
		panic("cuda: a product on a device without work space")
	}
	var err error
	q.blas, err = driver.NewBLAS(q.stream, q.dev.work.Ptr, q.dev.work.Bytes())
	q.fail(err)
}

var blasTypes = map[device.DType]int{device.F32: driver.Float32, device.F16: driver.Float16, device.BF16: driver.BFloat16}

// gemm is a row-major c = a·b as a column-major product: the transposes, in the
// other order.
func gemm(c, a, b device.Mat, add bool) (g driver.Gemm, ok bool) {
	m, k := a.Dims()
	k2, n := b.Dims()
	typ, fine := blasTypes[a.Buf.Type]
	typeC, fine2 := blasTypes[c.Buf.Type]
	if c.Trans || k != k2 || c.Rows != m || c.Cols != n || !fine || !fine2 || a.Buf.Type != b.Buf.Type ||
		(c.Buf.Type != a.Buf.Type && c.Buf.Type != device.F32) || max(m, n, k, a.Ld, b.Ld, c.Ld) > math.MaxInt32 {
		return g, false
	}
	g = driver.Gemm{TransA: b.Trans, TransB: a.Trans, M: n, N: m, K: k, LdA: b.Ld, LdB: a.Ld, LdD: c.Ld, Type: typ, TypeD: typeC}
	if add {
		g.Beta = 1
	}
	return g, true
}

// alignment is the greatest power of two up to 256 that divides addresses or-ed
// together.
func alignment(p uintptr) int { return 1 << min(8, bits.TrailingZeros64(uint64(p))) }
