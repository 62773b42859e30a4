package cpu

import (
	"fmt"
	"math"
	"testing"

	"zeroth/device"
	"zeroth/tests/nightly"
)

// activation64 returns f and its derivative in float64.
func activation64(f device.Activation, x float64) (y, slope float64) {
	switch f {
	case device.GeluErf:
		p := math.Erfc(-x/math.Sqrt2) / 2
		return x * p, p + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	case device.Relu:
		if x > 0 {
			return x, 1
		}
		return 0, 0
	case device.Silu:
		s := 1 / (1 + math.Exp(-x))
		return x * s, s * (1 + x*(1-s))
	case device.Tanh:
		y := math.Tanh(x)
		return y, 1 - y*y
	}
	const c = 0.7978845608028654
	y = math.Tanh(c * (x + 0.044715*x*x*x))
	return x / 2 * (1 + y), (1+y)/2 + x/2*(1-y*y)*c*(1+3*0.044715*x*x)
}

// TestActivations compares activations and their gradients with the definitions, for numbers of
// every size, in every type, in place and not.
func TestActivations(t *testing.T) {
	nightly.Long(t)
	var xs []float64
	for x := 1e-6; x < 30; x *= 1.07 {
		xs = append(xs, x, -x)
	}
	xs = append(xs, 0)
	q := queueOf(t, 2)
	for _, dt := range []device.DType{device.F32, device.BF16, device.F16} {
		eps := map[device.DType]float64{device.F32: 2e-6, device.BF16: 1.0 / 256, device.F16: 1.0 / 2048}[dt]
		for f := device.GeluTanh; f <= device.Tanh; f++ {
			x, dy, y, dx := newVec(dt, len(xs)), newVec(dt, len(xs)), newVec(dt, len(xs)), newVec(dt, len(xs))
			x.fill(func(i int) float64 { return xs[i] })
			dy.fill(func(i int) float64 { return 1 + float64(i%7)/4 })
			q.Activate(y.Buf, x.Buf, f)
			q.ActivateGrad(dx.Buf, x.Buf, dy.Buf, f)
			mul, add := newVec(dt, len(xs)), newVec(dt, len(xs))
			q.Mul(mul.Buf, x.Buf, dy.Buf)
			q.AddScalar(add.Buf, x.Buf, 1.5)
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
			in, d := x.values(), dy.values()
			for i, v := range in {
				want, slope := activation64(f, v)
				for what, pair := range map[string][2]float64{"f": {y.values()[i], want}, "f'": {dx.values()[i], d[i] * slope},
					"product": {mul.values()[i], v * d[i]}, "sum": {add.values()[i], v + 1.5}} {
					if got, want := pair[0], pair[1]; math.Abs(got-want) > eps*max(math.Abs(want), 0.1) {
						t.Errorf("%v: activation %d: %s of %g is %g, want %g", dt, f, what, v, got, want)
					}
				}
			}
			q.Activate(x.Buf, x.Buf, f)
			q.ActivateGrad(dy.Buf, newVec(dt, len(xs)).fill(func(i int) float64 { return in[i] }).Buf, dy.Buf, f)
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(x.values()) != fmt.Sprint(y.values()) || fmt.Sprint(dy.values()) != fmt.Sprint(dx.values()) {
				t.Errorf("%v: activation %d: other results where the output is an input", dt, f)
			}
		}
	}
}
