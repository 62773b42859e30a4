package cpu

import (
	"fmt"
	"unsafe"

	"zeroth/device"
)

// silu is x s(x) with s(x) = 1/(1 + e^-x): SiLU, or Swish (Ramachandran et al.,
// arXiv 1710.05941).
func silu(x float32) float32 { return x / (1 + exp32(-x)) }

// siluSlope is silu and its derivative, s + x s (1-s). Beyond siluFlat they are 0
// and 0, or x and 1, to float32, and there the factors would overflow.
func siluSlope(x float32) (y, slope float32) {
	if x < -siluFlat {
		x = -siluFlat
	}
	at := min(x, siluFlat)
	e := exp32(-at)
	s := 1 / (1 + e)
	return x * s, s * (1 + at*(e*s))
}

const siluFlat = 80 // e^80 is 6e34

// SwiGLU sets y = silu(gate) * up (Shazeer, arXiv 2002.05202); y may be gate or
// up.
func (q *Queue) SwiGLU(y, gate, up device.Buffer) {
	wantSame("swiglu", y, gate, up)
	q.elementwise("swiglu", &bestVec.swiglu, y, gate, up, 0)
}

// SwiGLUGrad sets dgate = dy * up * silu'(gate) and dup = dy * silu(gate). Each
// may be any one of dy, gate and up.
func (q *Queue) SwiGLUGrad(dgate, dup, dy, gate, up device.Buffer) {
	wantSame("swiglu gradient", dgate, gate, dy)
	wantSame("swiglu gradient", dup, up, dy)
	if dgate.Ptr == dup.Ptr && dy.N > 0 {
		panic(fmt.Sprintf("cpu: both swiglu gradients of %d elements into one buffer", dy.N))
	}
	t := q.issue("swiglu gradient")
	t.b[0], t.b[1], t.b[2], t.b[3], t.b[4] = dgate, dup, dy, gate, up
	q.kernel(t, runSwiGLUGrad, blocks(dy.N), pieceWork/blockLen)
}

func runSwiGLUGrad(t *args, w *worker, lo, hi int) {
	direct := bestVec.swigluGrad[t.b[0].Type]
	for _, b := range t.b[:5] {
		if b.Type != t.b[0].Type {
			direct = nil
		}
	}
	for b := lo; b < hi; b++ {
		at, end := b*blockLen, min((b+1)*blockLen, t.b[0].N)
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

// swigluGrad converts the operands of the n elements from at on.
func (t *args) swigluGrad(w *worker, at, n int) {
	mem, np := w.floats(5*blockLen), padded(n, 16)
	var x [5][]float32
	for i := range x {
		x[i] = take(&mem, blockLen)
		if i >= 2 {
			load(x[i][:n], t.b[i].Slice(at, at+n))
			clear(x[i][n:np])
		}
	}
	bestVec.swigluGrad[device.F32](floatPtr(x[0], 0), floatPtr(x[1], 0), floatPtr(x[2], 0), floatPtr(x[3], 0), floatPtr(x[4], 0), np)
	store(t.b[0].Slice(at, at+n), x[0][:n])
	store(t.b[1].Slice(at, at+n), x[1][:n])
}

func swigluGradGo(dgate, dup, dy, gate, up unsafe.Pointer, n int) {
	dgates, dups, dys, gates, ups := floatsAt(dgate, n), floatsAt(dup, n), floatsAt(dy, n), floatsAt(gate, n), floatsAt(up, n)
	for i, d := range dys {
		u := ups[i]
		y, slope := siluSlope(gates[i])
		dgates[i], dups[i] = d*u*slope, d*y
	}
}
