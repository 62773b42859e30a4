package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strings"
	"unsafe"

	"zeroth/device"
)

// DType is an element type, named as in the format.
type DType string

const (
	F32  DType = "F32"  // IEEE binary32
	BF16 DType = "BF16" // upper half of a binary32
	F16  DType = "F16"  // IEEE binary16
	U8   DType = "U8"
	U32  DType = "U32"
)

// dtypeBits maps every dtype of the format to its bits per element.
var dtypeBits = map[DType]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32,
	"C64": 64, "F64": 64, "I64": 64, "U64": 64,
}

// dtypes maps names to dtypes.
var dtypes = func() map[string]DType {
	m := map[string]DType{}
	for t := range dtypeBits {
		m[string(t)] = t
	}
	return m
}()

// describe describes the elements, for errors about tensors that are not weights.
func (t DType) describe() string {
	kind := ""
	switch {
	case t == "BOOL":
		kind = "booleans, such as masks"
	case t == "F64":
		kind = "64-bit floats: convert them to F32 first"
	case strings.HasPrefix(string(t), "F8_E8M0"):
		kind = "scales of quantized blocks: use the unquantized model"
	case strings.HasPrefix(string(t), "F"):
		kind = fmt.Sprintf("%d-bit floats of a quantized model: use the unquantized one", dtypeBits[t])
	case strings.HasPrefix(string(t), "C"):
		kind = "complex numbers"
	default:
		kind = "integers: ids, masks or quantized weights"
	}
	return fmt.Sprintf("%s (%s)", t, kind)
}

// Size returns the number of bytes of one element, or 0 if the dtype is unknown or its elements are
// not whole bytes.
func (t DType) Size() int {
	if n := dtypeBits[t]; n%8 == 0 {
		return int(n / 8)
	}
	return 0
}

// Float reports whether Decode and Encode support the dtype.
func (t DType) Float() bool { return t == F32 || t == BF16 || t == F16 }

// Numel returns the number of elements of a shape, 1 for the empty shape. ok is false if a dimension
// is negative or the product overflows.
func Numel(shape []int) (n int, ok bool) {
	p := uint64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, false
		}
		hi, lo := bits.Mul64(p, uint64(d))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, false
		}
		p = lo
	}
	return int(p), true
}

// byteLen returns the number of bytes of a tensor. ok is false if it overflows, the dtype is unknown
// or the elements do not end at a byte boundary.
func byteLen(t DType, shape []int) (n int64, ok bool) {
	e, ok := Numel(shape)
	per := dtypeBits[t]
	hi, lo := bits.Mul64(uint64(e), per)
	if !ok || per == 0 || hi != 0 || lo%8 != 0 {
		return 0, false
	}
	return int64(lo / 8), true
}

// Decode widens the elements in src to float32. t must be a float, and src must have exactly len(dst)
// elements of t.
func Decode(dst []float32, src []byte, t DType) {
	if len(src) != len(dst)*t.Size() {
		panic(fmt.Sprintf("safetensors: %d bytes of %s for %d elements", len(src), t, len(dst)))
	}
	switch t {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = device.WideBF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = device.WideF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	default:
		panic("safetensors: decode " + string(t))
	}
}

// Encode rounds float32 to elements of t, to nearest even. t must be a float, and dst must
// have exactly len(src) elements of t.
func Encode(dst []byte, src []float32, t DType) {
	if len(dst) != len(src)*t.Size() {
		panic(fmt.Sprintf("safetensors: %d bytes of %s for %d elements", len(dst), t, len(src)))
	}
	switch t {
	case F32:
		for i, x := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
		}
	case BF16:
		for i, x := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], device.RoundBF16(x))
		}
	case F16:
		for i, x := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], device.RoundF16(x))
		}
	default:
		panic("safetensors: encode " + string(t))
	}
}

// Narrow is Encode, but returns a *device.TooLarge error if t rounds a finite element to infinity. The
// elements are those of a tensor from lo on.
func Narrow(dst []byte, src []float32, t DType, tensor string, lo int) error {
	if i := device.Overflow(src, map[DType]device.DType{BF16: device.BF16, F16: device.F16}[t]); i >= 0 {
		want := map[DType]string{BF16: "fp32", F16: "bf16 or fp32"}[t]
		return &device.TooLarge{Tensor: tensor, Element: lo + i, Value: src[i], Type: string(t), Want: want}
	}
	Encode(dst, src, t)
	return nil
}

// littleEndian reports whether this machine's float32 values have the format's byte order, so that
// Decode and Encode can be skipped.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// bytesOf returns the memory of s.
func bytesOf(s []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), 4*len(s))
}

// Bytes returns the memory of s, in the format of F32 elements. If this machine's byte order
// differs, ok is false, and Decode or Encode must be used.
func Bytes(s []float32) (b []byte, ok bool) { return bytesOf(s), littleEndian }
