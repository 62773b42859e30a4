package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/tests/nightly"
)

// moments64 returns the mean and 1/sqrt(variance + eps) of each row.
func moments64(x []float64, cols int, eps float64) (mean, rstd []float64) {
	for ; len(x) > 0; x = x[cols:] {
		var m, v float64
		for _, a := range x[:cols] {
			m += a / float64(cols)
		}
		for _, a := range x[:cols] {
			v += (a - m) * (a - m) / float64(cols)
		}
		mean, rstd = append(mean, m), append(rstd, 1/math.Sqrt(v+eps))
	}
	return mean, rstd
}

func layerNorm64(x, w, b []float64, eps float64) []float64 {
	mean, rstd := moments64(x, len(w), eps)
	y := make([]float64, len(x))
	for i := range x {
		r, c := i/len(w), i%len(w)
		y[i] = (x[i]-mean[r])*rstd[r]*w[c] + b[c]
	}
	return y
}

func layerNormGrad64(dy, x, w []float64, eps float64) (dx, dw, db []float64) {
	cols := len(w)
	mean, rstd := moments64(x, cols, eps)
	dx, dw, db = make([]float64, len(x)), make([]float64, cols), make([]float64, cols)
	for i := range mean {
		var g, gn float64
		for j := range cols {
			at := i*cols + j
			n := (x[at] - mean[i]) * rstd[i]
			g += dy[at] * w[j] / float64(cols)
			gn += dy[at] * w[j] * n / float64(cols)
			dw[j] += dy[at] * n
			db[j] += dy[at]
		}
		for j := range cols {
			at := i*cols + j
			dx[at] = rstd[i] * (dy[at]*w[j] - g - (x[at]-mean[i])*rstd[i]*gn)
		}
	}
	return dx, dw, db
}

// Two columns are excluded: their dx is only cancellation.
var normShapes = [][2]int{{1, 1}, {3, 5}, {257, 333}, {5, 64}, {70, 208}}

func TestLayerNorm(t *testing.T) {
	withVec(t, func(t *testing.T) {
		const eps = 1e-5
		eachType(t, func(t *testing.T, dt device.DType) {
			for _, s := range normShapes {
				var x, w, b *guarded
				out := onWorkers(t, func(q *Queue) []*guarded {
					rng := rand.New(rand.NewPCG(1, 2))
					x = newMat(dt, s[0], s[1]).normal(rng, 1, 2)
					w, b = newVec(dt, s[1]).normal(rng, 1, 0.5), newVec(dt, s[1]).normal(rng, 0, 0.5)
					y, mean, rstd := newMat(dt, s[0], s[1]), newVec(device.F32, s[0]), newVec(device.F32, s[0])
					q.LayerNorm(y.Mat, mean.Buf, rstd.Buf, x.Mat, w.Buf, b.Buf, eps)
					return []*guarded{y, mean, rstd}
				})
				mean, rstd := moments64(x.values(), s[1], eps)
				near(t, "y", out[0], layerNorm64(x.values(), w.values(), b.values(), eps), 2e-6)
				near(t, "mean", out[1], mean, 1e-6)
				near(t, "rstd", out[2], rstd, 1e-6)
			}
		})
	})
}

func TestLayerNormGrad(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		const eps = 1e-5
		eachType(t, func(t *testing.T, dt device.DType) {
			for _, s := range normShapes {
				for _, how := range []string{"set", "add", "over dy"} {
					layerNormGrad(t, dt, s[0], s[1], eps, how)
				}
			}
		})
	})
}

func layerNormGrad(t *testing.T, dt device.DType, rows, cols int, eps float64, how string) {
	t.Helper()
	var dx0, dy0 []float64
	var x, w *guarded
	out := onWorkers(t, func(q *Queue) []*guarded {
		rng := rand.New(rand.NewPCG(3, 4))
		x, w = newMat(dt, rows, cols).normal(rng, 1, 2), newVec(dt, cols).normal(rng, 1, 0.5)
		dy, dx := newMat(dt, rows, cols).normal(rng, 0.2, 1), newMat(dt, rows, cols)
		dy0, dx0 = dy.values(), make([]float64, rows*cols)
		switch how {
		case "add":
			dx0 = dx.normal(rng, 0, 1).values()
		case "over dy":
			dx = dy
		}
		dw, db := newVec(device.F32, cols), newVec(device.F32, cols)
		m, r := moments64(x.values(), cols, eps)
		mean := newVec(device.F32, rows).fill(func(i int) float64 { return m[i] })
		rstd := newVec(device.F32, rows).fill(func(i int) float64 { return r[i] })
		q.LayerNormGrad(dx.Mat, dw.Buf, db.Buf, dy.Mat, x.Mat, w.Buf, mean.Buf, rstd.Buf, how == "add")
		return []*guarded{dx, dw, db}
	})
	dx, dw, db := layerNormGrad64(dy0, x.values(), w.values(), eps)
	for i := range dx {
		dx[i] += dx0[i]
	}
	near(t, how+": dx", out[0], dx, 2e-6)
	near(t, how+": dw", out[1], dw, 2e-6)
	near(t, how+": db", out[2], db, 2e-6)
}

func TestLayerNormGradAgainstFiniteDifferences(t *testing.T) {
	const rows, cols, eps = 7, 13, 1e-5
	rng := rand.New(rand.NewPCG(5, 6))
	f32 := device.F32
	x, dy, dx := newMat(f32, rows, cols).normal(rng, 1, 2), newMat(f32, rows, cols).normal(rng, 0, 1), newMat(f32, rows, cols)
	w, b := newVec(f32, cols).normal(rng, 1, 0.5), newVec(f32, cols).normal(rng, 0, 1)
	y, mean, rstd, dw, db := newMat(f32, rows, cols), newVec(f32, rows), newVec(f32, rows), newVec(f32, cols), newVec(f32, cols)
	q := queueOf(t, 1)
	q.LayerNorm(y.Mat, mean.Buf, rstd.Buf, x.Mat, w.Buf, b.Buf, eps)
	q.LayerNormGrad(dx.Mat, dw.Buf, db.Buf, dy.Mat, x.Mat, w.Buf, mean.Buf, rstd.Buf, false)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	xs, ws, bs := x.values(), w.values(), b.values()
	loss := func() float64 { return dot(dy.values(), layerNorm64(xs, ws, bs, eps)) }
	near(t, "dx", dx, slopes(xs, loss), 2e-6)
	near(t, "dw", dw, slopes(ws, loss), 2e-6)
	near(t, "db", db, slopes(bs, loss), 2e-6)
}

func TestLayerNormRefusesOtherShapes(t *testing.T) {
	q := queueOf(t, 1)
	x := newMat(device.F32, 3, 4)
	v3, v4 := newVec(device.F32, 3).Buf, newVec(device.F32, 4).Buf
	mustPanic(t, "y of another shape", func() { q.LayerNorm(newMat(device.F32, 4, 3).Mat, v3, v3, x.Mat, v4, v4, 1e-5) })
	mustPanic(t, "mean a column", func() { q.LayerNorm(x.Mat, v4, v3, x.Mat, v4, v4, 1e-5) })
	mustPanic(t, "w a row", func() { q.LayerNorm(x.Mat, v3, v3, x.Mat, v3, v4, 1e-5) })
	mustPanic(t, "dw a row", func() { q.LayerNormGrad(x.Mat, v3, v4, x.Mat, x.Mat, v4, v3, v3, false) })
}
