package fit

import (
	"zeroth/fsdp"
	"zeroth/job/config"
	"zeroth/job/setup"
	"zeroth/job/sim"
	"zeroth/pipe"
	"zeroth/shard"
)

// profileKey contains everything that the passes of a micro-batch depend on.
type profileKey struct {
	context, tensor, micro, chunk int
	recompute                     string
}

// profile returns the work of each kind of module for a micro-batch of the choice.
func (s *search) profile(x *config.Config) ([]passing, error) {
	m := config.Mesh(x)
	k := profileKey{m.Size(shard.Context), m.Size(shard.Tensor), x.Train.MicroBatch, x.Train.LossChunk, x.Zero.Recompute}
	return s.profiles.get(k, func() ([]passing, error) {
		l, err := s.network(x)
		if err != nil {
			return nil, err
		}
		c := unpiped(x)
		c.Train.MicroBatch, c.Train.LossChunk, c.Zero.Recompute = k.micro, k.chunk, k.recompute
		p, err := profiled(c, l.with(l.first))
		if err != nil {
			return nil, err
		}
		return p.passings(s.limits.Hardware.OfKernels(setup.Planned(x), p.recording)), nil
	})
}

// passings returns the work of each module, given the seconds of each kernel on the compute queue.
func (p *profiler) passings(seconds []float64) []passing {
	all := make([]passing, len(p.modules))
	for i, ops := range p.ops {
		all[i].ops = ops
	}
	for _, pass := range p.passes {
		of := &all[pass.step]
		for _, t := range p.recording.Queues[0].Tasks[pass.from:pass.to] {
			if t.Kernel < 0 {
				continue
			}
			switch took := seconds[t.Kernel]; {
			case pass.op == fsdp.Forward:
				of.forward += took
			default:
				of.backward += took
				if p.recording.Kernels[t.Kernel].Op == sim.WeightGradient {
					of.weights += took
				}
			}
		}
	}
	return all
}

// work returns the work of each chunk of a place for a micro-batch of the choice.
func (s *search) work(x *config.Config, p *pipelineRank) (chunks []passing, err error) {
	kinds, err := s.profile(x)
	if err != nil {
		return nil, err
	}
	at := 0
	for _, n := range p.chunks {
		var sum passing
		for _, m := range p.modules[at : at+n] {
			sum = sum.plus(kinds[p.kind[m]])
		}
		chunks, at = append(chunks, sum), at+n
	}
	return chunks, nil
}

// weighAt estimates the cost of the choice's step at a place, without waits for other places.
func (s *search) weighAt(x *config.Config, p *pipelineRank) (cost sim.Cost, traffic sim.Traffic, err error) {
	chunks, err := s.work(x, p)
	if err != nil {
		return cost, traffic, err
	}
	k := s.keyOf(x, p)
	k.moves = true
	units, err := s.measure(x, p, k)
	load := sim.Load{Traffic: units.traffic, Updates: s.updates / float64(x.Parallel.Ranks)}
	for _, c := range chunks {
		load.Micro, load.Busy = load.Micro.Plus(c.ops, 1), load.Busy+c.forward+c.backward
	}
	return sim.Weigh(x, load, s.limits.Rates), units.traffic, err
}

// weigh estimates the cost of a choice's step unless that is known: the cost at the slowest place,
// plus the pipeline's idle time.
func (s *search) weigh(c *Choice) error {
	if c.Cost.Compute > 0 {
		return nil
	}
	places, err := s.pipelineRanks(c.Config)
	if err != nil {
		return err
	}
	kinds, err := s.profile(c.Config)
	if err != nil {
		return err
	}
	for _, kind := range places[0].kind {
		ops := kinds[kind].ops
		c.flops += (ops.Flops - ops.Again) * float64(c.Config.Train.Accumulate) / float64(c.Config.Parallel.Pipeline)
	}
	for _, p := range places {
		cost, traffic, err := s.weighAt(c.Config, p)
		if err != nil {
			return err
		}
		if cost.Seconds() > c.Cost.Seconds() {
			c.Cost = cost
		}
		if h := s.limits.Hardware; h != nil {
			c.hostUpdate = max(c.hostUpdate, traffic.HostUpdate(h.HostMemory))
		}
	}
	if err == nil && c.Config.Parallel.Pipeline > 1 && s.limits.Hardware != nil {
		var passes float64
		passes, err = s.passesTake(c.Config)
		c.Cost.Idle = max(0, passes-c.Cost.Compute)
	}
	return err
}

// clockKey contains everything that the passes of a step's micro-batches depend on.
type clockKey struct {
	profileKey
	shape pipe.Shape
}

// passesTake returns the seconds in which all micro-batches of a step pass through the pipeline
// and back. Each rank runs its passes in schedule order, as soon as their inputs arrive.
func (s *search) passesTake(x *config.Config) (float64, error) {
	m := config.Mesh(x)
	k := clockKey{profileKey{m.Size(shard.Context), m.Size(shard.Tensor), x.Train.MicroBatch, x.Train.LossChunk, x.Zero.Recompute}, x.PipelineShape()}
	return s.clocks.get(k, func() (float64, error) {
		l, err := s.network(x)
		if err != nil {
			return 0, err
		}
		kinds, err := s.profile(x)
		if err != nil {
			return 0, err
		}
		stages := make([]passing, k.shape.Stages())
		begins := append(config.Begins(config.Standing(x, s.whole.model)), len(l.kind))
		for i := range stages {
			for _, kind := range l.kind[begins[i]:begins[i+1]] {
				stages[i] = stages[i].plus(kinds[kind])
			}
		}
		few, round := sim.Few(x)
		shape, link := k.shape, s.linkTakes(x)
		shape.Micro = few
		seconds := stepOf(shape, stages, link)
		if more := (k.shape.Micro - few) / round; more > 0 {
			shape.Micro -= round
			seconds += float64(more) * (seconds - stepOf(shape, stages, link))
		}
		return seconds, nil
	})
}

// linkTakes returns the seconds of a transfer between neighbouring places.
func (s *search) linkTakes(x *config.Config) float64 {
	if x.Parallel.Pipeline == 1 {
		return 0
	}
	elements := x.Train.MicroBatch * x.Model.Context / config.Mesh(x).Size(shard.Context, shard.Tensor) * s.whole.model.Width
	far := x.Parallel.Ranks / x.Parallel.Pipeline
	return s.limits.Hardware.Clock(setup.Planned(x))(sim.Kernel{Op: "broadcast", In: x.Precision, N: elements, Group: sim.Group{Size: 2, Stride: far}, Link: [2]int{0, far}})
}

// stepOf simulates a pipeline and returns its duration in seconds.
func stepOf(s pipe.Shape, stages []passing, link float64) (last float64) {
	takes := func(a pipe.Action) float64 {
		switch of := stages[a.Stage]; a.Kind {
		case pipe.Forward:
			return of.forward
		case pipe.InputGrad:
			return of.backward - of.weights
		case pipe.WeightGrad:
			return of.weights
		default:
			return of.backward
		}
	}
	var done [pipe.WeightGrad + 1][]float64 // end of each action by kind, stage and micro-batch; 0: not done
	for k := range done {
		done[k] = make([]float64, s.Stages()*s.Micro)
	}
	at := func(a pipe.Action) *float64 { return &done[a.Kind][a.Stage*s.Micro+a.Micro] }
	orders, next, now := make([][]pipe.Action, s.Ranks), make([]int, s.Ranks), make([]float64, s.Ranks)
	for r := range orders {
		orders[r] = s.Order(r)
	}
	for left := true; left; {
		left = false
		for r, order := range orders {
			for ; next[r] < len(order); next[r]++ {
				a := order[next[r]]
				if need, some := s.Needs(a); some {
					came := *at(need)
					if came == 0 {
						left = true
						break
					}
					if need.Stage != a.Stage && s.Ranks > 1 {
						came += link
					}
					now[r] = max(now[r], came)
				}
				now[r] += takes(a)
				*at(a) = now[r]
				last = max(last, now[r])
			}
		}
	}
	return last
}
