package device

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// terms are n numbers an exact sum may have, of all magnitudes and both signs,
// with many of nearly equal size so that they cancel.
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

// bigSum is the sum rounded once, by math/big.
func bigSum(x []float64) float64 {
	sum := new(big.Float).SetPrec(2000)
	for _, v := range x {
		sum.Add(sum, new(big.Float).SetPrec(2000).SetFloat64(v))
	}
	f, _ := sum.Float64()
	return f
}

func exactOf(x []float64) []float64 {
	acc := make([]float64, ExactLen)
	for _, v := range x {
		ExactAdd(acc, v)
	}
	return acc
}

func TestExactValueIsTheSumRoundedOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 300 {
		x := terms(rng, n)
		if got, want := ExactValue(exactOf(x)), bigSum(x); got != want {
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
		if got, want := ExactValue(exactOf(x)), bigSum(x); got != want {
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
		merged, added := make([]float64, ExactLen), make([]float64, ExactLen)
		for lo := 0; lo < len(x); {
			hi := lo + 1 + rng.IntN(len(x)-lo)
			part := exactOf(x[lo:hi])
			ExactMerge(merged, part)
			for i, v := range part {
				added[i] += v // what a collective does
			}
			lo = hi
		}
		sameBits(t, "merged parts", merged, want)
		normal := make([]float64, ExactLen)
		ExactMerge(normal, added)
		sameBits(t, "added parts", normal, want)
		want[exactLimbs], added[exactLimbs] = 0, 0
		if got, want := ExactValue(added), ExactValue(want); got != want {
			t.Fatalf("value of added parts %g, of one sum %g", got, want)
		}
	}
}

// TestExactTermsAreExactAdds compares, to the last limb, with terms added one by
// one, and their value with math/big's.
func TestExactTermsAreExactAdds(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for n := range 300 {
		x := terms(rng, n)
		for i, v := range x {
			switch x[i] = math.Abs(v); rng.IntN(10) {
			case 0:
				x[i] = 0
			case 1:
				x[i] = math.Ldexp(1, -298+rng.IntN(80))
			case 2:
				x[i] = math.Ldexp(1-math.Ldexp(1, -53), 278-rng.IntN(80))
			}
		}
		var all ExactTerms
		for _, v := range x {
			all.Add(v)
		}
		got := make([]float64, ExactLen)
		all.AddTo(got)
		sameBits(t, "terms", got, exactOf(x))
		if got, want := ExactValue(got), bigSum(x); got != want {
			t.Fatalf("sum of %d terms %g, math/big has %g", n, got, want)
		}
		all.Add(math.Inf(1))
		all.Add(math.NaN())
		all.AddTo(got) // twice the terms, and two that are not finite
		sameBits(t, "terms twice", got, exactOf(append(append(x, x...), math.Inf(1), math.NaN())))
	}
}

// TestExactLanes adds terms as their parts beside a limb.
func TestExactLanes(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 300 {
		var got, want ExactTerms
		limb := rng.IntN(exactLimbs - 4) // of the last, the range has not all
		var lanes [3][8]uint64
		for range 1 + rng.IntN(128) {
			m, s, l := rng.Uint64()>>11|1<<52, rng.IntN(64), rng.IntN(8)
			lanes[0][l] += m << s & (exactBase - 1)
			lanes[1][l] += m << s >> 32
			lanes[2][l] += m >> 1 >> (63 - s)
			want.Add(math.Ldexp(float64(m), s+32*limb+exactLow))
		}
		got.AddLanes(limb, &lanes)
		a, b := make([]float64, ExactLen), make([]float64, ExactLen)
		got.AddTo(a)
		want.AddTo(b)
		sameBits(t, "lanes", a, b)
	}
	for range 1000 { // a window that begins at a term's limb has the term
		x := math.Ldexp(1+rng.Float64(), rng.IntN(576)-298)
		exp := int(math.Float64bits(x) >> 52)
		if at := exp - ExactExponent(ExactLimb(x)); at >= 64 || at < 0 && exp > ExactExponent(0) {
			t.Fatalf("%g: last bit %d of the window of limb %d", x, at, ExactLimb(x))
		}
	}
}

func TestExactTermsRefuseNegativeOnes(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("-1 was accepted")
		}
	}()
	new(ExactTerms).Add(-1)
}

func sameBits(t *testing.T, what string, got, want []float64) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: element %d is %g, want %g", what, i, got[i], want[i])
		}
	}
}

func TestExactCountsTermsThatAreNotFinite(t *testing.T) {
	acc := exactOf([]float64{1, math.NaN(), 2, math.Inf(1), math.Inf(-1), 4})
	if n := ExactNonFinite(acc); n != 3 {
		t.Errorf("%d terms not finite, want 3", n)
	}
	if v := ExactValue(acc); !math.IsNaN(v) {
		t.Errorf("value %g with terms that are not finite, want NaN", v)
	}
	acc[exactLimbs] = 0
	if v := ExactValue(acc); v != 7 {
		t.Errorf("the finite terms sum to %g, want 7", v)
	}
}

func TestExactLimbsStayIntegersBelow2To53(t *testing.T) {
	acc := make([]float64, ExactLen)
	big := math.Ldexp(1-math.Ldexp(1, -53), 262) // above any block of 64 squares
	for range 1 << 20 {
		ExactAdd(acc, big)
	}
	for range 60 {
		ExactMerge(acc, acc) // doubles: 2^60 accumulators of 2^20 blocks
		if acc[exactLimbs-1] >= 1<<52 {
			break
		}
	}
	for i, v := range acc[:exactLimbs-1] {
		if v != math.Trunc(v) || v < 0 || v >= exactBase {
			t.Errorf("limb %d is %g", i, v)
		}
	}
	if v := ExactValue(acc); math.Log2(v) < 320 {
		t.Errorf("the accumulator ends at 2^%g, want room for 2^58 blocks", math.Log2(v))
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
			ExactAdd(make([]float64, ExactLen), x)
		}()
	}
}
