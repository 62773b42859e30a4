package job

import (
	"fmt"
)

// MostRanks is how many ranks a job can have.
const MostRanks = 1 << 16

// Limits of what can be asked for. They are far beyond what anyone trains, and
// near enough that bytes, elements and tokens can be counted in 63 bits, and
// that planning takes about a second.
const (
	most       = 1 << 20 // of every count that has no other bound
	mostLayers = 10_000
	mostSteps  = 1_000_000_000
	mostBatch  = 1 << 30 // sequences a step
	mostMemory = 1 << 60 // bytes

	fitLayers = 1000 // of a model whose settings are searched
	fitMicros = 32   // sizes of micro-batches that are tried

	mostParameters = 1 << 44 // elements
	mostTokens     = 1 << 62 // positions of all steps
	mostWork       = 1 << 57 // parameters × sequences a rank takes in a step
	mostActivation = 1 << 54 // positions a rank takes in a step × elements of each in all layers
)

// countable says which product of the job's settings is beyond what can be
// counted, by which keys; wrong is empty if none is.
func (c *Config) countable() (wrong string, keys []string) {
	m, t := c.Model, c.Train
	sequences := float64(t.MicroBatch) * float64(t.Accumulate)
	if m.Layers > mostLayers {
		return fmt.Sprintf("%d layers are more than %d", m.Layers, mostLayers), []string{"model.layers", "model.from"}
	}
	parameters := m.size()
	tokens := sequences * float64(m.Context)
	wide := float64(m.Layers+2) * float64(m.Width+m.FFN+m.Heads)
	for _, p := range []struct {
		what      string
		is, limit float64
		keys      []string
	}{
		{"parameters", parameters, mostParameters, []string{"model.layers", "model.width", "model.ffn", "model.from"}},
		{"sequences a step", sequences * float64(c.Parallel.Ranks), mostBatch, []string{"train.batch", "train.micro_batch", "train.accumulate", "parallel.ranks"}},
		{"tokens in all steps", tokens * float64(c.Parallel.Ranks) * float64(t.Steps), mostTokens, []string{"train.steps", "train.batch", "train.micro_batch", "train.accumulate", "model.context"}},
		{"parameters × sequences a rank takes in a step", parameters * sequences, mostWork, []string{"train.batch", "train.micro_batch", "train.accumulate", "model.width"}},
		{"elements that pass through a rank's layers in a step", tokens * wide, mostActivation, []string{"train.batch", "train.micro_batch", "train.accumulate", "model.context", "model.width"}},
	} {
		if p.is > p.limit {
			return fmt.Sprintf("%.3g %s are more than %.3g", p.is, p.what, p.limit), p.keys
		}
	}
	return "", nil
}

// size is about how many parameters the model has, in a type that does not
// overflow.
func (m Model) size() float64 {
	w, ends := float64(m.Width), 2*float64(m.Vocab)+float64(m.Context)
	ffn := 8 * w * w
	if m.Family == "llama" {
		ffn = 3 * w * float64(m.FFN)
	}
	return float64(m.Layers)*(4*w*w+ffn) + ends*w
}
