package cpu

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/tests/nightly"
)

// ruleValues contains the random normals that every ruleCase uses.
var ruleValues = newVec(device.F32, 4*oddLen).normal(rand.New(rand.NewPCG(1, 2)), 0, 1).Buf.F32()

// ruleCase returns the operands of an update of n elements: w, g, m, v >= 0.
func ruleCase(n int) (w, g, m, v *guarded) {
	var o [4]*guarded
	for i := range o {
		o[i] = newVec(device.F32, n)
		copy(o[i].Buf.F32(), ruleValues[i*oddLen:])
	}
	for i, x := range o[3].Buf.F32() {
		o[3].Buf.F32()[i] = x * x
	}
	return o[0], o[1], o[2], o[3]
}

// paramTypes are the types of p; F64 means no p.
var paramTypes = []device.DType{device.F32, device.BF16, device.F16, device.F64}

func paramOf(dt device.DType, n int) *guarded {
	if dt == device.F64 {
		return newVec(device.F32, 0)
	}
	return newVec(dt, n)
}

// checkParam fails unless p is w rounded.
func checkParam(t *testing.T, p, w *guarded) {
	t.Helper()
	ws := w.values()
	for i, v := range p.values() {
		if want := round(p.Buf.Type, ws[i]); v != want {
			t.Fatalf("parameter %d is %g, want %g, which is %g rounded", i, v, want, ws[i])
		}
	}
}

func TestAdamW(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		a := device.AdamW{GradScale: 0.5, Beta1: 0.9, Beta2: 0.95, Eps: 1e-3, Shrink: 0.99, L2: 0.125, Step: 0.01, RootC2: 1.7}
		for _, dt := range paramTypes {
			var w, g, m, v []float64
			out := onWorkers(t, func(q *Queue) []*guarded {
				wo, gr, mo, vo := ruleCase(oddLen)
				w, g, m, v = wo.values(), gr.values(), mo.values(), vo.values()
				p := paramOf(dt, oddLen)
				q.AdamW(wo.Buf, p.Buf, gr.Buf, mo.Buf, vo.Buf, a)
				return []*guarded{wo, mo, vo, p, gr}
			})
			b1, b2 := float64(a.Beta1), float64(a.Beta2)
			for i := range w {
				d := g[i]*0.5 + 0.125*w[i]
				m[i] = b1*m[i] + (1-b1)*d
				v[i] = b2*v[i] + (1-b2)*d*d
				w[i] = w[i]*float64(a.Shrink) - float64(a.Step)*m[i]/(math.Sqrt(v[i])*float64(a.RootC2)+float64(a.Eps))
			}
			near(t, "w", out[0], w, 3e-7)
			near(t, "m", out[1], m, 3e-7)
			near(t, "v", out[2], v, 3e-7)
			near(t, "g", out[4], g, 0)
			checkParam(t, out[3], out[0])
		}
	})
}

func TestSGD(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		for _, a := range []device.SGD{{GradScale: 0.5, Momentum: 0.9, Decay: 0.01, LR: 0.1}, {GradScale: 2, Decay: 0.5, LR: 0.25}} {
			for _, dt := range paramTypes {
				var w, g, m []float64
				out := onWorkers(t, func(q *Queue) []*guarded {
					wo, gr, mo, _ := ruleCase(oddLen)
					if a.Momentum == 0 {
						mo = newVec(device.F32, 0)
					}
					w, g, m = wo.values(), gr.values(), mo.values()
					p := paramOf(dt, oddLen)
					q.SGD(wo.Buf, p.Buf, gr.Buf, mo.Buf, a)
					return []*guarded{wo, mo, p}
				})
				for i := range w {
					d := g[i]*float64(a.GradScale) + float64(a.Decay)*w[i]
					if len(m) > 0 {
						d += float64(a.Momentum) * m[i]
						m[i] = d
					}
					w[i] -= float64(a.LR) * d
				}
				near(t, "w", out[0], w, 3e-7)
				near(t, "m", out[1], m, 3e-7)
				checkParam(t, out[2], out[0])
			}
		}
	})
}

func TestLion(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		a := device.Lion{GradScale: 0.5, Beta1: 0.75, Beta2: 0.9, Shrink: 0.99, LR: 0.125}
		for _, dt := range paramTypes {
			var w, g, m []float64
			out := onWorkers(t, func(q *Queue) []*guarded {
				wo, gr, mo, _ := ruleCase(oddLen)
				for i := range 50 { // sign 0
					mo.Buf.F32()[i], gr.Buf.F32()[i] = 0, 0
				}
				w, g, m = wo.values(), gr.values(), mo.values()
				p := paramOf(dt, oddLen)
				q.Lion(wo.Buf, p.Buf, gr.Buf, mo.Buf, a)
				return []*guarded{wo, mo, p}
			})
			for i := range w {
				u := 0.75*m[i] + 0.25*g[i]*0.5
				if math.Abs(u) < 2e-7 && u != 0 {
					t.Fatalf("element %d: direction %g may round to either sign", i, u)
				}
				if u != 0 {
					u = math.Copysign(1, u)
				}
				m[i] = float64(a.Beta2)*m[i] + (1-float64(a.Beta2))*g[i]*0.5
				w[i] = w[i]*float64(a.Shrink) - 0.125*u
			}
			near(t, "w", out[0], w, 3e-7)
			near(t, "m", out[1], m, 3e-7)
			checkParam(t, out[2], out[0])
		}
		if nan := float32(math.NaN()); kernel.Sign(nan) == kernel.Sign(nan) {
			t.Error("the sign of NaN is a number")
		}
	})
}

// TestRulesGiveEqualBitsUnderAnySplit cuts a vector at odd places and compares the bits, for every
// instruction set.
func TestRulesGiveEqualBitsUnderAnySplit(t *testing.T) {
	const n = 3*kernel.BlockLen + 211
	rules := map[string]func(q *Queue, w, p, g, m, v device.Buffer){
		"adamw": func(q *Queue, w, p, g, m, v device.Buffer) {
			q.AdamW(w, p, g, m, v, device.AdamW{GradScale: 0.3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Shrink: 0.99, Step: 0.01, RootC2: 1.7})
		},
		"sgd": func(q *Queue, w, p, g, m, _ device.Buffer) {
			q.SGD(w, p, g, m, device.SGD{GradScale: 0.3, Momentum: 0.9, Decay: 0.01, LR: 0.1})
		},
		"lion": func(q *Queue, w, p, g, m, _ device.Buffer) {
			q.Lion(w, p, g, m, device.Lion{GradScale: 0.3, Beta1: 0.9, Beta2: 0.95, Shrink: 0.99, LR: 0.1})
		},
	}
	for name, rule := range rules {
		var want []*guarded
		withVec(t, func(t *testing.T) {
			for _, cuts := range [][]int{nil, {1, 2, 65, 1024, 1031, 3000}} {
				got := runRules(t, n, rule, cuts)
				if want == nil {
					want = got
				}
				for i := range want {
					if !bytes.Equal(got[i].mem.Raw(), want[i].mem.Raw()) {
						t.Fatalf("%s, cut at %v: operand %d has other bits than portable code on the whole", name, cuts, i)
					}
				}
			}
		})
	}
}

// runRules returns w, p, m and v after a rule on pieces of n elements.
func runRules(t *testing.T, n int, rule func(q *Queue, w, p, g, m, v device.Buffer), cuts []int) []*guarded {
	w, g, m, v := ruleCase(n)
	for i := range 40 { // sign 0; the last gradient is infinite
		m.Buf.F32()[i], g.Buf.F32()[i] = 0, 0
	}
	g.Buf.F32()[39] = kernel.Inf
	p := newVec(device.BF16, n)
	q := queueOf(t, 2)
	lo := 0
	for _, hi := range append(cuts, n) {
		rule(q, w.Buf.Slice(lo, hi), p.Buf.Slice(lo, hi), g.Buf.Slice(lo, hi), m.Buf.Slice(lo, hi), v.Buf.Slice(lo, hi))
		lo = hi
	}
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	return []*guarded{w, p, m, v}
}

func TestRulesRefuseOtherLengths(t *testing.T) {
	q := queueOf(t, 1)
	a, b, none := newVec(device.F32, 4).Buf, newVec(device.F32, 5).Buf, device.Buffer{}
	mustPanic(t, "adamw without v", func() { q.AdamW(a, none, a, a, none, device.AdamW{}) })
	mustPanic(t, "adamw with a longer gradient", func() { q.AdamW(a, none, b, a, a, device.AdamW{}) })
	mustPanic(t, "adamw with a longer parameter", func() { q.AdamW(a, b, a, a, a, device.AdamW{}) })
	mustPanic(t, "sgd with momentum but no state", func() { q.SGD(a, none, a, none, device.SGD{Momentum: 0.9}) })
	mustPanic(t, "lion without state", func() { q.Lion(a, none, a, none, device.Lion{}) })
	mustPanic(t, "lion of bf16", func() { c := newVec(device.BF16, 4).Buf; q.Lion(c, none, a, a, device.Lion{}) })
}
