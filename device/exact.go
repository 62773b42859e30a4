package device

import (
	"fmt"
	"math"
	"math/bits"
)

// Long sums have the same bits on every device, however many workers, ranks or
// thread blocks take part, by two rules.
//
// Blocks. A vector of float32 is cut into blocks of ExactBlock elements, the
// last filled up with zeros. A block is summed in float64 in one order, that of
// BlockSum and BlockSquares. Cuts between ranks are at multiples of a block.
//
// Limbs. The sums of blocks go into an Exact, which holds a sum without rounding
// as integers, so that they may be added in any order, by atomic additions too.
// What a user sees is rounded once, by Value.

// ExactBlock is the number of elements summed in float64 before their sum goes
// into an Exact.
const ExactBlock = 64

// BlockSum is the sum of a block, in eight lanes (lane i has elements i, i+8,
// ... from left to right) and then the lanes pairwise.
func BlockSum(x *[ExactBlock]float32) float64 {
	var s [8]float64
	for i := 0; i < ExactBlock; i += 8 {
		for l := range s {
			s[l] += float64(x[i+l])
		}
	}
	return addLanes(&s)
}

// BlockSquares is the sum of the squares of a block, each exact in float64, in
// the same order.
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

// Exact holds a sum without rounding. Elements 0..exactLimbs-1 are the limbs of
// a fixed-point number,
//
//	sum over i of e[i] * 2^(32i + exactLow);
//
// the last element counts the terms that were infinite or not a number, which
// do not touch the limbs. Zeros are an empty sum.
//
// A term adds less than 2^32 in magnitude to each of at most three limbs, and so
// does a carried Exact to each limb: 2^31 of either, in any order and mixture,
// fit before Carry. In a buffer an Exact is ExactLen elements of I64; see At.
//
// The range is that of sums of squares of float32: terms are multiples of
// 2^exactLow = 2^-298, the square of the smallest float32, and below 2^278 in
// magnitude, which leaves a block of a million squares far from the end.
type Exact [ExactLen]int64

const (
	ExactLen   = exactLimbs + 1
	exactLimbs = 19
	exactLow   = -298
	exactMask  = 1<<32 - 1 // of a carried limb
)

// ExactAt is the host's view of Exact number i in a buffer of them.
func ExactAt(b Buffer, i int) *Exact { return (*Exact)(b.I64()[i*ExactLen:]) }

// Add adds x, of either sign.
func (e *Exact) Add(x float64) {
	b := math.Float64bits(x)
	exp, m := b>>52, b&(1<<52-1)|1<<52 // |x| = m * 2^(exp-1075), where x is not below 0
	at := int(exp) - 1075 - exactLow   // of the lowest bit of m, in bits above the bottom
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

// addOdd adds a term that is below 0, not finite, 0, or near an end of the range.
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
		if part != 0 { // else the limb may not exist
			e[at/32+j] += sign * int64(part)
		}
	}
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
// of a limb below exactLimbs-3: the parts of as many terms as there are, counted
// as they would be one by one. x[0] and x[1] are below 2^39 and x[2] below 2^60.
func (e *Exact) AddLanes(limb int, x *[3][8]uint64) {
	for l := range x[0] {
		e[limb] += int64(x[0][l])
		e[limb+1] += int64(x[1][l])
		e[limb+2] += int64(x[2][l] & exactMask)
		e[limb+3] += int64(x[2][l] >> 32)
	}
}

// Carry brings the limbs into [0, 2^32) but for the top one, which has the sign.
// Equal sums then have equal limbs.
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

// NotFinite is the number of terms that were infinite or not a number.
func (e *Exact) NotFinite() int { return int(e[exactLimbs]) }

// Value is the sum rounded once, to the nearest float64, ties to even; NaN if a
// term was not finite.
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

// round rounds carried limbs that are not negative: it takes the leading 64 bits,
// marks any bit lost below them in the lowest, and lets the conversion of that
// integer round to 53.
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
