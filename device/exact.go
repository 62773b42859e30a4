package device

import (
	"fmt"
	"math"
	"math/bits"
)

// Long sums have the same bits on every device, for any number of workers, ranks or thread blocks,
// because of two rules.
//
// Blocks: a vector of float32 is cut into blocks of ExactBlock elements, the last padded with
// zeros. A block is summed in float64 in a fixed order, that of BlockSum and BlockSquares. Ranks
// divide vectors at multiples of a block.
//
// Limbs: the sums of blocks are added to an Exact, which holds a sum without rounding as integers,
// so the order does not matter, even with atomic additions. The result is rounded once, by Value.

// ExactBlock is the number of elements summed in float64 before their sum is added to an Exact.
const ExactBlock = 64

// BlockSum sums a block in eight lanes (lane i has elements i, i+8, ... from left to right) and
// then the lanes pairwise.
func BlockSum(x *[ExactBlock]float32) float64 {
	var s [8]float64
	for i := 0; i < ExactBlock; i += 8 {
		for l := range s {
			s[l] += float64(x[i+l])
		}
	}
	return addLanes(&s)
}

// BlockSquares sums the squares of a block, each exact in float64, in the same order.
func BlockSquares(x *[ExactBlock]float32) float64 {
	var s [8]float64
	for i := 0; i < ExactBlock; i += 8 {
		for l := range s {
			v := float64(x[i+l])
			s[l] += v * v
		}
	}
	return addLanes(&s)
}

func addLanes(s *[8]float64) float64 {
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

// Exact holds a sum without rounding. Elements 0..exactLimbs-1 are the limbs of a fixed-point
// number,
//
//	sum over i of e[i] * 2^(32i + exactLow);
//
// the last element counts the infinite and NaN terms, which do not affect the limbs. All zeros is
// an empty sum.
//
// A term adds less than 2^32 in magnitude to each of at most three limbs, and so does a carried
// Exact to each limb: 2^31 of either, in any order and mixture, fit before Carry. In a buffer an
// Exact is ExactLen elements of I64; see ExactAt.
//
// The range suffices for sums of squares of float32: terms are multiples of 2^exactLow = 2^-298,
// the square of the smallest float32, and below 2^278 in magnitude, far above a block of a million
// squares.
type Exact [ExactLen]int64

const (
	ExactLen   = exactLimbs + 1
	exactLimbs = 19
	exactLow   = -298
	exactMask  = 1<<32 - 1 // of a carried limb
)

// ExactAt returns the host's view of the i-th Exact in a buffer.
func ExactAt(b Buffer, i int) *Exact { return (*Exact)(b.I64()[i*ExactLen:]) }

// Add adds x, of either sign.
func (e *Exact) Add(x float64) {
	b := math.Float64bits(x)
	exp, m := b>>52, b&(1<<52-1)|1<<52 // |x| = m * 2^(exp-1075), if x is not negative
	at := int(exp) - 1075 - exactLow   // position of the lowest bit of m, above the bottom
	if uint(at) > 32*(exactLimbs-1)-53 {
		e.addOdd(x)
		return
	}
	i, s := at/32, at%32
	low := m << s
	e[i] += int64(low & exactMask)
	e[i+1] += int64(low >> 32)
	e[i+2] += int64(m >> 1 >> (63 - s))
}

// addOdd adds a term that is negative, not finite, 0, or near an end of the range.
func (e *Exact) addOdd(x float64) {
	b := math.Float64bits(x)
	exp, m := int(b>>52&0x7ff), b&(1<<52-1)|1<<52
	switch {
	case exp == 0x7ff:
		e[exactLimbs]++
		return
	case x == 0:
		return
	}
	at := exp - 1075 - exactLow
	if at < 0 && bits.TrailingZeros64(m) >= -at {
		at, m = 0, m>>-at
	}
	if at < 0 || at+bits.Len64(m) > 32*(exactLimbs-1) {
		panic(fmt.Sprintf("device: %g in an exact sum of multiples of 2^%d", x, exactLow))
	}
	sign := 1 - 2*int64(b>>63)
	low, high := m<<(at%32), m>>1>>(63-at%32)
	for j, part := range [3]uint64{low & exactMask, low >> 32, high} {
		if part != 0 { // otherwise the limb may not exist
			e[at/32+j] += sign * int64(part)
		}
	}
}

// ExactExponent returns the exponent field of a float64 whose last bit is the lowest of a limb.
func ExactExponent(limb int) int { return 32*limb + 1075 + exactLow }

// ExactLimb returns the limb 16 bits below a term's last bit: the last bits of terms within a
// factor of 2^16 lie in it and the next. It leaves headroom for AddLanes.
func ExactLimb(x float64) int {
	at := int(math.Float64bits(x)>>52) - 1075 - exactLow
	return max(0, min((at-16)/32, exactLimbs-4))
}

// AddLanes adds the sum over l of x[0][l] + x[1][l]*2^32 + x[2][l]*2^64, in units of a limb below
// exactLimbs-3: the parts of many terms, each of which counts as in Add. x[0] and x[1] must be
// below 2^39 and x[2] below 2^60.
func (e *Exact) AddLanes(limb int, x *[3][8]uint64) {
	for l := range x[0] {
		e[limb] += int64(x[0][l])
		e[limb+1] += int64(x[1][l])
		e[limb+2] += int64(x[2][l] & exactMask)
		e[limb+3] += int64(x[2][l] >> 32)
	}
}

// Carry normalizes the limbs to [0, 2^32), except the top one, which has the sign. Equal sums then
// have equal limbs.
func (e *Exact) Carry() {
	for i := range exactLimbs - 1 {
		e[i+1] += e[i] >> 32
		e[i] &= exactMask
	}
}

// Merge adds another sum and carries.
func (e *Exact) Merge(other *Exact) {
	for i, x := range other {
		e[i] += x
	}
	e.Carry()
}

// NotFinite returns the number of infinite and NaN terms.
func (e *Exact) NotFinite() int { return int(e[exactLimbs]) }

// Value returns the sum rounded once to the nearest float64, ties to even; NaN if a term was not
// finite.
func (e *Exact) Value() float64 {
	if e[exactLimbs] != 0 {
		return math.NaN()
	}
	n := *e
	n.Carry()
	if n[exactLimbs-1] >= 0 {
		return n.round()
	}
	for i := range n {
		n[i] = -n[i]
	}
	n.Carry()
	return -n.round()
}

// round rounds carried limbs that are not negative: it takes the leading 64 bits, sets the lowest
// if any bit below is lost, and lets the conversion of that integer round to 53.
func (e *Exact) round() float64 {
	top := exactLimbs - 1
	for top > 0 && e[top] == 0 {
		top--
	}
	lead, exp := uint64(e[top]), 32*top+exactLow // the top limb may have 63 bits
	for i := top - 1; i >= 0; i-- {
		limb, spare := uint64(e[i]), bits.LeadingZeros64(lead)
		take := min(spare, 32)
		lead = lead<<take | limb>>(32-take)
		exp -= take
		if limb<<take&exactMask != 0 {
			lead |= 1
		}
	}
	return math.Ldexp(float64(lead), exp)
}
