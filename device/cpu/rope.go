package cpu

import (
	"fmt"
	"math"

	"zeroth/device"
)

// ropePairs is the number of pairs of a head that are turned at a time: their
// frequencies and the sines of a position fit on the stack.
const ropePairs = 64

// Rope turns the heads of x, (B*T, heads*D), in place by their positions; with
// inverse set it turns them back, which is also its gradient. Angles are
// computed in float64.
func (q *Queue) Rope(x device.Mat, r device.Rope, inverse bool) {
	wantMat("rope", x, x.Rows, x.Cols)
	if r.D < 2 || r.D%2 != 0 || x.Cols%r.D != 0 || r.T < 1 || x.Rows%r.T != 0 {
		panic(fmt.Sprintf("cpu: rope of a matrix (%d, %d) as sequences of %d positions with heads of width %d", x.Rows, x.Cols, r.T, r.D))
	}
	t := q.issue("rope")
	t.m[0], t.rope, t.f[0] = x, r, 1
	if inverse {
		t.f[0] = -1
	}
	positions := r.T
	if x.Rows == 0 {
		positions = 0
	}
	q.kernel(t, runRope, positions, rowGrain(x.Rows/r.T*x.Cols))
}

// runRope turns all heads at positions [lo, hi) of every sequence.
func runRope(t *task, w *worker, lo, hi int) {
	r := &t.rope
	mem := w.floats(2 * ropePairs)
	var freq [ropePairs]float64
	var sin, cos [ropePairs]float32
	for j0 := 0; j0 < r.D/2; j0 += ropePairs {
		n := min(ropePairs, r.D/2-j0)
		for j := range n {
			freq[j] = r.Freq(j0 + j)
		}
		for at := lo; at < hi; at++ {
			for j, f := range freq[:n] {
				s, c := math.Sincos(float64(at) * f)
				sin[j], cos[j] = t.f[0]*float32(s), float32(c)
			}
			for row := at; row < t.m[0].Rows; row += r.T {
				turnHeads(&t.m[0], row, j0, r.D, mem, sin[:n], cos[:n])
			}
		}
	}
}

// turnHeads turns pairs j0 and on, as many as there are sines, of every head of
// width D in a row.
func turnHeads(m *device.Mat, row, j0, D int, mem, sin, cos []float32) {
	n := len(sin)
	cos = cos[:n]
	for at := row*m.Ld + j0; at < row*m.Ld+m.Cols; at += D {
		x, y := floatsOf(mem, m.Buf, at, n), floatsOf(mem[ropePairs:], m.Buf, at+D/2, n)
		y = y[:n]
		for j, a := range x {
			b := y[j]
			x[j], y[j] = a*cos[j]-b*sin[j], b*cos[j]+a*sin[j]
		}
		keep(m.Buf, at, x)
		keep(m.Buf, at+D/2, y)
	}
}
