package bench

import (
	"math"
	"strings"
	"testing"

	"zeroth/forecast"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
)

// TestMeasure checks that every kernel and collective of a job is measured, so that a simulation
// only has to extrapolate sizes.
func TestMeasure(t *testing.T) {
	nightly.Long(t)
	for i, sets := range [][]string{
		{"zero.stage=3", "precision=bf16"},
		{"zero.stage=1", "precision=fp32", "train.micro_batch=2", "zero.recompute=block"},
		{"zero.stage=3", "model.family=llama", "parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2", "zero.offload.optimizer=host"},
		{"zero.stage=1", "parallel.pipeline=2", "train.micro_batch=2"},
		{"zero.stage=0", "parallel.pipeline=2", "parallel.ranks=2", "train.micro_batch=2"}, // a tied embedding on both ends
		{"zero.stage=1", "parallel.tensor=2", "train.micro_batch=2"},
		{"zero.stage=1", "parallel.context=2", "train.micro_batch=2"},
		{"zero.stage=2", "zero.offload.optimizer=disk", "zero.offload.path=" + t.TempDir()},
	} {
		if !nightly.Every(2, i) {
			continue
		}
		c := spectest.Fitted(t, append(sets, "device=cpu")...)
		h, err := Measure(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		places, err := forecast.Recorded(setup.Planned(c), 1)
		if err != nil {
			t.Fatal(err)
		}
		ops := map[string]bool{}
		for k, s := range h.kernels {
			ops[k.Op] = true
			if !(s >= 0) || s > 10 {
				t.Errorf("%v: %+v takes %v s", sets, k, s)
			}
		}
		for _, l := range places {
			for _, q := range l.Queues {
				for _, task := range q.Tasks {
					if task.Kernel < 0 {
						continue
					}
					k := l.Kernels[task.Kernel]
					others := k.Op == "cast" || k.Op == "copy of a block" || strings.HasPrefix(k.Op, "cross entropy") // of other ranks' keys and vocabulary
					if !ops[k.Op] && !free(k) && !others {
						t.Errorf("%v: %+v was not measured", sets, k)
					}
				}
			}
		}
		f, err := SimulateHere(c, h)
		if err != nil || !(f.Seconds > 0) || !(f.Compute > 0) || f.Compute > f.Seconds || !(f.Used > 0) || math.Abs(f.Tokens*f.Seconds-float64(spec.TokensPerStep(c))) > 1e-6*float64(spec.TokensPerStep(c)) {
			t.Errorf("%v: %+v, %v", sets, f, err)
		}
	}
}

// TestMeasuredStepsAreBounded checks that measured steps take at most measuredPeak at the
// machine's peak, however large the job's are, and are not shorter than necessary.
func TestMeasuredStepsAreBounded(t *testing.T) {
	c := spectest.Fitted(t, "device=cpu", "model.width=768", "model.heads=12", "model.context=1024", "train.batch=512", "train.micro_batch=32", "train.accumulate=8", "parallel.ranks=2")
	for _, want := range []struct {
		peak                       float64 // operations a second
		micro, accumulate, context int
	}{{1e15, 32, 2, 1024}, {1e12, 4, 2, 1024}, {1e11, 1, 1, 1024}, {2e10, 1, 1, 128}, {1, 1, 1, measuredLeast}} {
		x, h := alone(c), &Measurements{peak: want.peak}
		if err := h.shortened(x, 2); err != nil {
			t.Fatal(err)
		}
		if x.Train.MicroBatch != want.micro || x.Train.Accumulate != want.accumulate || x.Model.Context != want.context || x.Train.Batch != want.micro*want.accumulate {
			t.Errorf("peak %g: micro-batch %d, accumulate %d, context %d, batch %d; want %+v", want.peak, x.Train.MicroBatch, x.Train.Accumulate, x.Model.Context, x.Train.Batch, want)
		}
	}
	if c.Train.MicroBatch != 32 || c.Model.Context != 1024 {
		t.Errorf("the job was changed: %+v", c.Train)
	}
}

// TestSecondsOfAnotherSize checks that the time of a kernel of another size is proportional to its
// work.
func TestSecondsOfAnotherSize(t *testing.T) {
	h := &Measurements{kernels: map[timed]float64{}, work: map[timed]forecast.Work{}}
	note := func(k forecast.Kernel, w forecast.Work, s float64) {
		h.kernels[timed{setup.Compute, k}], h.work[timed{setup.Compute, k}] = s, w
	}
	note(forecast.Kernel{Op: "matmul", M: 10, N: 10, K: 10}, forecast.Work{Flops: 2000, Bytes: 1}, 2)
	note(forecast.Kernel{Op: "matmul", M: 100, N: 100, K: 100}, forecast.Work{Flops: 2e6, Bytes: 1}, 1000)
	note(forecast.Kernel{Op: "adamw", M: 100}, forecast.Work{Flops: 0, Bytes: 2800}, 7)
	for want, x := range map[float64]struct {
		k forecast.Kernel
		w forecast.Work
	}{
		2:   {forecast.Kernel{Op: "matmul", M: 10, N: 10, K: 10}, forecast.Work{Flops: 2000, Bytes: 1}},
		4:   {forecast.Kernel{Op: "matmul", M: 20, N: 10, K: 10}, forecast.Work{Flops: 4000, Bytes: 1}},
		500: {forecast.Kernel{Op: "matmul", M: 50, N: 100, K: 100}, forecast.Work{Flops: 1e6, Bytes: 1}},
		70:  {forecast.Kernel{Op: "adamw", M: 1000}, forecast.Work{Flops: 0, Bytes: 28000}},
		0:   {forecast.Kernel{Op: "all-gather", Group: forecast.Group{Size: 1, Stride: 1}}, forecast.Work{Flops: 0, Bytes: 28000}},
	} {
		if got := h.seconds(setup.Compute, x.k, x.w); math.Abs(got-want) > 1e-9 {
			t.Errorf("%+v takes %v, want %v", x.k, got, want)
		}
	}
}
