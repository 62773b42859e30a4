package kernel

import (
	"fmt"

	"zeroth/device"
)

// Kernels compute in float32 on runs of consecutive elements. floatsOf returns a run as float32,
// memoryFor returns memory for a result, and keep stores the result. If the memory is float32, all
// three use it directly.

// floatsOf returns elements [at, at+n) of b as float32 for reading: b's memory or, if b has
// another type, buf (at least n elements) with the converted elements.
func floatsOf(buf []float32, b device.Buffer, at, n int) []float32 {
	part := b.Slice(at, at+n)
	if b.Type == device.F32 {
		return part.F32()
	}
	Load(buf[:n], part)
	return buf[:n]
}

// memoryFor returns memory for computing elements [at, at+n) of b: b's memory or, if b has another
// type, buf (at least n elements). Call keep to store them.
func memoryFor(buf []float32, b device.Buffer, at, n int) []float32 {
	if b.Type == device.F32 {
		return b.Slice(at, at+n).F32()
	}
	return buf[:n]
}

// keep stores x, the result of memoryFor, in elements [at, at+len(x)) of b, rounding if needed.
func keep(b device.Buffer, at int, x []float32) {
	if b.Type != device.F32 {
		Store(b.Slice(at, at+len(x)), x)
	}
}

// BlockLen is the number of elements in a piece of an elementwise kernel, so that conversions
// need little scratch.
const BlockLen = 1024

// PieceWork is the number of cheap element operations that justifies waking another worker, which
// takes a few microseconds.
const PieceWork = 1 << 14

// Blocks returns the number of pieces of an elementwise kernel on n elements.
func Blocks(n int) int { return (n + BlockLen - 1) / BlockLen }

// RowGrain returns the number of rows of n elements that justifies another worker.
func RowGrain(n int) int { return PieceWork/max(1, n) + 1 }

// WantFloat panics unless b has a float type that kernels support.
func WantFloat(op string, b device.Buffer) {
	if b.Type > device.F16 {
		panic(fmt.Sprintf("cpu: %s: %v elements, want fp32, bf16 or fp16", op, b.Type))
	}
}

// WantLen panics unless each of bs has n elements of type t.
func WantLen(op string, t device.DType, n int, bs ...device.Buffer) {
	for _, b := range bs {
		if b.Type != t || b.N != n {
			panic(fmt.Sprintf("cpu: %s: %d elements of %v, want %d of %v", op, b.N, b.Type, n, t))
		}
	}
}

// WantVec panics unless b has n elements of a float type.
func WantVec(op string, b device.Buffer, n int) {
	WantFloat(op, b)
	if b.N != n {
		panic(fmt.Sprintf("cpu: %s: vector of %d elements, want %d", op, b.N, n))
	}
}

// WantMat panics unless each of ms is a (rows, cols) matrix of a float type, not transposed, with
// all elements in its buffer.
func WantMat(op string, rows, cols int, ms ...device.Mat) {
	for _, m := range ms {
		WantFloat(op, m.Buf)
		if m.Trans || m.Rows != rows || m.Cols != cols {
			panic(fmt.Sprintf("cpu: %s: matrix (%d, %d), transposed: %v, want (%d, %d)", op, m.Rows, m.Cols, m.Trans, rows, cols))
		}
		if m.Ld < cols || rows > 0 && (rows-1)*m.Ld+cols > m.Buf.N {
			panic(fmt.Sprintf("cpu: %s: %d rows of %d, %d apart, in %d elements", op, rows, cols, m.Ld, m.Buf.N))
		}
	}
}
