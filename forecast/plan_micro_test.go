package forecast

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/pipe"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// TestSentByManyMicroBatches checks that ranks that divide matrices send the same in each of many
// micro-batches.
func TestSentByManyMicroBatches(t *testing.T) {
	var before, step int64
	for accumulate := 1; accumulate <= 6; accumulate++ {
		p, err := NewPlan(spectest.Fitted(t, "zero.stage=1", "parallel.tensor=2", "train.batch=null", "train.micro_batch=2", fmt.Sprint("train.accumulate=", accumulate)), Machine{})
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
	nightly.Parallel(t)
	spectest.EachWay(t, func(t *testing.T, c *spec.Job) {
		few, err := NewPlan(c, Machine{})
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
		for at, x := range append([]*Plan{all}, all.Kinds...) {
			if got, want := x.By.Pipeline, linked(c, max(0, at-1)); len(all.Kinds) == 0 && got != want || at > 0 && !c.Parallel.Master && got != want {
				t.Errorf("kind %d sends %d bytes to other stages, want %d", at-1, got, want)
			}
		}
		d, err := setup.OpenDry(setup.Planned(c), 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Trainer.DryRun()
		need := d.Footprint(d.Trainer.ArenaPeak())
		if got, _ := setup.DryRun(setup.Planned(c)); err != nil || got != need {
			t.Errorf("few say %+v, all %+v, %v", got, need, err)
		}
	})
}

// linked returns the bytes that a rank at a place of a pipeline sends to other places in a step.
func linked(c *spec.Job, at int) (bytes int64) {
	if setup.Pipeline(c) == 1 {
		return 0
	}
	rows := c.Train.MicroBatch * c.Model.Context / spec.Mesh(c).Size(shard.Context, shard.Tensor)
	stream := int64(rows) * int64(spec.Network(c).Width) * int64(c.Precision.Size())
	for _, a := range c.PipelineShape().Programs()[at] {
		if a.Kind == pipe.SendForward || a.Kind == pipe.SendBackward {
			bytes += stream
		}
	}
	return bytes
}
