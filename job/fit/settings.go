package fit

import (
	"math/bits"
	"slices"

	"zeroth/job/config"
	"zeroth/zero"
)

// each calls f with every setting to search, without changing how the model is divided.
func (s *search) each(f func(config.Config)) {
	j := s.job
	sequences := j.Train.MicroBatch * j.Train.Accumulate
	for _, micro := range microBatches(sequences, j.Train.MicroBatch) {
		if s.undivided && micro != j.Train.MicroBatch {
			continue
		}
		x := j.Copy()
		x.Train.MicroBatch, x.Train.Accumulate = micro, sequences/micro
		if micro == j.Train.MicroBatch || config.Accepts(x) {
			s.sharded(x, func(x *config.Config) bool {
				s.knobs(x, f)
				return true
			})
		}
	}
}

// sharded calls f with a job at every stage and every shard group size, from the largest on, until
// f returns false.
func (s *search) sharded(j *config.Config, f func(*config.Config) (more bool)) {
	ranks := j.Parallel.DataRanks()
	for stage := range zero.Stages {
		for _, replicate := range divisors(ranks) {
			shard := ranks / replicate
			if shard*j.Parallel.Context == 1 && ranks > 1 || stage == 0 && replicate > 1 {
				continue // a single shard is stage 0, and stage 0 has no shard groups
			}
			x := j.Copy()
			x.Zero.Stage, x.Parallel.Shard, x.Parallel.Replicate = stage, shard, replicate
			if !f(x) {
				break
			}
		}
	}
}

// knobs calls f with every combination of the remaining settings.
func (s *search) knobs(x *config.Config, f func(config.Config)) {
	prefetches := []int{0, 1, 2}
	if x.Zero.Stage < 3 {
		prefetches = prefetches[:2] // no gathers ahead, and never more than two gradients
	}
	for _, recompute := range config.Recomputes {
		for _, prefetch := range prefetches {
			for _, chunk := range s.chunks(*x) {
				for _, o := range s.offloads(*x) {
					x.Zero.Recompute, x.Zero.Prefetch, x.Train.LossChunk, x.Zero.Offload = recompute, prefetch, chunk, o
					if counts(x) {
						f(*x)
					}
				}
			}
		}
	}
}

// offloads returns the possible places of optimizer state and parameters.
func (s *search) offloads(x config.Config) (list []config.Offload) {
	places := config.TierNames[:1]
	switch {
	case s.limits.Host > 0 && s.limits.Disk > 0:
		places = config.TierNames
	case s.limits.Host > 0:
		places = config.TierNames[:2]
	}
	params := places
	if x.Zero.Stage < 3 {
		params = places[:1]
	}
	for _, optimizer := range places {
		for _, parameters := range params {
			o := s.job.Zero.Offload
			o.Optimizer, o.Parameters = optimizer, parameters
			if o.Disk() && o.Path == "" {
				o.Path = "."
			}
			list = append(list, o)
		}
	}
	return list
}

// chunks returns the job's own loss chunk and some smaller ones.
func (s *search) chunks(x config.Config) []int {
	list := []int{s.job.Train.LossChunk}
	for n := 4096; n >= 256; n /= 4 {
		if n < s.job.Train.LossChunk && n < x.Train.MicroBatch*x.Model.Context {
			list = append(list, n)
		}
	}
	return list
}

// microBatches returns the possible sizes of a micro-batch: all divisors, or if there are too
// many, the job's own and the largest up to each power of two.
func microBatches(sequences, own int) (list []int) {
	all := divisors(sequences)
	if len(all) <= fitMicros {
		return all
	}
	for i, n := range all {
		last := i+1 == len(all)
		if n == own || last || bits.Len(uint(all[i+1]-1)) > bits.Len(uint(n-1)) {
			list = append(list, n)
		}
	}
	return list
}

// divisors returns the divisors of n, ascending.
func divisors(n int) (list []int) {
	for i := 1; i*i <= n; i++ {
		if n%i == 0 {
			list = append(list, i)
			if i*i < n {
				list = append(list, n/i)
			}
		}
	}
	slices.Sort(list)
	return list
}
