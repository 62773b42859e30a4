package job

import (
	"context"
	"fmt"

	"zeroth/device"
	"zeroth/zero"
)

// Measured is what the first rank of a run had in use at each event of a step:
// heights of its arena, units in the slots of its schedule, what its collectives
// were called on; and what its allocator held.
type Measured struct {
	Step      int
	Timeline  []*Moment
	Allocated device.Bytes
}

// at is what is in use at an event, and what is allocated; nothing without a run.
func (m *Measured) at(event int) []int64 {
	if m == nil {
		return nil
	}
	return []int64{m.Timeline[event].InUse.Total(), m.Allocated.Total()}
}

// Observation watches a run as a plan is made. After the run Plan is its plan
// with what was measured.
type Observation struct {
	Plan *Plan

	w   *watch
	got Measured
}

type observationKey struct{}

// WithObservation makes Train and Resume fill in o, of their first step that no
// evaluation comes before: one finds units where that left them, which no plan of
// a step has.
func WithObservation(ctx context.Context, o *Observation) context.Context {
	return context.WithValue(ctx, observationKey{}, o)
}

// observationOf is the context's; nil if there is none.
func observationOf(ctx context.Context) *Observation {
	o, _ := ctx.Value(observationKey{}).(*Observation)
	return o
}

// dress puts a watch between the first rank and its devices.
func (o *Observation) dress(rank int, z *zero.Config) {
	if o != nil && rank == 0 {
		o.w = newWatch(z)
	}
}

// begin is called before a step.
func (o *Observation) begin(l *loop) {
	if o == nil || l.rank.Rank != 0 || o.got.Step != 0 || l.looked {
		return
	}
	o.w.begin(l.rank.Trainer.Units(), l.rank.Device.Usage().Live)
}

// end is called after it.
func (o *Observation) end(l *loop) {
	if o == nil || l.rank.Rank != 0 || !o.w.on {
		return
	}
	o.w.on = false
	o.got = Measured{l.at, o.w.moments, l.rank.Device.Usage().Peak}
	for _, m := range o.got.Timeline {
		m.Name = o.w.name(m)
	}
}

// compare puts what was measured beside the plan. A run of another schedule than
// the planned one is a broken promise.
func (o *Observation) compare(c *Config) (err error) {
	if o == nil || o.got.Step == 0 {
		return nil
	}
	if o.Plan, err = c.Plan(Machine{}); err != nil {
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

// line is what was measured beside a plan, in words.
func (m *Measured) line(p *Plan) string {
	same, most := 0, int64(0)
	for i, x := range m.Timeline {
		if x.InUse == p.Timeline[i].InUse {
			same++
		}
		most = max(most, x.InUse.Total())
	}
	return fmt.Sprintf("run     step %d had %s in use at the most, of %s allocated; in each category it had what was planned at %d of %d events",
		m.Step, byteSize(most), byteSize(m.Allocated.Total()), same, len(m.Timeline))
}
