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
		WantMat(op, wpe.Rows, n, wpe)
	}
}

// RunEmbed sets rows [lo, hi) of y to the embeddings of their ids and positions.
func RunEmbed(t *Args, w *Worker, lo, hi int) {
	ym, wte, wpe, n := &t.M[0], &t.M[1], &t.M[2], t.M[0].Cols
	ids, at := t.B[0].I32(), newPositions(&t.B[1], t.T)
	for i := lo; i < hi; i++ {
		id, has := t.Vocab.Index(int(ids[i]), wte.Rows)
		y := rowOf(ym, i, n)
		if !has {
			clear(y.Raw())
			if wpe.Rows > 0 {
				Store(y, floatsOf(w.Floats(n), rowOf(wpe, at.at(i), n), 0, n))
			}
			continue
		}
		e := rowOf(wte, id, n)
		switch {
		case wpe.Rows > 0:
			w.addRow(y, e, rowOf(wpe, at.at(i), n))
		case y.Type == e.Type:
			copy(y.Raw(), e.Raw())
		default:
			Store(y, floatsOf(w.Floats(n), e, 0, n))
		}
	}
}

// positions computes the positions of rows in sequences of length T, relative to the start of their
// document.
type positions struct {
	start []int32 // nil: one document per sequence
	T     int
}

// newPositions returns the positions for start, which is empty without documents.
func newPositions(start *device.Buffer, T int) positions {
	if start.N == 0 {
		return positions{nil, T}
	}
	return positions{start.I32(), T}
}

func (p *positions) at(row int) int {
	if p.start == nil {
		return row % p.T
	}
	return row%p.T - int(p.start[row])
}

// rowOf returns the n elements of row i.
func rowOf(m *device.Mat, i, n int) device.Buffer { return m.Buf.Slice(i*m.Ld, i*m.Ld+n) }

// RunEmbedGrad computes rows [lo, hi) of dwte by searching all ids for those rows.
func RunEmbedGrad(t *Args, w *Worker, lo, hi int) {
	dwte, dy, n := &t.M[0], &t.M[1], t.M[1].Cols
	for v := lo; v < hi && !t.Add; v++ {
		clear(rowOf(dwte, v, n).F32())
	}
	for i, id := range t.B[0].I32() {
		if v := int(id) - t.Vocab.First; lo <= v && v < hi {
			sum := rowOf(dwte, v, n)
			w.addRow(sum, sum, rowOf(dy, i, n))
		}
	}
}

// RunPositionGrad computes rows [lo, hi) of dwpe by searching all rows of dy for those positions.
func RunPositionGrad(t *Args, w *Worker, lo, hi int) {
	dwpe, dy, n, at := &t.M[0], &t.M[1], t.M[1].Cols, newPositions(&t.B[0], t.T)
	for p := lo; p < hi && !t.Add; p++ {
		clear(rowOf(dwpe, p, n).F32())
	}
	for i := range dy.Rows {
		if p := at.at(i); lo <= p && p < hi {
			sum := rowOf(dwpe, p, n)
			w.addRow(sum, sum, rowOf(dy, i, n))
		}
	}
}
