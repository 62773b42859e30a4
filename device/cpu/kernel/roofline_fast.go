//go:build amd64 || arm64

package kernel

import "math"

func streamTriad(dst, a, b []float32) {
	if BestCasts == nil {
		TriadGo(dst, a, b)
		return
	}
	triad(SliceAt(dst), SliceAt(a), SliceAt(b), len(dst))
}

func streamRewrite(x, _, _ []float32) {
	if BestCasts == nil {
		RewriteGo(x)
		return
	}
	rewrite(SliceAt(x), len(x))
}

func streamUpdate(x, a, _ []float32) {
	if BestCasts == nil {
		UpdateGo(x, a)
		return
	}
	update(SliceAt(x), SliceAt(a), len(x))
}

func streamRead(_, a, _ []float32) {
	if BestCasts == nil {
		readGo(a)
		return
	}
	SinkGo.Store(math.Float32bits(readAll(SliceAt(a), len(a)/1024)))
}
