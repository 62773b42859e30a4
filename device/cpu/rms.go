package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// RMSNorm normalizes the rows of x (Zhang and Sennrich, arXiv 1910.07467): y = x*rstd*w with rstd =
// 1/sqrt(average(x^2) + eps). rstd (float32) receives one element per row; w has one per column. y
// may be x.
func (q *Queue) RMSNorm(y device.Mat, rstd device.Buffer, x device.Mat, w device.Buffer, eps float32) {
	kernel.WantMat("rms norm", x, x.Rows, x.Cols)
	kernel.WantMat("rms norm", y, x.Rows, x.Cols)
	kernel.WantLen("rms norm", rstd, device.F32, x.Rows)
	kernel.WantVec("rms norm", w, x.Cols)
	t := q.issue("rms norm")
	t.M[0], t.M[1] = y, x
	t.B[0], t.B[1] = rstd, w
	t.F = eps
	q.kernel(t, kernel.RunRMSNorm, x.Rows, kernel.RowGrain(x.Cols))
}

// RMSNormGrad computes the gradient of RMSNorm: with n = x*rstd and g = dy*w, for each row
//
//	dx = rstd * (g - n*average(g*n)),
//
// added to dx if add is set; dw = sum of dy*n over the rows (float32, overwritten). dx may be dy or
// x.
func (q *Queue) RMSNormGrad(dx device.Mat, dw device.Buffer, dy, x device.Mat, w, rstd device.Buffer, add bool) {
	for _, m := range [3]device.Mat{dx, dy, x} {
		kernel.WantMat("rms norm gradient", m, x.Rows, x.Cols)
	}
	kernel.WantLen("rms norm gradient", dw, device.F32, x.Cols)
	kernel.WantLen("rms norm gradient", rstd, device.F32, x.Rows)
	kernel.WantVec("rms norm gradient", w, x.Cols)

	t := q.issue("rms norm gradient of w") // first, since dx may be dy or x
	t.M[0], t.M[1] = dy, x
	t.B[0], t.B[1] = dw, rstd
	q.kernel(t, kernel.RunRMSNormGradW, kernel.Chunks(x.Cols), kernel.RowGrain(x.Rows*kernel.ChunkCols))

	t = q.issue("rms norm gradient of x")
	t.M[0], t.M[1], t.M[2] = dx, dy, x
	t.B[0], t.B[1] = w, rstd
	t.Add = add
	q.kernel(t, kernel.RunRMSNormGradX, x.Rows, kernel.RowGrain(x.Cols))
}
