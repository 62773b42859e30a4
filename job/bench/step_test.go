package bench

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/forecast"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/zero"
)

// peerJob is the GPT of 29.5 million parameters that other programs were measured
// with: 4 sequences of 128 tokens on each of 2 ranks.
var peerJob = []string{"model.layers=8", "model.heads=8", "model.width=512", "model.context=128", "model.vocab=4096", "train.micro_batch=4", "train.batch=8", "parallel.ranks=2"}

// quickJob has the shapes of examples/quickstart.yaml.
var quickJob = []string{"model.layers=4", "model.heads=7", "model.width=448", "model.context=64", "train.micro_batch=4", "train.batch=16", "parallel.ranks=4"}

// openJob opens a job's ranks on the CPU with fresh parameters.
func openJob(tb testing.TB, job []string, stage int, t device.DType) (*spec.Job, []*setup.Rank) {
	tb.Helper()
	c, err := spec.Draft("", append(slices.Clone(job), fmt.Sprint("zero.stage=", stage), fmt.Sprint("precision=", t), "device=cpu"))
	if err != nil {
		tb.Fatal(err)
	}
	ranks, err := forecast.OpenAffordable(setup.Local(c))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { setup.CloseAll(ranks) })
	err = setup.Together(ranks, func(r *setup.Rank) error {
		return r.Trainer.Fill(zero.Master, func(p zero.Part, dst []float32) error {
			nn.Fill(1, p.Param, p.At, dst)
			return nil
		})
	})
	if err != nil {
		tb.Fatal(err)
	}
	return c, ranks
}

// flops returns the multiplications and additions per token by the model's arithmetic, forward and
// backward: 6 for each parameter in a matrix product and, in each layer, 12 C for each of T/2
// positions.
func flops(m hf.Model) float64 {
	c := float64(m.Width)
	weights := float64(m.Layers)*12*c*c + float64(m.Vocab)*c
	return 6*weights + 6*float64(m.Layers)*float64(m.Context)*c
}

// BenchmarkStep alternates steps of a GPT at stages 0 and 3, each between two runs of the
// multiply-add peak. It reports medians: the seconds of a step, the model's arithmetic as a share
// of the current fp32 peak, and stage 3's seconds relative to stage 0's:
//
//	go test ./job/bench -run '^$' -bench Step -benchtime 7x
func BenchmarkStep(b *testing.B) {
	peak, workers := kernel.PeakF32(), runtime.GOMAXPROCS(0)
	for _, t := range []device.DType{device.F32, device.BF16} {
		b.Run(t.String(), func(b *testing.B) {
			stages := []int{0, 3}
			var steps [2]func()
			var arithmetic float64
			for i, stage := range stages {
				c, ranks := openJob(b, peerJob, stage, t)
				arithmetic = float64(spec.TokensPerStep(c)) * flops(c.Model)
				steps[i] = func() {
					if err := trainStep(c, ranks); err != nil {
						b.Fatal(err)
					}
				}
				steps[i]() // the first touches all memory
			}
			var seconds, shares [2][]float64
			var ratios []float64
			for b.Loop() {
				for i, step := range steps {
					before, start := peak.Rate(workers), time.Now()
					step()
					took := time.Since(start).Seconds()
					seconds[i] = append(seconds[i], took)
					shares[i] = append(shares[i], arithmetic/took/((before+peak.Rate(workers))/2))
				}
				last := len(seconds[0]) - 1
				ratios = append(ratios, seconds[1][last]/seconds[0][last])
			}
			for i, stage := range stages {
				b.ReportMetric(median(seconds[i]), fmt.Sprintf("s/stage-%d", stage))
				b.ReportMetric(median(shares[i]), fmt.Sprintf("of-fp32-peak/stage-%d", stage))
			}
			b.ReportMetric(median(ratios), "stage-3/stage-0")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkSimulated alternates measuring a job's kernels and simulating its step with training for
// a second, so that both see the same machine. It compares the fastest step with the fastest
// simulated one, because other programs only make steps slower:
//
//	go test ./job/bench -run '^$' -bench Simulated -benchtime 3x
func BenchmarkSimulated(b *testing.B) {
	for _, job := range []struct {
		name string
		sets []string
		t    device.DType
	}{{"29.5M", peerJob, device.F32}, {"quickstart", quickJob, device.BF16}} {
		for stage := range 4 {
			b.Run(fmt.Sprintf("%s/%v/stage-%d", job.name, job.t, stage), func(b *testing.B) {
				c, ranks := openJob(b, job.sets, stage, job.t)
				trained, simulated := math.Inf(1), math.Inf(1)
				for b.Loop() {
					h, err := Measure(c, nil)
					if err != nil {
						b.Fatal(err)
					}
					r, err := SimulateHere(c, h)
					if err != nil {
						b.Fatal(err)
					}
					simulated = min(simulated, r.Seconds)
					for begin, n := time.Now(), 0; n < 2 || time.Since(begin) < time.Second; n++ {
						start := time.Now()
						if err := trainStep(c, ranks); err != nil {
							b.Fatal(err)
						}
						trained = min(trained, time.Since(start).Seconds())
					}
				}
				b.ReportMetric(trained, "s/step")
				b.ReportMetric(simulated/trained, "of-simulated")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
