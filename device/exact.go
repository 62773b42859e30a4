package device

import (
	"fmt"
	"math"
	"math/bits"
)

// An exact accumulator is ExactLen float64 elements that hold a sum without
// rounding, so that the sum does not depend on the order or the grouping of
// its terms. Elements 0..exactLimbs-1 are the limbs of a fixed-point number,
//
//	sum over i of acc[i] * 2^(32i + exactLow),
//
// each an integer below 2^53 in magnitude; the last element counts the terms
// that were infinite or not a number, which do not touch the limbs. Zeros are
// an empty accumulator. Because limbs are integers in float64, accumulators
// may be moved by any collective and added element by element (fewer than
// 2^20 of them) or with ExactMerge.
//
// The range is that of sums of squares of float32: terms are multiples of
// 2^exactLow = 2^-298, the square of the smallest float32, and below 2^278 in
// magnitude, which leaves a block of a million squares far from the end.
const (
	ExactLen   = exactLimbs + 1
	exactLimbs = 19
	exactLow   = -298
	exactBase  = 1 << 32 // of a limb
)

// ExactAdd adds x to acc, which must be normalised (zeros, or only touched by
// ExactAdd and ExactMerge) and is again: limbs in [0, 2^32), the top one signed.
func ExactAdd(acc []float64, x float64) {
	b := math.Float64bits(x)
	exp, m := int(b>>52&0x7ff), b&(1<<52-1)|1<<52 // |x| = m * 2^(exp-1075)
	switch {
	case exp == 0x7ff:
		acc[exactLimbs]++
		return
	case x == 0:
		return
	}
	at := exp - 1075 - exactLow // of the lowest bit of m, in bits above the bottom
	if at < 0 && bits.TrailingZeros64(m) >= -at {
		at, m = 0, m>>-at
	}
	if at < 0 || at+bits.Len64(m) > 32*(exactLimbs-1) {
		panic(fmt.Sprintf("device: %g in an exact sum of multiples of 2^%d", x, exactLow))
	}
	exactPlace(acc, at, m, b>>63 != 0)
}

// ExactTerms collects terms that are not negative for an accumulator, faster
// than ExactAdd: carries wait until AddTo. It holds 2^31 terms.
type ExactTerms struct {
	limbs     [exactLimbs]uint64 // as an accumulator's
	notFinite int
}

// Add adds x, which must be one that ExactAdd accepts and not below 0.
func (t *ExactTerms) Add(x float64) {
	b := math.Float64bits(x)
	exp, m := b>>52, b&(1<<52-1)|1<<52 // x = m * 2^(exp-1075)
	at := int(exp) - 1075 - exactLow
	if uint(at) > 32*(exactLimbs-1)-53 {
		t.addOdd(x)
		return
	}
	i, s := at/32, at%32
	low := m << s
	t.limbs[i] += low & (exactBase - 1)
	t.limbs[i+1] += low >> 32
	t.limbs[i+2] += m >> 1 >> (63 - s)
}

// ExactExponent is the exponent field of a float64 whose last bit is the lowest
// of a limb.
func ExactExponent(limb int) int { return 32*limb + 1075 + exactLow }

// ExactLimb is the limb of a term's last bit but 16: of terms within a factor of
// 2^16 the last bits lie in it and the next. It leaves room for AddLanes.
func ExactLimb(x float64) int {
	at := int(math.Float64bits(x)>>52) - 1075 - exactLow
	return max(0, min((at-16)/32, exactLimbs-4))
}

// AddLanes adds the sum over l of x[0][l] + x[1][l]*2^32 + x[2][l]*2^64, in units
// of a limb below exactLimbs-3. x[0] and x[1] are below 2^39 and x[2] below 2^60.
func (t *ExactTerms) AddLanes(limb int, x *[3][8]uint64) {
	for l := range x[0] {
		t.limbs[limb] += x[0][l]
		t.limbs[limb+1] += x[1][l]
		t.limbs[limb+2] += x[2][l] & (exactBase - 1)
		t.limbs[limb+3] += x[2][l] >> 32
	}
}

// addOdd adds a term that is not finite, 0, or near an end of the range.
func (t *ExactTerms) addOdd(x float64) {
	if x == 0 {
		return
	}
	var one [ExactLen]float64
	ExactAdd(one[:], x)
	if x < 0 {
		panic(fmt.Sprintf("device: %g among terms that are not negative", x))
	}
	for i, v := range one[:exactLimbs] {
		t.limbs[i] += uint64(v)
	}
	t.notFinite += int(one[exactLimbs])
}

// AddTo adds the terms to acc, which it leaves normalised.
func (t *ExactTerms) AddTo(acc []float64) {
	var own [ExactLen]float64
	var carry uint64
	for i := range own[:exactLimbs-1] {
		carry += t.limbs[i] // below 2^32, and below 2^63
		own[i] = float64(carry & (exactBase - 1))
		carry >>= 32
	}
	own[exactLimbs-1] = float64(carry + t.limbs[exactLimbs-1])
	own[exactLimbs] = float64(t.notFinite)
	ExactMerge(acc, own[:])
}

// exactPlace adds or subtracts m * 2^at.
func exactPlace(acc []float64, at int, m uint64, minus bool) {
	i, s := at/32, at%32
	low, high := m<<s, m>>(64-s)
	parts := [3]float64{float64(low & (exactBase - 1)), float64(low >> 32), float64(high)}
	for j, p := range parts {
		if p == 0 {
			continue // the limb may not exist
		}
		if minus {
			p = -p
		}
		acc[i+j] += p
	}
	exactCarry(acc, i, 3)
}

// exactCarry normalises limbs from i on, at least n of them and then as far as
// carries reach.
func exactCarry(acc []float64, i, n int) {
	for end := i + n; i < exactLimbs-1; i++ {
		c := math.Floor(acc[i] * (1.0 / exactBase))
		if c == 0 {
			if i >= end {
				return
			}
			continue
		}
		acc[i] -= c * exactBase
		acc[i+1] += c
	}
}

// ExactMerge adds other to acc and normalises acc. Either may be an
// element-wise sum of normalised accumulators.
func ExactMerge(acc, other []float64) {
	for i, x := range other[:ExactLen] {
		acc[i] += x
	}
	exactCarry(acc, 0, exactLimbs)
}

// ExactNonFinite is the number of terms that were infinite or not a number.
func ExactNonFinite(acc []float64) int { return int(acc[exactLimbs]) }

// ExactValue is the sum rounded once, to the nearest float64, ties to even;
// NaN if a term was not finite. acc may be an element-wise sum of normalised
// accumulators and is left as it is.
func ExactValue(acc []float64) float64 {
	if acc[exactLimbs] != 0 {
		return math.NaN()
	}
	var n [ExactLen]float64
	ExactMerge(n[:], acc)
	if n[exactLimbs-1] < 0 {
		for i := range n {
			n[i] = -n[i]
		}
		exactCarry(n[:], 0, exactLimbs)
		return -exactRound(&n)
	}
	return exactRound(&n)
}

// exactRound rounds normalised non-negative limbs: it takes the leading 64
// bits, marks any bit lost below them in the lowest, and lets the conversion
// of that integer round to 53.
func exactRound(n *[ExactLen]float64) float64 {
	top := exactLimbs - 1
	for top > 0 && n[top] == 0 {
		top--
	}
	lead, exp := uint64(n[top]), 32*top+exactLow // the top limb may have 53 bits
	for i := top - 1; i >= 0; i-- {
		limb, room := uint64(n[i]), bits.LeadingZeros64(lead)
		take := min(room, 32)
		lead = lead<<take | limb>>(32-take)
		exp -= take
		if limb<<take&(exactBase-1) != 0 {
			lead |= 1
		}
	}
	return math.Ldexp(float64(lead), exp)
}
