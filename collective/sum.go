package collective

import (
	"fmt"
	"math"

	"zeroth/device"
)

// blockLen is the number of elements summed at a time: the running sum of a
// block stays in the first-level cache while the ranks' parts stream by.
const blockLen = 2048

// summer is the work space of rank-ordered sums.
type summer struct {
	f32 [blockLen]float32
	f64 [blockLen]float64
}

// sum sets dst to the sum of the sources in their order. dst is one of them
// (or aliases none); all have the same float type and length. An element of
// dst is written once, after all sources' elements there have been read, so
// in place is safe.
func (s *summer) sum(dst device.Buffer, src []device.Buffer) {
	for lo := 0; lo < dst.N; lo += blockLen {
		hi := min(lo+blockLen, dst.N)
		switch dst.Type {
		case device.F32:
			sumBlock(dst, src, lo, hi, s.f32[:hi-lo], device.Buffer.F32, addF32)
		case device.F64:
			sumBlock(dst, src, lo, hi, s.f64[:hi-lo], device.Buffer.F64, addF64)
		case device.BF16:
			sumBlock16(dst, src, lo, hi, s.f32[:hi-lo], addBF16, roundBF16)
		case device.F16:
			sumBlock16(dst, src, lo, hi, s.f32[:hi-lo], addF16, roundF16)
		default:
			panic(fmt.Sprintf("collective: sum of %v elements", dst.Type))
		}
	}
}

// sumBlock sums elements [lo, hi): partial sums go to acc, the last one to dst.
// With a single source there is nothing to add, and dst is that source.
func sumBlock[T float32 | float64](dst device.Buffer, src []device.Buffer, lo, hi int, acc []T,
	view func(device.Buffer) []T, add func(dst, a, b []T)) {
	part := view(src[0])[lo:hi]
	for i, b := range src[1:] {
		to := acc
		if i == len(src)-2 {
			to = view(dst)[lo:hi]
		}
		add(to, part, view(b)[lo:hi])
		part = to
	}
}

// sumBlock16 sums elements [lo, hi) of a 16-bit type in acc and rounds once.
// It starts from -0, to which adding any x gives x.
func sumBlock16(dst device.Buffer, src []device.Buffer, lo, hi int, acc []float32,
	add func(acc []float32, x []uint16), round func(dst []uint16, x []float32)) {
	for i := range acc {
		acc[i] = negZero
	}
	for _, b := range src {
		add(acc, b.U16()[lo:hi])
	}
	round(dst.U16()[lo:hi], acc)
}

var negZero = math.Float32frombits(1 << 31)

// The loops below are all the arithmetic there is. They take slices of equal
// length, of which dst may be a or b.

// addF32 sets dst = a + b.
func addF32(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)] // no bounds checks below; unrolling is slower
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

// addF64 sets dst = a + b.
func addF64(dst, a, b []float64) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

// addBF16 adds x to acc.
func addBF16(acc []float32, x []uint16) {
	acc = acc[:len(x)]
	for i, h := range x {
		acc[i] += math.Float32frombits(uint32(h) << 16)
	}
}

// addF16 adds x to acc. The bits of a binary16 without its sign, moved to
// where a binary32 has them, are the number times 2^-112, subnormals included.
func addF16(acc []float32, x []uint16) {
	acc = acc[:len(x)]
	for i, h := range x {
		bits := uint32(h&0x7fff) << 13
		f := math.Float32frombits(bits) * (1 << 112)
		if bits >= 0x7c00<<13 { // infinite or NaN
			f = math.Float32frombits(bits | 0xff<<23)
		}
		acc[i] += math.Float32frombits(math.Float32bits(f) | uint32(h&0x8000)<<16)
	}
}

// roundBF16 sets dst to x rounded to nearest even. A NaN stays one: x is a sum
// of bf16 numbers, and the lower half of their NaNs' bits is zero, as that of
// the NaN for infinity minus infinity.
func roundBF16(dst []uint16, x []float32) {
	dst = dst[:len(x)]
	for i, f := range x {
		u := math.Float32bits(f)
		dst[i] = uint16((u + 0x7fff + u>>16&1) >> 16)
	}
}

// roundF16 sets dst to x rounded to nearest even; a NaN becomes quiet.
func roundF16(dst []uint16, x []float32) {
	dst = dst[:len(x)]
	for i, f := range x {
		u := math.Float32bits(f)
		dst[i] = uint16(u>>16)&0x8000 | magnitudeF16(u&0x7fffffff)
	}
}

// magnitudeF16 is the binary16 nearest to the binary32 with bits u >= 0.
func magnitudeF16(u uint32) uint16 {
	switch {
	case u > 0xff<<23: // NaN
		return 0x7e00 | uint16(u>>13)&0x3ff
	case u >= (127+16)<<23: // 2^16 and more
		return 0x7c00
	case u < (127-14)<<23: // subnormal: adding 1/2 leaves a last place of 2^-24
		return uint16(math.Float32bits(math.Float32frombits(u)+0.5) - math.Float32bits(0.5))
	}
	return uint16((u + 0xfff + u>>13&1 - (127-15)<<23) >> 13) // a carry may reach infinity
}
