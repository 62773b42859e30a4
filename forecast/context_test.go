package forecast

import (
	"math"
	"testing"

	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/job/trace"
)

// TestContextIsExposed checks that ranks that divide sequences share the attention of one rank,
// and that nothing hides their exchange of keys and values.
func TestContextIsExposed(t *testing.T) {
	const each, layers, micros = 0.001, 4, 2
	sets := []string{"zero.stage=0", "parallel.ranks=1", "train.micro_batch=2", "train.batch=null", "train.accumulate=2", "device=cpu"}
	whole := spectest.Fitted(t, sets...)
	divided := spectest.Fitted(t, append(sets, "parallel.context=4", "parallel.ranks=4")...)
	if one, four := scores(t, whole), scores(t, divided); math.Abs(4*four-one) > 1e-9*one {
		t.Errorf("a rank of four has %v operations of attention, one alone %v", four, one)
	}
	costs := passes(0.010, 0.020)
	seconds := costs.Seconds
	costs.Seconds = func(on setup.QueueRole, k Kernel, w Work) float64 {
		if on == setup.Compute && trace.Exchanges(k.Op) {
			return each
		}
		return seconds(on, k, w)
	}
	r, err := SimulateWith(setup.Planned(divided), costs)
	if err != nil {
		t.Fatal(err)
	}
	if want := micros * layers * 3 * each; math.Abs(r.Exposed-want) > 1e-6 {
		t.Errorf("exposed %v, want %v", r.Exposed, want)
	}
}

// scores returns the operations of attention in a step.
func scores(t *testing.T, c *spec.Job) (sum float64) {
	t.Helper()
	places, err := Recorded(setup.Planned(c), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range places[0].Queues[0].Tasks {
		if x.Kernel >= 0 {
			if k := places[0].Kernels[x.Kernel]; k.Op == attention || k.Op == attentionGrad {
				sum += places[0].Work[x.Kernel].Flops
			}
		}
	}
	return sum
}
