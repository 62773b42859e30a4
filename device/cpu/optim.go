package cpu

import (
	"math"
	"unsafe"

	"zeroth/device"
)

// ruleISA is the update rules. All of them multiply and add in two roundings, and
// divide and take roots as IEEE 754 has it, so that a rule's bits are the same on
// every machine and however a vector is cut.
type ruleISA struct{ adamW, sgd, momentum, lion ruleFunc }

// ruleFunc updates the float32 arrays w, m and v from g; p receives w rounded to
// its type. The constants are those of adamW, sgd, momentum and lion.
type ruleFunc func(r *rule)

// update issues a rule over the blocks of w (master copy), g (gradient) and
// the states, all float32 and of equal length; p, if not empty, receives w
// rounded to its type. A state may be empty where the rule allows it.
func (q *Queue) update(t *task, f ruleFunc, w, p, g, m, v device.Buffer) {
	wantLen(t.name, g, device.F32, w.N)
	wantLen(t.name, w, device.F32, g.N)
	if p.N != 0 {
		wantVec(t.name, p, w.N)
	}
	t.rule = f
	t.b[0], t.b[1], t.b[2], t.b[3], t.b[4] = w, p, g, m, v
	q.kernel(t, runRule, blocks(w.N), pieceWork/blockLen)
}

func runRule(t *args, w *worker, lo, hi int) {
	r := &w.args.rule
	r.k, r.kind = t.spread(w), int(t.b[1].Type)
	end := min(hi*blockLen, t.b[0].N)
	for at := lo * blockLen; at < end; at += eachAtOnce * blockLen {
		n := min(eachAtOnce*blockLen, end-at)
		if whole := n &^ 15; whole > 0 {
			r.w, r.p, r.g, r.m, r.v = t.from(0, at), t.from(1, at), t.from(2, at), t.from(3, at), t.from(4, at)
			r.n = whole
			t.rule(r)
		}
		if n%16 != 0 {
			t.toEnds(w, at+n&^15, n%16)
			e := &w.ends
			r.w, r.p, r.g = unsafe.Pointer(&e[0]), unsafe.Pointer(&e[1]), unsafe.Pointer(&e[2])
			r.m, r.v, r.n = unsafe.Pointer(&e[3]), unsafe.Pointer(&e[4]), 16
			t.rule(r)
			t.fromEnds(w, at+n&^15, n%16, 5)
		}
	}
}

// from is the address of element i of operand o, nil if it is empty.
func (t *args) from(o, i int) unsafe.Pointer {
	if t.b[o].N == 0 {
		return nil
	}
	return t.b[o].Slice(i, t.b[o].N).Ptr
}

// toEnds copies the n < 16 elements from at on of five operands into the worker's
// ends, a vector each, and fromEnds those of the first so many back.
func (t *args) toEnds(w *worker, at, n int) {
	for o := range w.ends {
		copy(w.end(o), t.part(o, at, n))
	}
}

func (t *args) fromEnds(w *worker, at, n, results int) {
	for o := range results {
		copy(t.part(o, at, n), w.end(o))
	}
}

// part is the bytes of n elements from at on of operand o, none if it is empty.
func (t *args) part(o, at, n int) []byte {
	if t.b[o].N == 0 {
		return nil
	}
	return t.b[o].Slice(at, at+n).Raw()
}

// spread is the rule's constants, 16 times each, in scratch.
func (t *args) spread(w *worker) unsafe.Pointer {
	mem := w.floats(16 * len(t.k))
	for i, k := range t.k {
		for j := range 16 {
			mem[16*i+j] = k
		}
	}
	return unsafe.Pointer(&mem[0])
}

// ruleGo is a portable rule; k is every 16th constant.
func ruleGo(update func(w, g, m, v []float32, k []float32)) ruleFunc {
	return func(r *rule) {
		floats := func(p unsafe.Pointer) []float32 {
			if p == nil {
				return nil
			}
			return floatsAt(p, r.n)
		}
		update(floats(r.w), floats(r.g), floats(r.m), floats(r.v), floatsAt(r.k, 16*len(args{}.k)))
		if r.p != nil {
			store(rawBuffer(device.DType(r.kind), r.p, r.n), floats(r.w))
		}
	}
}

// AdamW is one step of Adam with decoupled decay; see device.AdamW.
func (q *Queue) AdamW(w, p, g, m, v device.Buffer, a device.AdamW) {
	wantLen("adamw", m, device.F32, w.N)
	wantLen("adamw", v, device.F32, w.N)
	t := q.issue("adamw")
	t.k = [10]float32{a.GradScale, a.L2, a.Beta1, 1 - a.Beta1, a.Beta2, 1 - a.Beta2, a.Shrink, a.Step, a.RootC2, a.Eps}
	q.update(t, bestVec.adamW, w, p, g, m, v)
}

// The conversions to float32 keep the compiler from fusing products and sums.

func adamW(w, g, m, v []float32, k []float32) {
	scale, l2, b1, c1, b2, c2 := k[0], k[16], k[32], k[48], k[64], k[80]
	shrink, step, root, eps := k[96], k[112], k[128], k[144]
	for i, x := range w {
		d := float32(g[i]*scale) + float32(l2*x)
		mi := float32(b1*m[i]) + float32(c1*d)
		vi := float32(b2*v[i]) + float32(float32(c2*d)*d)
		m[i], v[i] = mi, vi
		w[i] = float32(x*shrink) - float32(step*mi)/(float32(float32(math.Sqrt(float64(vi)))*root)+eps)
	}
}

// SGD is one step of stochastic gradient descent; see device.SGD. Without
// momentum m may be empty.
func (q *Queue) SGD(w, p, g, m device.Buffer, a device.SGD) {
	f := bestVec.sgd
	if m.N != 0 || a.Momentum != 0 {
		wantLen("sgd", m, device.F32, w.N)
		f = bestVec.momentum
	}
	t := q.issue("sgd")
	t.k = [10]float32{a.GradScale, a.Decay, a.LR, a.Momentum}
	q.update(t, f, w, p, g, m, device.Buffer{})
}

func sgd(w, g, _, _ []float32, k []float32) {
	scale, decay, lr := k[0], k[16], k[32]
	for i, x := range w {
		d := float32(g[i]*scale) + float32(decay*x)
		w[i] = x - float32(lr*d)
	}
}

func momentum(w, g, m, _ []float32, k []float32) {
	scale, decay, lr, mu := k[0], k[16], k[32], k[48]
	for i, x := range w {
		d := float32(g[i]*scale) + float32(decay*x)
		d = float32(mu*m[i]) + d
		m[i] = d
		w[i] = x - float32(lr*d)
	}
}

// Lion is one step of Lion; see device.Lion. The sign of 0 is 0.
func (q *Queue) Lion(w, p, g, m device.Buffer, a device.Lion) {
	wantLen("lion", m, device.F32, w.N)
	t := q.issue("lion")
	t.k = [10]float32{a.GradScale, a.Beta1, 1 - a.Beta1, a.Beta2, 1 - a.Beta2, a.Shrink, a.LR}
	q.update(t, bestVec.lion, w, p, g, m, device.Buffer{})
}

func lion(w, g, m, _ []float32, k []float32) {
	scale, b1, c1, b2, c2, shrink, lr := k[0], k[16], k[32], k[48], k[64], k[80], k[96]
	for i, x := range w {
		d := float32(g[i] * scale)
		u := sign(float32(b1*m[i]) + float32(c1*d))
		m[i] = float32(b2*m[i]) + float32(c2*d)
		w[i] = float32(x*shrink) - float32(lr*u)
	}
}

// sign is 1, -1 or 0; NaN stays NaN, so that a bad gradient shows. Its branch
// is nearly never taken, unlike one on the sign.
func sign(x float32) float32 {
	if x == 0 || x != x {
		return x
	}
	return math.Float32frombits(math.Float32bits(x)&(1<<31) | 0x3f800000)
}
