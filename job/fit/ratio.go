package fit

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"zeroth/job/config"
	"zeroth/job/setup"
	"zeroth/job/show"
	"zeroth/job/sim"
)

// parts are what ratios are searched in: hundredths. Units are offloaded whole, so
// that several ratios may be one split of them.
const parts = 100

// at is a choice with another part of its optimizer state offloaded, in hundredths.
func (s *search) at(c *Choice, part int) (*Choice, error) {
	x := c.Config.Copy()
	x.Zero.Offload.Ratio = float64(part) / parts
	y, err := s.choice(x)
	if err == nil {
		y.least = c.least
	}
	return y, err
}

// least is a choice with the smallest part of its optimizer state offloaded that
// fits; if none does, with that which lacks least; nil if it needs none offloaded. A larger part takes
// no more of the device and no less of the host and the disk. A small part is
// also weighed as the fastest, for the host's update is on top.
func (s *search) least(c *Choice) (*Choice, error) {
	if c.Config.Zero.Offload.Optimizer == "none" {
		return nil, nil
	}
	if none, err := s.at(c, 0); err != nil || none.lacks() <= 0 {
		return nil, err
	}
	least, err := s.at(c, parts)
	if err != nil || least.lacks() > max(0, least.lacksBeside()) {
		return least, err // the device has too little whatever is offloaded
	}
	part := 1 + sort.Search(parts-1, func(i int) bool {
		x, wrong := s.at(c, i+1)
		err = cmp.Or(err, wrong)
		return err != nil || x.lacks() <= max(0, x.lacksBeside())
	})
	if err == nil {
		least, err = s.at(c, part)
	}
	if err == nil && !least.Fits() && part > 1 {
		less, wrong := s.at(c, part-1)
		if err = wrong; err == nil && less.over() < least.over() {
			least = less
		}
	}
	if err == nil && least.Fits() {
		c.least, least.least = part, part
	}
	return least, err
}

// splits are the choices with as little or more of the optimizer state offloaded
// that fit, one for every split of the units, the smallest ratio first.
func (s *search) splits(c *Choice) (list []*Choice, err error) {
	for part := c.least; part <= parts; part++ {
		x := c
		if float64(part)/parts != c.Config.Zero.Offload.Ratio {
			if x, err = s.at(c, part); err != nil {
				return nil, err
			}
		}
		if !x.Fits() {
			break
		}
		if n := len(list); n == 0 || x.Needs != list[n-1].Needs {
			list = append(list, x)
		}
	}
	return list, nil
}

// fastest is the choice with the part of its optimizer state offloaded of which
// the simulated step is shortest: the device updates the rest meanwhile. Of equal
// ones it is the smallest. The splits are searched from coarse to fine: of up to
// nine all are simulated, but for those that cannot be faster than the smallest.
func (s *search) fastest(c *Choice) (*Choice, error) {
	list, err := s.splits(c)
	if err != nil {
		return nil, err
	}
	whole, err := s.at(c, parts)
	if last := list[len(list)-1]; err == nil && whole.Needs == last.Needs {
		whole = last
	}
	if err = cmp.Or(err, list[0].simulate(), whole.simulate()); err != nil {
		return nil, err
	}
	if list, err = s.promising(list); err != nil {
		return nil, err
	}
	for lo, hi, step := 0, len(list)-1, 0; step != 1; {
		step = max(1, (hi-lo+7)/8)
		some := []*Choice{list[hi]}
		for i := lo; i < hi; i += step {
			some = append(some, list[i])
		}
		if err := each(len(some), func(i int) error { return some[i].simulate() }); err != nil {
			return nil, err
		}
		best := slices.Index(list, quickest(list))
		lo, hi = max(0, best-step+1), min(len(list)-1, best+step-1)
	}
	best := quickest(list)
	best.whole = whole.Simulated.Seconds
	return best, s.dryRun(best, true)
}

// promising are the first of some splits and those of which the host's update, between
// the norm and the next pass, takes less than the first's whole step. The more is
// offloaded the longer it takes.
func (s *search) promising(list []*Choice) (_ []*Choice, err error) {
	n := 1 + sort.Search(len(list)-1, func(i int) bool {
		x := list[i+1]
		err = cmp.Or(err, s.weigh(x))
		return x.hostUpdate >= list[0].Seconds()
	})
	return list[:n], err
}

// tune replaces the choices that must offload a part of their optimizer state by
// those with the fastest part, where the hardware is known.
func (s *search) tune(fits []*Choice) error {
	return each(len(fits), func(i int) (err error) {
		if fits[i].least > 0 && s.limits.Hardware != nil {
			fits[i], err = s.fastest(fits[i])
		}
		return err
	})
}

// quickest is the first of the choices that were simulated whose step is shortest.
func quickest(list []*Choice) (best *Choice) {
	for _, x := range list {
		if x.Simulated != nil && (best == nil || x.Simulated.Seconds < best.Simulated.Seconds) {
			best = x
		}
	}
	return best
}

// simulate is the choice's step on the hardware there is, once.
func (c *Choice) simulate() (err error) {
	if c.Simulated == nil && c.limits.Hardware != nil {
		c.Simulated, err = sim.SimulateUntraced(setup.Planned(c.Config), c.limits.Hardware)
	}
	return err
}

// each calls do with 0 to n-1, on all processors, and returns the first's error.
func each(n int, do func(int) error) error {
	errs, next := make([]error, n), atomic.Int64{}
	var all sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs[i] = do(i)
			}
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}

// Advice is a line on the zero.offload.ratio of a job that offloads its optimizer,
// for devices of so many bytes: the ratio of the shortest step that fits, where the
// hardware is known, else the smallest. It is empty where the job's own is as
// good, where none fits, and for what is not searched. The host is taken to have what that needs.
func Advice(c *config.Config, l Limits) (string, error) {
	if c.Zero.Offload.Optimizer == "none" || l.Memory == 0 || searchable(c) != nil {
		return "", nil
	}
	l.Host, l.Disk, l.Rates = math.MaxInt64, math.MaxInt64, here
	s, err := bare(c, l)
	if err != nil {
		return "", err
	}
	job, err := s.choice(s.job)
	if err != nil {
		return "", err
	}
	x, err := s.least(job)
	if err != nil {
		return "", err
	}
	if x == nil {
		return "the job fits with zero.offload.optimizer=none, which is faster", nil
	}
	if x.least > 0 && l.Hardware != nil {
		if x, err = s.fastest(x); err != nil {
			return "", err
		}
	}
	if err := job.simulate(); err != nil {
		return "", err
	}
	if x.least == 0 || x.Needs == job.Needs || job.Fits() && job.Seconds() < x.Seconds()*tie {
		return "", nil
	}
	line := fmt.Sprintf("--set zero.offload.ratio=%v fits, with %s of host memory for %s", x.Config.Zero.Offload.Ratio, show.ByteSize(x.Needs.Host.Total()), show.ByteSize(job.Needs.Host.Total()))
	if x.Simulated != nil {
		line += fmt.Sprintf(", and a step takes %s for %s", show.Seconds(x.Seconds()), show.Seconds(job.Seconds()))
	}
	return line, nil
}

// saves says what a tuned ratio saves over offloading all.
func (c *Choice) saves() string {
	ratio := c.Config.Zero.Offload.Ratio
	words := fmt.Sprintf("ratio %v", ratio)
	if smallest := float64(c.least) / parts; smallest < ratio {
		words += fmt.Sprintf(" (%v fits)", smallest)
	}
	if saved := c.whole - c.Seconds(); c.Simulated != nil && saved > 0 {
		words += fmt.Sprintf(" saves %s a step", show.Seconds(saved))
	}
	return words
}
