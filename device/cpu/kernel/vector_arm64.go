package kernel

import "unsafe"

// vecNEON uses two registers per vector. Its sumSquares returns all sums in odd.
var vecNEON = VecISA{
	Name: "neon",
	attnISA: attnISA{Rows: 4, Lanes: 8, Micro: [3]microFunc{nil, micro1xNEON, micro2xNEON},
		load:   [3]rowsFunc{loadF32NEON, loadBF16NEON, loadF16NEON},
		store:  [3]rowsFunc{storeF32NEON, storeBF16NEON, storeF16NEON},
		online: onlineSoftmaxNEON, SoftmaxGrad: softmaxGradNEON, scale: scaleRowNEON, dot: dotRowNEON, trans: transposeNEON},
	ruleISA: ruleISA{AdamW: adamWNEON, Sgd: sgdNEON, Momentum: momentumNEON, Lion: lionNEON},
	normISA: normISA{
		columns: 32,
		sum:     [3]rowSumFunc{rowSumF32NEON, rowSumBF16NEON}, squares: [3]rowSquaresFunc{rowSquaresF32NEON, rowSquaresBF16NEON},
		norm: [3]normFunc{normRowF32NEON, normRowBF16NEON}, sums: [3]normSumsFunc{normSumsF32NEON, normSumsBF16NEON},
		grad:        [3]normGradFunc{normGradF32NEON, normGradBF16NEON},
		sumColumns:  [3]sumColumnsFunc{sumColumnsF32NEON, sumColumnsBF16NEON, sumColumnsF16NEON},
		normColumns: [3]normColumnsFunc{normColumnsF32NEON, normColumnsBF16NEON, normColumnsF16NEON},
	},
	dropISA: dropISA{keepsGo, [3]dropFunc{dropGo}},
	sumISA: sumISA{
		addUp:       [3]addUpFunc{addUpF32NEON, addUpBF16NEON, addUpF16NEON},
		addUpStream: [3]addUpFunc{addUpF32NEON, addUpBF16NEON, addUpF16NEON},
	},
	eachISA: eachISA{
		Swiglu: [3]EachFunc{swigluF32NEON, swigluBF16NEON}, swigluGrad: [3]swigluGradFunc{swigluGradF32NEON, swigluGradBF16NEON},
		Gelu: [3]EachFunc{geluF32NEON, geluBF16NEON}, GeluGrad: [3]EachFunc{geluGradF32NEON, geluGradBF16NEON},
		Times: [3]EachFunc{scaleF32NEON, scaleBF16NEON, scaleF16NEON}, Add: [3]EachFunc{addF32NEON, addBF16NEON, addF16NEON},
		addF32:     [3]EachFunc{nil, addF32BF16NEON, addF32F16NEON},
		largest:    [3]func(unsafe.Pointer, int) float32{largestF32NEON, largestBF16NEON},
		expSum:     [3]func(unsafe.Pointer, int, float32) float32{expSumF32NEON, expSumBF16NEON},
		softmax:    [3]func(unsafe.Pointer, int, float32, float32){softmaxF32NEON, softmaxBF16NEON},
		sumSquares: sumSquaresNEON,
		rope:       [3]ropeFunc{ropeF32NEON, ropeBF16NEON, ropeF16NEON},
	},
}

// transposeNEON transposes the lanes of a vector, four at a time.
func transposeNEON(dst, src unsafe.Pointer, ld, k, n int) {
	for i := 0; i < n; i += 4 {
		transF32NEON(unsafe.Add(dst, 4*i), unsafe.Add(src, 4*i*ld), ld, k, n-i, 16)
	}
}

func nativeVecs() []*VecISA { return []*VecISA{&vecNEON} }
