package forecast

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

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
		nearby(c, budget, (*Choice).over, setup.Footprint.DeviceTotal)))
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
		show.ByteSize(has), nearby(c, has/ranks, over, of)))
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
		nearby(c, has, over, setup.Footprint.DeviceTotal)))
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

// nearby returns up to three ways to set the job that fit: those that change one setting, the
// fastest first, or else one that changes as few as needed. over returns how much a choice exceeds
// the budget, and needs the memory that is compared with it. Host memory is unlimited.
func nearby(c *spec.Job, budget int64, over func(*Choice) int64, needs func(setup.Footprint) int64) string {
	const lessOrMore = "want more memory, another number of ranks, a smaller model or shorter sequences"
	if searchable(c) != nil {
		return lessOrMore
	}
	s := newSearch(c, Limits{Ranks: c.Parallel.Ranks, Memory: budget, Host: math.MaxInt64})
	s.over, s.quick.over = over, over
	var fits []*Choice
	for _, axis := range axes {
		fits = append(fits, slices.DeleteFunc(s.each(axis(s, s.job)), func(x *Choice) bool { return over(x) > 0 || len(x.Sets) == 0 })...)
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
	slices.SortStableFunc(fits, func(a, b *Choice) int { return cmp.Or(cmp.Compare(len(a.Sets), len(b.Sets)), order(a, b)) })
	var ways []string
	seen := map[string]bool{}
	for _, x := range fits {
		if key, _, _ := strings.Cut(x.Sets[0], "="); !seen[key] && len(ways) < 3 {
			seen[key] = true
			ways = append(ways, fmt.Sprintf("--set %s (%s)", strings.Join(x.Sets, " --set "), show.ByteSize(needs(x.Needs))))
		}
	}
	return "what fits: " + strings.Join(ways, ", or ")
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
