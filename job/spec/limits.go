package spec

import (
	"cmp"
	"fmt"
	"math"

	"zeroth/config"
	"zeroth/job/hf"
)

// Limits of products of settings. They far exceed practical training, and keep counts of bytes,
// elements and tokens within 63 bits and planning within about a second.
const (
	mostTiles  = 1 << 18 // offloaded pieces of 2^20 elements per rank
	mostChunks = 1 << 16 // chunks of train.loss_chunk or train.mlp_chunk tokens in a micro-batch
	MostTasks  = 1 << 22 // tasks of all queues in the simulated steps

	mostParameters = 1 << 44 // elements
	mostTokens     = 1 << 62 // positions of all steps
	mostWork       = 1 << 57 // parameters × sequences of a rank per step
	mostActivation = 1 << 54 // positions of a rank per step × elements per position in all layers
)

// Magnitude is a limited product of a job's settings, in a type that does not overflow, and the
// keys that can lower it.
type Magnitude struct {
	What      string
	Is, Limit float64
	Keys      []string
}

// Magnitudes returns the limited products of a job.
func Magnitudes(c *Job) []Magnitude {
	m, t := c.Model, c.Train
	parameters, active := size(c.Model)
	sequences := float64(t.MicroBatch) * float64(t.Accumulate)
	tokens := sequences * float64(m.Context)
	offloaded := 0.0
	if c.Zero.Offload.State() {
		offloaded = parameters / float64(Mesh(c).Shard) / (1 << 20)
	}
	return []Magnitude{
		{"layers", float64(m.Layers), hf.MostLayers, []string{"model.layers", "model.from"}},
		{"parameters", parameters, mostParameters, []string{"model.layers", "model.width", "model.ffn", "model.experts.count", "model.experts.width", "model.from"}},
		{"sequences per step", sequences * float64(c.Parallel.DataRanks()), config.MostBatch, []string{"train.batch", "train.micro_batch", "train.accumulate", "parallel.ranks"}},
		{"tokens in all steps", tokens * float64(c.Parallel.DataRanks()) * float64(t.Steps), mostTokens, []string{"train.steps", "train.batch", "train.micro_batch", "train.accumulate", "model.context"}},
		{"chunks of train.loss_chunk tokens in a micro-batch", float64(t.MicroBatch) * float64(m.Context) / float64(t.LossChunk), mostChunks, []string{"train.loss_chunk", "train.micro_batch", "model.context"}},
		{"chunks of train.mlp_chunk tokens in a micro-batch", float64(t.MicroBatch) * float64(m.Context) / max(1, float64(t.MLPChunk)) * float64(min(1, t.MLPChunk)), mostChunks, []string{"train.mlp_chunk", "train.micro_batch", "model.context"}},
		{"offloaded pieces of 2^20 elements per rank", offloaded, mostTiles, []string{"zero.offload.optimizer", "zero.offload.parameters", "model.width", "parallel.shard", "parallel.ranks"}},
		{"parameters × sequences of a rank per step", active * sequences, mostWork, []string{"train.batch", "train.micro_batch", "train.accumulate", "model.width"}},
		{"elements that pass through a rank's layers per step", tokens * float64(m.Layers+2) * float64(m.Width+max(m.FFN, m.Experts.Router.TopK*m.Experts.FFN+m.Experts.Shared)+m.Heads), mostActivation,
			[]string{"train.batch", "train.micro_batch", "train.accumulate", "model.context", "model.width"}},
	}
}

// checkCounts rejects products of settings beyond their limits.
func (r *resolver) checkCounts() {
	if wrong, keys := Countable(r.Job); wrong != "" {
		r.Refuse(wrong, "want less", keys...)
	}
}

// Countable returns an error message for the first product that exceeds its limit and the keys
// that can lower it. The message is empty if all are within their limits.
func Countable(c *Job) (wrong string, keys []string) {
	for _, p := range Magnitudes(c) {
		if p.Is > p.Limit {
			return fmt.Sprintf("%s %s are more than %s", about(p.Is), p.What, about(p.Limit)), p.Keys
		}
	}
	return "", nil
}

// about formats a number in full, or to three digits if it is long.
func about(x float64) string {
	if x < 1e12 {
		return fmt.Sprintf("%.0f", math.Ceil(x))
	}
	return fmt.Sprintf("%.3g", x)
}

// size returns the approximate number of parameters of the model, and of those that process a
// token, in a type that does not overflow.
func size(m hf.Model) (all, active float64) {
	w, ends := float64(m.Width), 2*float64(m.Vocab)+float64(m.Context)
	heads, ffn := float64(m.Heads)*float64(m.Head()), 2*w*float64(cmp.Or(m.Inner, 4*m.Width))
	if m.Family == "llama" {
		ffn = 3 * w * float64(m.FFN)
	}
	layer := func(experts int) float64 {
		x := m.Experts
		return float64(m.Layers)*(4*w*heads+max(ffn, 3*w*(float64(experts)*float64(x.FFN)+float64(x.Shared)))) + ends*w
	}
	return layer(m.Experts.Count), layer(m.Experts.Router.TopK)
}
