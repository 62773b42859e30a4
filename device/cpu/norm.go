package cpu

import (
	"math"

	"zeroth/device"
)

// LayerNorm normalises the rows of x: y = (x-mean)*rstd*w + b with rstd =
// 1/sqrt(variance + eps). mean and rstd (float32) receive one element a row;
// w and b have one a column. y may be x.
func (q *Queue) LayerNorm(y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32) {
	wantMat("layer norm", x, x.Rows, x.Cols)
	wantMat("layer norm", y, x.Rows, x.Cols)
	wantLen("layer norm", mean, device.F32, x.Rows)
	wantLen("layer norm", rstd, device.F32, x.Rows)
	wantVec("layer norm", w, x.Cols)
	wantVec("layer norm", b, x.Cols)
	t := q.issue("layer norm")
	t.m[0], t.m[1] = y, x
	t.b[0], t.b[1], t.b[2], t.b[3] = mean, rstd, w, b
	t.f[0] = eps
	q.kernel(t, runLayerNorm, x.Rows, rowGrain(x.Cols))
}

func runLayerNorm(t *task, work *worker, lo, hi int) {
	ym, xm, n := &t.m[0], &t.m[1], t.m[1].Cols
	mem := work.floats(4 * n)
	mean, rstd := t.b[0].F32(), t.b[1].F32()
	w, b := floatsOf(mem, t.b[2], 0, n), floatsOf(mem[n:], t.b[3], 0, n)
	for i := lo; i < hi; i++ {
		x, y := floatsOf(mem[2*n:], xm.Buf, i*xm.Ld, n), room(mem[3*n:], ym.Buf, i*ym.Ld, n)
		m := sum4(x) / float32(n)
		r := float32(1 / math.Sqrt(float64(squares4(x, m)/float32(n)+t.f[0])))
		mean[i], rstd[i] = m, r
		for j := range y {
			y[j] = (x[j]-m)*r*w[j] + b[j]
		}
		keep(ym.Buf, i*ym.Ld, y)
	}
}

// sum4 is the sum of x in four lanes.
func sum4(x []float32) float32 {
	var a, b, c, d float32
	for ; len(x) >= 4; x = x[4:] {
		a, b, c, d = a+x[0], b+x[1], c+x[2], d+x[3]
	}
	for _, v := range x {
		a += v
	}
	return (a + b) + (c + d)
}

// squares4 is the sum of (x-m)^2 in four lanes.
func squares4(x []float32, m float32) float32 {
	var a, b, c, d float32
	for ; len(x) >= 4; x = x[4:] {
		p, q, r, s := x[0]-m, x[1]-m, x[2]-m, x[3]-m
		a, b, c, d = a+p*p, b+q*q, c+r*r, d+s*s
	}
	for _, v := range x {
		a += (v - m) * (v - m)
	}
	return (a + b) + (c + d)
}

// LayerNormGrad is the gradient of LayerNorm: with n = (x-mean)*rstd and
// g = dy*w, a row's
//
//	dx = rstd * (g - average(g) - n*average(g*n)),
//
// added to dx if add is set; dw = sum of dy*n and db = sum of dy over the rows
// (float32, overwritten). dx may be dy.
func (q *Queue) LayerNormGrad(dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool) {
	for _, m := range [3]device.Mat{dx, dy, x} {
		wantMat("layer norm gradient", m, x.Rows, x.Cols)
	}
	wantLen("layer norm gradient", dw, device.F32, x.Cols)
	wantLen("layer norm gradient", db, device.F32, x.Cols)
	wantLen("layer norm gradient", mean, device.F32, x.Rows)
	wantLen("layer norm gradient", rstd, device.F32, x.Rows)
	wantVec("layer norm gradient", w, x.Cols)

	t := q.issue("layer norm gradient of w, b") // first: dx may be dy
	t.m[0], t.m[1] = dy, x
	t.b[0], t.b[1], t.b[2], t.b[3] = dw, db, mean, rstd
	q.kernel(t, runLayerNormGradW, strips(x.Cols), rowGrain(x.Rows*stripLen))

	t = q.issue("layer norm gradient of x")
	t.m[0], t.m[1], t.m[2] = dx, dy, x
	t.b[0], t.b[1], t.b[2] = w, mean, rstd
	t.add = add
	q.kernel(t, runLayerNormGradX, x.Rows, rowGrain(x.Cols))
}

// runLayerNormGradW sums down strips of columns; see sum.go.
func runLayerNormGradW(t *task, work *worker, lo, hi int) {
	dym, xm, mem := &t.m[0], &t.m[1], work.floats(4*stripLen)
	mean, rstd := t.b[2].F32(), t.b[3].F32()
	for s := lo; s < hi; s++ {
		c0, c1 := strip(s, xm.Cols)
		n := c1 - c0
		dw, db := t.b[0].F32()[c0:c1], t.b[1].F32()[c0:c1]
		partW, partB := mem[2*stripLen:][:n], mem[3*stripLen:][:n]
		clear(dw)
		clear(db)
		clear(partW)
		clear(partB)
		for i := range xm.Rows {
			dy, x := floatsOf(mem, dym.Buf, i*dym.Ld+c0, n), floatsOf(mem[stripLen:], xm.Buf, i*xm.Ld+c0, n)
			m, r := mean[i], rstd[i]
			for j, g := range dy {
				partB[j] += g
				partW[j] += g * ((x[j] - m) * r)
			}
			if (i+1)%groupLen == 0 {
				flush(dw, partW)
				flush(db, partB)
			}
		}
		flush(dw, partW)
		flush(db, partB)
	}
}

func runLayerNormGradX(t *task, work *worker, lo, hi int) {
	dxm, dym, xm, n := &t.m[0], &t.m[1], &t.m[2], t.m[2].Cols
	mem := work.floats(5 * n)
	w, mean, rstd := floatsOf(mem, t.b[0], 0, n), t.b[1].F32(), t.b[2].F32()
	for i := lo; i < hi; i++ {
		dy, x := floatsOf(mem[n:], dym.Buf, i*dym.Ld, n), floatsOf(mem[2*n:], xm.Buf, i*xm.Ld, n)
		dx := room(mem[3*n:], dxm.Buf, i*dxm.Ld, n)
		m, r := mean[i], rstd[i]
		g, gn := normSums(dy, x, w, m, r)
		g, gn = g/float32(n), gn/float32(n)
		if t.add {
			old := floatsOf(mem[4*n:], dxm.Buf, i*dxm.Ld, n)
			for j := range dx {
				dx[j] = old[j] + r*(dy[j]*w[j]-g-(x[j]-m)*r*gn)
			}
		} else {
			for j := range dx {
				dx[j] = r * (dy[j]*w[j] - g - (x[j]-m)*r*gn)
			}
		}
		keep(dxm.Buf, i*dxm.Ld, dx)
	}
}

// normSums is the sums over a row of g = dy*w and of g*(x-m)*r, in two lanes.
func normSums(dy, x, w []float32, m, r float32) (g, gn float32) {
	var g1, gn1 float32
	n := len(dy)
	x, w = x[:n], w[:n]
	j := 0
	for ; j+2 <= n; j += 2 {
		a, b := dy[j]*w[j], dy[j+1]*w[j+1]
		g, g1 = g+a, g1+b
		gn, gn1 = gn+a*(x[j]-m), gn1+b*(x[j+1]-m)
	}
	if j < n {
		a := dy[j] * w[j]
		g, gn = g+a, gn+a*(x[j]-m)
	}
	return g + g1, (gn + gn1) * r
}
