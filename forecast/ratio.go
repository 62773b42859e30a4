package forecast

import (
	"fmt"
	"math"

	"zeroth/internal/show"
	"zeroth/job/spec"
)

// parts is the resolution of the ratio search: hundredths. Units are offloaded whole, so several
// ratios may give the same split.
const parts = 100

// withRatio returns a job with another percentage of its optimizer state offloaded.
func withRatio(x *spec.Job, part int) *spec.Job {
	x = x.Copy()
	x.Zero.Offload.Ratio = float64(part) / parts
	return x
}

// ratios returns a job with the smallest part of its optimizer state offloaded that fits the
// device, and with a larger one.
func (s *search) ratios(x *spec.Job) []*spec.Job {
	if x.Zero.Offload.Optimizer == "none" {
		return []*spec.Job{withRatio(x, parts)}
	}
	part := s.leastPart(x)
	return []*spec.Job{withRatio(x, part), withRatio(x, part+(parts-part)/4)}
}

// leastPart returns the smallest percentage of the optimizer state that must be offloaded, at
// least 1, or 100 if even that is too little. A larger part needs no more device memory.
func (s *search) leastPart(x *spec.Job) int {
	if s.quick != nil {
		s = s.quick
	}
	lacks := func(part int) int64 {
		c, err := s.measure(withRatio(x, part))
		if err != nil {
			return 0
		}
		return c.lacks()
	}
	lo, hi := 1, parts // lo is too little
	more, less := lacks(lo), lacks(hi)
	if more <= 0 {
		return lo
	}
	if less > 0 {
		return hi
	}
	for hi-lo > 1 { // bytes are almost proportional
		part := lo + int(float64(hi-lo)*float64(more)/float64(more-less))
		part = min(max(part, lo+1), hi-1)
		if n := lacks(part); n > 0 {
			lo, more = part, n
		} else {
			hi, less = part, n
		}
	}
	return hi
}

// tune returns a choice that offloads a part of its optimizer state with the part of the shortest
// simulated step, in which the device updates the rest at the same time. Ties go to the smallest
// part. The search goes from coarse to fine; steps of close parts take similar times.
func (s *search) tune(best *Choice) *Choice {
	if best.Config.Zero.Offload.Optimizer == "none" {
		return best
	}
	x := best.Config
	least := s.leastPart(x)
	for lo, hi, step := least, parts, 0; step != 1; {
		step = max(1, (hi-lo+7)/8)
		var some []*spec.Job
		for part := lo; part < hi; part += step {
			some = append(some, withRatio(x, part))
		}
		for _, c := range s.each(append(some, withRatio(x, hi))) {
			if s.better(c, best) {
				best = c
			}
		}
		part := int(math.Round(parts * best.Config.Zero.Offload.Ratio))
		lo, hi = max(least, part-step+1), min(parts, part+step-1)
	}
	if whole, err := s.measure(withRatio(x, parts)); err == nil && whole.Simulated != nil {
		best.whole = whole.Simulated.Seconds
	}
	best.least = least
	return best
}

// Advice returns a line about the zero.offload.ratio of a job that offloads its optimizer, for
// devices with the memory in l: the ratio of the shortest step that fits on known hardware, else
// the smallest one that fits. It is empty if the job's own ratio is as good, if none fits, and for
// jobs that cannot be searched. Host memory is assumed to suffice.
func Advice(c *spec.Job, l Limits) (string, error) {
	if c.Zero.Offload.Optimizer == "none" || l.Memory == 0 || searchable(c) != nil {
		return "", nil
	}
	l.Host, l.Disk = math.MaxInt64, math.MaxInt64
	s := newSearch(c, l)
	job, err := s.measure(s.job)
	if err != nil {
		return "", err
	}
	if none, err := s.measure(withRatio(s.job, 0)); err != nil || none.Fits() {
		return "the job fits with zero.offload.optimizer=none, which is faster", err
	}
	x, err := s.measure(withRatio(s.job, s.leastPart(s.job)))
	if err != nil || !x.Fits() {
		return "", err
	}
	if l.Hardware != nil {
		x = s.tune(x)
	}
	job.simulate()
	if x.Needs == job.Needs || job.Fits() && job.Seconds() < x.Seconds()*tie {
		return "", nil
	}
	line := fmt.Sprintf("--set zero.offload.ratio=%v fits, with %s of host memory for %s", x.Config.Zero.Offload.Ratio, show.ByteSize(x.Needs.Host.Total()), show.ByteSize(job.Needs.Host.Total()))
	if l.Hardware != nil && x.Simulated != nil && job.Simulated != nil {
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
