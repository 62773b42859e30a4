package kernel

import (
	"math"
	"sync/atomic"
)

// Without assembly, the measured limits are the rates of Go code.

// SinkGo keeps the loop's results alive.
var SinkGo atomic.Uint32

// FmaGo performs 16 n independent multiply-adds.
func FmaGo(n int) {
	a0, a1, a2, a3, a4, a5, a6, a7 := float32(0), float32(0), float32(0), float32(0), float32(0), float32(0), float32(0), float32(0)
	for i := range 2 * n {
		x := float32(i & 1)
		a0, a1, a2, a3 = a0+x*x, a1+x*x, a2+x*x, a3+x*x
		a4, a5, a6, a7 = a4+x*x, a5+x*x, a6+x*x, a7+x*x
	}
	SinkGo.Store(math.Float32bits(a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7))
}

// StreamsGo are the passes triad, in place, update and read.
var StreamsGo = [4]func(dst, a, b []float32){
	func(dst, a, b []float32) {
		a, b = a[:len(dst)], b[:len(dst)]
		for i := range dst {
			dst[i] = a[i] + b[i]/2
		}
	},
	func(x, _, _ []float32) {
		for i := range x {
			x[i] = -x[i]
		}
	},
	func(x, a, _ []float32) {
		a = a[:len(x)]
		for i := range x {
			x[i] += a[i] / 2
		}
	},
	func(_, a, _ []float32) { SinkGo.Store(math.Float32bits(sum4(a))) },
}
