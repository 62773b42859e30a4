package cpu

import "math"

func peakF32() Peak {
	switch bestISA {
	case &avx512:
		return Peak{Name: "fp32 avx512", ops: 48 * 2 * 16, loop: fmaLoop512}
	case &avx2:
		return Peak{Name: "fp32 avx2", ops: 48 * 2 * 8, loop: fmaLoop256}
	}
	return peakGo
}

func peakBF16() (Peak, bool) {
	switch bestBF16 {
	case &amx:
		return Peak{Name: "bf16 amx", ops: 16 * 2 * 16 * 16 * 32, loop: tileLoop}, true
	case &avx512bf16:
		return Peak{Name: "bf16 avx512", ops: 48 * 2 * 32, loop: dotLoop}, true
	}
	return Peak{}, false
}

func streamTriad(dst, a, b []float32) {
	if bestCasts == nil {
		triadGo(dst, a, b)
		return
	}
	triad(sliceAt(dst), sliceAt(a), sliceAt(b), len(dst))
}

func streamRewrite(x, _, _ []float32) {
	if bestCasts == nil {
		rewriteGo(x)
		return
	}
	rewrite(sliceAt(x), len(x))
}

func streamUpdate(x, a, _ []float32) {
	if bestCasts == nil {
		updateGo(x, a)
		return
	}
	update(sliceAt(x), sliceAt(a), len(x))
}

func streamRead(_, a, _ []float32) {
	if bestCasts == nil {
		readGo(a)
		return
	}
	sinkGo.Store(math.Float32bits(readAll(sliceAt(a), len(a)/1024)))
}
