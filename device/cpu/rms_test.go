package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/tests/nightly"
)

// rstd64 returns 1/sqrt(average of squares + eps) of each row.
func rstd64(x []float64, cols int, eps float64) (rstd []float64) {
	for ; len(x) > 0; x = x[cols:] {
		rstd = append(rstd, 1/math.Sqrt(dot(x[:cols], x[:cols])/float64(cols)+eps))
	}
	return rstd
}

func rmsNorm64(x, w []float64, eps float64) []float64 {
	rstd, y := rstd64(x, len(w), eps), make([]float64, len(x))
	for i := range x {
		y[i] = x[i] * rstd[i/len(w)] * w[i%len(w)]
	}
	return y
}

func rmsNormGrad64(dy, x, w []float64, eps float64) (dx, dw []float64) {
	cols := len(w)
	rstd := rstd64(x, cols, eps)
	dx, dw = make([]float64, len(x)), make([]float64, cols)
	for i, r := range rstd {
		var gn float64
		for j := range cols {
			at := i*cols + j
			gn += dy[at] * w[j] * x[at] * r / float64(cols)
			dw[j] += dy[at] * x[at] * r
		}
		for j := range cols {
			at := i*cols + j
			dx[at] = r * (dy[at]*w[j] - x[at]*r*gn)
		}
	}
	return dx, dw
}

// One column is excluded: its dx is only cancellation.
var rmsShapes = [][2]int{{1, 2}, {3, 5}, {257, 333}, {5, 64}}

func TestRMSNorm(t *testing.T) {
	withVec(t, func(t *testing.T) {
		const eps = 1e-5
		eachType(t, func(t *testing.T, dt device.DType) {
			for _, s := range rmsShapes {
				var x, w *guarded
				out := onWorkers(t, func(q *Queue) []*guarded {
					rng := rand.New(rand.NewPCG(1, 2))
					x, w = newMat(dt, s[0], s[1]).normal(rng, 1, 2), newVec(dt, s[1]).normal(rng, 1, 0.5)
					y, rstd := newMat(dt, s[0], s[1]), newVec(device.F32, s[0])
					q.RMSNorm(y.Mat, rstd.Buf, x.Mat, w.Buf, eps)
					return []*guarded{y, rstd}
				})
				near(t, "y", out[0], rmsNorm64(x.values(), w.values(), eps), 0)
				near(t, "rstd", out[1], rstd64(x.values(), s[1], eps), 1e-6)
			}
		})
	})
}

// TestRMSNormOfZeros tests rows whose scale is determined by eps, and y in place of x.
func TestRMSNormOfZeros(t *testing.T) {
	const eps = 0.25
	q := queueOf(t, 1)
	x, w, rstd := newMat(device.F32, 2, 3), newVec(device.F32, 3).fill(func(int) float64 { return 3 }), newVec(device.F32, 2)
	x.fill(func(i int) float64 { return float64(i / 3) })
	q.RMSNorm(x.Mat, rstd.Buf, x.Mat, w.Buf, eps)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	one := 1 / math.Sqrt(1+eps)
	near(t, "rstd", rstd, []float64{2, one}, 0)
	near(t, "y", x, []float64{0, 0, 0, 3 * one, 3 * one, 3 * one}, 0)
}

func TestRMSNormGrad(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for _, s := range rmsShapes {
				for _, how := range []string{"set", "add", "over dy"} {
					rmsNormGrad(t, dt, s[0], s[1], how)
				}
			}
		})
	})
}

func rmsNormGrad(t *testing.T, dt device.DType, rows, cols int, how string) {
	t.Helper()
	const eps = 1e-5
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
		r := rstd64(x.values(), cols, eps)
		dw, rstd := newVec(device.F32, cols), newVec(device.F32, rows).fill(func(i int) float64 { return r[i] })
		q.RMSNormGrad(dx.Mat, dw.Buf, dy.Mat, x.Mat, w.Buf, rstd.Buf, how == "add")
		return []*guarded{dx, dw}
	})
	dx, dw := rmsNormGrad64(dy0, x.values(), w.values(), eps)
	for i := range dx {
		dx[i] += dx0[i]
	}
	near(t, how+": dx", out[0], dx, 2e-6)
	near(t, how+": dw", out[1], dw, 2e-6)
}

func TestRMSNormGradAgainstFiniteDifferences(t *testing.T) {
	const rows, cols, eps = 7, 13, 1e-5
	rng := rand.New(rand.NewPCG(5, 6))
	f32 := device.F32
	x, dy, dx := newMat(f32, rows, cols).normal(rng, 1, 2), newMat(f32, rows, cols).normal(rng, 0, 1), newMat(f32, rows, cols)
	w, y, rstd, dw := newVec(f32, cols).normal(rng, 1, 0.5), newMat(f32, rows, cols), newVec(f32, rows), newVec(f32, cols)
	q := queueOf(t, 1)
	q.RMSNorm(y.Mat, rstd.Buf, x.Mat, w.Buf, eps)
	q.RMSNormGrad(dx.Mat, dw.Buf, dy.Mat, x.Mat, w.Buf, rstd.Buf, false)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	xs, ws := x.values(), w.values()
	loss := func() float64 { return dot(dy.values(), rmsNorm64(xs, ws, eps)) }
	near(t, "dx", dx, slopes(xs, loss), 2e-6)
	near(t, "dw", dw, slopes(ws, loss), 2e-6)
}

func TestRMSNormRefusesOtherShapes(t *testing.T) {
	q := queueOf(t, 1)
	x := newMat(device.F32, 3, 4)
	v3, v4 := newVec(device.F32, 3).Buf, newVec(device.F32, 4).Buf
	mustPanic(t, "y of another shape", func() { q.RMSNorm(newMat(device.F32, 4, 3).Mat, v3, x.Mat, v4, 1e-5) })
	mustPanic(t, "rstd a column", func() { q.RMSNorm(x.Mat, v4, x.Mat, v4, 1e-5) })
	mustPanic(t, "w a row", func() { q.RMSNorm(x.Mat, v3, x.Mat, v3, 1e-5) })
	mustPanic(t, "dw a row", func() { q.RMSNormGrad(x.Mat, v3, x.Mat, x.Mat, v4, v3, false) })
	mustPanic(t, "rstd of the gradient a column", func() { q.RMSNormGrad(x.Mat, v4, x.Mat, x.Mat, v4, v4, false) })
}
