package cpu

import (
	"math"
	"testing"
	"unsafe"
	"zeroth/device/cpu/kernel"
)

// ulps returns the distance of got from want in ulps of float32 at want.
func ulps(got float32, want float64) float64 {
	_, e := math.Frexp(want)
	return math.Abs(float64(got)-want) / math.Ldexp(1, max(e, -125)-24)
}

func TestExpWithinItsBound(t *testing.T) {
	worst, at := 0.0, float32(0)
	for u := uint64(0); u < 1<<32; u += 1009 { // every kind of float32
		x := math.Float32frombits(uint32(u))
		want := math.Exp(float64(x))
		got := kernel.Exp32(x)
		switch {
		case x != x:
			if got == got {
				t.Fatalf("exp of the NaN %#x is %g", u, got)
			}
		case x < kernel.ExpMin:
			if got != 0 {
				t.Fatalf("exp(%g) = %g, want 0", x, got)
			}
		case want > math.MaxFloat32:
			if !math.IsInf(float64(got), 1) {
				t.Fatalf("exp(%g) = %g, want +Inf", x, got)
			}
		default:
			if e := ulps(got, want); !(e <= worst) {
				worst, at = e, x
			}
		}
	}
	for i := range 1 << 21 { // densely in the range of softmax and gelu
		x := float32(i) * (-90.0 / (1 << 21))
		for _, x := range [2]float32{x, -x} {
			if e := ulps(kernel.Exp32(x), math.Exp(float64(x))); x >= kernel.ExpMin && x < kernel.ExpMax && !(e <= worst) {
				worst, at = e, x
			}
		}
	}
	t.Logf("worst error %.3f ulp at %g", worst, at)
	if worst > 1.1 {
		t.Errorf("exp(%g) is off by %.3f ulp, the bound is 1.1", at, worst)
	}
}

func TestExpAtItsEdges(t *testing.T) {
	edges := map[float32]float32{0: 1, kernel.ExpMax: float32(math.Exp(float64(float32(kernel.ExpMax)))), math.Nextafter32(kernel.ExpMax, 100): kernel.Inf, kernel.Inf: kernel.Inf, -kernel.Inf: 0}
	for x, want := range edges {
		if got := kernel.Exp32(x); math.Abs(float64(got/want-1)) > 1e-7 && got != want {
			t.Errorf("exp(%.9g) = %g, want %g", x, got, want)
		}
	}
	for _, u := range []uint32{0x7fc00000, 0x7fc00001, 0x7f800001, 0xffffffff} {
		if got := kernel.Exp32(math.Float32frombits(u)); got == got {
			t.Errorf("exp of the NaN %#x is %g", u, got)
		}
	}
}

func TestExpSum(t *testing.T) {
	x := []float32{1, 2, -3, 2.5}
	dst := make([]float32, 5)
	dst[4] = guardValue
	sum := kernel.ExpSum(dst, x, kernel.Largest(x))
	var want float64
	for i, v := range x {
		e := math.Exp(float64(v) - 2.5)
		want += e
		if math.Abs(float64(dst[i])-e) > 1e-7 {
			t.Errorf("element %d is %g, want %g", i, dst[i], e)
		}
	}
	if math.Abs(float64(sum)-want) > 3e-7 || dst[4] != guardValue {
		t.Errorf("sum %g, want %g; element after the end %g", sum, want, dst[4])
	}
	if got := kernel.Largest([]float32{-3, float32(math.NaN()), -2}); got != -2 {
		t.Errorf("largest is %g, want -2", got)
	}
}

// TestVectorExpWithinItsBound tests the vectors' exp through the gradient of softmax.
func TestVectorExpWithinItsBound(t *testing.T) {
	withVec(t, func(t *testing.T) {
		const n = 512
		x, ds := make([]float32, n), make([]float32, n)
		var zero float32
		worst, at := 0.0, float32(0)
		check := func(from uint32, step uint32) {
			in := make([]float32, n)
			for i := range in {
				in[i] = math.Float32frombits(from + uint32(i)*step)
				x[i], ds[i] = in[i], 1
			}
			kernel.BestVec.SoftmaxGrad(&kernel.SoftmaxGradRows{P: kernel.FloatPtr(x, 0), Ds: kernel.FloatPtr(ds, 0), Ld: n, Rows: 1, N: n, Most: n, End: n, Lse: unsafe.Pointer(&zero), Delta: unsafe.Pointer(&zero)})
			for i, v := range in {
				switch got := x[i]; {
				case v != v:
					if got == got {
						t.Fatalf("exp of the NaN %#x is %g", math.Float32bits(v), got)
					}
				case v < kernel.ExpMin:
					if got != 0 {
						t.Fatalf("exp(%g) = %g, want 0", v, got)
					}
				case v > 88.37: // infinity is allowed from here on
					if !(got > 2e38) {
						t.Fatalf("exp(%g) = %g", v, got)
					}
				default:
					if e := ulps(got, math.Exp(float64(v))); !(e <= worst) {
						worst, at = e, v
					}
				}
			}
		}
		for u := uint64(0); u < 1<<32; u += n * 4001 { // every kind of float32
			check(uint32(u), 4001)
		}
		for u := math.Float32bits(1e-3); u < math.Float32bits(90); u += n * 171 { // densely in the range of softmax and gelu
			check(u, 171)
			check(u|1<<31, 171)
		}
		t.Logf("worst error %.3f ulp at %g", worst, at)
		if worst > 1.1 {
			t.Errorf("exp(%g) is off by %.3f ulp, the bound is 1.1", at, worst)
		}
	})
}

func TestTanhWithinItsBound(t *testing.T) {
	worst, at := 0.0, float32(0)
	try := func(x float32) {
		got, want := kernel.Tanh32(x), math.Tanh(float64(x))
		if e := ulps(got, want); !(e <= worst) && x == x {
			worst, at = e, x
		}
		if (x != x) != (got != got) || math.Signbit(float64(got)) != math.Signbit(float64(x)) && x == x {
			t.Fatalf("tanh(%g) = %g", x, got)
		}
	}
	for u := uint64(0); u < 1<<32; u += 1009 { // every kind of float32
		try(math.Float32frombits(uint32(u)))
	}
	for i := range 1 << 20 {
		try(float32(i) * (10.0 / (1 << 20)))
	}
	if t.Logf("worst error %.3f ulp at %g", worst, at); worst > 1.3 {
		t.Errorf("tanh(%g) is off by %.3f ulp, the bound is 1.3", at, worst)
	}
}
