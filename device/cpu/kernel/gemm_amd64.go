package kernel

import (
	"golang.org/x/sys/cpu"

	"zeroth/device"
)

//go:generate go run -C gen .

// avx2 has tiles of 6 by 16: 12 registers of sums, 2 of B, 1 of A.
var avx2 = ISA{
	Name: "avx2", MR: 6, nr: 16, KC: KcF32, pair: 1, unit: 1,
	a: pack256, b: pack256,
	tile: tile256, chain: chain256,
	peak: Peak{Name: "fp32 avx2", ops: 48 * 2 * 8, loop: fmaLoop256},
}

var pack256 = packing{copy: [3]packCopyFunc{copy256F32}, trans: [3]packTransFunc{trans256F32}, transLanes: 8}

// avx512 has tiles of 14 by 32: 28 registers of sums, 2 of B, 1 of A.
var avx512 = ISA{
	Name: "avx512", MR: 14, nr: 32, KC: KcF32, pair: 1, unit: 1,
	a: pack512, b: pack512,
	tile:  tile512,
	chain: chain512, dots: dots512,
	moves: &moves512,
	peak:  Peak{Name: "fp32 avx512", ops: 48 * 2 * 16, loop: fmaLoop512},
}

var pack512 = packing{
	copy:       [3]packCopyFunc{copy512F32, copy512BF16, copy512F16},
	trans:      [3]packTransFunc{trans512F32, trans512BF16},
	transLanes: 16,
}

var moves512 = moves{
	to:   [3]moveFunc{moveF32, moveToBF16, moveToF16},
	from: [3]moveFunc{moveF32, moveFromBF16, moveFromF16},
}

// avx512bf16 has the tiles of avx512 with two elements of k per word: multiply-adds of pairs. It
// treats subnormal operands and sums as zero.
var avx512bf16 = ISA{
	Name: "avx512_bf16", MR: 14, nr: 32, KC: 2 * KcF32, pair: 2, unit: 1,
	a: packPairs, b: packPairs,
	tile:  tileDot,
	chain: chainPairs, dots: dotsPairs,
	moves: &moves512,
	peak:  Peak{Name: "bf16 avx512", ops: 48 * 2 * 32, loop: dotLoop},
}

var packPairs = packing{copy: [3]packCopyFunc{device.BF16: copyPairs}, trans: [3]packTransFunc{device.BF16: transPairs}, transLanes: 16}

// AMX has tiles of 32 by 32: four tile registers of sums, two of A, two of B. Every processor with
// AMX has the bf16 instructions of AVX-512.
var AMX = ISA{
	Name: "amx", MR: 32, nr: 32, KC: KcBF16, pair: 2, unit: 16,
	a: packing{copy: [3]packCopyFunc{device.BF16: amxColumns}, trans: [3]packTransFunc{device.BF16: amxRows}, transLanes: 32, tiles: true},
	b: packPairs, moves: &moves512,
	Row: []RowFunc{device.F32: amxRowF32, device.BF16: amxRowBF16}, fence: storeFence, Narrow: amxNarrow,
	peak: Peak{Name: "bf16 amx", ops: 16 * 2 * 16 * 16 * 32, loop: tileLoop},
}

// nativeBF16 returns the instruction sets for bf16 products. On AMD's processors (Zen 4 and later)
// vdpbf16ps does twice the work of a float32 multiply-add at the same rate; on Intel's it was
// measured at half of float32's speed (Granite Rapids), so only AMX is used there.
func nativeBF16() (found []*ISA) {
	x := &cpu.X86
	if b, d, c := cpuVendor(); HasAVX512() && x.HasAVX512BF16 && b == 0x68747541 && d == 0x69746e65 && c == 0x444d4163 { // AuthenticAMD
		found = append(found, &avx512bf16)
	}
	if HasAVX512() && x.HasAVX512BF16 && x.HasAMXTile && x.HasAMXBF16 && permitAMX() {
		found = append(found, &AMX)
	}
	return found
}

func nativeISAs() (found []*ISA) {
	x := &cpu.X86
	if x.HasAVX2 && x.HasFMA && x.HasBMI2 {
		found = append(found, &avx2)
		if HasAVX512() {
			found = append(found, &avx512)
		}
	}
	return found
}

// HasAVX512 reports whether the processor has the AVX-512 instructions that kernels use.
func HasAVX512() bool {
	x := &cpu.X86
	return x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512DQ
}
