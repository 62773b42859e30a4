package forecast

import (
	"math"
	"testing"

	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
)

// TestFewMicroBatchesSimulateMany checks that a simulation of a few micro-batches equals one of
// all, up to rounding of the trace to nanoseconds, whether computation hides everything or
// nothing.
func TestFewMicroBatchesSimulateMany(t *testing.T) {
	nightly.Long(t)
	slow := presets[0]
	slow.Name, slow.Links, slow.HostLink, slow.HostMemory, slow.Disk = "slow", []Link{{Ranks: 0, Bandwidth: 1e6, Latency: 1e-4}}, 1e7, 1e7, 1e6
	fast := presets[0]
	fast.Name, fast.Links, fast.HostLink, fast.HostMemory, fast.Disk = "fast", []Link{{Ranks: 0, Bandwidth: 1e15, Latency: 0}}, 1e15, 1e15, 1e15
	spectest.EachWay(t, func(t *testing.T, c *spec.Job) {
		for _, h := range []Hardware{presets[0], slow, fast} {
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
