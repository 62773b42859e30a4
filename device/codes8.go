package device

import (
	"math"
	"unsafe"
)

// Q8 and U8 are elements in 8 bits, in blocks of BlockLen: 4 bytes with the largest
// magnitude, a float32, and a code of a byte for each. An element is what its code
// stands for times that magnitude: block-wise quantisation as bitsandbytes has
// it for the states of optimizers (Dettmers et al., arXiv 2110.02861), with its
// dynamic map (functional.create_dynamic_map) but for one value. A Q8 has a sign, a
// U8 has none.
//
// A buffer begins with a block, and so does every slice of one. Its last block may have
// fewer elements; it is the beginning of a whole one, filled up to 4 bytes.
//
// The code of the block's largest magnitude stands for 1, of either sign, where the
// original's largest negative one stands for -0.993: so that coding what was decoded
// gives the same codes, and a checkpoint may hold what they stand for.
const (
	Q8 = I64 + 1 + iota
	U8
)

const (
	BlockLen = 256               // elements of a block
	tiny8    = float32(0x1p-100) // a block whose magnitudes are all smaller is zero
)

// Coded says whether elements are coded by blocks.
func (t DType) Coded() bool { return t == Q8 || t == U8 }

// Bytes is the size of n elements in bytes.
func (t DType) Bytes(n int) int {
	if t.Coded() {
		whole, rest := n/BlockLen*(BlockLen+4), n%BlockLen
		if rest > 0 {
			whole += 4 + (rest+3)/4*4
		}
		return whole
	}
	return n * t.Size()
}

// codes8 is a map of codes and how to go back: a code is the number of limits that a
// magnitude is above. First says how many of these are below a magnitude whose bits
// begin so; one more may be.
type codes8 struct {
	value  [256]float32
	limits [256]float32
	first  [(128-lowest8)<<7 + 1]uint8
}

const lowest8 = 127 - 26 // exponent of a float32 below which a magnitude has code 0

var codes = [2]*codes8{newCodes(7), newCodes(8)}

// Code8 is the tables of a coded type: what each code stands for, the limits between
// codes of magnitudes, and for the upper 16 bits of a magnitude's float32, less
// Code8From and at least 0, how many limits are surely below it.
func (t DType) Code8() (value, limits *[256]float32, first []uint8) {
	c := codes[t-Q8]
	return &c.value, &c.limits, c.first[:]
}

// Code8From is what Code8's third table begins with.
const Code8From = lowest8 << 7

// newCodes makes the map of magnitudes in so many bits. Codes from 1 on have their
// decade by the place of the highest bit, of the code itself where there is a sign
// and of the next number else, and the bits below are the part of the decade.
func newCodes(bits int) *codes8 {
	c, n := &codes8{}, 1<<bits
	for code := 1; code < n; code++ {
		k := code + bits - 7
		top := int(math.Log2(float64(k)))
		part := (float64(k-1<<top) + 0.5) / float64(int(1)<<top)
		c.value[code] = float32(math.Pow(10, float64(top-bits+1)) * (0.1 + 0.9*part))
	}
	c.value[n-1] = 1
	for code := range n - 1 {
		c.limits[code] = (c.value[code] + c.value[code+1]) / 2
	}
	for code := n - 1; code < 256; code++ {
		c.limits[code] = float32(math.Inf(1))
	}
	for i := range c.first {
		low := math.Float32frombits(uint32(i+Code8From) << 16)
		for c.limits[c.first[i]] < low {
			c.first[i]++
		}
	}
	if n < 256 { // a sign
		for code := range n {
			c.value[n+code] = -c.value[code]
		}
	}
	return c
}

// Block8 is block i of a coded buffer, for the host: as many codes as the buffer has.
func (b Buffer) Block8(i int) (largest *float32, codes []uint8) {
	raw := b.Raw()[i*(BlockLen+4):]
	return (*float32)(unsafe.Pointer(&raw[0])), raw[4 : 4+min(BlockLen, b.N-i*BlockLen)]
}

// Largest is a block's largest magnitude, 0 where that is too small to be told apart.
func Largest(most float32) float32 {
	if most < tiny8 {
		return 0
	}
	return most
}

// Encode codes a block's elements; U8's are not negative. The codes may lie where
// elements before those lie.
func (t DType) Encode(largest *float32, codes []uint8, x []float32) {
	most := float32(0)
	for _, v := range x {
		most = max(most, math.Float32frombits(math.Float32bits(v)&^(1<<31)))
	}
	if most = Largest(most); most == 0 {
		clear(codes)
	} else {
		t.EncodeBy(1/most, codes, x)
	}
	*largest = most
}

// EncodeBy codes elements by 1 over their block's largest magnitude.
func (t DType) EncodeBy(inverse float32, codes []uint8, x []float32) {
	_, limits, first := t.Code8()
	for i, v := range x {
		u := math.Float32bits(v * inverse)
		a := u &^ (1 << 31)
		code := first[min(max(int(a>>16)-Code8From, 0), len(first)-1)]
		if math.Float32frombits(a) > limits[code] {
			code++
		}
		if t == Q8 && code > 0 {
			code |= uint8(u >> 31 << 7)
		}
		codes[i] = code
	}
}

// Decode sets x to the elements of a block.
func (t DType) Decode(x []float32, largest float32, codes []uint8) {
	value, _, _ := t.Code8()
	for i, c := range codes {
		x[i] = value[c] * largest
	}
}
