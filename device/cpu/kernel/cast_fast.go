package kernel

import (
	"unsafe"

	"zeroth/device"
)

// StreamMin is the minimum size of an output, in bytes, for stores that bypass the caches. Such
// an output would be evicted before it is read, and the stores save fetching each line first,
// which halves the traffic.
const StreamMin = 8 << 20

// castKind is a conversion that may be in assembly.
type castKind int

const (
	WidenBF16 castKind = iota
	WidenF16
	RoundBF16
	roundF16
	CastKinds
)

// CastFunc converts n elements, a positive multiple of 16, or copies n bytes, a positive multiple
// of 64.
type CastFunc func(dst, src unsafe.Pointer, n int)

// CastISA contains an instruction set's conversions, which are bit-identical to the portable
// ones. Streaming conversions need dst aligned to 64 bytes.
type CastISA struct {
	Name          string
	Plain, Stream [CastKinds]CastFunc
	copy          CastFunc
}

// BestCasts is the instruction set used for conversions, nil for portable code. Tests set it to
// other elements of CastISAs.
var BestCasts = CastISAs[len(CastISAs)-1]

// CastISAs contains the instruction sets that this machine supports, the fastest last.
var CastISAs = append([]*CastISA{nil}, nativeCasts()...)

// SliceAt returns the address of the first element of s.
func SliceAt[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }

// castFast converts the first elements in assembly and returns their number.
func castFast(k castKind, dst, src unsafe.Pointer, n int) int {
	if BestCasts == nil || n < 16 {
		return 0
	}
	BestCasts.Plain[k](dst, src, n&^15)
	return n &^ 15
}

// castStream converts the first elements of src with stores that bypass the caches and returns
// their number.
func castStream(dst, src device.Buffer) int {
	k, ok := kindOf(dst.Type, src.Type)
	head, ok2 := UntilAligned(dst.Ptr, dst.Type.Size())
	if !ok || !ok2 || BestCasts == nil || dst.N < head+16 {
		return 0
	}
	castF32(dst.Slice(0, head), src.Slice(0, head))
	n := (dst.N - head) &^ 15
	BestCasts.Stream[k](dst.Slice(head, dst.N).Ptr, src.Slice(head, src.N).Ptr, n)
	return head + n
}

func kindOf(dst, src device.DType) (castKind, bool) {
	switch {
	case dst == device.F32 && src == device.BF16:
		return WidenBF16, true
	case dst == device.F32 && src == device.F16:
		return WidenF16, true
	case dst == device.BF16 && src == device.F32:
		return RoundBF16, true
	case dst == device.F16 && src == device.F32:
		return roundF16, true
	}
	return 0, false
}

// UntilAligned returns the number of elements before p is a multiple of 64 bytes, and false if it
// never is.
func UntilAligned(p unsafe.Pointer, size int) (elements int, ok bool) {
	bytes := int(-uintptr(p) & 63)
	return bytes / size, bytes%size == 0
}

// copyBytes copies src to dst, which must not overlap, bypassing the caches if stream is set.
func copyBytes(dst, src []byte, stream bool) {
	if stream && BestCasts != nil {
		head, _ := UntilAligned(SliceAt(dst), 1)
		if n := (len(dst) - head) &^ 63; n > 0 {
			copy(dst[:head], src)
			BestCasts.copy(unsafe.Pointer(&dst[head]), unsafe.Pointer(&src[head]), n)
			dst, src = dst[head+n:], src[head+n:]
		}
	}
	copy(dst, src)
}
