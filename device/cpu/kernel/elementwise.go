package kernel

import (
	"fmt"
	"unsafe"

	"zeroth/device"
)

// RunZero clears bytes [lo, hi).
func RunZero(t *Args, _ *Worker, lo, hi int) { clear(t.B[0].Raw()[lo:hi]) }

// eachAtOnce is the number of blocks passed to one call of assembly, which cannot be preempted.
const eachAtOnce = 16

// RunEach processes blocks [lo, hi).
func RunEach(t *Args, w *Worker, lo, hi int) {
	y, a, b := t.B[0], t.B[1], t.B[2]
	f, last := t.eachFuncs()
	end := min(hi*BlockLen, y.N)
	for at := lo * BlockLen; at < end; {
		n := min(BlockLen, end-at)
		if f != nil {
			n = min(eachAtOnce*BlockLen, end-at)
			w.each(f, last, y.Slice(at, at+n), a.Slice(at, at+n), b.Slice(at, at+n), t.F)
		} else {
			w.eachF32(last, y.Slice(at, at+n), a.Slice(at, at+n), b.Slice(at, at+n), t.F)
		}
		at += n
	}
}

// eachFuncs returns the function for the operands' types and the one for the last, unaligned
// vector. f is nil if there is no such function.
func (t *Args) eachFuncs() (f, last EachFunc) {
	y, a, b := t.B[0], t.B[1], t.B[2]
	adding := t.Each == &BestVec.Add
	if adding {
		f = adder(y.Type, a.Type, b.Type)
	} else if y.Type == a.Type && y.Type == b.Type {
		f = t.Each[y.Type]
	}
	if f == nil {
		return nil, t.Each[device.F32]
	}
	last = f
	disjoint := y.Ptr != a.Ptr && y.Ptr != b.Ptr
	if stream := BestVec.addStream[y.Type]; adding && y.Type == a.Type && y.Type == b.Type && disjoint &&
		y.Bytes() >= StreamMin && uintptr(y.Ptr)%64 == 0 && stream != nil {
		f = stream
	}
	return f, last
}

// adder returns the function that adds types a and b into type y, or nil.
func adder(y, a, b device.DType) EachFunc {
	switch {
	case y == a && y == b:
		return BestVec.Add[y]
	case y == device.F32 && a == device.F32:
		return BestVec.addF32[b]
	}
	return nil
}

// addRow sets y = a + b for buffers of equal length; y may be a.
func (w *Worker) addRow(y, a, b device.Buffer) {
	if f := adder(y.Type, a.Type, b.Type); f != nil {
		w.each(f, f, y, a, b, 0)
	} else {
		w.eachF32(BestVec.Add[device.F32], y, a, b, 0)
	}
}

// eachF32 calls f on buffers of equal length, converting those of other types.
func (w *Worker) eachF32(f EachFunc, y, a, b device.Buffer, s float32) {
	n, mem := y.N, w.Floats(3*y.N)
	x, z, to := floatsOf(mem, a, 0, n), floatsOf(mem[n:], b, 0, n), memoryFor(mem[2*n:], y, 0, n)
	w.each(f, f, device.OfF32(to), device.OfF32(x), device.OfF32(z), s)
	keep(y, 0, to)
}

// each calls f on buffers of equal length. Elements after the last whole vector are copied to a
// padded vector and passed to last, so that all elements use the same arithmetic.
func (w *Worker) each(f, last EachFunc, y, a, b device.Buffer, s float32) {
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

// end returns the bytes of padded vector i.
func (w *Worker) end(i int) []byte { return (*[64]byte)(unsafe.Pointer(&w.ends[i]))[:] }

// WantSame panics unless all operands have float types and equal lengths.
func WantSame(op string, y, a, b device.Buffer) {
	WantFloat(op, y)
	WantFloat(op, a)
	WantFloat(op, b)
	if y.N != a.N || y.N != b.N {
		panic(fmt.Sprintf("cpu: %s of %d, %d and %d elements", op, y.N, a.N, b.N))
	}
}

// The tanh approximation of GELU (Hendrycks and Gimpel, arXiv 1606.08415) is
//
//	x/2 (1 + tanh u) = x s(2u),  s(z) = 1/(1 + e^-z),  u = GeluU (x + GeluX x^3),
//
// which needs one exponential and loses no digits for negative x.
const (
	GeluU = 0.7978845608028654 // sqrt(2/pi)
	GeluX = 0.044715
)

// Gelu returns the tanh approximation of GELU.
func Gelu(x float32) float32 { return x / (1 + Exp32(-2*GeluU*(x+GeluX*x*x*x))) }

// GeluSlope returns the derivative of gelu: s + x s (1-s) 2u'. Beyond geluFlat it is 0 or 1 in
// float32, and its factors would overflow.
func GeluSlope(x float32) float32 {
	if x > geluFlat {
		x = geluFlat
	}
	if x < -geluFlat {
		x = -geluFlat
	}
	e := Exp32(-2 * GeluU * (x + GeluX*x*x*x))
	s := 1 / (1 + e)
	return s * (1 + x*(e*s)*(2*GeluU*(1+3*GeluX*x*x)))
}

const geluFlat = 9.5 // e^(2u) is 4e33 here
