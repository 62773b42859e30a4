package collective_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/device"
)

// The benchmarks report bytes of the whole buffer per second, and the time of the same memory
// traffic without a group, relative to the operation's (of-limit): the copies or the pairwise sums
// of each rank, distributed evenly over the cores, without synchronization. At 1.00, queues and
// waiting cost nothing. A gather copies the same bytes again and again, which stay in every core's
// cache; an all-reduce does not. The limit of an all-reduce lets ranks write what others read at
// any time, so a group, which separates the two phases, can beat it.

func BenchmarkAllGather(b *testing.B) {
	bench(b, func(g collective.Group, q device.Queue, buf device.Buffer) { collective.AllGather(g, q, buf) },
		func(bufs [][]float32, r int) { copyParts(bufs, r) })
}

func BenchmarkReduceScatter(b *testing.B) {
	bench(b, func(g collective.Group, q device.Queue, buf device.Buffer) { collective.ReduceScatter(g, q, buf) },
		func(bufs [][]float32, r int) { sumPart(bufs, r) })
}

func BenchmarkAllReduce(b *testing.B) {
	bench(b, func(g collective.Group, q device.Queue, buf device.Buffer) { collective.AllReduce(g, q, buf) },
		func(bufs [][]float32, r int) { sumPart(bufs, r); copyParts(bufs, r) })
}

// BenchmarkWatchdog compares a small operation with one that is recorded and has a deadline.
func BenchmarkWatchdog(b *testing.B) {
	for name, wrap := range map[string]func(collective.Group) collective.Group{
		"plain": func(g collective.Group) collective.Group { return g }, "recorded": func(g collective.Group) collective.Group { return collective.Watchdog(g, 0) },
	} {
		for _, size := range []int{2, 4} {
			b.Run(fmt.Sprintf("%s/ranks=%d", name, size), func(b *testing.B) {
				e := newEnds(b, wrapped(wrap)(size))
				bufs := benchBuffers(size, 64<<10)
				b.ReportAllocs()
				for b.Loop() {
					benchStep(b, e, bufs, func(g collective.Group, q device.Queue, buf device.Buffer) { collective.AllGather(g, q, buf) })
				}
			})
		}
	}
}

// BenchmarkRecorder measures recording an operation.
func BenchmarkRecorder(b *testing.B) { collective.BenchmarkRecording(b) }

func bench(b *testing.B, op func(collective.Group, device.Queue, device.Buffer), limit func([][]float32, int)) {
	for _, size := range []int{2, 4} {
		for _, bytes := range []int{64 << 10, 1 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("ranks=%d/KiB=%d", size, bytes>>10), func(b *testing.B) {
				e := newEnds(b, openLocal(size))
				bufs := benchBuffers(size, bytes)
				benchStep(b, e, bufs, op)
				for b.Loop() {
					benchStep(b, e, bufs, op)
				}
				each := b.Elapsed().Seconds() / float64(b.N)
				b.ReportMetric(float64(bytes)/each/1e9, "GB/s")
				b.ReportMetric(atBest(bufs, limit, max(1, b.N/4))/each, "of-limit")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func benchBuffers(size, bytes int) [][]float32 {
	bufs := make([][]float32, size)
	for r := range bufs {
		bufs[r] = make([]float32, bytes/4)
	}
	return bufs
}

func benchStep(b *testing.B, e *ends, bufs [][]float32, op func(collective.Group, device.Queue, device.Buffer)) {
	for r, g := range e.groups {
		op(g, e.queues[r], device.OfF32(bufs[r]))
	}
	for _, q := range e.queues {
		if err := q.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

// atBest returns the seconds of n repetitions of all ranks' work, with the ranks distributed evenly
// over the cores.
func atBest(bufs [][]float32, work func([][]float32, int), n int) float64 {
	cores := min(len(bufs), runtime.GOMAXPROCS(0))
	start := time.Now()
	var all sync.WaitGroup
	for c := range cores {
		all.Go(func() {
			for range n {
				for r := c; r < len(bufs); r += cores {
					work(bufs, r)
				}
			}
		})
	}
	all.Wait()
	return time.Since(start).Seconds() / float64(n)
}

func part(bufs [][]float32, rank, of int) []float32 {
	n := len(bufs[rank]) / len(bufs)
	return bufs[rank][of*n : (of+1)*n]
}

func copyParts(bufs [][]float32, r int) {
	for from := range bufs {
		if from != r {
			copy(part(bufs, r, from), part(bufs, from, from))
		}
	}
}

// sumPart performs the additions of a reduction in plain Go.
func sumPart(bufs [][]float32, r int) {
	dst := part(bufs, r, r)
	for from := range bufs {
		if from != r {
			for i, x := range part(bufs, from, r)[:len(dst)] {
				dst[i] += x
			}
		}
	}
}
