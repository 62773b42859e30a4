package forecast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/pipe"
	"zeroth/tests/nightly"
)

// TestFewMicroBatchesSimulateMany checks that a simulation of a few micro-batches equals one of
// all, up to rounding of the trace to nanoseconds, whether computation hides everything or
// nothing.
func TestFewMicroBatchesSimulateMany(t *testing.T) {
	nightly.Parallel(t)
	slow := presets[0]
	slow.Name, slow.Links, slow.HostLink, slow.HostMemory, slow.Disk = "slow", []Link{{Ranks: 0, Bandwidth: 1e6, Latency: 1e-4}}, 1e7, 1e7, 1e6
	fast := presets[0]
	fast.Name, fast.Links, fast.HostLink, fast.HostMemory, fast.Disk = "fast", []Link{{Ranks: 0, Bandwidth: 1e15, Latency: 0}}, 1e15, 1e15, 1e15
	way := 0
	spectest.EachWay(t, func(t *testing.T, c *spec.Job) {
		way++
		for i, h := range []Hardware{presets[0], slow, fast} {
			if !nightly.Every(3, i+way) {
				continue
			}
			few, err := Simulate(setup.Planned(c), &h)
			if err != nil {
				t.Fatal(err)
			}
			p := h.moving(setup.Planned(c)).costs()
			all, err := simulateAll(setup.Planned(c), p)
			if err != nil {
				t.Fatal(err)
			}
			if e := all.Trace.Exposure(); e.Seconds != all.Seconds || e.Compute != all.Compute || e.Exposed != all.Exposed || e.Offload != all.Offload {
				t.Errorf("%s: %+v, by its trace %+v", h.Name, all, e)
			}
			for what, x := range map[string][2]float64{
				"seconds": {all.Seconds, few.Seconds}, "computing": {all.Compute, few.Compute}, "exposed": {all.Exposed, few.Exposed},
				"offload": {all.Offload, few.Offload}, "of tokens": {1 / all.Tokens, 1 / few.Tokens},
			} {
				if math.Abs(x[1]-x[0]) > 3e-9*float64(c.Train.Accumulate) {
					t.Errorf("%s: %s: of all %v, of few %v (%.2g)", h.Name, what, x[0], x[1], x[1]/x[0]-1)
				}
			}
			if math.Abs(few.Flops-all.Flops) > 1e-9*all.Flops {
				t.Errorf("%v operations, of few %v", all.Flops, few.Flops)
			}
		}
	})
}

// simulateAll simulates every micro-batch of a step.
func simulateAll(c *setup.Job, p CostModel) (*Step, error) {
	places, err := Recorded(c, simulatedSteps)
	if err != nil {
		return nil, err
	}
	return simulated(c, places, p)
}

// drawnPipeline returns a job with a pipeline whose stages differ, and a machine whose links are slow or
// fast.
func drawnPipeline(t *testing.T, r *rand.Rand) (*spec.Job, *Hardware) {
	ranks, micros := 2+r.IntN(5), r.IntN(3)
	schedule, virtual := pipe.Schedules[r.IntN(4)], 1
	if schedule == string(pipe.Interleaved) {
		virtual, micros = 2, 0
	}
	h := presets[0]
	h.Links, h.Launch = []Link{{Bandwidth: math.Pow(10, 8+3*r.Float64()), Latency: 1e-6}}, 1e-6
	return staged(t, schedule, ranks, virtual, ranks*(6+r.IntN(6))+micros, fmt.Sprint("parallel.ranks=", 2*ranks), fmt.Sprint("zero.stage=", r.IntN(3)),
		fmt.Sprint("model.layers=", ranks*virtual+r.IntN(ranks*virtual)), "model.width=128", "model.heads=4", "train.loss_chunk=64"), &h
}

// TestRoundsRepeat checks on drawn pipelines that a recording without a round takes as long as a step of
// fewer micro-batches, up to rounding, and that further rounds are as long: to 1e-5, or to a fiftieth
// where links are the limit and a round is no multiple of the micro-batches after which a step repeats.
func TestRoundsRepeat(t *testing.T) {
	r, uneven := rand.New(rand.NewPCG(1, 2)), 0
	all := nightly.Of(12, 200)
	for range all {
		c, h := drawnPipeline(t, r)
		p := h.moving(setup.Planned(c)).costs()
		p.Untraced = true
		few, round := c.PipelineShape().Timed()
		seconds := func(n, less int) float64 {
			j := setup.Micros(setup.Planned(c), n)
			places, err := Recorded(j, simulatedSteps)
			if err != nil {
				t.Fatal(err)
			}
			for i := range less {
				places[i] = places[i].shorter()
			}
			f, err := simulated(j, places, p)
			if err != nil {
				t.Fatal(err)
			}
			return f.Seconds
		}
		if a, b := seconds(few, round), seconds(few-round, 0); math.Abs(a-b) > 3e-9 {
			t.Errorf("%+v: %d micro-batches without %d take %v, %d take %v", c.PipelineShape(), few, round, a, few-round, b)
		}
		whole := seconds(c.Train.Accumulate, 0)
		f, err := SimulateWith(setup.Planned(c), p)
		if err != nil || math.Abs(f.Seconds-whole) > 0.02*whole {
			t.Errorf("%+v: %+v, all take %v, %v", c.PipelineShape(), f, whole, err)
		}
		if math.Abs(f.Seconds-whole) > 1e-5*whole {
			uneven++
		}
	}
	if uneven > all/10 {
		t.Errorf("%d of %d differ", uneven, all)
	}
}
