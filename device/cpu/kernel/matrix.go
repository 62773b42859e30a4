package kernel

import (
	"math"

	"zeroth/device"
)

// Operations on whole matrices for update rules: the sum of two vectors and division by the norm.

// axpbyLen is the number of elements in a piece of Axpby. Four pieces fit in every worker's
// scratch.
const axpbyLen = 256

// AxpbyGrain is the number of pieces that justifies another worker.
const AxpbyGrain = PieceWork / axpbyLen

// AxpbyPieces returns the number of pieces of n elements.
func AxpbyPieces(n int) int { return Ceil(n, axpbyLen) }

// RunAxpby computes pieces [lo, hi) of y and p from a and b with alpha and beta.
func RunAxpby(t *Args, w *Worker, lo, hi int) {
	y, p := t.B[0], t.B[1]
	mem := w.Floats(4 * axpbyLen)
	times, add := BestVec.Times[device.F32], BestVec.Add[device.F32]
	for i := lo; i < hi; i++ {
		at := i * axpbyLen
		n := min(axpbyLen, y.N-at)
		a := device.OfF32(floatsOf(mem, t.B[2], at, n))
		b := device.OfF32(floatsOf(mem[axpbyLen:], t.B[3], at, n))
		first, second := device.OfF32(mem[2*axpbyLen:][:n]), device.OfF32(mem[3*axpbyLen:][:n])
		w.each(times, times, first, a, a, t.K[0])
		w.each(times, times, second, b, b, t.K[1])
		w.each(add, add, first, first, second, 0)
		sum := first.F32()
		Store(y.Slice(at, at+n), sum)
		if p.N > 0 {
			Store(p.Slice(at, at+n), sum)
		}
	}
}

// NormLen is the number of elements in a piece of a norm: whole blocks of an exact sum.
const NormLen = 16 * device.ExactBlock

// RunSquares adds the squares of pieces [lo, hi) of x to the exact sum.
func RunSquares(t *Args, w *Worker, lo, hi int) {
	var sum device.Exact
	mem := w.Floats(NormLen)
	for i := lo; i < hi; i++ {
		x := floatsOf(mem, t.B[1], i*NormLen, min(NormLen, t.B[1].N-i*NormLen))
		for ; len(x) >= device.ExactBlock; x = x[device.ExactBlock:] {
			sum.Add(device.BlockSquares((*[device.ExactBlock]float32)(x)))
		}
		last := LastBlock(x)
		sum.Add(device.BlockSquares(&last))
	}
	addShared(t.B[0], &sum)
}

// Norm returns the divisor of x: its norm rounded to its type, or F if that is larger. The result
// is NaN if an element of x is not finite.
func Norm(t *Args, w *Worker) float32 {
	sum := device.ExactAt(t.B[0], 0)
	if sum.NotFinite() > 0 {
		return float32(math.NaN())
	}
	mem := w.Floats(2)
	norm := mem[:1]
	norm[0] = float32(math.Sqrt(sum.Value()))
	if kind := t.B[1].Type; kind != device.F32 {
		rounded := RawBuffer(kind, FloatPtr(mem, 1), 1)
		Store(rounded, norm)
		Load(norm, rounded)
	}
	return max(norm[0], t.F)
}

// RunDivide divides pieces [lo, hi) of x by F.
func RunDivide(t *Args, w *Worker, lo, hi int) {
	mem := w.Floats(NormLen)
	for i := lo; i < hi; i++ {
		at := i * NormLen
		x := floatsOf(mem, t.B[1], at, min(NormLen, t.B[1].N-at))
		for j := range x {
			x[j] /= t.F
		}
		keep(t.B[1], at, x)
	}
}

// RunCopyBlock copies rows [lo, hi) of a matrix.
func RunCopyBlock(t *Args, _ *Worker, lo, hi int) {
	for i := lo; i < hi; i++ {
		dst, src := rowOf(&t.M[0], i, t.M[0].Cols), rowOf(&t.M[1], i, t.M[0].Cols)
		copy(dst.Raw(), src.Raw())
	}
}
