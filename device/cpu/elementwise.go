package cpu

import (
	"fmt"
	"unsafe"

	"zeroth/device"
)

// Zero sets every element of b to 0.
func (q *Queue) Zero(b device.Buffer) {
	t := q.issue("zero")
	t.b[0] = b
	q.kernel(t, runZero, b.Bytes(), copyGrain)
}

func runZero(t *args, _ *worker, lo, hi int) { clear(t.b[0].Raw()[lo:hi]) }

// elementwise issues one of eachISA's kernels on the elements of y, a and b,
// each of any float type.
func (q *Queue) elementwise(name string, f *[3]eachFunc, y, a, b device.Buffer, s float32) {
	t := q.issue(name)
	t.b[0], t.b[1], t.b[2], t.f[0], t.each = y, a, b, s, f
	q.kernel(t, runEach, blocks(y.N), pieceWork/blockLen)
}

// eachAtOnce is the number of blocks given to one call of assembly, which
// cannot be interrupted while it runs.
const eachAtOnce = 16

// runEach works on blocks [lo, hi).
func runEach(t *args, w *worker, lo, hi int) {
	y, a, b := t.b[0], t.b[1], t.b[2]
	f, last := t.directly()
	end := min(hi*blockLen, y.N)
	for at := lo * blockLen; at < end; {
		n := min(blockLen, end-at)
		if f != nil {
			n = min(eachAtOnce*blockLen, end-at)
			w.each(f, last, y.Slice(at, at+n), a.Slice(at, at+n), b.Slice(at, at+n), t.f[0])
		} else {
			mem := w.floats(3 * blockLen)
			x, z := floatsOf(mem, a, at, n), floatsOf(mem[blockLen:], b, at, n)
			to := room(mem[2*blockLen:], y, at, n)
			w.each(last, last, device.OfF32(to), device.OfF32(x), device.OfF32(z), t.f[0])
			keep(y, at, to)
		}
		at += n
	}
}

// directly is the function for the types of the operands, nil if there is
// none, and the one for a last vector that is not aligned.
func (t *args) directly() (f, last eachFunc) {
	y, a, b := t.b[0], t.b[1], t.b[2]
	adding := t.each == &bestVec.add
	if adding {
		f = adder(y.Type, a.Type, b.Type)
	} else if y.Type == a.Type && y.Type == b.Type {
		f = t.each[y.Type]
	}
	if f == nil {
		return nil, t.each[device.F32]
	}
	last = f
	apart := y.Ptr != a.Ptr && y.Ptr != b.Ptr
	if stream := bestVec.addStream[y.Type]; adding && y.Type == a.Type && y.Type == b.Type && apart &&
		y.Bytes() >= streamMin && uintptr(y.Ptr)%64 == 0 && stream != nil {
		f = stream
	}
	return f, last
}

// adder is the function that adds elements of two types to a third, nil if
// there is none.
func adder(y, a, b device.DType) eachFunc {
	switch {
	case y == a && y == b:
		return bestVec.add[y]
	case y == device.F32 && a == device.F32:
		return bestVec.addF32[b]
	}
	return nil
}

// addRow sets y = a + b, all of one length; y may be a.
func (w *worker) addRow(y, a, b device.Buffer) {
	if f := adder(y.Type, a.Type, b.Type); f != nil {
		w.each(f, f, y, a, b, 0)
		return
	}
	mem := w.floats(3 * y.N)
	x, z := floatsOf(mem, a, 0, y.N), floatsOf(mem[y.N:], b, 0, y.N)
	to, f := room(mem[2*y.N:], y, 0, y.N), bestVec.add[device.F32]
	w.each(f, f, device.OfF32(to), device.OfF32(x), device.OfF32(z), 0)
	keep(y, 0, to)
}

// each calls f on buffers of one length; what is left after whole vectors is
// copied into a vector of its own for last, so that every element goes through
// the same arithmetic.
func (w *worker) each(f, last eachFunc, y, a, b device.Buffer, s float32) {
	n := y.N &^ 15
	if n > 0 {
		f(y.Ptr, a.Ptr, b.Ptr, n, s)
	}
	if n < y.N {
		copy(w.end(1), a.Slice(n, a.N).Raw())
		copy(w.end(2), b.Slice(n, b.N).Raw())
		last(unsafe.Pointer(&w.ends[0]), unsafe.Pointer(&w.ends[1]), unsafe.Pointer(&w.ends[2]), 16, s)
		copy(y.Slice(n, y.N).Raw(), w.end(0))
	}
}

// end is the bytes of an end.
func (w *worker) end(i int) []byte { return (*[64]byte)(unsafe.Pointer(&w.ends[i]))[:] }

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
	q.elementwise("add", &bestVec.add, y, a, b, 0)
}

// Scale multiplies x by s.
func (q *Queue) Scale(x device.Buffer, s float32) {
	wantFloat("scale", x)
	q.elementwise("scale", &bestVec.times, x, x, x, s)
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
	q.elementwise("gelu", &bestVec.gelu, y, x, x, 0)
}

// GeluGrad sets dx = dy * gelu'(x); dx may be dy.
func (q *Queue) GeluGrad(dx, x, dy device.Buffer) {
	wantSame("gelu gradient", dx, x, dy)
	q.elementwise("gelu gradient", &bestVec.geluGrad, dx, x, dy, 0)
}
