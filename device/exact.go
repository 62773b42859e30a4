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
