package cpu

import (
	"fmt"
	"math"
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

// BenchmarkPackedAttention is the time of a sequence of 1,024 positions of documents of
// some length, as a part of that of one document, both the least of fifteen turns: tiles that no
// query sees are not computed. Use -benchtime 1x.
func BenchmarkPackedAttention(b *testing.B) {
	for _, dt := range []device.DType{device.F32, device.BF16} {
		for _, length := range []int{1024, 300, 100, 30} {
			a := device.Attn{B: 1, T: 1024, H: 4, KV: 4, D: 64, Scale: 0.125}
			one := newAttnBench(dt, a)
			a.Start = newVec(device.I32, a.T).fill(func(i int) float64 { return float64(i / length * length) }).Buf
			several := newAttnBench(dt, a)
			for i, name := range []string{"forward", "backward"} {
				b.Run(fmt.Sprintf("%s/%v/%d", name, dt, length), func(b *testing.B) {
					q := queueOf(b, 1)
					seconds := func(c *attnCase) float64 {
						s, _ := gated(1, func() {
							for range 1 {
								[]func(*Queue){c.forward, c.backward}[i](q)
							}
							if err := q.Wait(); err != nil {
								b.Fatal(err)
							}
						})
						return s
					}
					for b.Loop() {
						least := [2]float64{math.Inf(1), math.Inf(1)}
						for range 15 {
							least[0], least[1] = min(least[0], seconds(several)), min(least[1], seconds(one))
						}
						b.ReportMetric(least[0]/least[1], "of-unpacked")
					}
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}
