package device

import (
	"fmt"
	"math"
	"unsafe"
)

// The host's conversions between float32 and 16-bit elements, for what passes
// through its memory; kernels have their own, which round alike.

// RoundBF16 rounds to nearest even; a NaN stays one.
func RoundBF16(x float32) uint16 {
	u := math.Float32bits(x)
	if x != x {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// RoundF16 rounds to nearest even: past 65504 to infinity, below 2^-24 to
// subnormals and zero. A NaN stays one.
func RoundF16(x float32) uint16 {
	u := math.Float32bits(x)
	sign, a := uint16(u>>16&0x8000), u&0x7fffffff
	switch {
	case a > 0x7f800000:
		return sign | 0x7e00 | uint16(a>>13&0x3ff)
	case a >= 0x477ff000: // 65520 and more round to infinity
		return sign | 0x7c00
	case a < 0x38800000: // below 2^-14: count units of 2^-24
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(a))*(1<<24)))
	}
	a += 0xfff + a>>13&1
	return sign | uint16((a-0x38000000)>>13)
}

// WideBF16 and WideF16 are the values of 16 bits.
func WideBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// WideF16 is the value of 16 bits.
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

// Narrow rounds float32 elements to a type, in place, and returns them as a buffer:
// of 16 bits they are the first half of the memory, coded ones its beginning, but for
// a single one, which has memory of its own.
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
	for i, x := range s { // element i is read before it is written over
		to[i] = round(x)
	}
	return b
}

// Narrowed is where Widen expects len(s) elements of a type: of 16 bits the second
// half of the memory, coded ones its end; a single one takes the memory of two.
func Narrowed(s []float32, t DType) Buffer {
	if !t.Coded() {
		return half(s, t, 1)
	}
	all := s[:max(len(s), t.Bytes(len(s))/4)]
	return Buffer{Type: t, Host: true, N: len(s), Ptr: unsafe.Pointer(unsafe.SliceData(all[len(all)-t.Bytes(len(s))/4:]))}
}

// encoded codes elements block by block, each before its place is written over.
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

// decode is Widen of coded elements. A block's codes are copied before its elements are
// written over them, those of the last one before all.
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

// Widen makes float32 of the elements in Narrowed(s, t), in place.
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

// half is elements of a type in the memory of as many float32, all of it or a half.
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
