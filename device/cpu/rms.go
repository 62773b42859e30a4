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

func runRMSNorm(t *task, work *worker, lo, hi int) {
	ym, xm, n := &t.m[0], &t.m[1], t.m[1].Cols
	mem := work.floats(3 * n)
	rstd, w := t.b[0].F32(), floatsOf(mem, t.b[1], 0, n)
	for i := lo; i < hi; i++ {
		x, y := floatsOf(mem[n:], xm.Buf, i*xm.Ld, n), room(mem[2*n:], ym.Buf, i*ym.Ld, n)
		r := float32(1 / math.Sqrt(float64(squares4(x, 0)/float32(n)+t.f[0])))
		rstd[i] = r
		for j := range y {
			y[j] = x[j] * r * w[j]
		}
		keep(ym.Buf, i*ym.Ld, y)
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
	q.kernel(t, runRMSNormGradW, strips(x.Cols), rowGrain(x.Rows*stripLen))

	t = q.issue("rms norm gradient of x")
	t.m[0], t.m[1], t.m[2] = dx, dy, x
	t.b[0], t.b[1] = w, rstd
	t.add = add
	q.kernel(t, runRMSNormGradX, x.Rows, rowGrain(x.Cols))
}

// runRMSNormGradW sums down strips of columns; see sum.go.
func runRMSNormGradW(t *task, work *worker, lo, hi int) {
	dym, xm, mem := &t.m[0], &t.m[1], work.floats(3*stripLen)
	rstd := t.b[1].F32()
	for s := lo; s < hi; s++ {
		c0, c1 := strip(s, xm.Cols)
		n := c1 - c0
		dw, part := t.b[0].F32()[c0:c1], mem[2*stripLen:][:n]
		clear(dw)
		clear(part)
		for i := range xm.Rows {
			dy, x := floatsOf(mem, dym.Buf, i*dym.Ld+c0, n), floatsOf(mem[stripLen:], xm.Buf, i*xm.Ld+c0, n)
			r := rstd[i]
			for j, g := range dy {
				part[j] += g * (x[j] * r)
			}
			if (i+1)%groupLen == 0 {
				flush(dw, part)
			}
		}
		flush(dw, part)
	}
}

func runRMSNormGradX(t *task, work *worker, lo, hi int) {
	dxm, dym, xm, n := &t.m[0], &t.m[1], &t.m[2], t.m[2].Cols
	mem := work.floats(5 * n)
	w, rstd := floatsOf(mem, t.b[0], 0, n), t.b[1].F32()
	for i := lo; i < hi; i++ {
		dy, x := floatsOf(mem[n:], dym.Buf, i*dym.Ld, n), floatsOf(mem[2*n:], xm.Buf, i*xm.Ld, n)
		dx, r := room(mem[3*n:], dxm.Buf, i*dxm.Ld, n), rstd[i]
		_, gn := normSums(dy, x, w, 0, r)
		along := r * gn / float32(n) // how much of dx goes along x
		if t.add {
			old := floatsOf(mem[4*n:], dxm.Buf, i*dxm.Ld, n)
			for j := range dx {
				dx[j] = old[j] + r*(dy[j]*w[j]-x[j]*along)
			}
		} else {
			for j := range dx {
				dx[j] = r * (dy[j]*w[j] - x[j]*along)
			}
		}
		keep(dxm.Buf, i*dxm.Ld, dx)
	}
}
