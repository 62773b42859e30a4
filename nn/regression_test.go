package nn

import (
	"math/rand/v2"
	"testing"

	"zeroth/device"
)

// TestRegression compares a Linear and a SquaredError after it with slow loops in float64 and their slopes.
func TestRegression(t *testing.T) {
	for _, dt := range computeTypes {
		for _, first := range []bool{false, true} {
			r, rng := newRig(t, subjects[0], dt), rand.New(rand.NewPCG(5, 5))
			rows, C, outs := r.B*r.T, r.width, 3
			l, e := Linear{Name: "a", In: C, Out: C, Relu: true, First: first, Field: 0}, SquaredError{Width: C, Outputs: outs, Field: 1}
			in, target := normal(rng, rows*C, 0.1, 1), normal(rng, rows*outs, 0, 1)
			w, v := normal(rng, C*C, 0, 0.3), normal(rng, C, 0, 0.3)
			ow, ob := normal(rng, outs*C, 0, 0.3), normal(rng, outs, 0, 0.3)
			x, y, d := r.buffer(in), r.poisoned(dt, rows*C), r.poisoned(dt, rows*C)
			r.bt.Fields = []device.Buffer{float32s(in), float32s(target)}
			lw, ew := []device.Buffer{r.buffer(w), r.buffer(v)}, []device.Buffer{r.buffer(ow), r.buffer(ob)}
			dl, de := []device.Buffer{r.poisoned(device.F32, C*C), r.poisoned(device.F32, C)}, []device.Buffer{r.poisoned(device.F32, outs*C), r.poisoned(device.F32, outs)}
			losses := func() []float64 {
				loss := make([]float64, rows)
				for i := range rows {
					h := make([]float64, C)
					for j := range h {
						h[j] = v[j]
						for k := range C {
							h[j] += in[i*C+k] * w[j*C+k]
						}
						h[j] = max(h[j], 0)
					}
					for o := range outs {
						p := ob[o] - target[i*outs+o]
						for j := range h {
							p += h[j] * ow[o*C+j]
						}
						loss[i] += p * p / float64(outs)
					}
				}
				return loss
			}
			objective := func() (sum float64) {
				for _, x := range losses() {
					sum += x * float64(r.bt.Scale)
				}
				return sum
			}
			near := 4 * tolerance[dt] // two layers, and squares
			l.Forward(r.q, r.mem, lw, &r.bt, x, y, nil)
			e.Forward(r.q, r.mem, ew, &r.bt, y, device.Buffer{}, nil)
			r.near("losses", r.bt.Loss, 1, losses(), near)
			poison(r.bt.Loss)
			e.Backward(r.q, r.mem, ew, de, &r.bt, y, d, nil)
			r.near("losses of Backward", r.bt.Loss, 1, losses(), near)
			l.Backward(r.q, r.mem, lw, dl, &r.bt, x, d, nil)
			for _, g := range []struct {
				name string
				of   []float64
				got  device.Buffer
			}{{"output.weight", ow, de[0]}, {"output.bias", ob, de[1]}, {"a.weight", w, dl[0]}, {"a.bias", v, dl[1]}} {
				r.near("gradient of "+g.name, g.got, 1, slopes(g.of, 1, objective), near)
			}
			if !first {
				r.near("dx", d, 1, slopes(in, 1, objective), near)
			}
		}
	}
}

// float32s returns numbers as a field of samples.
func float32s(x []float64) device.Buffer {
	b := make([]float32, len(x))
	for i := range x {
		b[i] = float32(x[i])
	}
	return device.OfF32(b)
}
