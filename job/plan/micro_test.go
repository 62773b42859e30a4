package plan

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"zeroth/job/setup"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
)

// TestSentByManyMicroBatches checks that ranks that divide matrices send the same in each of many
// micro-batches.
func TestSentByManyMicroBatches(t *testing.T) {
	var before, step int64
	for accumulate := 1; accumulate <= 6; accumulate++ {
		p, err := New(spectest.Fitted(t, "zero.stage=1", "parallel.tensor=2", "train.batch=null", "train.micro_batch=2", fmt.Sprint("train.accumulate=", accumulate)), Machine{})
		if err != nil {
			t.Fatal(err)
		}
		sent := p.By.Tensor
		if accumulate > 2 && sent-before != step || sent <= before || p.Sent < sent {
			t.Errorf("%d micro-batches send %d bytes of %d, one fewer %d", accumulate, sent, p.Sent, before)
		}
		before, step = sent, sent-before
	}
}

// TestFewMicroBatchesPlanMany checks that a plan from a few micro-batches equals one from all: to
// the byte, in every category, at every moment.
func TestFewMicroBatchesPlanMany(t *testing.T) {
	spectest.EachWay(t, func(t *testing.T, c *spec.Job) {
		few, err := New(c, Machine{})
		if err != nil {
			t.Fatal(err)
		}
		all, err := plan(c, Machine{}, c.Train.Accumulate)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(all, few, cmp.AllowUnexported(Moment{}), cmpopts.IgnoreUnexported(Plan{}), cmp.Comparer(func(a, b *spec.Job) bool { return a == b })); d != "" {
			t.Errorf("of all (-), of few (+):\n%s", d)
		}
		if micros := c.Train.Accumulate; few.Timeline[len(few.Timeline)-1].Micro != -1 || micros > 3 && all.Sent <= 0 && c.Parallel.Ranks > 1 {
			t.Errorf("%d bytes sent", all.Sent)
		}
		d, err := setup.OpenDry(setup.Planned(c), 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Trainer.DryRun()
		need := d.Footprint()
		need.Arena = d.Trainer.ArenaPeak()
		need = need.Fitted()
		if got, _ := setup.DryRun(setup.Planned(c)); err != nil || got != need {
			t.Errorf("few say %+v, all %+v, %v", got, need, err)
		}
	})
}
