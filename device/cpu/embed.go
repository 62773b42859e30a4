package cpu

import (
	"fmt"

	"zeroth/device"
)

// Embed sets y[i] = wte[ids[i]] + wpe[i mod T]; wpe may be empty (no rows).
// ids is int32, one a row of y.
func (q *Queue) Embed(y, wte, wpe device.Mat, ids device.Buffer, T int) {
	wantMat("embedding", y, y.Rows, y.Cols)
	wantMat("embedding", wte, wte.Rows, y.Cols)
	wantLen("embedding", ids, device.I32, y.Rows)
	wantPositions("embedding", wpe, y.Cols, T)
	t := q.issue("embedding")
	t.m[0], t.m[1], t.m[2] = y, wte, wpe
	t.b[0], t.i[0] = ids, T
	q.kernel(t, runEmbed, y.Rows, rowGrain(y.Cols))
}

// wantPositions panics unless wpe is empty or has at least T rows of n elements.
func wantPositions(op string, wpe device.Mat, n, T int) {
	if T < 1 || wpe.Rows > 0 && wpe.Rows < T {
		panic(fmt.Sprintf("cpu: %s of %d positions with %d position vectors", op, T, wpe.Rows))
	}
	if wpe.Rows > 0 {
		wantMat(op, wpe, wpe.Rows, n)
	}
}

func runEmbed(t *args, w *worker, lo, hi int) {
	ym, wte, wpe, n := &t.m[0], &t.m[1], &t.m[2], t.m[0].Cols
	ids := t.b[0].I32()
	for i := lo; i < hi; i++ {
		id := int(ids[i])
		if id < 0 || id >= wte.Rows {
			panic(fmt.Sprintf("cpu: embedding: id %d at %d, vocabulary %d", id, i, wte.Rows))
		}
		y, e := rowOf(ym, i, n), rowOf(wte, id, n)
		switch {
		case wpe.Rows > 0:
			w.addRow(y, e, rowOf(wpe, i%t.i[0], n))
		case y.Type == e.Type:
			copy(y.Raw(), e.Raw())
		default:
			store(y, floatsOf(w.floats(n), e, 0, n))
		}
	}
}

// rowOf is the n elements of row i.
func rowOf(m *device.Mat, i, n int) device.Buffer { return m.Buf.Slice(i*m.Ld, i*m.Ld+n) }

// EmbedGrad sums rows of dy into dwte and dwpe (float32; dwpe may be empty):
// row v of dwte is the sum of dy[i] where ids[i] is v, row t of dwpe the sum of
// dy[i] where i mod T is t, both in the order of i, starting from what was
// there with add and from 0 without.
func (q *Queue) EmbedGrad(dwte, dwpe, dy device.Mat, ids device.Buffer, T int, add bool) {
	wantMat("embedding gradient", dy, dy.Rows, dy.Cols)
	wantMat("embedding gradient", dwte, dwte.Rows, dy.Cols)
	wantLen("embedding gradient", ids, device.I32, dy.Rows)
	wantPositions("embedding gradient", dwpe, dy.Cols, T)
	t := q.issue("embedding gradient")
	t.m[0], t.m[1], t.b[0], t.add = dwte, dy, ids, add
	q.kernel(t, runEmbedGrad, dwte.Rows, rowGrain(dy.Cols))
	if dwpe.Rows == 0 {
		return
	}
	t = q.issue("position gradient")
	t.m[0], t.m[1], t.i[0], t.add = dwpe, dy, T, add
	q.kernel(t, runPositionGrad, dwpe.Rows, rowGrain(dy.Cols))
}

// runEmbedGrad fills rows [lo, hi) of dwte: it looks through all ids for its own.
func runEmbedGrad(t *args, w *worker, lo, hi int) {
	dwte, dy, n := &t.m[0], &t.m[1], t.m[1].Cols
	for v := lo; v < hi && !t.add; v++ {
		clear(rowOf(dwte, v, n).F32())
	}
	for i, id := range t.b[0].I32() {
		if v := int(id); lo <= v && v < hi {
			sum := rowOf(dwte, v, n)
			w.addRow(sum, sum, rowOf(dy, i, n))
		}
	}
}

// runPositionGrad fills rows [lo, hi) of dwpe.
func runPositionGrad(t *args, w *worker, lo, hi int) {
	dwpe, dy, n, T := &t.m[0], &t.m[1], t.m[1].Cols, t.i[0]
	for p := lo; p < hi; p++ {
		sum := rowOf(dwpe, p, n)
		if !t.add {
			clear(sum.F32())
		}
		for i := p; p < T && i < dy.Rows; i += T {
			w.addRow(sum, sum, rowOf(dy, i, n))
		}
	}
}
