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

func RunSwiGLUGrad(t *Args, w *Worker, lo, hi int) {
	direct := BestVec.swigluGrad[t.B[0].Type]
	for _, b := range t.B[:5] {
		if b.Type != t.B[0].Type {
			direct = nil
		}
	}
	for b := lo; b < hi; b++ {
		at, end := b*BlockLen, min((b+1)*BlockLen, t.B[0].N)
		if direct == nil {
			t.swigluGrad(w, at, end-at)
			continue
		}
		if n := (end - at) &^ 15; n > 0 {
			direct(t.from(0, at), t.from(1, at), t.from(2, at), t.from(3, at), t.from(4, at), n)
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

// swigluGrad processes the n elements starting at at, converting operands.
func (t *Args) swigluGrad(w *Worker, at, n int) {
	mem, np := w.Floats(5*BlockLen), padded(n, 16)
	var x [5][]float32
	for i := range x {
		x[i] = take(&mem, BlockLen)
		if i >= 2 {
			Load(x[i][:n], t.B[i].Slice(at, at+n))
			clear(x[i][n:np])
		}
	}
	BestVec.swigluGrad[device.F32](FloatPtr(x[0], 0), FloatPtr(x[1], 0), FloatPtr(x[2], 0), FloatPtr(x[3], 0), FloatPtr(x[4], 0), np)
	Store(t.B[0].Slice(at, at+n), x[0][:n])
	Store(t.B[1].Slice(at, at+n), x[1][:n])
}

func swigluGradGo(dgate, dup, dy, gate, up unsafe.Pointer, n int) {
	dgates, dups, dys, gates, ups := FloatsAt(dgate, n), FloatsAt(dup, n), FloatsAt(dy, n), FloatsAt(gate, n), FloatsAt(up, n)
	for i, d := range dys {
		u := ups[i]
		y, slope := SiluSlope(gates[i])
		dgates[i], dups[i] = d*u*slope, d*y
	}
}
