package cpu

import "unsafe"

// neon has tiles of 8 by 12: 24 registers of sums, 3 of B, 2 of A. Every
// processor of arm64 has it.
var neon = isa{
	name: "neon", mr: 8, nr: 12, kc: kcF32, pair: 1, unit: 1, padded: true,
	a: packNEON, b: packNEON,
	tile:  []tileFunc{nil, tileNEONx1, tileNEONx2, tileNEONx3, tileNEONx4, tileNEONx5, tileNEONx6, tileNEONx7, tileNEONx8},
	moves: &movesNEON,
	peak:  Peak{Name: "fp32 neon", ops: 48 * 2 * 4, loop: fmaLoopNEON},
}

var packNEON = packing{
	side:      [3]packFunc{sideOf(moveFromF32NEON), sideOf(moveFromBF16NEON), sideOf(moveFromF16NEON)},
	apart:     [3]packFunc{transF32NEON, transBF16NEON, transF16NEON},
	sideLanes: 12, apartLanes: 4,
}

var movesNEON = moves{
	to:   [3]moveFunc{moveFromF32NEON, moveToBF16NEON, moveToF16NEON},
	from: [3]moveFunc{moveFromF32NEON, moveFromBF16NEON, moveFromF16NEON},
}

// sideOf packs lanes that lie side by side as moves copy rows.
func sideOf(move moveFunc) packFunc {
	return func(dst, src unsafe.Pointer, ld, k, width, stride int) { move(dst, src, stride, ld, k, width) }
}

func nativeISAs() []*isa { return []*isa{&neon} }

// nativeBF16: products of bf16 are those of float32, widened as they are packed.
func nativeBF16() []*isa { return nil }
