//go:build cuda

package cuda

import (
	"fmt"
	"maps"
	"math"
	"math/bits"

	"zeroth/device"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/kernel"
)

// ReserveWork allocates the working space for kernels of the given sizes, and loads those of
// attention.
func (d *Device) ReserveWork(s device.Sizes) (err error) {
	if s == (device.Sizes{}) {
		return nil
	}
	for range multiplying(s) {
		b, err := d.Alloc(device.F32, productWork/4, device.Workspace)
		if err != nil {
			return err
		}
		d.work = append(d.work, b)
	}
	d.parts, err = d.Alloc(device.F32, kernel.WorkLen, device.Workspace)
	if err == nil && s.Attn.D > 0 {
		err = d.gpu.want(kernel.ForHeads(d.choice, s.Type, &s.Attn))
	}
	return err
}

// ownWork returns the queue's working space for products. It panics if other queues of the device
// use all of it, since two would overwrite each other.
func (q *Queue) ownWork(op string) device.Buffer {
	d := q.dev
	if len(d.work) == 0 {
		panic("cuda: a product on a device without work space")
	}
	if len(d.product) == len(d.work) {
		panic(fmt.Sprintf("cuda: %s on queue %s, while the device's work space is that of queue %s", op, q.name, d.product[0].name))
	}
	d.product = append(d.product, q)
	return d.work[len(d.product)-1]
}

// MatMul sets c = a·b, plus bias in every row if bias is not empty, plus the old c if add is set. a
// and b must have the same float type, c that type or float32, and the bias c's; sums are in
// float32. c must not be transposed or share memory with the others.
func (q *Queue) MatMul(c, a, b device.Mat, bias device.Buffer, add bool) {
	const op = "matmul"
	g := gemm(&c, &a, &b)
	wantBias(c, bias)
	if add {
		g.Add = true
	}
	if bias.N > 0 {
		if q.fused(op, driver.Bias, &g, &c, &a, &b, &c, bias, &device.Mat{}) {
			return
		}
		q.AddRow(c, bias, !add)
		g.Add = true
	}
	if g.M == 0 || g.N == 0 || !q.canMultiply() {
		return
	}
	if q.chosen(&g, &c, &a, &b) {
		q.fused(op, driver.Plain, &g, &c, &a, &b, &c, device.Buffer{}, &device.Mat{})
		return
	}
	if !q.beginProduct(op, &g) {
		return
	}
	q.blas.Product(q.commands(), &g, b.Buf.Ptr, a.Buf.Ptr, c.Buf.Ptr)
	q.end()
}

// MatMulOnto sets y = x + a·b, plus bias in every row if bias is not empty: x, of y's type, is the
// product's third operand, which avoids a copy.
func (q *Queue) MatMulOnto(y, x, a, b device.Mat, bias device.Buffer) {
	g := gemm(&y, &a, &b)
	wantBias(y, bias)
	wantBeside("matmul onto", y, x)
	g.Add = true
	e := driver.Plain
	if bias.N > 0 {
		e = driver.Bias
	}
	if y.Buf.Type != x.Buf.Type || !q.fused("matmul onto", e, &g, &y, &a, &b, &x, bias, &device.Mat{}) {
		device.MatMulOnto(q, y, x, a, b, bias)
	}
}

// MatMulActivate sets x = a·b, plus bias, and y = f(x); GELU (tanh), of x before it is rounded, is
// fused as the product's epilogue.
func (q *Queue) MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation) {
	g := gemm(&y, &a, &b)
	wantBias(y, bias)
	wantBeside("matmul, activation", y, x)
	if f != device.GeluTanh || bias.N == 0 || y.Buf.Type != x.Buf.Type || !q.fused("matmul, activation", driver.GeluBias, &g, &y, &a, &b, &y, bias, &x) {
		device.MatMulActivate(q, y, x, a, b, bias, f)
	}
}

// MatMulActivateGrad sets dx = (a·b) * f'(x); GELU (tanh) is fused as the product's epilogue.
func (q *Queue) MatMulActivateGrad(dx, a, b, x device.Mat, f device.Activation) {
	g := gemm(&dx, &a, &b)
	wantBeside("matmul, activation gradient", dx, x)
	if f != device.GeluTanh || dx.Buf.Type != x.Buf.Type || !q.fused("matmul, activation gradient", driver.GeluGrad, &g, &dx, &a, &b, &dx, device.Buffer{}, &x) {
		device.MatMulActivateGrad(q, dx, a, b, x, f)
	}
}

// WeightGrad sets dw = dyᵀ·x and db, of dw's type, to the sum of the rows of dy, by a kernel of
// its own: the epilogues that sum rows exist only in kernels of older GPUs. dw may be transposed, db
// empty.
func (q *Queue) WeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat) {
	device.WeightGrad(q, dw, db, dy, x)
}

// FusedWeightGrad computes WeightGrad with db summed by the product, which reads dy anyway. Only
// measurements call it.
func (q *Queue) FusedWeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat) {
	c, a, b := device.GradOperands(dw, dy, x)
	g := gemm(&c, &a, &b)
	e := driver.SumsB
	if dw.Trans {
		e = driver.SumsA
	}
	if db.N > 0 && (db.N != dy.Cols || db.Type != device.F32) {
		panic(fmt.Sprintf("cuda: the gradient of a bias of %d %v from %d columns", db.N, db.Type, dy.Cols))
	}
	if db.N == 0 || db.Type != c.Buf.Type || !q.fused("weight gradient", e, &g, &c, &a, &b, &c, db, &device.Mat{}) {
		device.WeightGrad(q, dw, db, dy, x)
	}
}

// chosen reports whether the device's table has an algorithm of cuBLASLt for c = a·b. cuBLASLt does
// not support products of a matrix with itself.
func (q *Queue) chosen(g *driver.Gemm, c, a, b *device.Mat) bool {
	g.Epilogue, g.LdC = driver.Plain, int32(c.Ld)
	g.Align = alignment(uintptr(a.Buf.Ptr) | uintptr(b.Buf.Ptr) | uintptr(c.Buf.Ptr))
	return a.Buf.Ptr != b.Buf.Ptr && q.blas.Chosen(g)
}

// fused enqueues d = a·b, or a·b + c, with an epilogue by cuBLASLt. It returns false if cuBLASLt
// has no algorithm, which Unfused reports.
func (q *Queue) fused(op string, e driver.Epilogue, g *driver.Gemm, d, a, b, c *device.Mat, vector device.Buffer, aux *device.Mat) bool {
	if g.M == 0 || g.N == 0 || !q.canMultiply() || !q.beginProduct(op, g) {
		return true
	}
	g.Epilogue, g.LdC, g.LdAux = e, int32(c.Ld), int32(aux.Ld)
	o := driver.Operands{A: b.Buf.Ptr, B: a.Buf.Ptr, C: c.Buf.Ptr, D: d.Buf.Ptr, Vector: vector.Ptr, Aux: aux.Buf.Ptr}
	g.Align = alignment(uintptr(o.A) | uintptr(o.B) | uintptr(o.C) | uintptr(o.D) | uintptr(o.Vector) | uintptr(o.Aux))
	ok, err := q.blas.Fused(q.commands(), g, o)
	q.fail(err)
	q.end()
	return ok || err != nil
}

// Unfused describes the issued products for which cuBLASLt has no algorithm, one per line: they
// needed additional kernels.
func (d *Device) Unfused() (all []string) {
	for _, q := range d.product {
		if q.blas != nil {
			all = append(all, q.blas.Unfused()...)
		}
	}
	return all
}

// Choices returns how the products issued so far are computed. None may be issued meanwhile.
func (d *Device) Choices() map[driver.Gemm]driver.Choice {
	all := map[driver.Gemm]driver.Choice{}
	for _, q := range d.product {
		if q.blas != nil {
			maps.Copy(all, q.blas.Choices())
		}
	}
	return all
}

// Planned returns the number of shapes of products issued so far.
func (d *Device) Planned() (n int) {
	for _, q := range d.product {
		if q.blas != nil {
			n += q.blas.Planned()
		}
	}
	return n
}

// ChooseAttention sets which kernels attention may use. It must be called before ReserveWork and NewQueue.
func (d *Device) ChooseAttention(c kernel.Choice) { d.choice = c }

// Choose sets the algorithms of a table. It must be called before the first product.
func (d *Device) Choose(t driver.Table) { d.table = t }

// wantBias panics unless bias fits a row of c or is empty.
func wantBias(c device.Mat, bias device.Buffer) {
	if bias.N > 0 && (bias.N != c.Cols || bias.Type != c.Buf.Type) {
		panic(fmt.Sprintf("cuda: a bias of %d %v for %d columns of %v", bias.N, bias.Type, c.Cols, c.Buf.Type))
	}
}

// wantBeside panics unless both matrices have equal shapes and no gaps.
func wantBeside(op string, y, x device.Mat) {
	if y.Trans || x.Trans || y.Rows != x.Rows || y.Cols != x.Cols || y.Ld != y.Cols || x.Ld != x.Cols {
		panic(fmt.Sprintf("cuda: %s of (%d, %d), rows %d apart, beside (%d, %d), rows %d apart", op, y.Rows, y.Cols, y.Ld, x.Rows, x.Cols, x.Ld))
	}
}

// canMultiply reports whether the queue can compute products, after opening its handle.
func (q *Queue) canMultiply() bool {
	if q.failed() != nil {
		return false
	}
	if q.blas == nil {
		q.openBLAS()
	}
	return q.blas != nil
}

// beginProduct is begin with the product's shape in traces: rows, inner size and columns.
func (q *Queue) beginProduct(op string, g *driver.Gemm) bool {
	if q.spans.told != nil {
		op = fmt.Sprintf("%s %d×%d×%d", op, g.N, g.K, g.M)
	}
	return q.begin(op)
}

// openBLAS opens the queue's handle, with the device's working space.
func (q *Queue) openBLAS() {
	work := q.ownWork("matmul")
	var err error
	q.blas, err = driver.NewBLAS(q.stream, work.Ptr, work.Bytes(), q.dev.table)
	q.fail(err)
}

// blasType returns cuBLAS's name of a type, or -1 if it does not multiply it.
func blasType(t device.DType) int32 {
	switch t {
	case device.F32:
		return driver.Float32
	case device.F16:
		return driver.Float16
	case device.BF16:
		return driver.BFloat16
	}
	return -1
}

// gemm converts a row-major c = a·b to a column-major product: the transposes, in reverse order.
func gemm(c, a, b *device.Mat) driver.Gemm {
	m, k := a.Dims()
	k2, n := b.Dims()
	typ, typeC := blasType(a.Buf.Type), blasType(c.Buf.Type)
	if c.Trans || k != k2 || c.Rows != m || c.Cols != n || min(typ, typeC) < 0 || a.Buf.Type != b.Buf.Type ||
		(c.Buf.Type != a.Buf.Type && c.Buf.Type != device.F32) || max(m, n, k, a.Ld, b.Ld, c.Ld) > math.MaxInt32 {
		panic(fmt.Sprintf("cuda: a product of %v (%d, %d) and %v (%d, %d), transposed %v and %v, into %v (%d, %d)", a.Buf.Type, a.Rows, a.Cols, b.Buf.Type, b.Rows, b.Cols, a.Trans, b.Trans, c.Buf.Type, c.Rows, c.Cols))
	}
	return driver.Gemm{TransA: b.Trans, TransB: a.Trans, M: int32(n), N: int32(m), K: int32(k), LdA: int32(b.Ld), LdB: int32(a.Ld), LdD: int32(c.Ld), Type: typ, TypeD: typeC}
}

// alignment returns the greatest power of two up to 16 that divides addresses or-ed together: no
// algorithm needs more, and the choice of an algorithm, and so a sum's order, should not depend on
// where a stage stores something.
func alignment(p uintptr) int32 { return 1 << min(4, bits.TrailingZeros64(uint64(p))) }
