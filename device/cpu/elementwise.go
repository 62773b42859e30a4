package cpu

import (
	"fmt"

	"zeroth/device"
)

// Zero sets every element of b to 0.
func (q *Queue) Zero(b device.Buffer) {
	t := q.issue("zero")
	t.b[0] = b
	q.kernel(t, runZero, b.Bytes(), copyGrain)
}

func runZero(t *task, _ *worker, lo, hi int) { clear(t.b[0].Raw()[lo:hi]) }

// elementwise issues run over the blocks of the n elements of y, a and b, each
// of any float type; unused operands are empty.
func (q *Queue) elementwise(name string, run func(*task, *worker, int, int), y, a, b device.Buffer, s float32) {
	t := q.issue(name)
	t.b[0], t.b[1], t.b[2], t.f[0] = y, a, b, s
	q.kernel(t, run, blocks(y.N), pieceWork/blockLen)
}

// wantSame panics unless all operands have a float type and one length.
func wantSame(op string, y, a, b device.Buffer) {
	wantFloat(op, y)
	wantFloat(op, a)
	wantFloat(op, b)
	if y.N != a.N || y.N != b.N {
		panic(fmt.Sprintf("cpu: %s of %d, %d and %d elements", op, y.N, a.N, b.N))
	}
}

// AddTo sets y = a + b, added in float32; y may be a or b.
func (q *Queue) AddTo(y, a, b device.Buffer) {
	wantSame("add", y, a, b)
	q.elementwise("add", runAddTo, y, a, b, 0)
}

func runAddTo(t *task, w *worker, lo, hi int) {
	mem := w.floats(3 * blockLen)
	for at := lo * blockLen; at < min(hi*blockLen, t.b[0].N); at += blockLen {
		n := min(blockLen, t.b[0].N-at)
		a, b := floatsOf(mem, t.b[1], at, n), floatsOf(mem[blockLen:], t.b[2], at, n)
		y := room(mem[2*blockLen:], t.b[0], at, n)
		for i := range y {
			y[i] = a[i] + b[i]
		}
		keep(t.b[0], at, y)
	}
}

// Scale multiplies x by s.
func (q *Queue) Scale(x device.Buffer, s float32) {
	wantFloat("scale", x)
	q.elementwise("scale", runScale, x, device.Buffer{}, device.Buffer{}, s)
}

func runScale(t *task, w *worker, lo, hi int) {
	mem := w.floats(blockLen)
	for at := lo * blockLen; at < min(hi*blockLen, t.b[0].N); at += blockLen {
		x := floatsOf(mem, t.b[0], at, min(blockLen, t.b[0].N-at))
		for i := range x {
			x[i] *= t.f[0]
		}
		keep(t.b[0], at, x)
	}
}

// The tanh approximation of GELU (Hendrycks and Gimpel, arXiv 1606.08415) is
//
//	x/2 (1 + tanh u) = x s(2u),  s(z) = 1/(1 + e^-z),  u = geluU (x + geluX x^3),
//
// which needs one exponential and loses no digits where x is negative.
const (
	geluU = 0.7978845608028654 // sqrt(2/pi)
	geluX = 0.044715
)

func gelu(x float32) float32 { return x / (1 + exp32(-2*geluU*(x+geluX*x*x*x))) }

// geluSlope is the derivative of gelu: s + x s (1-s) 2u'. Beyond geluFlat it
// is 0 or 1 to float32, and there its factors would overflow.
func geluSlope(x float32) float32 {
	if x > geluFlat {
		x = geluFlat
	}
	if x < -geluFlat {
		x = -geluFlat
	}
	e := exp32(-2 * geluU * (x + geluX*x*x*x))
	s := 1 / (1 + e)
	return s * (1 + x*(e*s)*(2*geluU*(1+3*geluX*x*x)))
}

const geluFlat = 9.5 // e^(2u) is 4e33 here

// Gelu sets y = gelu(x), the tanh approximation; y may be x.
func (q *Queue) Gelu(y, x device.Buffer) {
	wantSame("gelu", y, x, x)
	q.elementwise("gelu", runGelu, y, x, device.Buffer{}, 0)
}

func runGelu(t *task, w *worker, lo, hi int) {
	mem := w.floats(2 * blockLen)
	for at := lo * blockLen; at < min(hi*blockLen, t.b[0].N); at += blockLen {
		n := min(blockLen, t.b[0].N-at)
		x, y := floatsOf(mem, t.b[1], at, n), room(mem[blockLen:], t.b[0], at, n)
		for i := range y {
			y[i] = gelu(x[i])
		}
		keep(t.b[0], at, y)
	}
}

// GeluGrad sets dx = dy * gelu'(x); dx may be dy.
func (q *Queue) GeluGrad(dx, x, dy device.Buffer) {
	wantSame("gelu gradient", dx, x, dy)
	q.elementwise("gelu gradient", runGeluGrad, dx, x, dy, 0)
}

func runGeluGrad(t *task, w *worker, lo, hi int) {
	mem := w.floats(3 * blockLen)
	for at := lo * blockLen; at < min(hi*blockLen, t.b[0].N); at += blockLen {
		n := min(blockLen, t.b[0].N-at)
		x, dy := floatsOf(mem, t.b[1], at, n), floatsOf(mem[blockLen:], t.b[2], at, n)
		dx := room(mem[2*blockLen:], t.b[0], at, n)
		for i := range dx {
			dx[i] = dy[i] * geluSlope(x[i])
		}
		keep(t.b[0], at, dx)
	}
}
