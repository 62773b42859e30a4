package job

import (
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/fsdp"
	"zeroth/nn"
	"zeroth/zero"
)

// unitSizes are a model's units, in order of first use.
func unitSizes(m *nn.Model) (sizes []zero.UnitSize) {
	for _, u := range m.Units() {
		n := 0
		for _, p := range u.Params {
			n += p.Numel()
		}
		sizes = append(sizes, zero.UnitSize{Numel: n, Shared: u.First != u.Last, Lookup: u.First == 0 && m.Lookup})
	}
	return sizes
}

// closed is what a rank of the job needs by the closed forms alone, in
// microseconds: what fit searches with. Work is that of the device's kernels.
func (c *Config) closed(units []zero.UnitSize, work, hostWork int64) Footprint {
	rows, recompute, o := c.Train.MicroBatch*c.Model.Context, c.Zero.Recompute == "block", c.Zero.Offload
	f := zero.Footprint{
		Units: units, Mesh: c.Mesh(), Policy: zero.Stage(c.Zero.Stage).Policy(c.Zero.Prefetch, recompute), DType: c.Precision,
		Vecs: len(c.Optimizer.rule().States()), Micro: c.Train.Accumulate, Rows: rows,
		Peak: c.Model.activations(c.Precision, rows, c.Train.LossChunk, recompute), Work: work, HostWork: hostWork,
		Separate: cpu.Separate, Offload: zero.Offload{Optimizer: placeOf(o.Optimizer), Params: placeOf(o.Parameters), Ratio: o.Ratio, Buffers: o.Buffers},
	}
	n := Footprint{Device: f.Bytes(), Arena: (f.Peak + 3) / 4 * 4}
	n.Device[device.Activations] = int64(n.Arena)
	n.Host, n.Disk = f.Host(), f.Disk()
	if c.hostApart() {
		n.Host[device.Snapshot] = c.snapshot(units)
	} else {
		n.Device[device.Snapshot] = c.snapshot(units)
	}
	return n
}

// snapshot is the closed form of staged, in bytes: a rank's share of the master
// copy and the states, which replicas of a shard divide.
func (c *Config) snapshot(units []zero.UnitSize) int64 {
	if !c.saves() {
		return 0
	}
	var share int64
	for _, u := range units {
		share += c.part(u) / int64(c.Mesh().Replicate)
	}
	all := 4 * share * int64(1+len(c.Optimizer.rule().States()))
	if c.Checkpoint.Async {
		return all
	}
	return min(all, syncStaging)
}

// part is the elements of a unit's shard.
func (c *Config) part(u zero.UnitSize) int64 {
	mesh := c.Mesh()
	step := mesh.World() * fsdp.Align
	return int64((u.Numel + step - 1) / step * fsdp.Align * mesh.Replicate)
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
