package kernel

import (
	"fmt"
	"slices"
	"unsafe"

	"zeroth/device"
)

// addUpFunc sets elements [at, at+n) of dst to the sum of count sources, added in order; n is a
// positive multiple of 16. src points to the address of the first source, and the addresses are
// apart bytes from each other. dst may be one of the sources.
type addUpFunc func(dst, src unsafe.Pointer, apart, count, at, n int)

// sumISA contains an instruction set's functions for AddUp, for F32, BF16 and F16; addUpStream
// bypasses the caches and needs a dst aligned to 64 bytes.
type sumISA struct{ addUp, addUpStream [3]addUpFunc }

// AddAtOnce is the number of elements summed by one call of assembly.
const AddAtOnce = 1 << 14

// AddUp sets dst to the sum of the sources, which have equal type and length. It runs on the
// caller's goroutine and adds element by element in the sources' order, in float32 rounded once
// to the type, or in float64 for F64. With 16-bit types, some sources or dst may be F32, as
// partial sums are. dst may be one of the sources but must not overlap them otherwise. Results
// are bit-identical on every machine.
func AddUp(dst device.Buffer, src []device.Buffer) {
	alike := true
	for _, b := range src {
		if b.N != dst.N || b.Type != dst.Type && max(b.Type, dst.Type) > device.F16 {
			panic(fmt.Sprintf("cpu: sum of %d %v into %d %v", b.N, b.Type, dst.N, dst.Type))
		}
		alike = alike && b.Type == dst.Type
	}
	switch {
	case dst.Type > device.F16 && dst.Type != device.F64:
		panic(fmt.Sprintf("cpu: sum of %v elements", dst.Type))
	case len(src) == 0:
		panic("cpu: sum of no sources")
	}
	done := 0
	if alike && dst.Type <= device.F16 && BestVec.addUp[dst.Type] != nil {
		done = addUpFast(dst, src)
	}
	for lo := done; lo < dst.N; lo += addBlock {
		addUpGo(dst, src, lo, min(lo+addBlock, dst.N), alike)
	}
}

// addUpFast sums the first elements in assembly and returns their number.
func addUpFast(dst device.Buffer, src []device.Buffer) int {
	f := BestVec.addUp[dst.Type]
	if dst.Bytes() >= StreamMin && uintptr(dst.Ptr)%64 == 0 && !isSource(src, dst) {
		f = BestVec.addUpStream[dst.Type]
	}
	n := dst.N &^ 15
	for at := 0; at < n; at += AddAtOnce {
		f(dst.Ptr, unsafe.Pointer(&src[0].Ptr), int(unsafe.Sizeof(src[0])), len(src), at, min(AddAtOnce, n-at))
	}
	return n
}

// isSource reports whether b is one of the sources: its lines are in cache when the sums are
// stored.
func isSource(src []device.Buffer, b device.Buffer) bool {
	return slices.ContainsFunc(src, func(s device.Buffer) bool { return s.Ptr == b.Ptr })
}

// addBlock is the number of elements that Go sums at a time. The sums stay in the first-level
// cache while the sources stream by.
const addBlock = 1024

// addUpGo sums elements [lo, hi).
func addUpGo(dst device.Buffer, src []device.Buffer, lo, hi int, alike bool) {
	switch {
	case alike && dst.Type == device.F32:
		var acc [addBlock]float32
		addBlocks(dst, src, lo, hi, acc[:hi-lo], device.Buffer.F32)
	case dst.Type == device.F64:
		var acc [addBlock]float64
		addBlocks(dst, src, lo, hi, acc[:hi-lo], device.Buffer.F64)
	default:
		var acc, part [addBlock]float32
		sum, x := acc[:hi-lo], part[:hi-lo]
		widenGo(sum, src[0].Slice(lo, hi))
		for _, b := range src[1:] {
			widenGo(x, b.Slice(lo, hi))
			addInto(sum, sum, x)
		}
		roundGo(dst.Slice(lo, hi), sum)
	}
}

// widenGo and roundGo convert from and to 16-bit types like load and store, and copy float32.
// Their operands do not escape to the heap.
func widenGo(dst []float32, b device.Buffer) {
	switch b.Type {
	case device.BF16:
		Bf16ToF32Go(dst, b.U16())
	case device.F16:
		F16ToF32Go(dst, b.U16())
	default:
		copy(dst, b.F32())
	}
}

func roundGo(b device.Buffer, src []float32) {
	switch b.Type {
	case device.BF16:
		F32ToBF16Go(b.U16(), src)
	case device.F16:
		F32ToF16Go(b.U16(), src)
	default:
		copy(b.F32(), src)
	}
}

// addBlocks accumulates partial sums in acc and stores the last in dst.
func addBlocks[T float32 | float64](dst device.Buffer, src []device.Buffer, lo, hi int, acc []T, view func(device.Buffer) []T) {
	part := view(src[0])[lo:hi]
	for i, b := range src[1:] {
		to := acc
		if i == len(src)-2 {
			to = view(dst)[lo:hi]
		}
		addInto(to, part, view(b)[lo:hi])
		part = to
	}
	if len(src) == 1 {
		copy(view(dst)[lo:hi], part)
	}
}

// addInto sets dst = a + b for slices of equal length.
func addInto[T float32 | float64](dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)] // avoids bounds checks below; unrolling is slower
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}
