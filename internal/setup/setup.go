package setup

import (
	"slices"

	"zeroth/config"
	"zeroth/device"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/optim"
	"zeroth/pipe"
	"zeroth/shard"
	"zeroth/zero"
)

// Rules returns the update rules of the job, by shard.Param's Rule.
func Rules(c *spec.Job) []optim.Rule {
	if own := c.Own.Rule; own != nil {
		return []optim.Rule{own}
	}
	switch o := c.Optimizer; o.Type {
	case "adamw":
		return []optim.Rule{optim.AdamW{Beta1: o.Betas[0], Beta2: o.Betas[1], Eps: o.Eps}}
	case "adamw8bit":
		return []optim.Rule{optim.AdamW8{Beta1: o.Betas[0], Beta2: o.Betas[1], Eps: o.Eps}}
	case "adam":
		return []optim.Rule{optim.Adam{Beta1: o.Betas[0], Beta2: o.Betas[1], Eps: o.Eps}}
	case "lion":
		return []optim.Rule{optim.Lion{Beta1: o.Betas[0], Beta2: o.Betas[1]}}
	case "sgd":
		return []optim.Rule{optim.SGD{Momentum: o.Momentum}}
	case "muon":
		a, adjust := o.AdamW, optim.Adjust(slices.Index(config.Adjusts, o.Adjust))
		return []optim.Rule{
			config.AdamWRule: optim.AdamW{Beta1: a.Betas[0], Beta2: a.Betas[1], Eps: a.Eps},
			config.MuonRule:  optim.Muon{Momentum: o.Momentum, Nesterov: o.Nesterov, Coefficients: optim.Coefficients, Eps: o.Eps, Steps: o.Steps, Adjust: adjust},
		}
	}
	panic("setup: optimizer " + c.Optimizer.Type)
}

// group returns a function for the update settings of a parameter. Learning rates are fractions of
// the job's, which the schedule changes.
func group(c *spec.Job) func(shard.Param) optim.Group {
	return func(p shard.Param) optim.Group {
		g := c.Update(p)
		return optim.Group{LR: g.LR / c.Optimizer.LR, Decay: g.WeightDecay}
	}
}

// Schedule returns the job's learning rate schedule.
func Schedule(c *spec.Job) optim.Schedule {
	kinds := map[string]optim.Kind{"constant": optim.Constant, "linear": optim.Linear, "cosine": optim.Cosine, "wsd": optim.WSD, "inverse_sqrt": optim.InverseSqrt}
	return optim.Schedule{Kind: kinds[c.Schedule.Type], LR: c.Optimizer.LR, MinLR: c.Schedule.MinLR, Warmup: c.Schedule.Warmup, Steps: c.Train.Steps, Decay: c.Schedule.Decay, Lag: c.Schedule.Lag}
}

// lossScale returns a dynamic loss scale for fp16, else 1.
func lossScale(c *spec.Job) optim.LossScale {
	if c.Precision == device.F16 {
		return optim.DynamicLossScale()
	}
	return optim.StaticLossScale(1)
}

// Trainer returns the configuration of a rank's trainer, without a device.
func Trainer(c *spec.Job, rank int) zero.Config {
	stage, mesh, share, pad := zero.Stage(c.Zero.Stage), spec.Mesh(c), spec.Share(c), 0
	model, rules := spec.Part(c, cut(mesh, rank, shard.Tensor), cut(mesh, rank, shard.Expert)), Rules(c)
	if c.On() == "cuda" {
		model, pad = model.Joined(zero.Begin(rules)), 64 // elements: 128 bytes of the smaller types, the width of a load in products
	}
	policy := stage.Policy(c.Zero.Prefetch, spec.Recompute(c))
	policy.KeepGrads = policy.KeepGrads && !share.Blocks
	policy.HostActivations = c.Zero.Offload.Activations == "host"
	return zero.Config{
		Mesh: mesh, Pipeline: pipeline(c),
		Model: model, DType: c.Precision,
		Policy: policy,
		Share:  share, Micro: share.Micro(mesh.DataRank(rank)), Most: spec.Most(c), More: c.Faults.Survive, B: c.Train.MicroBatch, T: c.Model.Context, Fields: spec.Fields(c), Trim: trims(c),
		Chunk: c.Train.LossChunk, MLPChunk: c.Train.MLPChunk, Pad: pad, Seed: c.Train.Seed,
		Rules: rules, Group: group(c), Clip: c.Train.Clip, Scale: lossScale(c), Delayed: c.Train.Delayed, Master: c.Parallel.Master,
		Balance: zero.Balance{Coefficient: c.Train.RouterAux, Experts: c.Model.Experts.Count, TopK: c.Model.Experts.Router.TopK, Layers: c.Model.Layers},
	}
}

// cut returns a rank's part along a dimension of the mesh.
func cut(m shard.Mesh, rank int, a shard.Axis) nn.Cut {
	return nn.Cut{Index: m.At(rank, a), Count: m.Size(a)}
}

// trims reports whether ranks omit positions that are padding in all sequences of a micro-batch.
// GPUs compute all of them: products of other shapes would need their own algorithms.
func trims(c *spec.Job) bool {
	return len(c.Data.Documents) > 0 && c.On() != "cuda" && Pipeline(c) < 2 && c.Parallel.Context < 2 && c.Parallel.Expert < 2 && c.AttentionDropout == 0
}

// pipeline describes how the job's model is divided into stages.
func pipeline(c *spec.Job) (p zero.Pipeline) {
	if Pipeline(c) > 1 {
		p = zero.Pipeline{Schedule: pipe.Schedule(c.Pipeline.Schedule), Virtual: c.Pipeline.Virtual, Begins: spec.Begins(c)}
	}
	return p
}
