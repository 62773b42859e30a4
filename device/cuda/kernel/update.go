package kernel

import "zeroth/device"

var (
	adamwKernel     = entryOf("adamw")
	adamw8Kernel    = entryOf("adamw8")
	sgdKernel       = entryOf("sgd")
	lionKernel      = entryOf("lion")
	exactSumKernel  = entryOf("exact_sum")
	axpbyKernel     = entryOf("axpby")
	copyBlockKernel = entryOf("copy_block")
	divideKernel    = entryOf("divide_by_norm")
)

// wantRule panics unless all operands have w's length. States and gradient must be float32; p may
// have any float type or be empty.
func wantRule(op string, w, p *device.Buffer, more ...*device.Buffer) {
	wantLen(op, device.F32, w.N, w)
	wantLen(op, device.F32, w.N, more...)
	if p.N != 0 {
		wantVec(op, w.N, p)
	}
}

// AdamW performs one step of Adam with decoupled decay; see device.AdamW.
func (o *Ops) AdamW(w, p, g, m, v device.Buffer, a device.AdamW) {
	wantRule("adamw", &w, &p, &g, &m, &v)
	l := o.begin(adamwKernel).vec(&w).vec(&p).vec(&g).vec(&m).vec(&v).i64(w.N).
		floats(a.GradScale, a.L2, a.Beta1, 1-a.Beta1, a.Beta2, 1-a.Beta2, a.Shrink, a.Step, a.RootC2, a.Eps)
	o.run(l, blocks(w.N, 4), 1, 1, o.passes(17, &w, &w, &p, &g, &m, &m, &v, &v))
}

// magnitudes contains the values of the codes of device.Q8, without the sign, and of device.U8.
var magnitudes = func() (all [128 + 256]float32) {
	q, _, _ := device.Q8.Code8()
	u, _, _ := device.U8.Code8()
	copy(all[copy(all[:], q[:128]):], u[:])
	return all
}()

// AdamW8 is like AdamW with moments coded in blocks: m is Q8, v is U8. Each block is decoded,
// updated like in AdamW, and coded. The code of NaN gets the sign of 0; on the CPU it gets the
// sign of the processor's NaN.
func (o *Ops) AdamW8(w, p, g, m, v device.Buffer, a device.AdamW) {
	wantRule("adamw in 8 bits", &w, &p, &g)
	wantLen("adamw in 8 bits", device.Q8, w.N, &m)
	wantLen("adamw in 8 bits", device.U8, w.N, &v)
	l := o.begin(adamw8Kernel).vec(&w).vec(&p).vec(&g).ptr(&m).ptr(&v).i64(w.N).
		floats(a.GradScale, a.L2, a.Beta1, 1-a.Beta1, a.Beta2, 1-a.Beta2, a.Shrink, a.Step, a.RootC2, a.Eps).floats(magnitudes[:]...)
	o.run(l, blocks(w.N, 1), 1, 1, o.passes(50, &w, &w, &p, &g, &m, &m, &v, &v))
}

// Axpby sets y = alpha*a + beta*b, rounding each product and the sum to float32. If p is not
// empty, it receives y rounded to its type. y may be a or b.
func (o *Ops) Axpby(y, p, a, b device.Buffer, alpha, beta float32) {
	wantVec("axpby", y.N, &y, &a, &b)
	if p.N != 0 {
		wantVec("axpby", y.N, &p)
	}
	l := o.begin(axpbyKernel).vec(&y).vec(&p).vec(&a).vec(&b).i64(y.N).f32(alpha).f32(beta)
	o.run(l, blocks(y.N, 4), 1, 1, o.passes(3, &y, &p, &a, &b))
}

// CopyBlock copies the elements of a matrix to another of the same shape and type; either may
// be part of a larger one.
func (o *Ops) CopyBlock(dst, src device.Mat) {
	const op = "copy of a block"
	wantMat(op, dst.Rows, dst.Cols, &dst, &src)
	l := o.begin(copyBlockKernel).mat(&dst).mat(&src).i32(dst.Rows).i32(dst.Cols)
	o.run(l, rowBlocks(dst.Rows), 1, 1, o.over(0, &dst, &src))
}

// Normalize divides x by its Euclidean norm rounded to x's type, or by eps if that is larger. The
// sum of squares is exact; acc, a device.Exact, is its working space. The result is bit-identical
// to package cpu's.
func (o *Ops) Normalize(x, acc device.Buffer, eps float32) {
	wantFloat("normalize", &x)
	o.Zero(acc)
	o.exact("normalize", acc, x, true)
	l := o.begin(divideKernel).vec(&x).ptr(&acc).f32(eps).i64(x.N)
	o.run(l, min(blocks(x.N, 4), exactBlocks), 1, 1, o.passes(1, &x, &x))
}

// SGD performs one step of stochastic gradient descent; see device.SGD. Without momentum m may be
// empty.
func (o *Ops) SGD(w, p, g, m device.Buffer, a device.SGD) {
	wantRule("sgd", &w, &p, &g)
	if m.N != 0 || a.Momentum != 0 {
		wantRule("sgd", &w, &p, &m)
	}
	l := o.begin(sgdKernel).vec(&w).vec(&p).vec(&g).vec(&m).i64(w.N).floats(a.GradScale, a.Decay, a.LR, a.Momentum)
	o.run(l, blocks(w.N, 4), 1, 1, o.passes(7, &w, &w, &p, &g, &m, &m))
}

// Lion performs one step of Lion; see device.Lion.
func (o *Ops) Lion(w, p, g, m device.Buffer, a device.Lion) {
	wantRule("lion", &w, &p, &g, &m)
	l := o.begin(lionKernel).vec(&w).vec(&p).vec(&g).vec(&m).i64(w.N).
		floats(a.GradScale, a.Beta1, 1-a.Beta1, a.Beta2, 1-a.Beta2, a.Shrink, a.LR)
	o.run(l, blocks(w.N, 4), 1, 1, o.passes(11, &w, &w, &p, &g, &m, &m))
}

// Sum adds the sum of x (float32) to acc, a device.Exact. After carrying, its bits are the same
// on every device.
func (o *Ops) Sum(acc, x device.Buffer) {
	wantLen("sum", device.F32, x.N, &x)
	o.exact("sum", acc, x, false)
}

// SumSquares adds the sum of the squares of x (float32) to acc, a device.Exact.
func (o *Ops) SumSquares(acc, x device.Buffer) {
	wantLen("sum of squares", device.F32, x.N, &x)
	o.exact("sum of squares", acc, x, true)
}

// exactBlocks is small because all blocks add their limbs to the same addresses.
const exactBlocks = 1 << 10

func (o *Ops) exact(op string, acc, x device.Buffer, squares bool) {
	wantLen(op, device.I64, device.ExactLen, &acc)
	l := o.begin(exactSumKernel).ptr(&acc).vec(&x).i64(x.N).flag(squares)
	o.run(l, min(ceil(x.N, device.ExactBlock*threads/8), exactBlocks), 1, 1, o.passes(2, &x))
}
