package device

import (
	"math"
	"unsafe"
)

// Q8 and U8 are elements coded in 8 bits, in blocks of BlockLen: a float32 with the largest
// magnitude, followed by one byte per element. An element is the value of its code times that
// magnitude: block-wise quantization as in bitsandbytes for optimizer states (Dettmers et al.,
// arXiv 2110.02861), with its dynamic map (functional.create_dynamic_map) except for one value. Q8
// has a sign, U8 has none.
//
// A buffer begins with a block, and so must every slice. The last block may have fewer elements; it
// is the beginning of a whole one, padded to 4 bytes.
//
// The code of the block's largest magnitude has the value 1 with either sign, where the original's
// largest negative value is -0.993. So coding decoded values restores the same codes, and a
// checkpoint may contain the values.
const (
	Q8 = I64 + 1 + iota
	U8
)

const (
	BlockLen = 256               // elements per block
	tiny8    = float32(0x1p-100) // a block of smaller magnitudes is zero
)

// Coded reports whether elements are coded in blocks.
func (t DType) Coded() bool { return t == Q8 || t == U8 }

// Bytes returns the size of n elements in bytes.
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

// codes8 is a map between codes and values: a code is the number of limits below a magnitude. First
// contains, by the upper bits of a magnitude, how many are certainly below; one more may be.
type codes8 struct {
	value  [256]float32
	limits [256]float32
	first  [(128-lowest8)<<7 + 1]uint8
}

const lowest8 = 127 - 26 // exponent of a float32 below which magnitudes have code 0

var codes = [2]*codes8{newCodes(7), newCodes(8)}

// Code8 returns the tables of a coded type: the value of each code, the limits between the codes of
// magnitudes, and, indexed by the upper 16 bits of a magnitude's float32 minus Code8From (at least
// 0), the number of limits certainly below it.
func (t DType) Code8() (value, limits *[256]float32, first []uint8) {
	c := codes[t-Q8]
	return &c.value, &c.limits, c.first[:]
}

// Code8From is the first index of Code8's third table, as upper bits of a float32.
const Code8From = lowest8 << 7

// newCodes builds the map of magnitudes with a number of bits. The highest set bit of a code from 1
// on (with a sign; otherwise of code+1) selects its decade, and the bits below it the part of the
// decade.
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

// Block8 returns block i of a coded buffer, for the host, with as many codes as the buffer has.
func (b Buffer) Block8(i int) (largest *float32, codes []uint8) {
	raw := b.Raw()[i*(BlockLen+4):]
	return (*float32)(unsafe.Pointer(&raw[0])), raw[4 : 4+min(BlockLen, b.N-i*BlockLen)]
}

// Largest returns a block's largest magnitude, or 0 if it is negligible.
func Largest(most float32) float32 {
	if most < tiny8 {
		return 0
	}
	return most
}

// Encode codes a block's elements, which must not be negative for U8. The codes may overlap the
// memory of preceding elements.
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

// EncodeBy codes elements with the inverse of their block's largest magnitude.
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
