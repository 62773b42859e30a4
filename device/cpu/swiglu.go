package cpu

import (
	"fmt"

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
	t := q.issue("swiglu")
	t.b[0], t.b[1], t.b[2] = y, gate, up
	q.kernel(t, runSwiGLU, blocks(y.N), pieceWork/blockLen)
}

func runSwiGLU(t *task, w *worker, lo, hi int) {
	mem := w.floats(3 * blockLen)
	for at := lo * blockLen; at < min(hi*blockLen, t.b[0].N); at += blockLen {
		n := min(blockLen, t.b[0].N-at)
		gate, up := floatsOf(mem, t.b[1], at, n), floatsOf(mem[blockLen:], t.b[2], at, n)
		y := room(mem[2*blockLen:], t.b[0], at, n)
		for i := range y {
			y[i] = silu(gate[i]) * up[i]
		}
		keep(t.b[0], at, y)
	}
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

func runSwiGLUGrad(t *task, w *worker, lo, hi int) {
	mem := w.floats(5 * blockLen)
	for at := lo * blockLen; at < min(hi*blockLen, t.b[0].N); at += blockLen {
		n := min(blockLen, t.b[0].N-at)
		dy, gate, up := floatsOf(mem, t.b[2], at, n), floatsOf(mem[blockLen:], t.b[3], at, n), floatsOf(mem[2*blockLen:], t.b[4], at, n)
		dgate, dup := room(mem[3*blockLen:], t.b[0], at, n), room(mem[4*blockLen:], t.b[1], at, n)
		for i := range dgate {
			d, u := dy[i], up[i]
			y, slope := siluSlope(gate[i])
			dgate[i], dup[i] = d*u*slope, d*y
		}
		keep(t.b[0], at, dgate)
		keep(t.b[1], at, dup)
	}
}
