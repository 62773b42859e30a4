package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// SumRows sets db[j] (float32) to the sum over i of dy[i][j].
func (q *Queue) SumRows(db device.Buffer, dy device.Mat) {
	kernel.WantMat("sum of rows", dy.Rows, dy.Cols, dy)
	kernel.WantLen("sum of rows", device.F32, dy.Cols, db)
	t := q.issue("sum of rows")
	t.B[0], t.M[0] = db, dy
	q.kernel(t, kernel.RunSumRows, kernel.Chunks(dy.Cols), kernel.RowGrain(dy.Rows*kernel.ChunkCols))
}

// Sum adds the sum of x (float32) to acc, a device.Exact, with the block order of package device.
func (q *Queue) Sum(acc, x device.Buffer) {
	q.exact("sum", kernel.RunSum, acc, x)
}

// SumSquares adds the sum of the squares of x (float32) to acc, a device.Exact, with the block
// order of package device.
func (q *Queue) SumSquares(acc, x device.Buffer) {
	q.exact("sum of squares", kernel.RunSumSquares, acc, x)
}

// exact issues a sum over the blocks of x. The result depends neither on the number of workers nor
// on how x is cut between blocks.
func (q *Queue) exact(name string, run kernel.RunFunc, acc, x device.Buffer) {
	kernel.WantLen(name, device.I64, device.ExactLen, acc)
	kernel.WantLen(name, device.F32, x.N, x)
	t := q.issue(name)
	t.B[0], t.B[1] = acc, x
	q.kernel(t, run, kernel.Ceil(x.N, device.ExactBlock), kernel.PieceWork/device.ExactBlock)
}

// AddUp sets dst to the sum of the sources, like SumAll, but immediately on the caller's goroutine,
// which must be the queue's. All buffers must be in host memory.
func (q *Queue) AddUp(dst device.Buffer, src []device.Buffer) { kernel.AddUp(dst, src) }
