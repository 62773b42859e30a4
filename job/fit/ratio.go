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

// parts is the resolution of the ratio search: hundredths. Units are offloaded whole, so several
// ratios may give the same split.
const parts = 100

// at returns the choice with another percentage of its optimizer state offloaded.
func (s *search) at(c *Choice, part int) (*Choice, error) {
	x := c.Config.Copy()
	x.Zero.Offload.Ratio = float64(part) / parts
	y, err := s.choice(x)
	if err == nil {
		y.least = c.least
	}
	return y, err
}

// least returns the choice with the smallest part of its optimizer state offloaded that fits, or
// if none fits, the one that lacks least. It returns nil if nothing needs to be offloaded. A
// larger part needs no more device memory, and no less host memory and disk. A smaller part is
// also faster by estimate, because it shortens the host's update.
func (s *search) least(c *Choice) (*Choice, error) {
	if c.Config.Zero.Offload.Optimizer == "none" {
		return nil, nil
	}
	if none, err := s.at(c, 0); err != nil || none.lacks() <= 0 {
		return nil, err
	}
	least, err := s.at(c, parts)
	if err != nil || least.lacks() > max(0, least.lacksBeside()) {
		return least, err // the device lacks memory even with everything offloaded
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

// splits returns the fitting choices with at least the smallest possible part offloaded, one for
// every split of the units, by ascending ratio.
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

// fastest returns the choice with the offloaded part of the shortest simulated step, in which the
// device updates the rest at the same time. Ties go to the smallest part. The search goes from
// coarse to fine; up to nine splits are all simulated, except those that cannot be faster than the
// smallest.
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

// promising returns the first split and those whose host update, between the norm and the next
// pass, takes less than the first split's whole step. The update takes longer the more is
// offloaded.
func (s *search) promising(list []*Choice) (_ []*Choice, err error) {
	n := 1 + sort.Search(len(list)-1, func(i int) bool {
		x := list[i+1]
		err = cmp.Or(err, s.weigh(x))
		return x.hostUpdate >= list[0].Seconds()
	})
	return list[:n], err
}

// tune replaces the choices that must offload a part of their optimizer state by those with the
// fastest part. It needs known hardware.
func (s *search) tune(fits []*Choice) error {
	return each(len(fits), func(i int) (err error) {
		if fits[i].least > 0 && s.limits.Hardware != nil {
			fits[i], err = s.fastest(fits[i])
		}
		return err
	})
}

// quickest returns the first choice with the shortest simulated step.
func quickest(list []*Choice) (best *Choice) {
	for _, x := range list {
		if x.Simulated != nil && (best == nil || x.Simulated.Seconds < best.Simulated.Seconds) {
			best = x
		}
	}
	return best
}

// simulate simulates a step of the choice once, if the hardware is known.
func (c *Choice) simulate() (err error) {
	if c.Simulated == nil && c.limits.Hardware != nil {
		c.Simulated, err = sim.SimulateUntraced(setup.Planned(c.Config), c.limits.Hardware)
	}
	return err
}

// perProcessor is the number of goroutines per processor: several, because some wait for a memo
// that others compute.
const perProcessor = 4

// each calls do(0) to do(n-1) on all processors. It returns the error of the lowest index.
func each(n int, do func(int) error) error {
	errs, next := make([]error, n), atomic.Int64{}
	var all sync.WaitGroup
	for range min(n, perProcessor*runtime.GOMAXPROCS(0)) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs[i] = do(i)
			}
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}

// Advice returns a line about the zero.offload.ratio of a job that offloads its optimizer, for
// devices with the memory in l: the ratio of the shortest step that fits on known hardware, else
// the smallest one that fits. It is empty if the job's own ratio is as good, if none fits, and for
// jobs that cannot be searched. Host memory is assumed to suffice.
func Advice(c *config.Config, l Limits) (string, error) {
	if c.Zero.Offload.Optimizer == "none" || l.Memory == 0 || searchable(c) != nil {
		return "", nil
	}
	l.Host, l.Disk, l.Rates = math.MaxInt64, math.MaxInt64, roughRates
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

// saves describes what a tuned ratio saves over offloading everything.
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
