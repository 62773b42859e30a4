package cpu

import (
	"fmt"
	"testing"

	"zeroth/device"
)

// BenchmarkAttention reports the rate of what causal attention must compute,
// for one worker, and its ratio to the machine's float32 peak in the same run.
// Use -benchtime 1x: one op is a gated median.
func BenchmarkAttention(b *testing.B) {
	for _, dt := range []device.DType{device.F32, device.BF16} {
		for _, s := range [][2]int{{256, 64}, {512, 64}, {1024, 64}, {256, 128}, {256, 48}} {
			a := device.Attn{B: 1, T: s[0], H: 4, KV: 4, D: s[1], Scale: 0.125}
			c := newAttnBench(dt, a)
			pairs := float64(a.H) * float64(a.T) * float64(a.T+1) / 2 * float64(a.D)
			for i, pass := range []func(*Queue){c.forward, c.backward} {
				b.Run(fmt.Sprintf("%s/%v/T%d/D%d", [2]string{"forward", "backward"}[i], dt, a.T, a.D), func(b *testing.B) {
					q := queueOf(b, 1)
					flops := [2]float64{4, 10}[i] * pairs
					reps := max(1, int(2e8/flops))
					for b.Loop() {
						seconds, possible := gated(1, func() {
							for range reps {
								pass(q)
							}
							if err := q.Wait(); err != nil {
								b.Fatal(err)
							}
						})
						b.ReportMetric(flops*float64(reps)/seconds/1e9, "GF/s")
						b.ReportMetric(flops*float64(reps)/possible, "of-peak")
					}
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}
