//go:build amd64 || arm64

package cpu

import "math"

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
