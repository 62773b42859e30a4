package forecast

import (
	"cmp"
	"slices"

	"zeroth/fsdp"
	"zeroth/internal/setup"
	"zeroth/job/trace"
)

// Counters returns the memory in use on a rank over its steps. Each amount is the plan's for an
// event, at the time when the queue that computes or updates reached it. A change by a gather or a
// reduction shows at the next of these events. Steps with lost trace events are omitted.
func (p *Plan) Counters(tracks []*trace.Track) (names []string, list []trace.Usage) {
	used := p.used()
	for _, c := range used {
		names = append(names, c.String())
	}
	changes := p.changes(tracks)
	now := p.AtRest
	for _, c := range changes {
		for x := range Categories {
			if c.fields == nil || slices.Contains(c.fields, x) {
				now[x] = c.to[x]
			}
		}
		u := trace.Usage{At: c.at}
		for _, x := range used {
			u.Bytes = append(u.Bytes, now[x])
		}
		list = append(list, u)
	}
	return names, list
}

// change is a time at which the amounts in use change.
type change struct {
	at     int64
	to     *Amounts
	fields []Category // nil is all
}

// gradients lists the categories that change at the end of an update, even after the next step has
// begun.
var gradients = []Category{Gradients, UnitGradients}

// changes returns the changes of complete steps, in order.
func (p *Plan) changes(tracks []*trace.Track) (list []change) {
	var rest []Category
	for c := range Categories {
		if !slices.Contains(gradients, c) {
			rest = append(rest, c)
		}
	}
	passes, onShards := p.passes(), p.onShards()
	for _, step := range tracks[len(tracks)-1].All() {
		passed := trace.ByLabel(tracks[setup.Compute].All(), step)
		if len(passes) == 0 || len(passed) != len(passes[0])*p.Config.Train.Accumulate {
			continue
		}
		for i, g := range passed {
			micro := i / len(passes[0])
			m := p.ofMicro(passes, micro)[i%len(passes[0])]
			c := change{at: g.Start, to: &m.InUse}
			if micro == 0 && m.Phase == forward {
				c.fields = rest // the previous step may still use its gradients
			}
			list = append(list, c)
		}
		for _, k := range tracks[setup.Comm : len(tracks)-1] {
			for _, g := range trace.ByLabel(k.All(), step) {
				list = append(list, p.onShard(onShards[g.Label], g.Start, g.End)...)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	return list
}

// onShard returns the changes made by computation on shards: norms and updates.
func (p *Plan) onShard(m *Moment, start, end int64) []change {
	switch {
	case m == nil:
	case m.Phase == norming:
		return []change{{at: start, to: &m.InUse}}
	case m.Phase == updating && m == p.Timeline[len(p.Timeline)-1]:
		return []change{{at: start, to: &m.InUse, fields: gradients}, {at: end, to: &p.AtRest, fields: gradients}}
	case m.Phase == updating:
		return []change{{at: start, to: &m.InUse, fields: gradients}}
	}
	return nil
}

// passes returns the moments of forward and backward passes, by micro-batch in the timeline.
// Recomputation is part of the following backward pass, and the pass shows the higher of the two.
func (p *Plan) passes() (list [][]*Moment) {
	var again *Moment
	for _, m := range p.Timeline {
		switch m.Phase {
		case recomputing:
			again = m
			continue
		case forward, backward:
		default:
			continue
		}
		if again != nil && again.InUse.Total() > m.InUse.Total() {
			x := *again
			x.Phase = m.Phase
			m = &x
		}
		again = nil
		if n := len(list); n == 0 || list[n-1][0].Micro != m.Micro {
			list = append(list, nil)
		}
		list[len(list)-1] = append(list[len(list)-1], m)
	}
	return list
}

// ofMicro returns the passes of a micro-batch. Those between the second and the last equal the
// second.
func (p *Plan) ofMicro(passes [][]*Moment, micro int) []*Moment {
	if micro == p.Config.Train.Accumulate-1 {
		return passes[len(passes)-1]
	}
	return passes[min(micro, 1)]
}

// onShards returns the moments of norms and updates by the label of their work.
func (p *Plan) onShards() map[string]*Moment {
	all := map[string]*Moment{}
	for _, m := range p.Timeline {
		switch m.Phase {
		case norming:
			all[fsdp.Label(m.Unit, fsdp.Norm)] = m
		case updating:
			all[fsdp.Label(m.Unit, fsdp.Update)] = m
		}
	}
	return all
}
