package forecast

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"zeroth/config"
	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/machine"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/spec"
)

// Affordable returns the mean allocation of the ranks, or an error if there is not enough memory.
func Affordable(j *setup.Job) (mean setup.Footprint, err error) {
	all, err := setup.DryRuns(j)
	if err != nil {
		return mean, err
	}
	for _, f := range all {
		if err := budget(j.Job, f); err != nil {
			return mean, err
		}
	}
	mean = setup.Mean(j, all)
	return mean, affords(j, mean, machine.Machine())
}

// PlanHere plans a job whose ranks share this machine's memory. The plan's Lacks is the error that
// training would report if there is too little.
func PlanHere(c *spec.Job, m Machine) (*Plan, error) {
	p, err := NewPlan(c, m)
	if err != nil {
		return nil, err
	}
	places, all := p.Kinds, []setup.Footprint{}
	if places == nil {
		places = []*Plan{p}
	}
	for _, x := range places {
		all = append(all, setup.Footprint{Device: x.Allocated, Host: x.Host, Disk: x.Disk})
	}
	f, j := setup.Footprint{Device: p.Allocated, Host: p.Host, Disk: p.Disk}, setup.Local(c)
	p.Lacks = cmp.Or(budget(c, f), affords(j, setup.Mean(j, all), machine.Machine()))
	return p, nil
}

// OpenAffordable opens the ranks of a job if there is enough memory.
func OpenAffordable(j *setup.Job) ([]*setup.Rank, error) {
	if _, err := Affordable(j); err != nil {
		return nil, err
	}
	return setup.Open(j)
}

// budget rejects a job whose ranks need more than parallel.memory, before anything is allocated.
// The error lists the largest categories and the nearest settings that fit.
func budget(c *spec.Job, f setup.Footprint) error {
	budget, needs := c.Parallel.Memory, f.Device.Total()
	if budget == 0 || needs <= budget {
		return nil
	}
	return tooMuch(c, fmt.Sprintf("the budget is %s per rank, but a rank needs %s: %s; %s", show.ByteSize(budget), show.ByteSize(needs), largestUses(f.Device),
		nearby(c, unlimited(c, budget), (*Choice).over, setup.Footprint.DeviceTotal)))
}

// affords rejects a job whose ranks on this machine need more memory than is free. If
// parallel.memory is set, the limit is the machine's total memory, because the user knows better
// what will be free.
func affords(j *setup.Job, f setup.Footprint, m machine.Memory) error {
	c := j.Job
	has, where := m.Free, m.Limit+" has %s free"
	if c.Parallel.Memory > 0 {
		has, where = m.Total, m.Limit+" has %s in all"
	}
	ranks := int64(j.At.HostRanks)
	of := setup.OnMachine(c)
	needs := of(f)
	if has == 0 || needs <= has/ranks {
		return onGPU(j, f)
	}
	over := func(x *Choice) int64 { return of(x.Needs) - has/ranks }
	return tooMuch(c, fmt.Sprintf("%d ranks need %s, %s each: %s; but "+where+"; %s", ranks, show.ByteSize(Times(needs, ranks)), show.ByteSize(needs), largestUses(f.Both()),
		show.ByteSize(has), nearby(c, unlimited(c, has/ranks), over, of)))
}

// onGPU rejects a job whose ranks need more memory than their GPU has free.
func onGPU(j *setup.Job, f setup.Footprint) error {
	c := j.Job
	has, where := setup.Spare(j)
	if where == "" || f.DeviceTotal() <= has {
		return nil
	}
	over := func(x *Choice) int64 { return x.Needs.DeviceTotal() - has }
	return tooMuch(c, fmt.Sprintf("a rank needs %s on its GPU: %s; but %s of them; %s", show.ByteSize(f.DeviceTotal()), largestUses(f.Device), where,
		nearby(c, unlimited(c, has), over, setup.Footprint.DeviceTotal)))
}

func tooMuch(c *spec.Job, wrong string) error {
	at := c.Position("parallel.memory").String()
	if at != "" {
		at += ": "
	}
	return input.BadInput(fmt.Errorf("%sparallel.memory: %s", at, wrong))
}

// Times returns a*b, capped at the largest int64.
func Times(a, b int64) int64 {
	if a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

// largestUses lists the categories that make up nine tenths of an allocation.
func largestUses(b device.Bytes) string {
	uses := make([]device.Use, 0, device.Uses)
	for use := range device.Uses {
		uses = append(uses, use)
	}
	slices.SortStableFunc(uses, func(x, y device.Use) int { return cmp.Compare(b[y], b[x]) })
	var words []string
	var sum int64
	for _, use := range uses {
		if sum*10 >= b.Total()*9 {
			break
		}
		sum += b[use]
		words = append(words, fmt.Sprintf("%s %v", show.ByteSize(b[use]), use))
	}
	return strings.Join(words, ", ")
}

// unlimited returns limits on the memory of a rank's device, but not of its host.
func unlimited(c *spec.Job, memory int64) Limits {
	return Limits{Ranks: c.Parallel.Ranks, Memory: memory, Host: math.MaxInt64}
}

// nearby returns up to three ways to set the job that fit: those that change fewest settings, first those
// of the ladder, then the fastest. over returns how much a choice exceeds the limits, and needs the memory
// that is compared with them.
func nearby(c *spec.Job, l Limits, over func(*Choice) int64, needs func(setup.Footprint) int64) string {
	const lessOrMore = "want more memory, another number of ranks, a smaller model or shorter sequences"
	if searchable(c) != nil {
		return lessOrMore
	}
	s := newSearch(c, l)
	s.over, s.quick.over = over, over
	lacks := func(x *Choice) bool { return over(x) > 0 || len(x.Sets) == 0 }
	fits := slices.DeleteFunc(s.quick.each(s.ladder(s.job)), lacks)
	rungs := len(fits)
	for _, axis := range axes {
		fits = append(fits, slices.DeleteFunc(s.each(axis(s, s.job)), lacks)...)
	}
	if len(fits) == 0 {
		job, err := s.quick.measure(s.job)
		if err != nil {
			return lessOrMore
		}
		least := s.fewest(s.quick.descend(job))
		if over(least) > 0 && len(least.Sets) == 0 {
			return "no other settings need less; " + lessOrMore
		}
		if over(least) > 0 {
			return fmt.Sprintf("no other settings fit; the smallest needs %s, with --set %s; %s", show.ByteSize(needs(least.Needs)), strings.Join(least.Sets, " --set "), lessOrMore)
		}
		fits = append(fits, least)
	}
	slices.SortFunc(fits[rungs:], order)
	slices.SortStableFunc(fits, func(a, b *Choice) int { return cmp.Compare(len(a.Sets), len(b.Sets)) })
	var ways []string
	var told []*Choice
	for _, x := range fits {
		again := func(y *Choice) bool {
			key, _, _ := strings.Cut(y.Sets[0], "=")
			more := slices.ContainsFunc(y.Sets, func(set string) bool { return !slices.Contains(x.Sets, set) })
			return strings.HasPrefix(x.Sets[0], key+"=") || !more
		}
		if len(told) < 3 && !slices.ContainsFunc(told, again) {
			told = append(told, x)
			ways = append(ways, fmt.Sprintf("--set %s (%s%s)", strings.Join(x.Sets, " --set "), show.ByteSize(needs(x.Needs)), s.hosted(x)))
		}
	}
	return "what fits: " + strings.Join(ways, ", or ")
}

// hosted describes the memory of a GPU's host that a choice needs, if it needs more than the job.
func (s *search) hosted(x *Choice) string {
	own, err := s.quick.measure(s.job)
	if host := x.Needs.Host.Total(); s.gpu() && err == nil && host > own.Needs.Host.Total() {
		return " and " + show.ByteSize(host) + " of host memory"
	}
	return ""
}

// ladder returns the job with settings that need less and less of a device's memory, those that cost least
// time first: more is computed again, the optimizer's state has 8 bits, parameters and activations are on the host.
func (s *search) ladder(x *spec.Job) (all []*spec.Job) {
	levels, optimizers := slices.Clone(config.Recomputes[slices.Index(config.Recomputes, x.Zero.Recompute):]), []string{x.Optimizer.Type}
	if len(levels) == len(config.Recomputes) {
		levels[0], levels[1] = levels[1], levels[0] // elementwise alone precedes the job's own level with 8 bits
	}
	if x.Optimizer.Type == "adamw" {
		optimizers = append(optimizers, "adamw8bit")
	}
	for _, host := range [...]bool{false, true} {
		for _, level := range levels {
			for _, optimizer := range optimizers {
				y := x.Copy()
				if y.Optimizer.Type = optimizer; host {
					y.Zero.Stage, y.Zero.Offload.Parameters, y.Zero.Offload.Activations = 3, "host", s.activations()[0]
				}
				recompute(y, level)
				all = append(all, y)
			}
		}
	}
	return all
}

// fewest returns the choice with its changes of settings undone that it does not need.
func (s *search) fewest(c *Choice) *Choice {
	for again := true; again; {
		again = false
		for _, axis := range axes {
			for _, x := range s.quick.each(axis(s.quick, c.Config)) {
				if len(x.Sets) < len(c.Sets) && len(x.Sets) > 0 && max(0, s.over(x)) <= max(0, s.over(c)) {
					c, again = x, true
				}
			}
		}
	}
	return c
}
