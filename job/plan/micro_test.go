package plan

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"zeroth/job/build"
	"zeroth/job/config"
	"zeroth/job/config/configtest"
	"zeroth/job/sim"
)

// eachWay calls f with jobs of more micro-batches than a dry run has, of every
// stage, with and without all that decides what a micro-batch needs.
func eachWay(t *testing.T, f func(t *testing.T, c *config.Config)) {
	for _, sets := range [][]string{
		{"zero.stage=0"}, {"zero.stage=1"}, {"zero.stage=2"}, {"zero.stage=3"},
		{"zero.stage=3", "zero.prefetch=0"}, {"zero.stage=3", "zero.prefetch=3"}, {"zero.stage=2", "zero.prefetch=0", "parallel.replicate=2"},
		{"zero.stage=3", "zero.recompute=block", "parallel.replicate=2", "checkpoint.every=5"},
		{"zero.stage=3", "model.family=llama", "model.tied=true", "precision=fp32"},
		{"zero.stage=1", "zero.offload.optimizer=host"}, {"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host"},
		{"zero.stage=3", "zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path=."},
		{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.ratio=0.4", "parallel.ranks=1"},
	} {
		for accumulate := 1; accumulate <= 9; accumulate++ {
			c := configtest.Fitted(t, append([]string{"train.batch=null", "train.micro_batch=2", fmt.Sprint("train.accumulate=", accumulate)}, sets...)...)
			t.Run(fmt.Sprint(sets, accumulate), func(t *testing.T) { f(t, c) })
		}
	}
}

// A plan from a dry run of few micro-batches is the plan from one of all: to the
// byte, in every category, at every moment.
func TestFewMicroBatchesPlanMany(t *testing.T) {
	eachWay(t, func(t *testing.T, c *config.Config) {
		few, err := New(c, Machine{})
		if err != nil {
			t.Fatal(err)
		}
		all, err := plan(c, Machine{}, c.Train.Accumulate)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(all, few, cmp.AllowUnexported(Moment{}), cmpopts.IgnoreUnexported(Plan{}), cmp.Comparer(func(a, b *config.Config) bool { return a == b })); d != "" {
			t.Errorf("of all (-), of few (+):\n%s", d)
		}
		if micros := c.Train.Accumulate; few.Timeline[len(few.Timeline)-1].Micro != -1 || micros > 3 && all.Sent <= 0 && c.Parallel.Ranks > 1 {
			t.Errorf("%d bytes sent", all.Sent)
		}
		need, err := build.Rehearse(c, footprintArena(c, t), build.Hooks{})
		if got, _ := build.DryRun(c); err != nil || got != need {
			t.Errorf("few say %+v, all %+v, %v", got, need, err)
		}
	})
}

func footprintArena(c *config.Config, t *testing.T) int {
	t.Helper()
	f, err := build.Rehearse(c, math.MaxInt/2, build.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	return f.Arena
}

// A forecast from few micro-batches is that of all, but for a trace's whole
// nanoseconds, where computing hides all else and where it hides nothing.
func TestFewMicroBatchesForecastMany(t *testing.T) {
	slow := sim.Presets[0]
	slow.Name, slow.Links, slow.HostLink, slow.HostMemory, slow.Disk = "slow", []sim.Link{{Ranks: 0, Bandwidth: 1e6, Latency: 1e-4}}, 1e7, 1e7, 1e6
	fast := sim.Presets[0]
	fast.Name, fast.Links, fast.HostLink, fast.HostMemory, fast.Disk = "fast", []sim.Link{{Ranks: 0, Bandwidth: 1e15, Latency: 0}}, 1e15, 1e15, 1e15
	eachWay(t, func(t *testing.T, c *config.Config) {
		for _, h := range []sim.Hardware{sim.Presets[0], slow, fast} {
			few, err := sim.Simulate(c, &h)
			if err != nil {
				t.Fatal(err)
			}
			p := h.Pricing(c)
			if c.Zero.Offload.Disk() {
				bytes, err := sim.DiskBytes(c)
				if err != nil {
					t.Fatal(err)
				}
				p.Price = h.DiskPrice(bytes)
			}
			all, err := sim.ReplayAll(c, p)
			if err != nil {
				t.Fatal(err)
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

// The bytes of a step are divided over the reads and writes of all its
// micro-batches.
func TestDiskBytes(t *testing.T) {
	for accumulate := 1; accumulate <= 9; accumulate++ {
		c := configtest.Fitted(t, "train.batch=null", fmt.Sprint("train.accumulate=", accumulate), "train.micro_batch=1",
			"zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path=.")
		n, err := sim.Transfers(c, accumulate)
		if err != nil {
			t.Fatal(err)
		}
		var cost sim.Cost
		_ = sim.Moved(c, sim.TrafficOf(c, sim.UnitSizes(c.Model.Network())), sim.Rates{Host: 1, Memory: 1, Disk: 1}, &cost)
		if got, err := sim.DiskBytes(c); err != nil || got != float64(cost.Disk)/float64(n) || n < 4*accumulate {
			t.Errorf("%d micro-batches: %v bytes (%v), want %d over %d", accumulate, got, err, cost.Disk, n)
		}
	}
}
