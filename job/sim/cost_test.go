package sim

import (
	"testing"

	"zeroth/job/config/configtest"
	"zeroth/job/setup"
)

// TestOperations checks the count of operations that soft caps keep off tensor cores, and of
// recomputation, which adds a forward pass of each block. Attention is counted as a model's: a
// position attends to half of the others, and recomputation inside kernels does not count.
func TestOperations(t *testing.T) {
	var none Operations
	for _, recompute := range []string{"none", "block"} {
		c := configtest.Fitted(t, "model.family=llama", "model.kv_heads=1", "train.batch=null", "zero.recompute="+recompute)
		plains, err := Recorded(setup.Planned(c), 1)
		if err != nil {
			t.Fatal(err)
		}
		plain := plains[0]
		if recompute == "none" {
			none = plain.Operations
		}
		if o := plain.Operations; o.Capped != 0 || o.Other != 0 || o.Flops-o.Again != none.Flops || (o.Again > 0) != (recompute == "block") {
			t.Errorf("%s: %+v, want %v without caps", recompute, o, none.Flops)
		}
		c.Model.CapScores, c.Model.CapLogits = 50, 30
		places, err := Recorded(setup.Planned(c), 1)
		if err != nil {
			t.Fatal(err)
		}
		l := places[0]
		beside, attends, T := 0.0, 0.0, float64(c.Model.Context)
		for _, x := range l.Queues[0].Tasks {
			if x.Kernel >= 0 {
				w := l.Work[x.Kernel]
				if beside += w.Other; l.Kernels[x.Kernel].Op == "attention" {
					attends += w.Flops * T / (T + 1)
				}
			}
		}
		passes := map[string]float64{"none": 1 + 2, "block": (2 + 2) / 2.}[recompute] // the gradient counts two for each forward pass
		if o := l.Operations; o.Flops != plain.Flops || o.Other != beside || beside == 0 || o.Capped/(passes*attends) < 1-1e-9 || o.Capped/(passes*attends) > 1+1e-9 {
			t.Errorf("%s: %+v with caps, want %v beside, %v of attention", recompute, o, beside, passes*attends)
		}
	}
}
