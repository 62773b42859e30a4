package kernel

import (
	"sync"
	"time"
	"unsafe"
)

// The roofline consists of the machine's limits, measured independently of the kernels.

// Peak measures the maximum rate of multiply-adds without memory access. It also reveals whether
// other programs use the processor.
type Peak struct {
	Name string // "fp32 avx512"
	ops  float64
	loop func(n int)
	n    int // iterations that take about 0.1 ms, since assembly cannot be preempted
}

// Rate runs the loop on workers goroutines for about a millisecond and returns operations per
// second, counting two per multiply-add.
func (p Peak) Rate(workers int) float64 {
	const times = 10
	start := time.Now()
	Together(workers, func(int) {
		for range times {
			p.loop(p.n)
		}
	})
	return float64(workers) * times * p.ops * float64(p.n) / time.Since(start).Seconds()
}

// Together runs f on workers goroutines, including the caller's.
func Together(workers int, f func(worker int)) {
	var wg sync.WaitGroup
	for w := 1; w < workers; w++ {
		wg.Go(func() { f(w) })
	}
	f(0)
	wg.Wait()
}

// PeakF32 returns the peak of float32 multiply-adds.
func PeakF32() Peak { return peakOf(BestISA.peak) }

// PeakBF16 returns the peak of bf16 multiply-adds into float32, if the machine supports them.
func PeakBF16() (p Peak, ok bool) {
	if BestBF16 == nil {
		return Peak{}, false
	}
	return peakOf(BestBF16.peak), true
}

// peakOf sets the length of the loop of p.
func peakOf(p Peak) Peak {
	const long = 100 * time.Microsecond
	best := time.Hour
	for range 5 {
		start := time.Now()
		p.loop(1000)
		best = min(best, time.Since(start))
	}
	p.n = max(1, int(1000*long/max(best, time.Nanosecond)))
	return p
}

// Stream is a pass over memory at the machine's maximum speed.
type Stream struct {
	Name  string // "copy"
	Bytes int    // read and written per float
	Piece func(dst, a, b []float32)
}

// Streams returns five passes: a copy, a sum of two arrays that bypasses the caches, an in-place
// update (like an optimizer's of its state), an update that reads another array (like one of
// parameters by gradients), and a read.
func Streams() []Stream {
	f := streamFuncs()
	return []Stream{{"copy", 8, streamCopy}, {"triad", 12, f[0]}, {"in place", 8, f[1]}, {"update", 12, f[2]}, {"read", 4, f[3]}}
}

// StreamLen is a length in floats that exceeds all caches; some processors have 100 MiB or more.
const StreamLen = 64 << 20

const StreamUnit = 1 << 16

// Pass runs over dst, a and b on workers goroutines. The arrays have equal lengths, a multiple of
// 65536 floats.
func (s Stream) Pass(workers int, dst, a, b []float32) {
	const unit = StreamUnit
	n := len(a)
	Together(workers, func(w int) {
		lo, hi := w*n/workers/unit*unit, (w+1)*n/workers/unit*unit
		for at := lo; at < hi; at += unit {
			s.Piece(dst[at:at+unit], a[at:at+unit], b[at:at+unit])
		}
	})
}

func streamCopy(dst, a, _ []float32) {
	bytes := func(x []float32) []byte { return unsafe.Slice((*byte)(SliceAt(x)), 4*len(x)) }
	copyBytes(bytes(dst), bytes(a), true)
}

// Instructions returns the names of the instruction sets used for products of float32 and, if
// different, of bf16.
func Instructions() (f32, bf16 string) {
	f32, bf16 = BestISA.Name, BestISA.Name
	if BestBF16 != nil {
		bf16 = BestBF16.Name
	}
	return f32, bf16
}
