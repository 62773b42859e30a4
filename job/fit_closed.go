package job

import (
	"zeroth/device"
	"zeroth/nn"
	"zeroth/zero"
)

// unitSizes are a model's units, in order of first use.
func unitSizes(m *nn.Model) (sizes []zero.UnitSize) {
	at := map[string]int{}
	for i, mod := range m.Modules {
		if j, ok := at[m.Units[i]]; ok {
			sizes[j].Shared = true
			continue
		}
		at[m.Units[i]] = len(sizes)
		n := 0
		for _, p := range mod.Params() {
			n += p.Numel()
		}
		sizes = append(sizes, zero.UnitSize{Numel: n})
	}
	return sizes
}

// closed is what a rank of the job allocates by the closed forms alone, in
// microseconds: what fit searches with. Work space of kernels is not in it.
func (c *Config) closed(units []zero.UnitSize) device.Bytes {
	rows := c.Train.MicroBatch * c.Model.Context
	f := zero.Footprint{
		Units: units, Mesh: c.Mesh(), Policy: zero.Stage(c.Zero.Stage).Policy(c.Zero.Prefetch, c.Zero.Recompute == "block"), DType: c.Precision,
		Vecs: len(c.Optimizer.rule().States()), Micro: c.Train.Accumulate, Rows: rows,
		Peak: c.Model.activations(c.Precision, rows, c.Train.LossChunk, c.Zero.Recompute == "block"),
	}
	b := f.Bytes()
	b[device.Activations] = (b[device.Activations] + 3) / 4 * 4
	if c.saves() { // the closed form of staged: a rank's share of the master copy and the states
		share := b[device.States] / int64(4*f.Vecs*c.Mesh().Replicate)
		b[device.Snapshot] = 4 * int64(1+f.Vecs) * share
		if !c.Checkpoint.Async {
			b[device.Snapshot] = min(b[device.Snapshot], syncStaging)
		}
	}
	return b
}

// activations is the most of the arena a step of the model uses.
func (m Model) activations(t device.DType, rows, chunk int, recompute bool) int {
	if m.Family == "llama" {
		l := nn.Llama{Layers: m.Layers, Heads: m.Heads, KV: m.KVHeads, Width: m.Width, FFN: m.FFN, Vocab: m.Vocab}
		return zero.LlamaActivations(l, t, rows, chunk, recompute)
	}
	g := nn.GPT2{Layers: m.Layers, Heads: m.Heads, Width: m.Width, Context: m.Context, Vocab: m.Vocab}
	return zero.GPT2Activations(g, t, rows, chunk, recompute)
}
