package plan

import (
	"cmp"
	"slices"

	"zeroth/fsdp"
	"zeroth/job/sim"
)

// Counters are what is in use on a rank over its steps: what the plan says of
// each event, from when the queue that computes or updates came to it. What a
// gather or a reduction changes shows at the next of these. Steps of which the
// trace has lost something are left out.
func (p *Plan) Counters(tracks []*sim.Track) (names []string, list []sim.Usage) {
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
		u := sim.Usage{At: c.at}
		for _, x := range used {
			u.Bytes = append(u.Bytes, now[x])
		}
		list = append(list, u)
	}
	return names, list
}

// change is when other amounts are in use.
type change struct {
	at     int64
	to     *Amounts
	fields []Category // none is all
}

// gradients change when an update ends, whatever the next step has begun.
var gradients = []Category{Gradients, UnitGradients}

// changes are those of whole steps, in their order.
func (p *Plan) changes(tracks []*sim.Track) (list []change) {
	var rest []Category
	for c := range Categories {
		if !slices.Contains(gradients, c) {
			rest = append(rest, c)
		}
	}
	passes, onShards := p.passes(), p.onShards()
	for _, step := range tracks[len(tracks)-1].All() {
		passed := sim.Groups(tracks[0].All(), step)
		if len(passes) == 0 || len(passed) != len(passes[0])*p.Config.Train.Accumulate {
			continue
		}
		for i, g := range passed {
			micro := i / len(passes[0])
			m := p.ofMicro(passes, micro)[i%len(passes[0])]
			c := change{at: g.Start, to: &m.InUse}
			if micro == 0 && m.Phase == forward {
				c.fields = rest // the step before may not have used up its gradients
			}
			list = append(list, c)
		}
		for _, k := range tracks[1 : len(tracks)-1] {
			for _, g := range sim.Groups(k.All(), step) {
				list = append(list, p.onShard(onShards[g.Label], g.Start, g.End)...)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	return list
}

// onShard are the changes by what is computed with shards: norms and updates.
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

// passes are the moments of the forward and backward passes of each micro-batch
// the timeline has. Computing activations again is part of the backward pass that
// follows, and shows with the higher of the two.
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

// ofMicro are the passes of a micro-batch. Between the second and the last all
// are as the second.
func (p *Plan) ofMicro(passes [][]*Moment, micro int) []*Moment {
	if micro == p.Config.Train.Accumulate-1 {
		return passes[len(passes)-1]
	}
	return passes[min(micro, 1)]
}

// onShards are the moments of norms and updates, by what their work is called.
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
