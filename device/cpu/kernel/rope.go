package kernel

import (
	"math"
	"unsafe"

	"zeroth/device"
)

// ropePairs is the number of pairs of a head that Go rotates at a time.
const ropePairs = 64

// ropeFunc rotates heads heads of 2*half consecutive elements at x by the cosines and sines of half
// pairs; half is a positive multiple of 16. A sign of -1 rotates back.
type ropeFunc func(x, cos, sin unsafe.Pointer, half, heads int, sign float32)

// RopeTable is a table of cosines and sines. Row t, of D floats, contains those of position t: W/2
// cosines, then W/2 sines, where W is the number of rotated elements.
type RopeTable struct {
	Table []float32
	Rope  device.Rope // parameters of the first Rope.T rows
}

// Has reports whether the table contains the angles of r. Angles do not depend on the number of
// positions.
func (t *RopeTable) Has(r device.Rope) bool {
	return t.Rope.Alike(r) && max(r.Span, r.Past+r.T) <= t.Rope.T
}

// row returns the cosines and sines of a position.
func (t *RopeTable) row(at int) (cos, sin []float32) {
	D, W := t.Rope.D, t.Rope.RotaryDim()
	row := t.Table[at*D:][:W]
	return row[:W/2], row[W/2:]
}

// RunAngles fills rows [lo, hi) of the table.
func RunAngles(t *Args, w *Worker, lo, hi int) {
	table := w.Rope
	r, amplitude := &table.Rope, table.Rope.Amplitude()
	for j := range r.RotaryDim() / 2 {
		f := r.Freq(j)
		for at := lo; at < hi; at++ {
			s, c := math.Sincos(float64(at) * f)
			cos, sin := table.row(at)
			cos[j], sin[j] = float32(amplitude*c), float32(amplitude*s)
		}
	}
}

// RunRope rotates all heads of rows [lo, hi).
func RunRope(t *Args, w *Worker, lo, hi int) {
	m, r, sign, at := &t.M[0], &t.Rope, t.F, newPositions(&t.B[0], t.Rope.T)
	f, half := BestVec.rope[m.Buf.Type], r.RotaryDim()/2
	mem := w.Floats(2 * ropePairs)
	for row := lo; row < hi; row++ {
		cos, sin := w.Rope.row(r.Past + at.at(row))
		if f != nil && r.D%32 == 0 && 2*half == r.D {
			f(rowOf(m, row, m.Cols).Ptr, FloatPtr(cos, 0), FloatPtr(sin, 0), half, m.Cols/r.D, sign)
			continue
		}
		for j := 0; j < half; j += ropePairs {
			n := min(ropePairs, half-j)
			rotateHeads(m, row, j, r.D, half, mem, cos[j:j+n], sin[j:j+n], sign)
		}
	}
}

// rotateHeads rotates the pairs from j0 on in every head of width D in a row, one pair for each
// element of sin. half is the number of rotated pairs of a head.
func rotateHeads(m *device.Mat, row, j0, D, half int, mem, cos, sin []float32, sign float32) {
	n := len(sin)
	cos = cos[:n]
	for at := row*m.Ld + j0; at < row*m.Ld+m.Cols; at += D {
		x, y := floatsOf(mem, m.Buf, at, n), floatsOf(mem[ropePairs:], m.Buf, at+half, n)
		y = y[:n]
		for j, a := range x {
			b, c, s := y[j], cos[j], sign*sin[j]
			// The conversions prevent the compiler from fusing products and sums.
			x[j], y[j] = float32(a*c)-float32(b*s), float32(b*c)+float32(a*s)
		}
		keep(m.Buf, at, x)
		keep(m.Buf, at+half, y)
	}
}
