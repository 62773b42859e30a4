package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// LayerNorm normalizes the rows of x: y = (x-mean)*rstd*w + b with rstd = 1/sqrt(variance + eps).
// mean and rstd (float32) receive one element per row; w and b have one per column. y may be x.
func (q *Queue) LayerNorm(y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32) {
	kernel.WantMat("layer norm", x, x.Rows, x.Cols)
	kernel.WantMat("layer norm", y, x.Rows, x.Cols)
	kernel.WantLen("layer norm", mean, device.F32, x.Rows)
	kernel.WantLen("layer norm", rstd, device.F32, x.Rows)
	kernel.WantVec("layer norm", w, x.Cols)
	kernel.WantVec("layer norm", b, x.Cols)
	t := q.issue("layer norm")
	t.M[0], t.M[1] = y, x
	t.B[0], t.B[1], t.B[2], t.B[3] = mean, rstd, w, b
	t.F = eps
	q.kernel(t, kernel.RunLayerNorm, x.Rows, kernel.RowGrain(x.Cols))
}

// LayerNormGrad computes the gradient of LayerNorm: with n = (x-mean)*rstd and g = dy*w, for each
// row
//
//	dx = rstd * (g - average(g) - n*average(g*n)),
//
// added to dx if add is set; dw = sum of dy*n and db = sum of dy over the rows (float32,
// overwritten). dx may be dy.
func (q *Queue) LayerNormGrad(dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool) {
	for _, m := range [3]device.Mat{dx, dy, x} {
		kernel.WantMat("layer norm gradient", m, x.Rows, x.Cols)
	}
	kernel.WantLen("layer norm gradient", dw, device.F32, x.Cols)
	kernel.WantLen("layer norm gradient", db, device.F32, x.Cols)
	kernel.WantLen("layer norm gradient", mean, device.F32, x.Rows)
	kernel.WantLen("layer norm gradient", rstd, device.F32, x.Rows)
	kernel.WantVec("layer norm gradient", w, x.Cols)

	t := q.issue("layer norm gradient of w, b") // first, since dx may be dy
	t.M[0], t.M[1] = dy, x
	t.B[0], t.B[1], t.B[2], t.B[3] = dw, db, mean, rstd
	q.kernel(t, kernel.RunLayerNormGradW, kernel.Chunks(x.Cols), kernel.RowGrain(x.Rows*kernel.ChunkCols))

	t = q.issue("layer norm gradient of x")
	t.M[0], t.M[1], t.M[2] = dx, dy, x
	t.B[0], t.B[1], t.B[2] = w, mean, rstd
	t.Add = add
	q.kernel(t, kernel.RunLayerNormGradX, x.Rows, kernel.RowGrain(x.Cols))
}
