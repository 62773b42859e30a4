package tests

import (
	"fmt"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/job"
)

// planned is a job's plan on this machine.
func planned(t *testing.T, c *job.Config) *job.Plan {
	t.Helper()
	p, err := c.Plan(job.Machine{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// uses are the allocations that categories are part of.
func uses(a job.Amounts) (b device.Bytes) {
	for c, n := range a {
		b[job.Category(c).Use()] += n
	}
	return b
}

// A plan allocates what a run allocates, and at every event of its timeline no
// category has more in use than is allocated for it; all of the arena is in
// use at some event, and so is all that is allocated for gathered units and
// whole gradients where all units are alike.
func TestInUseIsWithinAllocated(t *testing.T) {
	for _, sets := range memoryJobs {
		t.Run(fmt.Sprint(sets), func(t *testing.T) {
			c := config(t, sets...)
			p := planned(t, c)
			sameBytes(t, "planned", p.Allocated, formula(c))
			var most device.Bytes
			for _, m := range p.Timeline {
				for use, n := range uses(m.InUse) {
					if n < 0 || n > p.Allocated[use] {
						t.Errorf("%s: %d bytes of %v in use of %d", m.Name, n, device.Use(use), p.Allocated[use])
					}
					most[use] = max(most[use], n)
				}
			}
			for use, n := range most {
				want := p.Allocated[use]
				if device.Use(use) == device.UnitGrads && c.Zero.Stage < 2 && c.Train.Accumulate > 1 {
					continue // of two slots one is in use: what is in it is added up by the queue that writes the next
				}
				if n != want {
					t.Errorf("at most %d bytes of %v in use, allocated are %d", n, device.Use(use), want)
				}
			}
			for use, n := range uses(p.AtRest) {
				if n > uses(p.Timeline[0].InUse)[use] || n > p.Allocated[use] {
					t.Errorf("at rest %d bytes of %v", n, device.Use(use))
				}
			}
			if strings.Contains(p.Peak.Name, "%!") || p.Peak.InUse.Total() > p.Allocated.Total() {
				t.Errorf("peak %q: %d bytes of %d", p.Peak.Name, p.Peak.InUse.Total(), p.Allocated.Total())
			}
		})
	}
}
