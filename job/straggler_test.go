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
	"zeroth/internal/setup"
	"zeroth/job/jobtest"
	"zeroth/job/report"
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
