package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

func silu64(x float64) float64 { return x / (1 + math.Exp(-x)) }

func siluSlope64(x float64) float64 {
	s := 1 / (1 + math.Exp(-x))
	return s + x*s*(1-s)
}

func TestSwiGLU(t *testing.T) {
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for _, over := range []string{"", "gate", "up"} {
				var g0, u0 []float64
				out := onWorkers(t, func(q *Queue) []*guarded {
					rng := rand.New(rand.NewPCG(7, 8))
					y, gate, up := newVec(dt, oddLen), newVec(dt, oddLen).normal(rng, 0, 3), newVec(dt, oddLen).normal(rng, 0.1, 1)
					g0, u0 = gate.values(), up.values()
					switch over {
					case "gate":
						y = gate
					case "up":
						y = up
					}
					q.SwiGLU(y.Buf, gate.Buf, up.Buf)
					return []*guarded{y}
				})
				want := make([]float64, oddLen)
				for i := range want {
					want[i] = silu64(g0[i]) * u0[i]
				}
				near(t, "swiglu over "+over, out[0], want, 2e-7)
			}
		})
	})
}

func TestSwiGLUGrad(t *testing.T) {
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for _, over := range []string{"", "inputs", "dy and gate"} {
				var wantGate, wantUp []float64
				out := onWorkers(t, func(q *Queue) []*guarded {
					rng := rand.New(rand.NewPCG(9, 10))
					gate, up, dy := newVec(dt, oddLen).normal(rng, 0, 3), newVec(dt, oddLen).normal(rng, 0, 1), newVec(dt, oddLen).normal(rng, 0, 1)
					wantGate, wantUp = dy.values(), dy.values()
					for i, g := range gate.values() {
						wantGate[i] *= value(up.Buf, i) * siluSlope64(g)
						wantUp[i] *= silu64(g)
					}
					dgate, dup := newVec(dt, oddLen), newVec(dt, oddLen)
					switch over {
					case "inputs":
						dgate, dup = gate, up
					case "dy and gate":
						dgate, dup = dy, gate
					}
					q.SwiGLUGrad(dgate.Buf, dup.Buf, dy.Buf, gate.Buf, up.Buf)
					return []*guarded{dgate, dup}
				})
				near(t, "dgate over "+over, out[0], wantGate, 4e-7)
				near(t, "dup over "+over, out[1], wantUp, 4e-7)
			}
		})
	})
}

func TestSiluFarOut(t *testing.T) {
	for _, x := range []float32{30, 79, 81, 90, 1e3, 1e20, 3e38} {
		y, d := kernel.SiluSlope(x)
		if kernel.Silu(x) != x || y != x || math.Abs(float64(d)-1) > 1e-6 {
			t.Errorf("silu(%g) = %g, %g with slope %g, want %g, 1", x, kernel.Silu(x), y, d, x)
		}
		y, d = kernel.SiluSlope(-x)
		if math.Abs(float64(kernel.Silu(-x))) > 3e-12 || math.Abs(float64(y)) > 3e-12 || math.Abs(float64(d)) > 3e-12 {
			t.Errorf("silu(%g) = %g, %g with slope %g, want 0, 0", -x, kernel.Silu(-x), y, d)
		}
	}
	nan := float32(math.NaN())
	if y, d := kernel.SiluSlope(nan); kernel.Silu(nan) == kernel.Silu(nan) || y == y || d == d {
		t.Errorf("silu(NaN) = %g with slope %g", y, d)
	}
}

// TestVectorSiluFarOut is TestSiluFarOut for the queues' kernels.
func TestVectorSiluFarOut(t *testing.T) {
	withVec(t, func(t *testing.T) {
		far := []float64{30, 79, 81, 90, 1e3, 1e20, 3e38}
		for i := range far {
			far = append(far, -far[i])
		}
		n := len(far)
		far = append(far, math.NaN())
		gate, one := newVec(device.F32, n+1).fill(func(i int) float64 { return far[i] }), newVec(device.F32, n+1).fill(func(int) float64 { return 1 })
		y, slope, same := newVec(device.F32, n+1), newVec(device.F32, n+1), newVec(device.F32, n+1)
		q := queueOf(t, 1)
		q.SwiGLU(y.Buf, gate.Buf, one.Buf)
		q.SwiGLUGrad(slope.Buf, same.Buf, one.Buf, gate.Buf, one.Buf)
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		ys, ds, ss := y.values(), slope.values(), same.values()
		for i, x := range far[:n] {
			if want := max(0, float64(float32(x))); math.Abs(ys[i]-want) > 3e-12 || math.Abs(ss[i]-want) > 3e-12 || math.Abs(ds[i]-min(1, want)) > 1e-6 {
				t.Errorf("silu(%g) = %g, %g with slope %g", x, ys[i], ss[i], ds[i])
			}
		}
		if !math.IsNaN(ys[n]) || !math.IsNaN(ds[n]) || !math.IsNaN(ss[n]) {
			t.Errorf("silu(NaN) = %g, %g with slope %g", ys[n], ss[n], ds[n])
		}
	})
}

func TestSwiGLUGradAgainstFiniteDifferences(t *testing.T) {
	rng, f32 := rand.New(rand.NewPCG(11, 12)), device.F32
	gate, up, dy := newVec(f32, 200).normal(rng, 0, 2), newVec(f32, 200).normal(rng, 0, 1), newVec(f32, 200).normal(rng, 0, 1)
	dgate, dup := newVec(f32, 200), newVec(f32, 200)
	q := queueOf(t, 1)
	q.SwiGLUGrad(dgate.Buf, dup.Buf, dy.Buf, gate.Buf, up.Buf)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	gs, us, ds := gate.values(), up.values(), dy.values()
	loss := func() (s float64) {
		for i := range gs {
			s += ds[i] * silu64(gs[i]) * us[i]
		}
		return s
	}
	near(t, "dgate", dgate, slopes(gs, loss), 1e-6)
	near(t, "dup", dup, slopes(us, loss), 1e-6)
}

func TestSwiGLURefuses(t *testing.T) {
	q := queueOf(t, 1)
	a, b, c := newVec(device.F32, 4).Buf, newVec(device.F32, 5).Buf, newVec(device.F32, 4).Buf
	mustPanic(t, "an up of another length", func() { q.SwiGLU(a, a, b) })
	mustPanic(t, "a dup of another length", func() { q.SwiGLUGrad(a, b, a, a, a) })
	mustPanic(t, "a gate of another length", func() { q.SwiGLUGrad(a, c, a, b, a) })
	mustPanic(t, "both gradients in one place", func() { q.SwiGLUGrad(a, a, c, c, c) })
}
