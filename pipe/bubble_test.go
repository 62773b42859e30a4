package pipe

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkBubble runs programs in real time with a goroutine per rank and kernels that sleep. It
// reports the ranks' idle time per second of kernel time, and the value of the formula.
func BenchmarkBubble(b *testing.B) {
	for _, s := range []Shape{{GPipe, 8, 1, 16}, {OneF1B, 8, 1, 16}, {Interleaved, 8, 2, 16}, {ZBH1, 8, 1, 16}} {
		b.Run(string(s.Schedule), func(b *testing.B) {
			c := costs{f: 0.024, i: 0.024, w: 0.024}
			end, _ := clock(s, s.Programs(), c)
			var took, slept time.Duration
			for b.Loop() {
				t, s := sleeping(s, c)
				took, slept = took+t, slept+s
			}
			b.ReportMetric(took.Seconds()*float64(s.Ranks)/slept.Seconds()-1, "bubble")
			b.ReportMetric(end/(float64(s.Micro)*(c.f+c.i+c.w))-1, "formula")
		})
	}
}

// sleeping runs a step of a pipeline whose kernels sleep. It returns the duration of the step and
// the total time that ranks slept in kernels.
func sleeping(s Shape, c costs) (took, slept time.Duration) {
	done := map[Action]chan struct{}{}
	for r := range s.Ranks {
		for _, a := range s.Order(r) {
			done[a] = make(chan struct{})
		}
	}
	times := [kinds]float64{Forward: c.f, Backward: c.i + c.w, InputGrad: c.i, WeightGrad: c.w}
	begin := time.Now()
	var all sync.WaitGroup
	var sum atomic.Int64
	for r := range s.Ranks {
		all.Go(func() {
			for _, a := range s.Order(r) {
				if of, some := s.Needs(a); some {
					<-done[of]
				}
				from := time.Now()
				time.Sleep(time.Duration(times[a.Kind] / float64(s.Virtual) * float64(time.Second)))
				sum.Add(int64(time.Since(from)))
				close(done[a])
			}
		})
	}
	all.Wait()
	return time.Since(begin), time.Duration(sum.Load())
}
