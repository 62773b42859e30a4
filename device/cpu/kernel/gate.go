package kernel

import (
	"unsafe"

	"zeroth/device"
)

// Silu returns x s(x) with s(x) = 1/(1 + e^-x): SiLU, or Swish (Ramachandran et al., arXiv
// 1710.05941).
func Silu(x float32) float32 { return x / (1 + Exp32(-x)) }

// SiluSlope returns silu and its derivative, s + x s (1-s). Where |x| exceeds siluFlat they are 0
// and 0, or x and 1, in float32, and computing the factors would overflow.
func SiluSlope(x float32) (y, slope float32) {
	if x < -siluFlat {
		x = -siluFlat
	}
	at := min(x, siluFlat)
	e := Exp32(-at)
	s := 1 / (1 + e)
	return x * s, s * (1 + at*(e*s))
}

const siluFlat = 80 // e^80 is 6e34

// RunGate processes blocks [lo, hi) of a matrix, each of up to BlockLen elements of a row.
func RunGate(t *Args, w *Worker, lo, hi int) {
	f := device.Activation(t.T)
	for of := (Args{}); lo < hi; {
		if f == device.Silu {
			lo += t.blocks(&of, 3, lo, min(hi, lo+eachAtOnce))
			of.run(w, &BestVec.Swiglu, of.B[0], of.B[1], of.B[2])
			continue
		}
		lo += t.blocks(&of, 3, lo, lo+1)
		y, gate, up := of.B[0], of.B[1], of.B[2]
		act := intermediate(w, y, 0)
		of.run(w, activation(f), act, gate, gate)
		of.run(w, &Mul, y, act, up)
	}
}

// RunGateGrad processes blocks [lo, hi) of a matrix.
func RunGateGrad(t *Args, w *Worker, lo, hi int) {
	f := device.Activation(t.T)
	for of := (Args{}); lo < hi; {
		if f == device.Silu {
			n := t.blocks(&of, 5, lo, hi)
			of.swigluGrads(w, n)
			lo += n
			continue
		}
		lo += t.blocks(&of, 5, lo, lo+1)
		dgate, dup, dy, gate, up := of.B[0], of.B[1], of.B[2], of.B[3], of.B[4]
		d, act := intermediate(w, dgate, 0), intermediate(w, dup, 1)
		of.run(w, &Mul, d, dy, up)
		of.run(w, activationGrad(f), d, gate, d)
		of.run(w, activation(f), act, gate, gate)
		of.run(w, &Mul, dup, dy, act)
		copy(raw(dgate), raw(d))
	}
}

// blocks sets the first operands of dst to blocks from lo on, as many before hi as are in one row
// of t's matrices, and returns their number.
func (t *Args) blocks(dst *Args, operands, lo, hi int) int {
	cols := t.M[0].Cols
	row, first := lo/Blocks(cols), lo%Blocks(cols)
	n := min(hi-lo, Blocks(cols)-first)
	at, end := first*BlockLen, min((first+n)*BlockLen, cols)
	for i, m := range t.M[:operands] {
		dst.B[i] = m.Buf.Slice(row*m.Ld+at, row*m.Ld+end)
	}
	return n
}

// run applies an elementwise function.
func (t *Args) run(w *Worker, each *[3]EachFunc, y, a, b device.Buffer) {
	x := t.B
	t.Each, t.B[0], t.B[1], t.B[2] = each, y, a, b
	RunEach(t, w, 0, Blocks(y.N))
	t.B = x
}

// intermediate returns memory i for an intermediate result with the type and length of like. It
// follows the memory that RunEach uses.
func intermediate(w *Worker, like device.Buffer, i int) device.Buffer {
	like.Ptr = FloatPtr(w.Floats(5*BlockLen), (3+i)*BlockLen)
	return like
}

func activation(f device.Activation) *[3]EachFunc {
	if f == device.GeluTanh {
		return &BestVec.Gelu
	}
	return &Activations[f]
}

func activationGrad(f device.Activation) *[3]EachFunc {
	if f == device.GeluTanh {
		return &BestVec.GeluGrad
	}
	return &ActivationGrads[f]
}

// swigluGrads processes n blocks of five operands.
func (t *Args) swigluGrads(w *Worker, n int) {
	direct := BestVec.swigluGrad[t.B[0].Type]
	for _, b := range t.B[:5] {
		if b.Type != t.B[0].Type {
			direct = nil
		}
	}
	for b := range n {
		at, end := b*BlockLen, min((b+1)*BlockLen, t.B[0].N)
		if direct == nil {
			t.swigluGrad(w, at, end-at)
			continue
		}
		if n := (end - at) &^ 15; n > 0 {
			direct(t.address(0, at), t.address(1, at), t.address(2, at), t.address(3, at), t.address(4, at), n)
			at += n
		}
		if at < end {
			t.toEnds(w, at, end-at)
			e := &w.ends
			direct(unsafe.Pointer(&e[0]), unsafe.Pointer(&e[1]), unsafe.Pointer(&e[2]), unsafe.Pointer(&e[3]), unsafe.Pointer(&e[4]), 16)
			t.fromEnds(w, at, end-at, 2)
		}
	}
}

// swigluGrad processes elements [at, at+n), converting operands.
func (t *Args) swigluGrad(w *Worker, at, n int) {
	x := t.wholeF32(w, at, n)
	BestVec.swigluGrad[device.F32](x[0].Ptr, x[1].Ptr, x[2].Ptr, x[3].Ptr, x[4].Ptr, x[0].N)
	Store(t.B[0].Slice(at, at+n), x[0].F32()[:n])
	Store(t.B[1].Slice(at, at+n), x[1].F32()[:n])
}

// wholeF32 returns elements [at, at+n) of five operands as whole vectors of float32, of which it
// sets all but the first two, the results.
func (t *Args) wholeF32(w *Worker, at, n int) (x [5]device.Buffer) {
	mem := w.Floats(5 * BlockLen)
	for i := range x {
		whole := take(&mem, BlockLen)[:padded(n, 16)]
		if x[i] = device.OfF32(whole); i >= 2 {
			Load(whole[:n], t.B[i].Slice(at, at+n))
			clear(whole[n:])
		}
	}
	return x
}

func swigluGradGo(dgate, dup, dy, gate, up unsafe.Pointer, n int) {
	dgates, dups, dys, gates, ups := FloatsAt(dgate, n), FloatsAt(dup, n), FloatsAt(dy, n), FloatsAt(gate, n), FloatsAt(up, n)
	for i, d := range dys {
		u := ups[i]
		y, slope := SiluSlope(gates[i])
		dgates[i], dups[i] = d*u*slope, d*y
	}
}
