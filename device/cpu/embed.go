package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// Embed sets y[i] = wte[ids[i]] + wpe[i mod T], or with start wpe[i mod T - start[i]]; see
// device.Starts. wpe may be empty (no rows). ids is int32, one per row of y. If wte is a part of
// the vocabulary, other ids count as 0.
func (q *Queue) Embed(y, wte, wpe device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer) {
	kernel.WantMat("embedding", y.Rows, y.Cols, y)
	kernel.WantMat("embedding", wte.Rows, y.Cols, wte)
	kernel.WantLen("embedding", device.I32, y.Rows, ids)
	kernel.WantPositions("embedding", wpe, y.Cols, T)
	device.Starts("embedding", start, y.Rows, 0)
	t := q.issue("embedding")
	t.M[0], t.M[1], t.M[2] = y, wte, wpe
	t.B[0], t.B[1], t.T, t.Vocab = ids, start, T, part
	q.kernel(t, kernel.RunEmbed, y.Rows, kernel.RowGrain(y.Cols))
}

// EmbedGrad sums rows of dy into dwte and dwpe (float32; dwpe may be empty). Row v of dwte is the
// sum of dy[i] with ids[i] = v, row t of dwpe the sum of dy[i] at position t, both in the order
// of i. The sums start from the old contents if add is set, else from 0. For a part of the
// vocabulary, v is relative to its first row.
func (q *Queue) EmbedGrad(dwte, dwpe, dy device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer, add bool) {
	kernel.WantMat("embedding gradient", dy.Rows, dy.Cols, dy)
	kernel.WantMat("embedding gradient", dwte.Rows, dy.Cols, dwte)
	kernel.WantLen("embedding gradient", device.I32, dy.Rows, ids)
	kernel.WantPositions("embedding gradient", dwpe, dy.Cols, T)
	device.Starts("embedding gradient", start, dy.Rows, 0)
	t := q.issue("embedding gradient")
	t.M[0], t.M[1], t.B[0], t.Vocab, t.Add = dwte, dy, ids, part, add
	q.kernel(t, kernel.RunEmbedGrad, dwte.Rows, kernel.RowGrain(dy.Cols))
	if dwpe.Rows == 0 {
		return
	}
	t = q.issue("position gradient")
	t.M[0], t.M[1], t.B[0], t.T, t.Add = dwpe, dy, start, T, add
	q.kernel(t, kernel.RunPositionGrad, dwpe.Rows, kernel.RowGrain(dy.Cols))
}
