package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/tests/nightly"
)

func silu64(x float64) float64 { return x / (1 + math.Exp(-x)) }

func siluSlope64(x float64) float64 {
	s := 1 / (1 + math.Exp(-x))
	return s + x*s*(1-s)
}

func TestSwiGLU(t *testing.T) {
	nightly.Long(t)
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
					q.Gate(y.Mat, gate.Mat, up.Mat, device.Silu)
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
	nightly.Long(t)
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
					q.GateGrad(dgate.Mat, dup.Mat, dy.Mat, gate.Mat, up.Mat, device.Silu)
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

// TestVectorSiluFarOut is like TestSiluFarOut for the queues' kernels.
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
		q.Gate(y.Mat, gate.Mat, one.Mat, device.Silu)
		q.GateGrad(slope.Mat, same.Mat, one.Mat, gate.Mat, one.Mat, device.Silu)
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
	q.GateGrad(dgate.Mat, dup.Mat, dy.Mat, gate.Mat, up.Mat, device.Silu)
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

func TestGateRefuses(t *testing.T) {
	q := queueOf(t, 1)
	a, b, c := newVec(device.F32, 4).Mat, newVec(device.F32, 5).Mat, newVec(device.F32, 4).Mat
	mustPanic(t, "an up of another length", func() { q.Gate(a, a, b, device.Silu) })
	mustPanic(t, "a dup of another length", func() { q.GateGrad(a, b, a, a, a, device.Silu) })
	mustPanic(t, "a gate of another length", func() { q.GateGrad(a, c, a, b, a, device.Silu) })
	mustPanic(t, "both gradients in one place", func() { q.GateGrad(a, a, c, c, c, device.Silu) })
}

// TestGateIsItsParts checks that a gate has the bits of the operations that it is composed of, in
// place and elsewhere, with gaps between rows and without; SwiGLU, which is one function, those of
// rows without gaps.
func TestGateIsItsParts(t *testing.T) {
	const rows, cols = 3, 2*kernel.BlockLen + 77
	each := func(t *testing.T, dt device.DType, f device.Activation, gap int) {
		rng := rand.New(rand.NewPCG(13, 14))
		vec := func() *guarded { return newVec(dt, rows*cols).normal(rng, 0, 2) }
		gate, up, dy, act, d := vec(), vec(), vec(), vec(), vec()
		apart := func(o *guarded) *guarded {
			x := o.values()
			return newGuarded(dt, rows, cols, gap).fill(func(i int) float64 { return x[i] })
		}
		q := queueOf(t, 2)
		g, u, y := apart(gate), apart(up), apart(act)
		q.Gate(y.Mat, g.Mat, u.Mat, f)
		q.GateGrad(g.Mat, u.Mat, apart(dy).Mat, g.Mat, u.Mat, f)
		if f == device.Silu {
			q.Gate(act.Mat, gate.Mat, up.Mat, f)
			q.GateGrad(d.Mat, up.Mat, dy.Mat, gate.Mat, up.Mat, f)
		} else {
			q.Activate(act.Buf, gate.Buf, f)
			q.Mul(act.Buf, act.Buf, up.Buf)
			q.Mul(d.Buf, dy.Buf, up.Buf)
			q.ActivateGrad(d.Buf, gate.Buf, d.Buf, f)
			q.Activate(gate.Buf, gate.Buf, f)
			q.Mul(up.Buf, dy.Buf, gate.Buf)
		}
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		for what, of := range map[string][2]*guarded{"y": {y, act}, "dgate": {g, d}, "dup": {u, up}} {
			if !slices.Equal(of[0].values(), of[1].values()) {
				t.Errorf("%s, rows %d apart: %s is not that of its parts", f, cols+gap, what)
			}
		}
	}
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for _, f := range []device.Activation{device.Silu, device.GeluTanh, device.GeluErf, device.Relu, device.Tanh} {
				each(t, dt, f, 0)
				each(t, dt, f, 5)
			}
		})
	})
}
