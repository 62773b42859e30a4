package cpu

import (
	"math"

	"zeroth/device"
)

// RMSNorm scales the rows of x (Zhang and Sennrich, arXiv 1910.07467): y =
// x*rstd*w with rstd = 1/sqrt(average(x^2) + eps). rstd (float32) receives one
// element a row; w has one a column. y may be x.
func (q *Queue) RMSNorm(y device.Mat, rstd device.Buffer, x device.Mat, w device.Buffer, eps float32) {
	wantMat("rms norm", x, x.Rows, x.Cols)
	wantMat("rms norm", y, x.Rows, x.Cols)
	wantLen("rms norm", rstd, device.F32, x.Rows)
	wantVec("rms norm", w, x.Cols)
	t := q.issue("rms norm")
	t.m[0], t.m[1] = y, x
	t.b[0], t.b[1] = rstd, w
	t.f[0] = eps
	q.kernel(t, runRMSNorm, x.Rows, rowGrain(x.Cols))
}

// The rows are those of layer norm with no mean and no bias.
func runRMSNorm(t *args, work *worker, lo, hi int) {
	ym, xm, n := &t.m[0], &t.m[1], t.m[1].Cols
	np, rstd := padded(n, rowUnit), t.b[0].F32()
	mem := work.floats(4 * np)
	w, zeros := take(&mem, np), take(&mem, np)
	load(w[:n], t.b[1])
	clear(zeros)
	rows := normRows{isa: &bestVec.normISA, n: n, np: np, direct: directRows(n, ym, xm)}
	for i := lo; i < hi; i++ {
		x, kind := rows.read(mem, xm, i)
		r := float32(1 / math.Sqrt(float64(rows.isa.squares[kind](x, np, 0)/float32(n)+t.f[0])))
		rstd[i] = r
		y := rows.room(mem[np:], ym, i)
		rows.isa.norm[kind](y, x, floatPtr(w, 0), floatPtr(zeros, 0), np, 0, r)
		rows.write(ym, i, mem[np:])
	}
}

// RMSNormGrad is the gradient of RMSNorm: with n = x*rstd and g = dy*w, a row's
//
//	dx = rstd * (g - n*average(g*n)),
//
// added to dx if add is set; dw = sum of dy*n over the rows (float32,
// overwritten). dx may be dy.
func (q *Queue) RMSNormGrad(dx device.Mat, dw device.Buffer, dy, x device.Mat, w, rstd device.Buffer, add bool) {
	for _, m := range [3]device.Mat{dx, dy, x} {
		wantMat("rms norm gradient", m, x.Rows, x.Cols)
	}
	wantLen("rms norm gradient", dw, device.F32, x.Cols)
	wantLen("rms norm gradient", rstd, device.F32, x.Rows)
	wantVec("rms norm gradient", w, x.Cols)

	t := q.issue("rms norm gradient of w") // first: dx may be dy
	t.m[0], t.m[1] = dy, x
	t.b[0], t.b[1] = dw, rstd
	q.kernel(t, runRMSNormGradW, chunks(x.Cols), rowGrain(x.Rows*chunkCols))

	t = q.issue("rms norm gradient of x")
	t.m[0], t.m[1], t.m[2] = dx, dy, x
	t.b[0], t.b[1] = w, rstd
	t.add = add
	q.kernel(t, runRMSNormGradX, x.Rows, rowGrain(x.Cols))
}

// runRMSNormGradW sums down chunks of columns; see sum.go.
func runRMSNormGradW(t *args, work *worker, lo, hi int) {
	c := newNormColumns(work, &t.m[0], &t.m[1])
	c.chunks(lo, hi, t.b[0].F32(), nil, nil, t.b[1].F32())
}

func runRMSNormGradX(t *args, work *worker, lo, hi int) {
	runNormGrad(t, work, lo, hi, nil, t.b[1].F32())
}
