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

// budget refuses a job whose ranks need more than parallel.memory, before
// anything is allocated: with the categories that take most, and the settings
// nearest to the job's that fit.
func (c *Config) budget(f Footprint) error {
	budget, needs := c.Parallel.Memory, f.Device.Total()
	if budget == 0 || needs <= budget {
		return nil
	}
	return BadInput(fmt.Errorf("%v: parallel.memory: a budget of %s a rank, but a rank needs %s: %s; %s",
		c.place("parallel.memory"), byteSize(budget), byteSize(needs), largestUses(f.Device), c.nearby(budget)))
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

// nearby are up to three ways to set the job that fit a budget: those that
// change least, of these the fastest. Host memory has no bound that is known.
func (c *Config) nearby(budget int64) string {
	if c.searchable() != nil {
		return "want more memory, more ranks, a smaller model or shorter sequences"
	}
	all := c.search(Limits{Ranks: c.Parallel.Ranks, Memory: budget, Host: math.MaxInt64, Rates: here}).all
	least := slices.MinFunc(all, func(a, b *Choice) int { return cmp.Compare(a.over(), b.over()) })
	if !least.Fits() {
		return fmt.Sprintf("no other settings fit, the least is %s with --set %s; want more memory, more ranks, a smaller model or shorter sequences",
			byteSize(least.Needs.Device.Total()), strings.Join(least.Sets, " --set "))
	}
	fits := slices.DeleteFunc(all, func(x *Choice) bool { return !x.Fits() || len(x.Sets) == 0 })
	slices.SortStableFunc(fits, func(a, b *Choice) int {
		return cmp.Or(cmp.Compare(len(a.Sets), len(b.Sets)), cmp.Compare(a.Cost.Seconds(), b.Cost.Seconds()))
	})
	var ways []string
	seen := map[string]bool{}
	for _, x := range fits {
		if key, _, _ := strings.Cut(x.Sets[0], "="); !seen[key] && len(ways) < 3 {
			seen[key] = true
			ways = append(ways, fmt.Sprintf("--set %s (%s)", strings.Join(x.Sets, " --set "), byteSize(x.Needs.Device.Total())))
		}
	}
	return "what fits: " + strings.Join(ways, ", or ")
}
