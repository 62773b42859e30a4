package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// LayerNorm normalizes the rows of x: y = (x-mean)*rstd*w + b with rstd = 1/sqrt(variance + eps).
// mean and rstd (float32) receive one element per row; w and b have one per column. y may be x.
func (q *Queue) LayerNorm(y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32) {
	kernel.WantLen("layer norm", device.F32, x.Rows, mean)
	kernel.WantVec("layer norm", b, x.Cols)
	q.norm("layer norm", y, mean, rstd, x, w, b, eps)
}

// RMSNorm normalizes the rows of x (Zhang and Sennrich, arXiv 1910.07467): y = x*rstd*w with rstd =
// 1/sqrt(average(x^2) + eps). rstd (float32) receives one element per row; w has one per column. y
// may be x.
func (q *Queue) RMSNorm(y device.Mat, rstd device.Buffer, x device.Mat, w device.Buffer, eps float32) {
	q.norm("rms norm", y, device.Buffer{}, rstd, x, w, device.Buffer{}, eps)
}

func (q *Queue) norm(op string, y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32) {
	kernel.WantMat(op, x.Rows, x.Cols, x, y)
	kernel.WantLen(op, device.F32, x.Rows, rstd)
	kernel.WantVec(op, w, x.Cols)
	t := q.issue(op)
	t.M[0], t.M[1] = y, x
	t.B[0], t.B[1], t.B[2], t.B[3], t.F = mean, rstd, w, b, eps
	q.kernel(t, kernel.RunNorm, x.Rows, kernel.RowGrain(x.Cols))
}

// LayerNormGrad computes the gradient of LayerNorm: with n = (x-mean)*rstd and g = dy*w, for each
// row
//
//	dx = rstd * (g - average(g) - n*average(g*n)),
//
// added to dx if add is set; dw = sum of dy*n and db = sum of dy over the rows (float32,
// overwritten). dx may be dy.
func (q *Queue) LayerNormGrad(dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool) {
	op := gradNames{"layer norm gradient", "layer norm gradient of w, b", "layer norm gradient of x"}
	kernel.WantLen(op.all, device.F32, x.Cols, db)
	kernel.WantLen(op.all, device.F32, x.Rows, mean)
	q.normGrad(op, dx, dw, db, dy, x, w, mean, rstd, add)
}

// RMSNormGrad computes the gradient of RMSNorm: with n = x*rstd and g = dy*w, for each row
//
//	dx = rstd * (g - n*average(g*n)),
//
// added to dx if add is set; dw = sum of dy*n over the rows (float32, overwritten). dx may be dy or
// x.
func (q *Queue) RMSNormGrad(dx device.Mat, dw device.Buffer, dy, x device.Mat, w, rstd device.Buffer, add bool) {
	op := gradNames{"rms norm gradient", "rms norm gradient of w", "rms norm gradient of x"}
	q.normGrad(op, dx, dw, device.Buffer{}, dy, x, w, device.Buffer{}, rstd, add)
}

// gradNames are the names of a gradient and of its parts.
type gradNames struct{ all, ofW, ofX string }

func (q *Queue) normGrad(op gradNames, dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool) {
	kernel.WantMat(op.all, x.Rows, x.Cols, dx, dy, x)
	kernel.WantLen(op.all, device.F32, x.Cols, dw)
	kernel.WantLen(op.all, device.F32, x.Rows, rstd)
	kernel.WantVec(op.all, w, x.Cols)
	t := q.issue(op.ofW) // first, since dx may be dy or x
	t.M[0], t.M[1] = dy, x
	t.B[0], t.B[1], t.B[2], t.B[3] = dw, db, mean, rstd
	q.kernel(t, kernel.RunNormGradW, kernel.Chunks(x.Cols), kernel.RowGrain(x.Rows*kernel.ChunkCols))
	t = q.issue(op.ofX)
	t.M[0], t.M[1], t.M[2] = dx, dy, x
	t.B[0], t.B[1], t.B[2], t.Add = w, mean, rstd, add
	q.kernel(t, kernel.RunNormGradX, x.Rows, kernel.RowGrain(x.Cols))
}
