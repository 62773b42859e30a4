package cpu

import "golang.org/x/sys/cpu"

//go:generate go run -C asm .

// avx2 has tiles of 6 by 16: 12 registers of sums, 2 of B, 1 of A.
var avx2 = isa{
	name: "avx2", mr: 6, nr: 16, lanes: 8,
	copy:  [3]packFunc{copy256F32},
	trans: [3]packFunc{trans256F32},
	tile:  []tileFunc{nil, tile256x1, tile256x2, tile256x3, tile256x4, tile256x5, tile256x6},
}

// avx512 has tiles of 14 by 32: 28 registers of sums, 2 of B, 1 of A.
var avx512 = isa{
	name: "avx512", mr: 14, nr: 32, lanes: 16,
	copy:  [3]packFunc{copy512F32, copy512BF16, copy512F16},
	trans: [3]packFunc{trans512F32, trans512BF16, trans512F16},
	tile: []tileFunc{nil, tile512x1, tile512x2, tile512x3, tile512x4, tile512x5, tile512x6, tile512x7,
		tile512x8, tile512x9, tile512x10, tile512x11, tile512x12, tile512x13, tile512x14},
}

func nativeISAs() (found []*isa) {
	x := &cpu.X86
	if x.HasAVX2 && x.HasFMA && x.HasBMI2 {
		found = append(found, &avx2)
		if hasAVX512() {
			found = append(found, &avx512)
		}
	}
	return found
}

func hasAVX512() bool {
	x := &cpu.X86
	return x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512DQ
}
