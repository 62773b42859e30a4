package kernel

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var vecAVX2 = VecISA{
	Name: "avx2",
	attnISA: attnISA{Rows: 4, Lanes: 8, Micro: [3]microFunc{nil, micro1xAVX2, micro2xAVX2},
		load:   [3]rowsFunc{loadF32AVX2, loadBF16AVX2, loadF16AVX2},
		store:  [3]rowsFunc{storeF32AVX2, storeBF16AVX2, storeF16AVX2},
		online: onlineSoftmaxAVX2, SoftmaxGrad: softmaxGradAVX2, scale: scaleRowAVX2, dot: dotRowAVX2,
		trans: func(dst, src unsafe.Pointer, ld, k, n int) { trans256F32(dst, src, ld, k, n, 16) }},
	ruleISA: ruleISA{AdamW: adamWAVX2, Sgd: sgdAVX2, Momentum: momentumAVX2, Lion: lionAVX2},
	normISA: normISA{
		columns: 32,
		sum:     [3]rowSumFunc{rowSumF32AVX2}, squares: [3]rowSquaresFunc{rowSquaresF32AVX2},
		norm: [3]normFunc{normRowF32AVX2}, sums: [3]normSumsFunc{normSumsF32AVX2},
		grad:        [3]normGradFunc{normGradF32AVX2},
		sumColumns:  [3]sumColumnsFunc{sumColumnsF32AVX2, sumColumnsBF16AVX2, sumColumnsF16AVX2},
		normColumns: [3]normColumnsFunc{normColumnsF32AVX2, normColumnsBF16AVX2, normColumnsF16AVX2},
	},
	codeISA: codeISA{decode8AVX2, encode8AVX2, most8AVX2},
	dropISA: dropISA{keepsGo, [3]dropFunc{dropGo}},
	sumISA: sumISA{
		addUp:       [3]addUpFunc{addUpF32AVX2, addUpBF16AVX2, addUpF16AVX2},
		addUpStream: [3]addUpFunc{addUpF32AVX2Stream, addUpBF16AVX2, addUpF16AVX2},
	},
	eachISA: eachISA{
		Swiglu: [3]EachFunc{swigluF32AVX2, swigluBF16AVX2}, swigluGrad: [3]swigluGradFunc{swigluGradF32AVX2, swigluGradBF16AVX2},
		Gelu: [3]EachFunc{geluF32AVX2, geluBF16AVX2}, GeluGrad: [3]EachFunc{geluGradF32AVX2, geluGradBF16AVX2},
		Times: [3]EachFunc{scaleF32AVX2}, Add: [3]EachFunc{addF32AVX2, addBF16AVX2},
		addStream: [3]EachFunc{addStreamF32AVX2}, addF32: [3]EachFunc{nil, addF32BF16AVX2},
		largest:    [3]func(unsafe.Pointer, int) float32{largestF32AVX2},
		expSum:     [3]func(unsafe.Pointer, int, float32) float32{expSumF32AVX2},
		softmax:    [3]func(unsafe.Pointer, int, float32, float32){softmaxF32AVX2},
		sumSquares: sumSquaresAVX2,
		rope:       [3]ropeFunc{ropeF32AVX2, ropeBF16AVX2, ropeF16AVX2},
	},
}

var vecAVX512 = VecISA{
	Name: "avx512",
	attnISA: attnISA{Rows: 8, Lanes: 16, Micro: [3]microFunc{nil, micro1xAVX512, micro2xAVX512},
		load:   [3]rowsFunc{loadF32AVX512, loadBF16AVX512, loadF16AVX512},
		store:  [3]rowsFunc{storeF32AVX512, storeBF16AVX512, storeF16AVX512},
		online: onlineSoftmaxAVX512, SoftmaxGrad: softmaxGradAVX512, scale: scaleRowAVX512, dot: dotRowAVX512,
		trans: func(dst, src unsafe.Pointer, ld, k, n int) { trans512F32(dst, src, ld, k, n, 32) }},
	ruleISA: ruleISA{AdamW: adamWAVX512, Sgd: sgdAVX512, Momentum: momentumAVX512, Lion: lionAVX512},
	normISA: normISA{
		columns: 64,
		sum:     [3]rowSumFunc{rowSumF32AVX512, rowSumBF16AVX512, rowSumF16AVX512}, squares: [3]rowSquaresFunc{rowSquaresF32AVX512, rowSquaresBF16AVX512, rowSquaresF16AVX512},
		norm: [3]normFunc{normRowF32AVX512, normRowBF16AVX512, normRowF16AVX512}, sums: [3]normSumsFunc{normSumsF32AVX512, normSumsBF16AVX512, normSumsF16AVX512},
		grad:        [3]normGradFunc{normGradF32AVX512, normGradBF16AVX512, normGradF16AVX512},
		sumColumns:  [3]sumColumnsFunc{sumColumnsF32AVX512, sumColumnsBF16AVX512, sumColumnsF16AVX512},
		normColumns: [3]normColumnsFunc{normColumnsF32AVX512, normColumnsBF16AVX512, normColumnsF16AVX512},
	},
	codeISA: codeISA{decode8AVX512, encode8AVX512, most8AVX512},
	dropISA: dropISA{keepsAVX512, [3]dropFunc{dropF32AVX512, dropBF16AVX512}},
	sumISA: sumISA{
		addUp:       [3]addUpFunc{addUpF32AVX512, addUpBF16AVX512, addUpF16AVX512},
		addUpStream: [3]addUpFunc{addUpF32AVX512Stream, addUpBF16AVX512Stream, addUpF16AVX512},
	},
	eachISA: eachISA{
		Swiglu: [3]EachFunc{swigluF32AVX512, swigluBF16AVX512, swigluF16AVX512}, swigluGrad: [3]swigluGradFunc{swigluGradF32AVX512, swigluGradBF16AVX512, swigluGradF16AVX512},
		Gelu: [3]EachFunc{geluF32AVX512, geluBF16AVX512, geluF16AVX512}, GeluGrad: [3]EachFunc{geluGradF32AVX512, geluGradBF16AVX512, geluGradF16AVX512},
		Times: [3]EachFunc{scaleF32AVX512, scaleBF16AVX512, scaleF16AVX512}, Add: [3]EachFunc{addF32AVX512, addBF16AVX512, addF16AVX512},
		addStream: [3]EachFunc{addStreamF32AVX512, addStreamBF16AVX512, addStreamF16AVX512}, addF32: [3]EachFunc{nil, addF32BF16AVX512, addF32F16AVX512},
		largest:    [3]func(unsafe.Pointer, int) float32{largestF32AVX512, largestBF16AVX512, largestF16AVX512},
		expSum:     [3]func(unsafe.Pointer, int, float32) float32{expSumF32AVX512, expSumBF16AVX512, expSumF16AVX512},
		softmax:    [3]func(unsafe.Pointer, int, float32, float32){softmaxF32AVX512, softmaxBF16AVX512, softmaxF16AVX512},
		sumSquares: sumSquaresAVX512,
		rope:       [3]ropeFunc{ropeF32AVX512, ropeBF16AVX512, ropeF16AVX2},
	},
}

func nativeVecs() (found []*VecISA) {
	if x := &cpu.X86; x.HasAVX2 && x.HasFMA && x.HasBMI2 {
		found = append(found, &vecAVX2)
		if HasAVX512() {
			found = append(found, &vecAVX512)
		}
	}
	return found
}
