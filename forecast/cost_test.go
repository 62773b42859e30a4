package forecast

import (
	"math"
	"testing"

	"zeroth/internal/setup"
	"zeroth/job/spec/spectest"
)

// TestOperations checks that recomputation adds a forward pass of each block, that soft caps add no
// operations of the model, and that attention counts the pairs of positions that it computes: two
// products forward and four backward.
func TestOperations(t *testing.T) {
	var none Operations
	for _, recompute := range []string{"none", "block"} {
		for _, caps := range []float64{0, 50} {
			c := spectest.Fitted(t, "model.family=llama", "model.kv_heads=1", "train.batch=null", "zero.recompute="+recompute)
			c.Model.CapScores, c.Model.CapLogits = caps, caps
			l := recordedFirst(t, setup.Planned(c))
			if recompute == "none" && caps == 0 {
				none = l.Operations
			}
			if o := l.Operations; math.Abs(o.Flops-o.Again-none.Flops) > 1e-9*none.Flops || (o.Again > 0) != (recompute == "block") {
				t.Errorf("%s, caps %v: %+v, want %v", recompute, caps, o, none.Flops)
			}
		}
	}
}

// TestModelOperations checks that a step has the same model operations on all ranks together
// however many divide its sequences, and that attention in a window counts only its pairs.
func TestModelOperations(t *testing.T) {
	var whole float64
	for _, context := range []int{1, 2, 4} {
		c := spectest.Fitted(t, "model.family=llama", "model.context=64", "train.batch=null", "device=cpu", "parallel.ranks=4", "parallel.context="+string(rune('0'+context)), "train.micro_batch=1", "train.accumulate="+string(rune('0'+context)))
		f, err := ModelFlops(setup.Planned(c))
		if err != nil {
			t.Fatal(err)
		}
		if context == 1 {
			whole = f
		}
		if math.Abs(f-whole) > 1e-9*whole {
			t.Errorf("context %d: %v operations of a rank, want %v", context, f, whole)
		}
	}
	c := spectest.Fitted(t, "model.family=llama", "model.context=64", "train.batch=null", "parallel.ranks=1", "train.micro_batch=1", "train.accumulate=1")
	full := recordedFirst(t, setup.Planned(c)).Flops
	c.Model.Layout, c.Model.Window = "w", 8
	pairs := func(window int) (n float64) {
		for q := range 64 {
			n += float64(min(window, q+1))
		}
		return n
	}
	less := (pairs(64) - pairs(8)) * float64(6*2*c.Model.Heads*c.Model.Head()*c.Model.Layers) // six products of two operations
	if got := full - recordedFirst(t, setup.Planned(c)).Flops; math.Abs(got-less) > 1e-9*full {
		t.Errorf("a window of 8 saves %v operations, want %v", got, less)
	}
}

func recordedFirst(t *testing.T, j *setup.Job) *Recording {
	t.Helper()
	places, err := Recorded(j, 1)
	if err != nil {
		t.Fatal(err)
	}
	return places[0]
}
