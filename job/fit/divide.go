package fit

import (
	"cmp"
	"math"
	"slices"

	"zeroth/job/config"
	"zeroth/pipe"
)

// With known hardware the search also divides the model in other ways than the job does. The time
// of a step's passes without the communication of units is a lower bound on the time of the step.
// The bound depends neither on the stage nor on the shard groups. So divisions are tried in order
// of their bounds, until no further one can be among the answers.

// division is a way to divide the model, with the time that micro-batches take to pass through it.
type division struct {
	*config.Config
	takes float64 // seconds for all micro-batches of a step
}

// Limits of the search over divisions.
const (
	mostPipeline = 32
	together     = 16  // passages tried before the bound is updated
	mostOffload  = 128 // passages tried with offloading
)

// divided returns the other ways to divide the model that the job's batch and the hardware's hosts
// allow.
func (s *search) divided() (all []*config.Config) {
	j := s.job
	near := j.Parallel.Ranks
	if links := s.limits.Hardware.Links; len(links) > 1 {
		near = min(near, links[0].Ranks)
	}
	for _, tensor := range divisors(j.Parallel.Ranks) {
		if tensor > near || tensor > 1 && (config.Given(j) || config.Coded(j)) {
			break // matrices are divided within a host
		}
		for _, context := range divisors(j.Parallel.Ranks / tensor) {
			if context*tensor > near || context > 1 && config.Given(j) {
				break // positions are, too
			}
			all = append(all, s.dividedInto(context, tensor)...)
		}
	}
	return all
}

// dividedInto returns the ways to divide the model in which context ranks divide sequences and
// tensor ranks divide matrices, except the job's own.
func (s *search) dividedInto(context, tensor int) (all []*config.Config) {
	j := s.job
	for _, pipeline := range divisors(j.Parallel.Ranks / tensor / context) {
		if pipeline > min(mostPipeline, j.Model.Layers) {
			break
		}
		x := j.Copy()
		x.Parallel.Pipeline, x.Parallel.Context, x.Parallel.Tensor = pipeline, context, tensor
		data := x.Parallel.DataRanks()
		if x.Parallel.Shard, x.Parallel.Replicate = data, 1; x.Train.Batch%data > 0 {
			continue
		}
		for _, of := range schedules(pipeline) {
			same := pipeline == j.Parallel.Pipeline && (pipeline == 1 || of.Schedule == j.Pipeline.Schedule && of.Virtual == j.Pipeline.Virtual)
			if x.Pipeline = of; !same || tensor != j.Parallel.Tensor || context != j.Parallel.Context {
				all = append(all, x.Copy())
			}
		}
	}
	return all
}

// schedules returns the schedules worth trying. It omits GPipe, which is as fast as 1F1B but has
// more micro-batches in flight.
func schedules(pipeline int) []config.Pipeline {
	of := func(s pipe.Schedule, virtual int) config.Pipeline {
		return config.Pipeline{Schedule: string(s), Virtual: virtual}
	}
	if pipeline == 1 {
		return []config.Pipeline{of(pipe.OneF1B, 1)}
	}
	return []config.Pipeline{of(pipe.OneF1B, 1), of(pipe.ZBH1, 1), of(pipe.Interleaved, 2), of(pipe.Interleaved, 4)}
}

// passages returns all passages except the job's own, fastest first.
func (s *search) passages() (all []division, err error) {
	for _, d := range s.divided() {
		sequences := d.Train.Batch / d.Parallel.DataRanks()
		for _, micro := range microBatches(sequences, s.job.Train.MicroBatch) {
			x := d.Copy()
			if micro > 1 && x.Parallel.Context > 1 {
				continue // with whole sequences instead, ranks need not exchange keys
			}
			if x.Train.MicroBatch, x.Train.Accumulate = micro, sequences/micro; !config.Accepts(x) || !counts(x) {
				continue
			}
			for _, recompute := range config.Recomputes {
				y := x.Copy()
				y.Zero.Recompute = recompute
				all = append(all, division{Config: y})
			}
		}
	}
	err = each(len(all), func(i int) (err error) {
		all[i].takes, err = s.passesTake(all[i].Config)
		return err
	})
	slices.SortStableFunc(all, func(a, b division) int { return cmp.Compare(a.takes, b.takes) })
	return all, err
}

// divide tries other ways to divide the model as long as they can be among the answers.
func (s *search) divide() error {
	ways, err := s.passages()
	if s.offloading {
		ways = ways[:min(mostOffload, len(ways))]
	}
	for len(ways) > 0 && err == nil {
		bound, n := s.bound(), 0
		for n < min(together, len(ways)) && ways[n].takes < bound {
			n++
		}
		if n == 0 {
			break
		}
		found := make([][]*Choice, n)
		err = each(n, func(i int) (err error) {
			found[i], err = s.settle(ways[i].Config)
			return err
		})
		s.all, ways = append(s.all, slices.Concat(found...)...), ways[n:]
	}
	return err
}

// bound returns the seconds of the slowest way listed so far, or infinity if fewer ways than
// listed are known.
func (s *search) bound() float64 {
	best := map[way]float64{}
	for _, c := range s.all {
		if at, ok := best[c.way()]; c.Fits() && (!ok || c.Seconds() < at) {
			best[c.way()] = c.Seconds()
		}
	}
	var all []float64
	for _, t := range best {
		all = append(all, t)
	}
	if slices.Sort(all); len(all) < listed {
		return math.Inf(1)
	}
	return all[listed-1]
}

// settle returns the choices that shard the passage x, and weighs those that fit. At each stage it
// stops at the first group size, from the largest on, that does not fit.
func (s *search) settle(x *config.Config) (all []*Choice, err error) {
	s.sharded(x, func(y *config.Config) bool {
		for _, lean := range []func(){
			func() {},
			func() { y.Zero.Prefetch, y.Train.LossChunk = 0, slices.Min(s.chunks(*y)) },
			func() { y.Zero.Offload.Optimizer = "host" },
			func() { y.Zero.Offload.Parameters = "host" },
		}[:s.leanest(y)] {
			y = y.Copy()
			lean()
			c, wrong := s.choice(y)
			if wrong == nil && c.Fits() {
				wrong = s.weigh(c)
			}
			if err = cmp.Or(err, wrong); err != nil {
				return false
			}
			if all = append(all, c); c.Fits() {
				return true
			}
		}
		return false
	})
	return all, err
}

// leanest returns the number of settings to try in turn; each needs less device memory than the last.
func (s *search) leanest(x *config.Config) int {
	switch {
	case !s.offloading:
		return 2
	case x.Zero.Stage < 3:
		return 3
	}
	return 4
}
