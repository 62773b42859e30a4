package job

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/config"
	"zeroth/data"
	"zeroth/internal/setup"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
)

// A rank that needs longer for everything is measured and named, once, on a clock
// that moves when all ranks sleep. Of three ranks 0 and 1 take 1 ms before each
// operation and rank 2, for some of the steps, 3 ms.
func TestStragglerIsNamed(t *testing.T) {
	jobtest.InTinyFolder(t)
	const steps, from, to = 100, 10, 70
	for _, stage := range []int{0, 3} {
		synctest.Test(t, func(t *testing.T) {
			c := spectest.MustLoad(t, "parallel.ranks=3", "train.steps=100", "train.eval_every=0", "train.micro_batch=1", fmt.Sprint("zero.stage=", stage))
			var done atomic.Int64 // steps of rank 0, so that a step at the edges may be of either kind
			h, out := &heard{onStep: func(s report.Step) { done.Store(int64(s.Step)) }}, fmt.Sprint("run", stage)
			err := Run(t.Context(), c, Options{Out: out, Observer: h, Hooks: setup.Hooks{WrapGroups: func(rank int, g collective.Ranks) collective.Ranks {
				slow := func(int) collectivetest.Fault {
					if at := done.Load(); rank == 2 && at >= from && at < to {
						return collectivetest.Fault{Delay: 3 * time.Millisecond}
					}
					return collectivetest.Fault{Delay: time.Millisecond}
				}
				return collective.Ranks{World: collectivetest.Faulty(g.World, slow), Shard: collectivetest.Faulty(g.Shard, slow), Replica: collectivetest.Faulty(g.Replica, slow)}
			}}})
			if err != nil {
				t.Fatal(err)
			}
			named := regexp.MustCompile(`^rank 2 has delayed the others by (\d+) % for 20 steps: `)
			var told []string
			for _, n := range h.notes {
				if strings.Contains(n, "delayed") {
					told = append(told, n)
				}
			}
			if len(told) != 1 || !named.MatchString(told[0]) {
				t.Errorf("stage %d: told %q", stage, told)
			}
			for _, s := range h.steps[from+2 : to-1] { // a line has the pace of the step before
				if s.Slowest != 2 || s.Behind < 0.2 || s.Waited <= 0 || s.StepSeconds < s.Waited {
					t.Errorf("stage %d: step %d: rank %d is %g behind, waited %g of %g s", stage, s.Step, s.Slowest, s.Behind, s.Waited, s.StepSeconds)
				}
			}
			for _, s := range slices.Concat(h.steps[2:from-1], h.steps[to+2:]) {
				if s.Behind > 0.01 {
					t.Errorf("stage %d: step %d: %g behind, and all are equally fast", stage, s.Step, s.Behind)
				}
			}
			if got, _, err := report.ReadMetrics(out + "/metrics.jsonl"); err != nil || !reflect.DeepEqual(got, h.steps) || len(got) != steps {
				t.Errorf("%d steps in metrics.jsonl, %v", len(got), err)
			}
		})
	}
}

// TestSlowReplicaLeaves checks after which step the others go on without a slow replica, if at all.
func TestSlowReplicaLeaves(t *testing.T) {
	for name, x := range map[string]struct {
		replicas, batch, min int
		lag                  float64 // of the step without it
		every                int     // steps between checkpoints; 0: none
		together             int     // replicas that are lost together
		wants                int     // step, of which the first has no pace; 0: it stays
	}{
		"slow":                                   {3, 6, 1, 2.1, 0, 1, 21},
		"not that slow":                          {3, 6, 1, 1.9, 0, 1, 0},
		"fewest":                                 {3, 6, 3, 2.1, 0, 1, 0},
		"no majority":                            {2, 6, 1, 2.1, 0, 1, 0},
		"half of all":                            {4, 8, 1, 2.1, 0, 2, 0},
		"two of five":                            {5, 10, 1, 2.1, 0, 2, 21},
		"with more micro-batches":                {3, 4, 1, 2.1, 0, 1, 0},
		"with more micro-batches, and yet slow":  {3, 4, 1, 5.1, 0, 1, 21},
		"checkpoints do not count":               {3, 6, 1, 2.1, 3, 1, 57},
		"a checkpoint after every step is saved": {3, 6, 1, 2.1, 1, 1, 0},
	} {
		c := &spec.Job{Config: config.Config{Faults: config.Faults{Survive: true, MinReplicas: x.min, LeaveBehind: 2}}}
		l := &loop{c: c, rank: &setup.Rank{}, share: data.Share{Batch: x.batch, MicroBatch: 1, Replicas: x.replicas, Ranks: 1}, saves: saves{kept: -1}, probes: probes{where: func(int) string { return "" }}}
		l.watchSlow(&run{c: c})
		for range x.replicas {
			l.together = append(l.together, make([]int, x.together)) // of rank 0, all
		}
		got := 0
		for l.at = 2; l.at <= 100 && got == 0; l.at++ {
			if x.every > 0 && (l.at-1)%x.every == 0 {
				l.kept = l.at - 1
			}
			if l.leaves(report.Behind{Lag: time.Duration(x.lag * 1e9), Took: time.Duration((1 + x.lag) * 1e9), Who: "replica 0"}) != "" {
				got = l.at
			}
		}
		if got != x.wants || l.out != (got > 0) {
			t.Errorf("%s: left out after step %d (%v), want %d", name, got, l.out, x.wants)
		}
	}
}
