package job

import (
	"fmt"

	"zeroth/forecast"
	"zeroth/job/spec"
	"zeroth/zero"
)

// Observation records the memory in use during one step. After the run, Plan is the run's plan
// with what was measured in the first step that does not follow an evaluation, because an
// evaluation leaves units in other places.
type Observation struct {
	Plan *forecast.Plan

	w   *forecast.Tracker
	got forecast.Measured
}

// wrap returns a hook that observes the first rank's devices and then calls next, which may be
// nil.
func (o *Observation) wrap(next func(rank int, z *zero.Config)) func(rank int, z *zero.Config) {
	return func(rank int, z *zero.Config) {
		if next != nil {
			next(rank, z)
		}
		if o != nil && rank == 0 {
			o.w = forecast.NewTracker(z)
		}
	}
}

// begin starts observing before a step.
func (o *Observation) begin(l *loop) {
	if o == nil || l.rank.Rank != 0 || o.got.Step != 0 || l.looked {
		return
	}
	o.w.Begin()
}

// end stops observing after a step.
func (o *Observation) end(l *loop) {
	if o == nil || l.rank.Rank != 0 || !o.w.On {
		return
	}
	o.w.On = false
	o.w.Rest(l.rank.Device.Usage().Live)
	o.got = forecast.Measured{Step: l.at, Timeline: o.w.Moments, Allocated: l.rank.Device.Usage().Peak}
	for _, m := range o.got.Timeline {
		m.Name = o.w.Name(m)
	}
}

// compare plans the run and adds what was measured. If the run issued other work than planned,
// differs says where, and Plan.Measured stays nil.
func (o *Observation) compare(c *spec.Job) (differs string, err error) {
	if o == nil || o.got.Step == 0 {
		return "", nil
	}
	if o.Plan, err = forecast.NewPlan(c, forecast.Machine{}); err != nil {
		return "", err
	}
	if o.Plan.Kinds != nil {
		o.Plan = o.Plan.Kinds[0] // of the first rank
	}
	got, planned := o.got.Timeline, o.Plan.Timeline
	for i := range max(len(got), len(planned)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("step %d ended before its event %d, %s", o.got.Step, i+1, planned[i].Name), nil
		case i >= len(planned):
			return fmt.Sprintf("step %d had an unplanned event %d, %s", o.got.Step, i+1, got[i].Name), nil
		case got[i].Name != planned[i].Name:
			return fmt.Sprintf("event %d of step %d was %s, but %s was planned", i+1, o.got.Step, got[i].Name, planned[i].Name), nil
		}
	}
	o.Plan.Measured = &o.got
	return "", nil
}
