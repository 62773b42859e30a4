package cpu

import (
	"fmt"
	"math"
	"testing"

	"zeroth/device"
)

// attentionShapes contains the shapes of the 10.8M, the 29.5M and the 124M GPT, and other head
// widths.
var attentionShapes = []device.Attn{
	{B: 4, T: 256, H: 6, KV: 6, D: 64, Scale: 0.125}, {B: 4, T: 128, H: 8, KV: 8, D: 64, Scale: 0.125}, {B: 1, T: 1024, H: 12, KV: 12, D: 64, Scale: 0.125},
	{B: 1, T: 256, H: 4, KV: 4, D: 128, Scale: 0.125}, {B: 1, T: 256, H: 4, KV: 4, D: 48, Scale: 0.125},
}

// BenchmarkAttention reports the rate of the operations that causal attention needs and its ratio
// to the float32 multiply-add peak in the same run. Use -benchtime 1x: one op is a median.
func BenchmarkAttention(b *testing.B) {
	for _, dt := range []device.DType{device.F32, device.BF16} {
		for _, a := range attentionShapes {
			c := newAttnBench(dt, a)
			pairs := float64(a.B*a.H) * float64(a.T) * float64(a.T+1) / 2 // of a query and a visible key
			for i, pass := range []func(*Queue){c.forward, c.backward} {
				flops := [2]float64{4, 10}[i] * pairs * float64(a.D)
				for _, workers := range benchWorkers() {
					b.Run(fmt.Sprintf("%s/%v/B%d/T%d/H%d/D%d/%dw", [2]string{"forward", "backward"}[i], dt, a.B, a.T, a.H, a.D, workers), func(b *testing.B) {
						q := queueOf(b, workers)
						reps := max(1, int(2e8/flops))
						for b.Loop() {
							gate(workers, func() {
								for range reps {
									pass(q)
								}
								if err := q.Wait(); err != nil {
									b.Fatal(err)
								}
							}).report(b, flops*float64(reps))
						}
					})
				}
			}
		}
	}
}

// BenchmarkPackedAttention reports the time of a sequence of 1,024 positions made of documents of
// some length, relative to that of one document. Both are the minimum of fifteen alternating
// runs. Invisible tiles are not computed. Use -benchtime 1x.
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
						return gate(1, func() {
							[]func(*Queue){c.forward, c.backward}[i](q)
							if err := q.Wait(); err != nil {
								b.Fatal(err)
							}
						}).seconds
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
