package job

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"zeroth/device"
)

// here is what a rank of this machine does, by order of magnitude: enough to
// put one setting before another.
var here = Rates{Flops: 1e11, Link: 5e9, Host: 5e9, Memory: 1e10, Disk: 1e9}

// affordable is what each rank will allocate, if there is as much.
func (c *Config) affordable(s Seams) (Footprint, error) {
	plan, err := c.footprint(s, fewMicro)
	if err != nil {
		return plan, err
	}
	return plan, cmp.Or(c.budget(plan), c.affords(plan, machine()))
}

// PlanHere is the plan of a job whose ranks are this machine's and share its
// memory: where there is too little, it says what training would say.
func (c *Config) PlanHere(m Machine) (*Plan, error) {
	p, err := c.Plan(m)
	if err != nil {
		return nil, err
	}
	f := Footprint{Device: p.Allocated, Host: p.Host, Disk: p.Disk}
	p.lacks = cmp.Or(c.budget(f), c.affords(f, machine()))
	return p, nil
}

// openAffordable opens the ranks of a job, if there is the memory they need.
func (c *Config) openAffordable(s Seams) ([]*Rank, error) {
	plan, err := c.affordable(s)
	if err != nil {
		return nil, err
	}
	return c.openPlanned(plan, s)
}

// budget refuses a job whose ranks need more than parallel.memory, before
// anything is allocated: with the categories that take most, and the settings
// nearest to the job's that fit.
func (c *Config) budget(f Footprint) error {
	budget, needs := c.Parallel.Memory, f.Device.Total()
	if budget == 0 || needs <= budget {
		return nil
	}
	return c.tooMuch(fmt.Sprintf("a budget of %s a rank, but a rank needs %s: %s; %s", byteSize(budget), byteSize(needs), largestUses(f.Device),
		c.nearby(budget, (*Choice).over, Footprint.device)))
}

// affords refuses a job whose ranks together need more memory than there is
// free. Who names a size in parallel.memory knows better what will be free: then
// what counts is all there is.
func (c *Config) affords(f Footprint, m memory) error {
	has, where := m.Free, m.Limit+" has %s free"
	if c.Parallel.Memory > 0 {
		has, where = m.Total, m.Limit+" has %s in all"
	}
	ranks := int64(c.Parallel.Ranks)
	if has == 0 || f.memory() <= has/ranks {
		return nil
	}
	over := func(x *Choice) int64 { return x.Needs.memory() - has/ranks }
	return c.tooMuch(fmt.Sprintf("%d ranks need %s, %s each: %s; but "+where+"; %s", ranks, byteSize(product(f.memory(), ranks)), byteSize(f.memory()), largestUses(f.both()),
		byteSize(has), c.nearby(has/ranks, over, Footprint.memory)))
}

func (c *Config) tooMuch(wrong string) error {
	return BadInput(fmt.Errorf("%v: parallel.memory: %s", c.place("parallel.memory"), wrong))
}

// product is a times b, or the most there is.
func product(a, b int64) int64 {
	if a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

// device is the bytes of a rank's device, and memory those of the machine's
// memory: here ranks are threads of it, so that device and host are one.
func (f Footprint) device() int64 { return f.Device.Total() }
func (f Footprint) memory() int64 { return f.Device.Total() + f.Host.Total() }

// both is device and host together, by category.
func (f Footprint) both() (b device.Bytes) {
	for use := range b {
		b[use] = f.Device[use] + f.Host[use]
	}
	return b
}

// largestUses are the categories that take nine tenths of what is allocated.
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
		words = append(words, fmt.Sprintf("%s %v", byteSize(b[use]), use))
	}
	return strings.Join(words, ", ")
}

// nearby are up to three ways to set the job that fit: those that change least,
// of these the fastest. Over is by how much a choice does not, and needs what it
// is held against. Host memory has no bound of its own.
func (c *Config) nearby(budget int64, over func(*Choice) int64, needs func(Footprint) int64) string {
	const lessOrMore = "want more memory, another number of ranks, a smaller model or shorter sequences"
	if c.searchable() != nil {
		return lessOrMore
	}
	all := c.search(Limits{Ranks: c.Parallel.Ranks, Memory: budget, Host: math.MaxInt64, Rates: here}).all
	least := slices.MinFunc(all, func(a, b *Choice) int { return cmp.Compare(over(a), over(b)) })
	if over(least) > 0 {
		return fmt.Sprintf("no other settings fit, the least is %s with --set %s; %s", byteSize(needs(least.Needs)), strings.Join(least.Sets, " --set "), lessOrMore)
	}
	fits := slices.DeleteFunc(all, func(x *Choice) bool { return over(x) > 0 || len(x.Sets) == 0 })
	slices.SortStableFunc(fits, func(a, b *Choice) int {
		return cmp.Or(cmp.Compare(len(a.Sets), len(b.Sets)), cmp.Compare(a.Cost.Seconds(), b.Cost.Seconds()))
	})
	var ways []string
	seen := map[string]bool{}
	for _, x := range fits {
		if key, _, _ := strings.Cut(x.Sets[0], "="); !seen[key] && len(ways) < 3 {
			seen[key] = true
			ways = append(ways, fmt.Sprintf("--set %s (%s)", strings.Join(x.Sets, " --set "), byteSize(needs(x.Needs))))
		}
	}
	return "what fits: " + strings.Join(ways, ", or ")
}
