package kernel

import (
	"unsafe"

	"zeroth/device"
)

// neon has tiles of 8 by 12: 24 registers of sums, 3 of B, 2 of A. Every arm64 processor supports
// it.
var neon = ISA{
	Name: "neon", MR: 8, nr: 12, KC: KcF32, pair: 1, unit: 1,
	a: packNEON, b: packNEON,
	tile:  tileNEON,
	moves: &movesNEON,
	peak:  Peak{Name: "fp32 neon", ops: 48 * 2 * 4, loop: fmaLoopNEON},
}

var packNEON = packing{
	copy:       [3]packCopyFunc{copiesBy(moveFromF32NEON, device.F32), copiesBy(moveFromBF16NEON, device.BF16), copiesBy(moveFromF16NEON, device.F16)},
	trans:      [3]packTransFunc{transF32NEON, transBF16NEON, transF16NEON},
	transLanes: 4,
}

var movesNEON = moves{
	to:   [3]moveFunc{moveFromF32NEON, moveToBF16NEON, moveToF16NEON},
	from: [3]moveFunc{moveFromF32NEON, moveFromBF16NEON, moveFromF16NEON},
}

// copiesBy returns a packing function for contiguous elements of type t that copies rows with
// move. It packs a few rows into all panels before the next rows, since adjacent memory is
// fetched together.
func copiesBy(move moveFunc, t device.DType) packCopyFunc {
	const few = 32
	return func(dst, src unsafe.Pointer, ld, k, width, stride, panel int) {
		for p := 0; p < k; p += few {
			for i := 0; i < width; i += stride {
				to, from := i/stride*panel+p*stride, p*ld+i
				move(unsafe.Add(dst, 4*to), unsafe.Add(src, from*t.Size()), stride, ld, min(few, k-p), min(stride, width-i))
			}
		}
	}
}

func nativeISAs() []*ISA { return []*ISA{&neon} }

// nativeBF16 returns nil: bf16 operands are widened during packing and multiplied as float32.
func nativeBF16() []*ISA { return nil }
