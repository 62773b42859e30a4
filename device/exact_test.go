package device

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// terms returns n random terms of an exact sum, of all magnitudes and both signs, many of nearly
// equal size so that they cancel.
func terms(rng *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		f := math.Float32frombits(rng.Uint32())
		for f-f != 0 { // not finite
			f = math.Float32frombits(rng.Uint32())
		}
		x[i] = float64(f) * float64(f)
		switch rng.IntN(4) {
		case 0:
			x[i] = -x[i]
		case 1:
			x[i] = rng.NormFloat64()
			x[i] = math.Ldexp(math.Round(math.Ldexp(x[i], 60)), -60)
		case 2:
			if i > 0 {
				x[i] = -x[i-1]
			}
		}
	}
	return x
}

// bigSum returns the sum rounded once, computed with math/big.
func bigSum(x []float64) float64 {
	sum := new(big.Float).SetPrec(2000)
	for _, v := range x {
		sum.Add(sum, new(big.Float).SetPrec(2000).SetFloat64(v))
	}
	f, _ := sum.Float64()
	return f
}

// exactOf returns the sum, carried.
func exactOf(x []float64) (sum Exact) {
	for _, v := range x {
		sum.Add(v)
	}
	sum.Carry()
	return sum
}

func valueOf(x []float64) float64 {
	sum := exactOf(x)
	return sum.Value()
}

func TestExactValueIsTheSumRoundedOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 300 {
		x := terms(rng, n)
		if got, want := valueOf(x), bigSum(x); got != want {
			t.Fatalf("sum of %d terms %g, math/big has %g (%x, %x)", n, got, want, math.Float64bits(got), math.Float64bits(want))
		}
	}
}

func TestExactValueRoundsTiesToEven(t *testing.T) {
	tiny := math.Ldexp(1, -298)
	for _, x := range [][]float64{
		{1, math.Ldexp(1, -53)}, {1, math.Ldexp(1, -53), tiny}, {1, math.Ldexp(1, -52), math.Ldexp(1, -53)},
		{1, -math.Ldexp(1, -54)}, {1, -math.Ldexp(1, -54), -tiny}, {-1, -math.Ldexp(1, -53), -tiny},
		{math.Ldexp(1, 277), tiny}, {math.Ldexp(1, 277), -tiny}, {tiny}, {-tiny}, {tiny, -tiny},
	} {
		if got, want := valueOf(x), bigSum(x); got != want {
			t.Errorf("%g: %x, math/big has %x", x, math.Float64bits(got), math.Float64bits(want))
		}
	}
}

func TestExactSumDoesNotDependOnOrderOrSplit(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		x := terms(rng, 1+rng.IntN(400))
		x[rng.IntN(len(x))] = math.Inf(1)
		want := exactOf(x)
		rng.Shuffle(len(x), func(i, j int) { x[i], x[j] = x[j], x[i] })
		var merged, added Exact
		for lo := 0; lo < len(x); {
			hi := lo + 1 + rng.IntN(len(x)-lo)
			part := exactOf(x[lo:hi])
			merged.Merge(&part)
			for _, i := range rng.Perm(ExactLen) {
				added[i] += part[i] // like atomic additions
			}
			for _, v := range x[lo:hi] { // uncarried terms in addition to carried sums
				added.Add(v)
			}
			lo = hi
		}
		sameLimbs(t, "merged parts", merged, want)
		added.Carry()
		merged.Merge(&want)
		sameLimbs(t, "added parts", added, merged)
		want[exactLimbs], added[exactLimbs] = 0, 0
		if got, want := added.Value(), 2*want.Value(); got != want {
			t.Fatalf("value of added parts %g, of one sum twice %g", got, want)
		}
	}
}

// TestExactAtIsTheBuffersMemory adds through a view.
func TestExactAtIsTheBuffersMemory(t *testing.T) {
	mem := make([]int64, 3*ExactLen)
	ExactAt(bufferOf(I64, mem), 1).Add(3)
	if want := exactOf([]float64{3}); Exact(mem[ExactLen:2*ExactLen]) != want || mem[0] != 0 || mem[2*ExactLen] != 0 {
		t.Errorf("3 added to the second of three sums left %v", mem)
	}
}

// TestExactLanes adds terms as their parts relative to a limb.
func TestExactLanes(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 300 {
		var got, want Exact
		limb := rng.IntN(exactLimbs - 4) // near the last limb the range is incomplete
		var lanes [3][8]uint64
		for range 1 + rng.IntN(128) {
			m, s, l := rng.Uint64()>>11|1<<52, rng.IntN(64), rng.IntN(8)
			lanes[0][l] += m << s & exactMask
			lanes[1][l] += m << s >> 32
			lanes[2][l] += m >> 1 >> (63 - s)
			want.Add(math.Ldexp(float64(m), s+32*limb+exactLow))
		}
		got.AddLanes(limb, &lanes)
		got.Carry()
		want.Carry()
		sameLimbs(t, "lanes", got, want)
	}
	for range 1000 { // a window that begins at a term's limb contains the term
		x := math.Ldexp(1+rng.Float64(), rng.IntN(576)-298)
		exp := int(math.Float64bits(x) >> 52)
		if at := exp - ExactExponent(ExactLimb(x)); at >= 64 || at < 0 && exp > ExactExponent(0) {
			t.Fatalf("%g: last bit %d of the window of limb %d", x, at, ExactLimb(x))
		}
	}
}

func sameLimbs(t *testing.T, what string, got, want Exact) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func TestExactCountsTermsThatAreNotFinite(t *testing.T) {
	sum := exactOf([]float64{1, math.NaN(), 2, math.Inf(1), math.Inf(-1), 4})
	if n := sum.NotFinite(); n != 3 {
		t.Errorf("%d terms not finite, want 3", n)
	}
	if v := sum.Value(); !math.IsNaN(v) {
		t.Errorf("value %g with terms that are not finite, want NaN", v)
	}
	sum[exactLimbs] = 0
	if v := sum.Value(); v != 7 {
		t.Errorf("the finite terms sum to %g, want 7", v)
	}
}

// TestExactHasSpareBits adds the stated 2^31 terms, of the largest magnitude and both signs: a limb
// of a term is below 2^32 in magnitude.
func TestExactHasSpareBits(t *testing.T) {
	big := math.Ldexp(1-math.Ldexp(1, -53), 262) // above any block of 64 squares
	for _, x := range []float64{big, -big, math.Ldexp(1-math.Ldexp(1, -53), -200)} {
		var one, all Exact
		one.Add(x)
		for i, v := range one {
			if v >= 1<<32 || v <= -1<<32 {
				t.Fatalf("a term adds %d to limb %d", v, i)
			}
			all[i] = v << 31 // as often
		}
		if got, want := all.Value(), math.Ldexp(x, 31); got != want {
			t.Errorf("2^31 times %g is %g, want %g", x, got, want)
		}
	}
}

// TestBlocksAreSummedInTheStatedOrder uses terms for which only that order preserves the last bits,
// and compares with the order written out.
func TestBlocksAreSummedInTheStatedOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	var x [ExactBlock]float32
	orders := map[float64]bool{}
	for range 100 {
		for i := range x {
			x[i] = float32(rng.NormFloat64() * math.Exp(9*rng.NormFloat64()))
		}
		lane := func(f func(float32) float64, l int) (sum float64) {
			for i := l; i < ExactBlock; i += 8 {
				sum += f(x[i])
			}
			return sum
		}
		for _, c := range []struct {
			got float64
			of  func(float32) float64
		}{{BlockSum(&x), func(v float32) float64 { return float64(v) }}, {BlockSquares(&x), func(v float32) float64 { return float64(v) * float64(v) }}} {
			var s [8]float64
			plain := 0.0
			for l := range s {
				s[l] = lane(c.of, l)
			}
			for _, v := range x {
				plain += c.of(v)
			}
			if want := ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); c.got != want {
				t.Fatalf("block sums to %g, want %g", c.got, want)
			}
			orders[c.got-plain] = true
		}
	}
	if len(orders) < 10 {
		t.Error("the order makes no difference here: this test proves nothing")
	}
}

func TestExactRefusesTermsOutOfRange(t *testing.T) {
	for _, x := range []float64{math.Ldexp(1, -299), math.Ldexp(3, -299), math.Ldexp(1, 278), 5e-324, math.MaxFloat64} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%g was accepted", x)
				}
			}()
			new(Exact).Add(x)
		}()
	}
}
