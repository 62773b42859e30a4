package pipe

import (
	"sync"
	"testing"
	"time"
)

// BenchmarkBubble runs programs on a real clock, a goroutine for each rank, with kernels that
// sleep for their time. It reports how long ranks are idle for each second that they compute,
// and what the formula says.
func BenchmarkBubble(b *testing.B) {
	for _, s := range []Shape{{GPipe, 8, 1, 16}, {OneF1B, 8, 1, 16}, {Interleaved, 8, 2, 16}, {ZBH1, 8, 1, 16}} {
		b.Run(string(s.Schedule), func(b *testing.B) {
			c := costs{f: 0.012, i: 0.012, w: 0.012}
			end, _ := clock(s, s.Programs(), c)
			each := float64(s.Micro) * (c.f + c.i + c.w)
			took := 0.0
			for b.Loop() {
				took += sleeping(s, c).Seconds()
			}
			b.ReportMetric(took/float64(b.N)/each-1, "bubble")
			b.ReportMetric(end/each-1, "formula")
		})
	}
}

// sleeping runs a step of a pipeline whose kernels sleep, and returns how long it took.
func sleeping(s Shape, c costs) time.Duration {
	done := map[Action]chan struct{}{}
	for r := range s.Ranks {
		for _, a := range s.Order(r) {
			done[a] = make(chan struct{})
		}
	}
	took := [kinds]float64{Forward: c.f, Backward: c.i + c.w, InputGrad: c.i, WeightGrad: c.w}
	begin := time.Now()
	var all sync.WaitGroup
	for r := range s.Ranks {
		all.Go(func() {
			for _, a := range s.Order(r) {
				if of, some := s.Needs(a); some {
					<-done[of]
				}
				time.Sleep(time.Duration(took[a.Kind] / float64(s.Virtual) * float64(time.Second)))
				close(done[a])
			}
		})
	}
	all.Wait()
	return time.Since(begin)
}
