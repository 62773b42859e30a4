package job

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"zeroth/device"
)

// here is what a rank of this machine does, by order of magnitude: enough to
// put one setting before another.
var here = Rates{Flops: 1e11, Link: 5e9}

// within refuses a job whose ranks allocate more than a budget, before
// anything is allocated: with the categories that take most, and the settings
// nearest to the job's that fit. Nil if it fits.
func (c *Config) within(budget int64, allocated device.Bytes) error {
	if allocated.Total() <= budget {
		return nil
	}
	return BadInput(fmt.Errorf("%v: parallel.memory: a rank needs %s, %s more than the %s there are: %s; %s",
		c.place("parallel.memory"), byteSize(allocated.Total()), byteSize(allocated.Total()-budget), byteSize(budget), largestUses(allocated), c.nearby(budget)))
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
		words = append(words, fmt.Sprintf("%v %s", use, byteSize(b[use])))
	}
	return strings.Join(words, ", ")
}

// nearby are up to three ways to set the job that fit a budget: those that
// change least, of these the fastest.
func (c *Config) nearby(budget int64) string {
	s := c.search(Limits{Ranks: c.Parallel.Ranks, Memory: budget, Rates: here})
	fits := slices.DeleteFunc(s.all, func(x *Choice) bool { return !x.Fits() || len(x.Sets) == 0 })
	if len(fits) == 0 {
		least := slices.MinFunc(c.search(Limits{Ranks: c.Parallel.Ranks, Rates: here}).all, func(a, b *Choice) int {
			return cmp.Compare(a.Allocated.Total(), b.Allocated.Total())
		})
		return fmt.Sprintf("no other settings fit, the least is %s with --set %s; want more memory, more ranks, a smaller model or shorter sequences",
			byteSize(least.Allocated.Total()), strings.Join(least.Sets, " --set "))
	}
	slices.SortStableFunc(fits, func(a, b *Choice) int {
		return cmp.Or(cmp.Compare(len(a.Sets), len(b.Sets)), cmp.Compare(a.Cost.Seconds(), b.Cost.Seconds()))
	})
	var ways []string
	seen := map[string]bool{}
	for _, x := range fits {
		if key, _, _ := strings.Cut(x.Sets[0], "="); !seen[key] && len(ways) < 3 {
			seen[key] = true
			ways = append(ways, fmt.Sprintf("--set %s (%s)", strings.Join(x.Sets, " --set "), byteSize(x.Allocated.Total())))
		}
	}
	return "what fits: " + strings.Join(ways, ", or ")
}
