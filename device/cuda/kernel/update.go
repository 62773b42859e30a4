package kernel

import (
	"math"

	"zeroth/device"
)

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

// maxRuns is the number of runs that a launch of adamw takes: optim.cu's RUNS.
const maxRuns = 24

// joined is an AdamW that has not been launched: of neighbouring buffers, with hyperparameters that
// change between runs of elements.
type joined struct {
	w, p, g, m, v device.Buffer
	a             device.AdamW         // the last run's
	runs          int                  // 0 if there is nothing to launch
	table         [4 * maxRuns]float32 // optim.cu's Runs; of the ends, the bits
}

// AdamW performs one step of Adam with decoupled decay; see device.AdamW. Between JoinUpdates and
// EndUpdates, steps on buffers that follow each other in memory are one launch.
func (o *Ops) AdamW(w, p, g, m, v device.Buffer, a device.AdamW) {
	wantRule("adamw", &w, &p, &g, &m, &v)
	if w.N == 0 {
		return
	}
	if !o.adam.extend(&w, &p, &g, &m, &v, a) {
		o.launchJoined()
		o.adam = joined{w: w, p: p, g: g, m: m, v: v}
	}
	o.adam.end(a)
	if !o.joins {
		o.launchJoined()
	}
}

// JoinUpdates lets steps of AdamW wait for their neighbours, until EndUpdates or another operation
// of these Ops.
func (o *Ops) JoinUpdates() { o.joins = true }

// EndUpdates launches what has been joined.
func (o *Ops) EndUpdates() {
	o.joins = false
	o.launchJoined()
}

// extend appends buffers that follow the ones so far, with the same arguments but those of a run.
// It returns false if it cannot.
func (j *joined) extend(w, p, g, m, v *device.Buffer, a device.AdamW) bool {
	same := j.a
	same.L2, same.Shrink, same.Step = a.L2, a.Shrink, a.Step
	if j.runs == 0 || j.runs == maxRuns || same != a || !follows(&j.w, w) || !follows(&j.p, p) || !follows(&j.g, g) || !follows(&j.m, m) || !follows(&j.v, v) {
		return false
	}
	for _, b := range []*device.Buffer{&j.w, &j.g, &j.m, &j.v} {
		b.N += w.N
	}
	j.p.N += p.N
	return true
}

// follows reports whether b begins where a ends, or both are empty.
func follows(a, b *device.Buffer) bool {
	return a.N == 0 && b.N == 0 || a.N > 0 && b.N > 0 && a.Type == b.Type && uintptr(a.Ptr)+uintptr(a.Bytes()) == uintptr(b.Ptr)
}

// end ends a run at the last element so far.
func (j *joined) end(a device.AdamW) {
	for i, x := range [...]float32{a.Shrink, a.L2, a.Step, math.Float32frombits(uint32(j.w.N))} {
		j.table[i*maxRuns+j.runs] = x
	}
	j.a = a
	j.runs++
}

func (o *Ops) launchJoined() {
	j, a := &o.adam, &o.adam.a
	if j.runs == 0 {
		return
	}
	for i := j.runs; i < maxRuns; i++ {
		j.table[3*maxRuns+i] = math.Float32frombits(math.MaxInt32)
	}
	j.runs = 0 // begin would launch it
	l := o.begin(adamwKernel).vec(&j.w).vec(&j.p).vec(&j.g).vec(&j.m).vec(&j.v).i64(j.w.N).
		floats(a.GradScale, a.L2, a.Beta1, 1-a.Beta1, a.Beta2, 1-a.Beta2, a.Shrink, a.Step, a.RootC2, a.Eps).floats(j.table[:]...)
	o.run(l, blocks(j.w.N, 4), 1, 1, o.passes(17, &j.w, &j.w, &j.p, &j.g, &j.m, &j.m, &j.v, &j.v))
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
