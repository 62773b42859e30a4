//go:build amd64 || arm64

package kernel

import "math"

// streamFuncs returns the passes triad, in place, update and read.
func streamFuncs() [4]func(dst, a, b []float32) {
	if BestCasts == nil {
		return StreamsGo
	}
	return [...]func(dst, a, b []float32){
		func(dst, a, b []float32) { triad(SliceAt(dst), SliceAt(a), SliceAt(b), len(dst)) },
		func(x, _, _ []float32) { rewrite(SliceAt(x), len(x)) },
		func(x, a, _ []float32) { update(SliceAt(x), SliceAt(a), len(x)) },
		func(_, a, _ []float32) { SinkGo.Store(math.Float32bits(readAll(SliceAt(a), len(a)/1024))) },
	}
}
