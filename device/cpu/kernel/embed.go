package kernel

import (
	"fmt"

	"zeroth/device"
)

// WantPositions panics unless wpe is empty or has at least T rows of n elements.
func WantPositions(op string, wpe device.Mat, n, T int) {
	if T < 1 || wpe.Rows > 0 && wpe.Rows < T {
		panic(fmt.Sprintf("cpu: %s of %d positions with %d position vectors", op, T, wpe.Rows))
	}
	if wpe.Rows > 0 {
		WantMat(op, wpe, wpe.Rows, n)
	}
}

func RunEmbed(t *Args, w *Worker, lo, hi int) {
	ym, wte, wpe, n := &t.M[0], &t.M[1], &t.M[2], t.M[0].Cols
	ids := t.B[0].I32()
	for i := lo; i < hi; i++ {
		id := int(ids[i])
		if id < 0 || id >= wte.Rows {
			panic(fmt.Sprintf("cpu: embedding: id %d at %d, vocabulary %d", id, i, wte.Rows))
		}
		y, e := rowOf(ym, i, n), rowOf(wte, id, n)
		switch {
		case wpe.Rows > 0:
			w.addRow(y, e, rowOf(wpe, i%t.T, n))
		case y.Type == e.Type:
			copy(y.Raw(), e.Raw())
		default:
			Store(y, floatsOf(w.Floats(n), e, 0, n))
		}
	}
}

// rowOf is the n elements of row i.
func rowOf(m *device.Mat, i, n int) device.Buffer { return m.Buf.Slice(i*m.Ld, i*m.Ld+n) }

// RunEmbedGrad fills rows [lo, hi) of dwte: it looks through all ids for its own.
func RunEmbedGrad(t *Args, w *Worker, lo, hi int) {
	dwte, dy, n := &t.M[0], &t.M[1], t.M[1].Cols
	for v := lo; v < hi && !t.Add; v++ {
		clear(rowOf(dwte, v, n).F32())
	}
	for i, id := range t.B[0].I32() {
		if v := int(id); lo <= v && v < hi {
			sum := rowOf(dwte, v, n)
			w.addRow(sum, sum, rowOf(dy, i, n))
		}
	}
}

// RunPositionGrad fills rows [lo, hi) of dwpe.
func RunPositionGrad(t *Args, w *Worker, lo, hi int) {
	dwpe, dy, n, T := &t.M[0], &t.M[1], t.M[1].Cols, t.T
	for p := lo; p < hi; p++ {
		sum := rowOf(dwpe, p, n)
		if !t.Add {
			clear(sum.F32())
		}
		for i := p; p < T && i < dy.Rows; i += T {
			w.addRow(sum, sum, rowOf(dy, i, n))
		}
	}
}
