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
	o.w.Begin(l.rank.Device.Usage().Live)
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

// compare makes the plan of the run and puts what was measured beside it. If the run issued
// other work than planned, the two cannot be compared: then Plan.Measured stays nil, and
// differs says where they part.
func (o *Observation) compare(c *config.Config) (differs string, err error) {
	if o == nil || o.got.Step == 0 {
		return "", nil
	}
	if o.Plan, err = plan.New(c, plan.Machine{}); err != nil {
		return "", err
	}
	if o.Plan.Places != nil {
		o.Plan = o.Plan.Places[0] // of the first rank
	}
	got, planned := o.got.Timeline, o.Plan.Timeline
	for i := range max(len(got), len(planned)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("step %d ended before its event %d, %s", o.got.Step, i+1, planned[i].Name), nil
		case i >= len(planned):
			return fmt.Sprintf("step %d had an event %d, %s, that is not planned", o.got.Step, i+1, got[i].Name), nil
		case got[i].Name != planned[i].Name:
			return fmt.Sprintf("event %d of step %d was %s, planned was %s", i+1, o.got.Step, got[i].Name, planned[i].Name), nil
		}
	}
	o.Plan.Measured = &o.got
	return "", nil
}
