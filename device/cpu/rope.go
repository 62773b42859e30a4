package cpu

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"unsafe"

	"zeroth/device"
)

// ropePairs is the number of pairs of a head that are turned at a time in Go.
const ropePairs = 64

// ropeFunc turns heads heads of 2*half elements each, one behind the other at x,
// by the cosines and sines of half pairs; half is a positive multiple of 16.
// sign is 1, or -1 to turn back.
type ropeFunc func(x, cos, sin unsafe.Pointer, half, heads int, sign float32)

// turns is a table of the cosines and sines of angles: row t, of D floats, has
// those of position t, D/2 cosines and then the sines.
type turns struct {
	table []float32
	rope  device.Rope // of the first rope.T rows
}

// has is whether the table is good for r: an angle does not depend on how many
// positions there are.
func (t *turns) has(r device.Rope) bool {
	same := t.rope
	same.T, same.Past = r.T, r.Past
	return same == r && r.Past+r.T <= t.rope.T
}

// rotary is a device's turns, filled when positions are first turned, or turned
// otherwise than the last time.
type rotary struct {
	turns
	mu  sync.Mutex // held while positions are turned
	dev *Device
	mem device.Buffer
}

func (t *rotary) grow(n int) (err error) {
	if t.mem.N < n {
		t.rope = device.Rope{}
		if t.mem, err = t.dev.regrow(t.mem, n); err == nil {
			t.table = t.mem.F32()
		}
	}
	return err
}

// row is the cosines and sines of a position.
func (t *turns) row(at int) (cos, sin []float32) {
	D := t.rope.D
	row := t.table[at*D : (at+1)*D]
	return row[:D/2], row[D/2:]
}

// Rope turns the heads of x, (B*T, heads*D), in place by their positions; with
// inverse set it turns them back, which is also its gradient. Angles are
// computed in float64, their cosines and sines rounded to float32, and so is
// each product and each sum of two: bits are the same on every machine.
func (q *Queue) Rope(x device.Mat, r device.Rope, inverse bool) {
	wantMat("rope", x, x.Rows, x.Cols)
	if r.D < 2 || r.D%2 != 0 || x.Cols%r.D != 0 || r.T < 1 || x.Rows%r.T != 0 || r.Past < 0 {
		panic(fmt.Sprintf("cpu: rope of a matrix (%d, %d) as sequences of %d positions after %d with heads of width %d", x.Rows, x.Cols, r.T, r.Past, r.D))
	}
	t := q.issue("rope")
	t.m[0], t.rope, t.f[0] = x, r, 1
	if inverse {
		t.f[0] = -1
	}
	t.phases = ropePhases
	q.commit()
}

// ropePhases fills the table if need be, and then turns rows.
func ropePhases(t *task, q *Queue) {
	table, r, workers := q.turns, t.rope, len(q.pool.workers)+1
	if t.m[0].Rows == 0 {
		return
	}
	table.mu.Lock()
	defer table.mu.Unlock()
	if !table.has(r) {
		if r.Past > 0 { // sequences grow a position at a time: room for up to twice as many
			r.T, r.Past = 1<<bits.Len(uint(r.Past+r.T-1)), 0
		}
		if err := table.grow(r.T * r.D); err != nil {
			panic(fmt.Sprintf("cpu: the table of rotary positions: %v", err))
		}
		table.rope = r
		q.phase(t, runAngles, r.T, rowGrain(8*r.D), workers)
	}
	q.phase(t, runRope, t.m[0].Rows, rowGrain(t.m[0].Cols), workers)
}

// runAngles fills rows [lo, hi) of the table.
func runAngles(t *args, w *worker, lo, hi int) {
	table := w.turns
	r := &table.rope
	for j := range r.D / 2 {
		f := r.Freq(j)
		for at := lo; at < hi; at++ {
			s, c := math.Sincos(float64(at) * f)
			cos, sin := table.row(at)
			cos[j], sin[j] = float32(c), float32(s)
		}
	}
}

// runRope turns all heads of rows [lo, hi).
func runRope(t *args, w *worker, lo, hi int) {
	m, r, sign := &t.m[0], &t.rope, t.f[0]
	f := bestVec.rope[m.Buf.Type]
	mem := w.floats(2 * ropePairs)
	for row := lo; row < hi; row++ {
		cos, sin := w.turns.row(r.Past + row%r.T)
		if f != nil && r.D%32 == 0 {
			f(rowOf(m, row, m.Cols).Ptr, floatPtr(cos, 0), floatPtr(sin, 0), r.D/2, m.Cols/r.D, sign)
			continue
		}
		for j := 0; j < r.D/2; j += ropePairs {
			n := min(ropePairs, r.D/2-j)
			turnHeads(m, row, j, r.D, mem, cos[j:j+n], sin[j:j+n], sign)
		}
	}
}

// turnHeads turns pairs j0 and on, as many as there are sines, of every head of
// width D in a row.
func turnHeads(m *device.Mat, row, j0, D int, mem, cos, sin []float32, sign float32) {
	n := len(sin)
	cos = cos[:n]
	for at := row*m.Ld + j0; at < row*m.Ld+m.Cols; at += D {
		x, y := floatsOf(mem, m.Buf, at, n), floatsOf(mem[ropePairs:], m.Buf, at+D/2, n)
		y = y[:n]
		for j, a := range x {
			b, c, s := y[j], cos[j], sign*sin[j]
			// The conversions keep the compiler from fusing products and sums.
			x[j], y[j] = float32(a*c)-float32(b*s), float32(b*c)+float32(a*s)
		}
		keep(m.Buf, at, x)
		keep(m.Buf, at+D/2, y)
	}
}
