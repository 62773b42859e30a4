package sim

import (
	"math"
	"testing"

	"zeroth/job/build"
	"zeroth/job/config"
	"zeroth/job/config/configtest"
)

// What soft caps keep off tensor cores is in the closed form as in a recorded step, which
// counts a score of a position with itself, too: one in T.
func TestCapsAreWeighed(t *testing.T) {
	for _, recompute := range []string{"zero.recompute=none", "zero.recompute=block"} {
		c := configtest.Fitted(t, "model.family=llama", "model.kv_heads=1", "train.accumulate=2", "train.batch=null", recompute)
		weigh := func(r Rates) Cost {
			r.Link, r.Host, r.Memory, r.Disk = 1, 1, 1, 1
			m := config.Network(c)
			return Weigh(c, Matmuls(m, build.Rules(c.Optimizer)), Traffic{}, r)
		}
		plain := weigh(Rates{Flops: 1})
		if got := weigh(Rates{Flops: 1, Cores: 1e-9}); got != plain {
			t.Errorf("%s: without caps %+v, and %+v with slow cores", recompute, plain, got)
		}
		c.Model.CapScores, c.Model.CapLogits = 50, 30
		l, err := Recorded(c, 1)
		if err != nil {
			t.Fatal(err)
		}
		beside, slow := 0.0, 0.0
		for _, q := range l.Queues {
			for _, x := range q.Tasks {
				if x.Kernel < 0 {
					continue
				}
				k, w := l.Kernels[x.Kernel], l.Work[x.Kernel]
				if beside += w.Beside; k.Op == "attention" || k.Op == "attention gradient" {
					slow += w.Flops
				}
			}
		}
		got := weigh(Rates{Flops: math.Inf(1), Cores: 1}).Compute
		T := float64(c.Model.Context)
		// Of the five products of the gradient the closed form has the four of the model.
		least, most := (slow*4/5+beside)*(1-1/T)*(1-1e-9), (slow+beside)*(1+1e-9)
		if beside == 0 || got < least || got > most {
			t.Errorf("%s: %v operations on ordinary cores, want %v to %v", recompute, got, least, most)
		}
		if both := weigh(Rates{Flops: 1, Cores: 1}); both.Flops != plain.Flops || both.Compute <= plain.Compute {
			t.Errorf("%s: %+v with caps, %+v without", recompute, both, plain)
		}
	}
}
