package spec

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/config"
	"zeroth/nn"
	"zeroth/pipe"
)

// resolvePipeline rejects impossible pipelines.
func (r *resolver) resolvePipeline() {
	c := r.Job
	p, n := &c.Pipeline, c.Parallel.Pipeline
	s := c.PipelineShape()
	keys := []string{"parallel.pipeline", "pipeline.virtual", "pipeline.schedule", "train.accumulate", "train.batch"}
	switch err := s.Check(); {
	case max(s.Micro, Most(c)) > pipe.MaxPasses/max(1, s.Stages()):
		r.Refuse(fmt.Sprintf("a step of %d micro-batches is too long", max(s.Micro, Most(c))), fmt.Sprintf("want at most %d, such as by a larger train.micro_batch", pipe.MaxPasses/max(1, s.Stages())), "train.accumulate", "train.batch")
	case n == 1:
	case err != nil && s.Virtual > 1 && s.Schedule == pipe.Interleaved:
		r.Refuse(err.Error(), wantNear("train.accumulate", s.Micro, func(m int) bool { return m%n == 0 })+", or the schedule 1F1B", keys...)
	case err != nil:
		r.Refuse(err.Error(), "want virtual: 1, or 2 and more with Interleaved1F1B", keys[1:]...)
	case s.Virtual > 1 && !Share(c).Even():
		r.Refuse(fmt.Sprintf("batch %d gives some replicas %d micro-batches and others %d, and %s needs multiples of %d", c.Train.Batch, s.Micro, s.Micro-1, s.Schedule, n),
			"want another batch, or the schedule 1F1B", keys...)
	case c.unknown():
	case s.Stages() > c.Model.Layers:
		r.Refuse(fmt.Sprintf("%d stages for %d layers", s.Stages(), c.Model.Layers), fmt.Sprintf("want at most %d", c.Model.Layers), "parallel.pipeline", "pipeline.virtual", "model.layers", "model.from")
	case p.Layers == nil:
	case len(p.Layers) != s.Stages():
		r.Refuse(fmt.Sprintf("layers for %d stages, but there are %d", len(p.Layers), s.Stages()), "want a number for each stage, or leave it out", "pipeline.layers", "parallel.pipeline", "pipeline.virtual")
	default:
		sum := 0
		for _, l := range p.Layers {
			sum += l
		}
		if sum != c.Model.Layers {
			r.Refuse(fmt.Sprintf("%s = %d layers, but the model has %d", strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Layers), " ", " + "), "[]"), sum, c.Model.Layers),
				fmt.Sprintf("want numbers that add up to %d, or leave it out", c.Model.Layers), "pipeline.layers", "model.layers", "model.from")
		}
	}
	if n > 1 && s.Schedule == pipe.ZBH1 && c.Train.MLPChunk > 0 {
		r.Refuse("ZBH1 keeps the hidden layer of all tokens for its deferred weight gradients", "want schedule: 1F1B, or mlp_chunk: 0", "pipeline.schedule", "train.mlp_chunk")
	}
	if s.Micro < n && r.Has("train.accumulate") {
		c.note("a pipeline of %d ranks with %d micro-batches a step: some ranks are always idle; want train.accumulate of at least %d", n, s.Micro, n)
	}
}

// PipelineShape returns the shape of the job's pipeline, which may have a single stage.
func (c *Job) PipelineShape() pipe.Shape {
	return pipe.Shape{Schedule: pipe.Schedule(c.Pipeline.Schedule), Ranks: c.Parallel.Pipeline, Virtual: c.Pipeline.Virtual, Micro: c.Train.Accumulate}
}

// Accepts reports whether the job's layers, positions, matrices and micro-batches can be divided
// as configured, also when replicas are lost.
func Accepts(c *Job) bool {
	r := newResolver("", nil)
	r.Job = c.Copy()
	r.resolvePipeline()
	r.resolveContext()
	r.resolveTensor()
	r.resolveFaults()
	r.resolveSums()
	return len(r.Problems) == 0 && Share(c).Valid()
}

// Begins returns the index of each stage's first module in the job's network.
func Begins(c *Job) []int {
	m, n := Network(c), c.PipelineShape().Stages()
	inner := len(m.Modules) - 2
	layers, sum := c.Pipeline.Layers, 0
	for _, l := range layers {
		sum += l
	}
	if len(layers) != n || sum != inner {
		layers = balanced(moduleCosts(m, c.Model.Context, Recompute(c)), n)
	}
	begins := []int{0}
	for _, l := range layers[:min(n, len(layers))-1] {
		begins = append(begins, min(inner, begins[len(begins)-1]+l))
	}
	for i := range begins[1:] {
		begins[1+i]++ // after the embedding
	}
	return begins
}

// StageLayers returns the number of blocks in each stage of the job.
func StageLayers(c *Job) (layers []int) {
	begins := append(Begins(c), len(Network(c).Modules)-1)
	begins[0] = 1
	for i := range begins[1:] {
		layers = append(layers, begins[i+1]-begins[i])
	}
	return layers
}

// Recompute returns the level of zero.recompute.
func Recompute(c *Job) nn.Recompute {
	return nn.RecomputeNone + nn.Recompute(slices.Index(config.Recomputes, c.Zero.Recompute))
}

// recomputed is the part of a block's forward pass that each level repeats, by operations of a Llama 8B.
var recomputed = [...]float64{nn.RecomputeMLP: 0.44, nn.RecomputeLinear: 0.59, nn.RecomputeBlock: 0.72}

// moduleCosts returns the operations per token of each module's passes, in multiples of two:
// products with its matrices, and attention to other tokens.
func moduleCosts(m *nn.Model, context int, recompute nn.Recompute) []float64 {
	costs := make([]float64, len(m.Modules))
	for i, mod := range m.Modules {
		for _, p := range mod.Params() {
			switch {
			case p.Expert:
				costs[i] += m.Active * float64(p.Numel())
			case len(p.Shape) == 2:
				costs[i] += float64(p.Numel())
			}
		}
		passes := 3.0 // forward, and backward for inputs and for weights
		if inner := i > 0 && i+1 < len(m.Modules); inner {
			if m.Blocks > 0 {
				costs[i] += float64(context * m.QKV / 3) // scores and values, half of each
			}
			passes += recomputed[recompute]
		}
		costs[i] *= passes
	}
	if m.Lookup {
		costs[0] = 0
	}
	return costs
}

// balanced divides the inner modules into n stages to minimize the cost of the costliest stage.
// The first and the last module belong to the first and the last stage. Ties give more modules to
// later stages, because earlier ones hold more micro-batches.
func balanced(costs []float64, n int) []int {
	inner := costs[1 : len(costs)-1]
	fill := func(most float64) (layers []int) {
		layers = make([]int, n)
		at := len(inner)
		for s := n - 1; s >= 0; s-- {
			sum := 0.0
			switch s {
			case 0:
				sum = costs[0]
			case n - 1:
				sum = costs[len(costs)-1]
			}
			for at > s && (layers[s] == 0 || sum+inner[at-1] <= most) { // leave one for each earlier stage
				at--
				sum += inner[at]
				layers[s]++
			}
		}
		if at > 0 {
			return nil
		}
		return layers
	}
	most := 0.0 // starts at the total, then shrinks to the least possible
	for _, c := range costs {
		most += c
	}
	for step := most / 2; step > most*1e-9; step /= 2 {
		if fill(most-step) != nil {
			most -= step
		}
	}
	return fill(most)
}
