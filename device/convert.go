package device

import (
	"fmt"
	"math"
	"unsafe"
)

// The host's conversions between float32 and 16-bit elements. Kernels have their own, with the same
// rounding.

// RoundBF16 rounds to nearest, ties to even; NaN remains NaN.
func RoundBF16(x float32) uint16 {
	u := math.Float32bits(x)
	if x != x {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// RoundF16 rounds to nearest, ties to even: above 65504 to infinity, below 2^-14 to subnormals and
// zero. NaN remains NaN.
func RoundF16(x float32) uint16 {
	u := math.Float32bits(x)
	sign, a := uint16(u>>16)&0x8000, u&0x7fffffff
	switch {
	case a > 0x7f800000:
		return sign | 0x7e00 | uint16(a>>13)&0x3ff
	case a >= 143<<23: // 2^16
		return sign | 0x7c00
	case a >= 113<<23: // 2^-14, the smallest normal binary16; a carry increments the exponent, up to infinity
		return sign | uint16((a+0xfff+a>>13&1-112<<23)>>13)
	}
	// The ulp of 0.5 is 2^-24, the unit of subnormals.
	return sign | uint16(math.Float32bits(math.Float32frombits(a)+0.5)-0x3f000000)
}

// Overflow returns the index of the first finite element that t rounds to infinity, or -1.
func Overflow(x []float32, t DType) int {
	least, narrow := map[DType]uint32{F16: 0x477ff000, BF16: 0x7f7f8000}[t] // bits of the smallest such magnitude
	if !narrow {
		return -1
	}
	for i, v := range x {
		if a := math.Float32bits(v) & 0x7fffffff; a >= least && a < 0x7f800000 {
			return i
		}
	}
	return -1
}

// TooLarge reports a finite element that a type rounds to infinity. The user can choose another type.
type TooLarge struct {
	Tensor     string
	Element    int // of the flattened tensor
	Value      float32
	Type, Want string
}

func (e *TooLarge) Error() string {
	return fmt.Sprintf("element %d of %.200q is %v, which %s rounds to infinity; want %s", e.Element, e.Tensor, e.Value, e.Type, e.Want)
}

// UserInput marks the error for input.IsInput.
func (e *TooLarge) UserInput() {}

// WideBF16 returns the value of 16 bits.
func WideBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// WideF16 returns the value of 16 bits.
func WideF16(h uint16) float32 {
	sign, exp, man := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0:
		return math.Float32frombits(sign | math.Float32bits(float32(man)/(1<<24)))
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}

// Narrow converts float32 elements to another type in place and returns them as a buffer: 16-bit
// elements use the first half of the memory, coded ones its beginning, except that a single coded
// element uses new memory.
func Narrow(s []float32, t DType) Buffer {
	if t.Coded() {
		return encoded(s, t)
	}
	round := map[DType]func(float32) uint16{BF16: RoundBF16, F16: RoundF16}[t]
	b := half(s, t, 0)
	if t == F32 {
		return b
	}
	to := b.U16()
	for i, x := range s { // element i is read before it is overwritten
		to[i] = round(x)
	}
	return b
}

// Narrowed returns the memory from which Widen reads len(s) elements of a type: for 16-bit types
// the second half of s, for coded ones its end. A single coded element needs the capacity of two.
func Narrowed(s []float32, t DType) Buffer {
	if !t.Coded() {
		return half(s, t, 1)
	}
	all := s[:max(len(s), t.Bytes(len(s))/4)]
	return Buffer{Type: t, Host: true, N: len(s), Ptr: unsafe.Pointer(unsafe.SliceData(all[len(all)-t.Bytes(len(s))/4:]))}
}

// encoded encodes elements block by block, each before its memory is overwritten.
func encoded(s []float32, t DType) Buffer {
	to := s
	if len(s) == 1 {
		to = make([]float32, 2)
	}
	b := Buffer{Type: t, Host: true, N: len(s), Ptr: unsafe.Pointer(unsafe.SliceData(to))}
	var block [BlockLen]float32
	for i := 0; i < b.N; i += BlockLen {
		x := block[:copy(block[:], s[i:])]
		largest, codes := b.Block8(i / BlockLen)
		t.Encode(largest, codes, x)
	}
	return b
}

// decode implements Widen for coded elements. It copies a block's codes before the elements
// overwrite them, beginning with the last block.
func decode(s []float32, t DType) {
	from := Narrowed(s, t)
	last := (from.N - 1) / BlockLen
	var block, end [BlockLen]uint8
	most, codes := from.Block8(last)
	copy(end[:], codes)
	ends := *most
	for i := 0; i < from.N; i += BlockLen {
		x := s[i:min(i+BlockLen, len(s))]
		if i/BlockLen == last {
			t.Decode(x, ends, end[:len(x)])
			continue
		}
		most, codes := from.Block8(i / BlockLen)
		copy(block[:], codes)
		t.Decode(x, *most, block[:len(x)])
	}
}

// Widen converts the elements in Narrowed(s, t) to float32, in place.
func Widen(s []float32, t DType) {
	if t.Coded() && len(s) > 0 {
		decode(s, t)
	}
	if t == F32 || t.Coded() {
		return
	}
	from, wide := half(s, t, 1).U16(), map[DType]func(uint16) float32{BF16: WideBF16, F16: WideF16}[t]
	for i := range s { // the elements after i are beyond what is written
		s[i] = wide(from[i])
	}
}

// half returns elements of a type in the memory of len(s) float32: all of it for F32, else one
// half.
func half(s []float32, t DType, which int) Buffer {
	b := OfF32(s)
	switch t {
	case F32:
		return b
	case BF16, F16:
		b.Type, b.N = t, 2*len(s)
		return b.Slice(which*len(s), (which+1)*len(s))
	}
	panic(fmt.Sprintf("device: %v in the memory of float32", t))
}
