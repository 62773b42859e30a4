package kernel

import (
	"fmt"
	"math"

	"zeroth/device"
)

// CastGrain is the minimum number of elements that justifies another worker.
const CastGrain = 1 << 15

// castBlock is the number of elements converted at a time between types that have no direct
// conversion, through float32.
const castBlock = 512

// MustFloat panics if t is I32.
func MustFloat(op string, t device.DType) {
	if t == device.I32 {
		panic(fmt.Sprintf("cpu: %s of %v elements", op, t))
	}
}

// RunCast converts elements [lo, hi).
func RunCast(t *Args, _ *Worker, lo, hi int) {
	dst, src := t.B[0].Slice(lo, hi), t.B[1].Slice(lo, hi)
	stream := t.B[0].Bytes() >= StreamMin
	switch {
	case dst.Type == src.Type:
		copyBytes(dst.Raw(), src.Raw(), stream)
	case dst.Type != device.F32 && src.Type != device.F32:
		CastThroughF32(dst, src)
	default:
		n := 0
		if stream {
			n = castStream(dst, src)
		}
		castF32(dst.Slice(n, dst.N), src.Slice(n, src.N))
	}
}

// castF32 converts between float32 and another type.
func castF32(dst, src device.Buffer) {
	if dst.Type == device.F32 {
		Load(dst.F32(), src)
	} else {
		Store(dst, src.F32())
	}
}

// CastThroughF32 converts between types that have no direct conversion.
func CastThroughF32(dst, src device.Buffer) {
	var mem [castBlock]float32
	for lo := 0; lo < dst.N; lo += castBlock {
		hi := min(lo+castBlock, dst.N)
		block := mem[:hi-lo]
		if src.Type == device.F64 {
			roundToOdd(block, src.Slice(lo, hi).F64())
		} else {
			Load(block, src.Slice(lo, hi))
		}
		Store(dst.Slice(lo, hi), block)
	}
}

// Load sets dst to the elements of src in float32; len(dst) = src.N.
func Load(dst []float32, src device.Buffer) {
	switch src.Type {
	case device.F32:
		copy(dst, src.F32())
	case device.BF16:
		bf16ToF32(dst, src.U16())
	case device.F16:
		f16ToF32(dst, src.U16())
	case device.F64:
		for i, x := range src.F64() {
			dst[i] = float32(x)
		}
	default:
		panic(fmt.Sprintf("cpu: %v elements loaded as float32", src.Type))
	}
}

// Store sets the elements of dst to src, rounded to nearest even; dst.N = len(src).
func Store(dst device.Buffer, src []float32) {
	switch dst.Type {
	case device.F32:
		copy(dst.F32(), src)
	case device.BF16:
		f32ToBF16(dst.U16(), src)
	case device.F16:
		f32ToF16(dst.U16(), src)
	case device.F64:
		wide := dst.F64()
		for i, x := range src {
			wide[i] = float64(x)
		}
	default:
		panic(fmt.Sprintf("cpu: float32 stored as %v elements", dst.Type))
	}
}

// roundToOdd sets dst to src truncated to float32, with the last bit set if that was inexact.
// Rounding the result to 16 bits gives the correctly rounded src (Boldo and Melquiond, "When double
// rounding is odd", 2005).
func roundToOdd(dst []float32, src []float64) {
	for i, x := range src {
		f := float32(x)
		if u := math.Float32bits(f); float64(f) != x && x == x {
			if math.Abs(float64(f)) > math.Abs(x) {
				u-- // towards zero
			}
			f = math.Float32frombits(u | 1)
		}
		dst[i] = f
	}
}

// convert sets dst to src, of equal length: the first elements in assembly, the others by plain.
func convert[D, S any](k castKind, plain func([]D, []S), dst []D, src []S) {
	dst = dst[:len(src)]
	n := castFast(k, SliceAt(dst), SliceAt(src), len(src))
	if n < len(src) {
		plain(dst[n:], src[n:])
	}
}

// bf16ToF32 widens exactly, including the bits of NaN.
func bf16ToF32(dst []float32, src []uint16) { convert(WidenBF16, Bf16ToF32Go, dst, src) }

// f32ToBF16 rounds to nearest even; a NaN becomes quiet and keeps its upper bits.
func f32ToBF16(dst []uint16, src []float32) { convert(RoundBF16, F32ToBF16Go, dst, src) }

// f16ToF32 widens exactly, except that a signaling NaN becomes quiet.
func f16ToF32(dst []float32, src []uint16) { convert(WidenF16, F16ToF32Go, dst, src) }

// f32ToF16 rounds to nearest even, with subnormals and infinity; a NaN becomes quiet and keeps its
// upper bits.
func f32ToF16(dst []uint16, src []float32) { convert(roundF16, F32ToF16Go, dst, src) }

// Bf16ToF32Go is the portable bf16ToF32.
func Bf16ToF32Go(dst []float32, src []uint16) {
	for i, h := range src {
		dst[i] = device.WideBF16(h)
	}
}

// F32ToBF16Go is the portable f32ToBF16.
func F32ToBF16Go(dst []uint16, src []float32) {
	for i, x := range src {
		dst[i] = device.RoundBF16(x)
	}
}

// F16ToF32Go is the portable f16ToF32.
func F16ToF32Go(dst []float32, src []uint16) {
	for i, h := range src {
		sign, a := uint32(h&0x8000)<<16, uint32(h&0x7fff)
		var u uint32
		switch {
		case a > 0x7c00: // NaN
			u = 0x7fc00000 | a<<13
		case a == 0x7c00: // infinity
			u = 0x7f800000
		case a < 0x0400: // subnormal: a units of 2^-24
			u = math.Float32bits(float32(a) * (1.0 / (1 << 24)))
		default: // the exponent's bias changes from 15 to 127
			u = a<<13 + 112<<23
		}
		dst[i] = math.Float32frombits(sign | u)
	}
}

// F32ToF16Go is the portable f32ToF16.
func F32ToF16Go(dst []uint16, src []float32) {
	for i, x := range src {
		dst[i] = device.RoundF16(x)
	}
}
