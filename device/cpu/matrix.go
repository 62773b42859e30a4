package cpu

import (
	"fmt"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// Axpby sets y = alpha*a + beta*b, rounding each product and the sum to float32. If p is not
// empty, it receives y rounded to its type. All float types are allowed; y may be a or b.
func (q *Queue) Axpby(y, p, a, b device.Buffer, alpha, beta float32) {
	kernel.WantSame("axpby", y, a, b)
	if p.N != 0 {
		kernel.WantVec("axpby", p, y.N)
	}
	t := q.issue("axpby")
	t.B[0], t.B[1], t.B[2], t.B[3] = y, p, a, b
	t.K[0], t.K[1] = alpha, beta
	q.kernel(t, kernel.RunAxpby, kernel.AxpbyPieces(y.N), kernel.AxpbyGrain)
}

// Normalize divides x, of any float type, by its Euclidean norm rounded to x's type, or by eps if
// that is larger. The sum of squares is exact; acc, a device.Exact, is its working space.
func (q *Queue) Normalize(x, acc device.Buffer, eps float32) {
	kernel.WantFloat("normalize", x)
	kernel.WantLen("normalize", device.I64, device.ExactLen, acc)
	t := q.issue("normalize")
	t.B[0], t.B[1], t.F = acc, x, eps
	t.phases = runNormalize
	q.commit()
}

// runNormalize sums the squares, then divides.
func runNormalize(t *task, q *Queue) {
	clear(t.B[0].I64())
	n, workers := kernel.Ceil(t.B[1].N, kernel.NormLen), len(q.pool.workers)+1
	q.phase(t, kernel.RunSquares, n, 1, workers)
	t.F = kernel.Norm(&t.Args, &q.w.Worker)
	q.phase(t, kernel.RunDivide, n, 1, workers)
}

// CopyBlock copies a matrix to another of the same shape and type; either may be part of a larger
// one.
func (q *Queue) CopyBlock(dst, src device.Mat) {
	const op = "copy of a block"
	kernel.WantMat(op, dst.Rows, dst.Cols, dst, src)
	if dst.Buf.Type != src.Buf.Type {
		panic(fmt.Sprintf("cpu: %s of %v to %v", op, src.Buf.Type, dst.Buf.Type))
	}
	t := q.issue(op)
	t.M[0], t.M[1] = dst, src
	q.kernel(t, kernel.RunCopyBlock, dst.Rows, kernel.RowGrain(dst.Cols))
}
