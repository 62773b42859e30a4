package job

import (
	"fmt"

	"zeroth/job/config"
	"zeroth/job/plan"
	"zeroth/zero"
)

// Observation watches a run as a plan is made. After the run Plan is its plan
// with what was measured, of its first step that no evaluation comes before: one
// finds units where that left them, which no plan of a step has.
type Observation struct {
	Plan *plan.Plan

	w   *plan.Tracker
	got plan.Measured
}

// wrap puts a watch between the first rank and its devices, within what a test
// hook puts there; next may be nil.
func (o *Observation) wrap(next func(rank int, z *zero.Config)) func(rank int, z *zero.Config) {
	return func(rank int, z *zero.Config) {
		if next != nil {
			next(rank, z)
		}
		if o != nil && rank == 0 {
			o.w = plan.NewTracker(z)
		}
	}
}

// begin is called before a step.
func (o *Observation) begin(l *loop) {
	if o == nil || l.rank.Rank != 0 || o.got.Step != 0 || l.looked {
		return
	}
	o.w.Begin(l.rank.Trainer.Units(), l.rank.Device.Usage().Live)
}

// end is called after it.
func (o *Observation) end(l *loop) {
	if o == nil || l.rank.Rank != 0 || !o.w.On {
		return
	}
	o.w.On = false
	o.got = plan.Measured{Step: l.at, Timeline: o.w.Moments, Allocated: l.rank.Device.Usage().Peak}
	for _, m := range o.got.Timeline {
		m.Name = o.w.Name(m)
	}
}

// compare puts what was measured beside the plan. A run of another schedule than
// the planned one is a broken promise.
func (o *Observation) compare(c *config.Config) (err error) {
	if o == nil || o.got.Step == 0 {
		return nil
	}
	if o.Plan, err = plan.New(c, plan.Machine{}); err != nil {
		return err
	}
	if n := len(o.got.Timeline); n != len(o.Plan.Timeline) {
		panic(fmt.Sprintf("job: step %d had %d events, planned were %d", o.got.Step, n, len(o.Plan.Timeline)))
	}
	for i, m := range o.got.Timeline {
		if p := o.Plan.Timeline[i]; m.Name != p.Name {
			panic(fmt.Sprintf("job: event %d of step %d was %s, planned was %s", i, o.got.Step, m.Name, p.Name))
		}
	}
	o.Plan.Measured = &o.got
	return nil
}
