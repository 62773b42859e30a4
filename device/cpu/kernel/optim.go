package kernel

import (
	"math"
	"unsafe"

	"zeroth/device"
)

// ruleISA contains the update rules. They round products and sums separately, and divide and take
// roots according to IEEE 754, so that results are bit-identical on every machine and for any
// division of a vector.
type ruleISA struct{ AdamW, Sgd, Momentum, Lion RuleFunc }

// RuleFunc updates the float32 arrays w, m and v from g and stores w, rounded to p's type, in p.
// See AdamW, sgd, momentum and lion for the constants.
type RuleFunc func(r *Rule)

// RunRule applies t.Rule to blocks [lo, hi).
func RunRule(t *Args, w *Worker, lo, hi int) {
	r := &w.args.rule
	r.K, r.Kind = t.spread(w), int(t.B[1].Type)
	end := min(hi*BlockLen, t.B[0].N)
	for at := lo * BlockLen; at < end; at += eachAtOnce * BlockLen {
		n := min(eachAtOnce*BlockLen, end-at)
		if whole := n &^ 15; whole > 0 {
			r.W, r.P, r.G, r.M, r.V = t.address(0, at), t.address(1, at), t.address(2, at), t.address(3, at), t.address(4, at)
			r.N = whole
			t.Rule(r)
		}
		if n%16 != 0 {
			t.toEnds(w, at+n&^15, n%16)
			e := &w.ends
			r.W, r.P, r.G = unsafe.Pointer(&e[0]), unsafe.Pointer(&e[1]), unsafe.Pointer(&e[2])
			r.M, r.V, r.N = unsafe.Pointer(&e[3]), unsafe.Pointer(&e[4]), 16
			t.Rule(r)
			t.fromEnds(w, at+n&^15, n%16, 5)
		}
	}
}

// address returns the address of element i of operand o, or nil if it is empty.
func (t *Args) address(o, i int) unsafe.Pointer {
	if t.B[o].N == 0 {
		return nil
	}
	return t.B[o].Slice(i, t.B[o].N).Ptr
}

// toEnds copies elements [at, at+n) of five operands, n < 16, to the worker's padded vectors;
// fromEnds copies the first operands back.
func (t *Args) toEnds(w *Worker, at, n int) {
	for o := range w.ends {
		copy(w.end(o), t.part(o, at, n))
	}
}

func (t *Args) fromEnds(w *Worker, at, n, results int) {
	for o := range results {
		copy(t.part(o, at, n), w.end(o))
	}
}

// part returns the bytes of elements [at, at+n) of operand o, or nil if o is empty.
func (t *Args) part(o, at, n int) []byte {
	if t.B[o].N == 0 {
		return nil
	}
	return t.B[o].Slice(at, at+n).Raw()
}

// spread returns the rule's constants, 16 copies of each, in scratch.
func (t *Args) spread(w *Worker) unsafe.Pointer {
	mem := w.Floats(16 * len(t.K))
	for i, k := range t.K {
		for j := range 16 {
			mem[16*i+j] = k
		}
	}
	return unsafe.Pointer(&mem[0])
}

// ruleGo returns a portable rule; k is every 16th constant.
func ruleGo(update func(w, g, m, v []float32, k []float32)) RuleFunc {
	return func(r *Rule) {
		floats := func(p unsafe.Pointer) []float32 {
			if p == nil {
				return nil
			}
			return FloatsAt(p, r.N)
		}
		update(floats(r.W), floats(r.G), floats(r.M), floats(r.V), FloatsAt(r.K, 16*len(Args{}.K)))
		if r.P != nil {
			Store(RawBuffer(device.DType(r.Kind), r.P, r.N), floats(r.W))
		}
	}
}

// The conversions to float32 prevent the compiler from fusing products and sums.

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

func lion(w, g, m, _ []float32, k []float32) {
	scale, b1, c1, b2, c2, shrink, lr := k[0], k[16], k[32], k[48], k[64], k[80], k[96]
	for i, x := range w {
		d := float32(g[i] * scale)
		u := Sign(float32(b1*m[i]) + float32(c1*d))
		m[i] = float32(b2*m[i]) + float32(c2*d)
		w[i] = float32(x*shrink) - float32(lr*u)
	}
}

// Sign returns 1, -1 or 0; NaN stays NaN, so that a bad gradient is noticed. Its branch is almost
// never taken, unlike a branch on the sign.
func Sign(x float32) float32 {
	if x == 0 || x != x {
		return x
	}
	return math.Float32frombits(math.Float32bits(x)&(1<<31) | 0x3f800000)
}
