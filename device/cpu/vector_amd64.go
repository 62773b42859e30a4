package cpu

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var vecAVX2 = vecISA{
	name: "avx2",
	attnISA: attnISA{rows: 4, lanes: 8, strip: [3]stripFunc{nil, strip1xAVX2, strip2xAVX2},
		load:   [3]rowsFunc{loadF32AVX2, loadBF16AVX2, loadF16AVX2},
		store:  [3]rowsFunc{storeF32AVX2, storeBF16AVX2, storeF16AVX2},
		soften: softenAVX2, slope: slopeAVX2, scale: scaleRowAVX2, dot: dotRowAVX2,
		trans: func(dst, src unsafe.Pointer, ld, k, n int) { trans256F32(dst, src, ld, k, n, 16) }},
}

var vecAVX512 = vecISA{
	name: "avx512",
	attnISA: attnISA{rows: 8, lanes: 16, strip: [3]stripFunc{nil, strip1xAVX512, strip2xAVX512},
		load:   [3]rowsFunc{loadF32AVX512, loadBF16AVX512, loadF16AVX512},
		store:  [3]rowsFunc{storeF32AVX512, storeBF16AVX512, storeF16AVX512},
		soften: softenAVX512, slope: slopeAVX512, scale: scaleRowAVX512, dot: dotRowAVX512,
		trans: func(dst, src unsafe.Pointer, ld, k, n int) { trans512F32(dst, src, ld, k, n, 32) }},
}

func nativeVecs() (found []*vecISA) {
	if x := &cpu.X86; x.HasAVX2 && x.HasFMA && x.HasBMI2 {
		found = append(found, &vecAVX2)
		if hasAVX512() {
			found = append(found, &vecAVX512)
		}
	}
	return found
}
