package fit

import (
	"zeroth/device"
	"zeroth/job/build"
	"zeroth/job/config"
	"zeroth/job/hf"
	"zeroth/job/sim"
	"zeroth/zero"
)

// closed is what a rank of the job needs by the closed forms alone, in
// microseconds: what fit searches with. Work is that of the device's kernels.
func closed(c *config.Config, units []zero.UnitSize, work, hostWork int64) build.Footprint {
	rows, recompute, o := c.Train.MicroBatch*c.Model.Context, c.Zero.Recompute == "block", c.Zero.Offload
	f := zero.Footprint{
		Units: units, Mesh: config.Mesh(c), Policy: zero.Stage(c.Zero.Stage).Policy(c.Zero.Prefetch, recompute), DType: c.Precision,
		Vecs: zero.Vecs(build.Rules(c.Optimizer)), Micro: c.Train.Accumulate, Rows: rows, Packed: c.Data.Pack,
		Peak: activations(c.Model, c.Precision, rows, c.Train.LossChunk, recompute), Work: work, HostWork: hostWork,
		Separate: build.Of(c).HostApart(), Offload: zero.Offload{Optimizer: config.PlaceOf(o.Optimizer), Params: config.PlaceOf(o.Parameters), Ratio: o.Ratio, Buffers: o.Buffers},
	}
	n := build.Footprint{Device: f.Bytes(), Arena: (f.Peak + 3) / 4 * 4}
	n.Device[device.Activations] = int64(n.Arena)
	n.Host, n.Disk = f.Host(), f.Disk()
	n.Host[device.Wires] = int64(build.WireStagingOf(c))
	if build.HostApart(c) {
		n.Host[device.Snapshot] = snapshot(c, units)
	} else {
		n.Device[device.Snapshot] = snapshot(c, units)
	}
	bounce(c, units, &n)
	return n
}

// bounce adds the memory of what is on its way between processes.
func bounce(c *config.Config, units []zero.UnitSize, n *build.Footprint) {
	all := build.ShardedSizes(units, config.Mesh(c))
	n.Device[device.Bounce] += int64(build.ExactBounce(c, all) / 4 * 4)
	inShard, inReplica := build.Bounce(c, all, build.WireStagingOf(c))
	where := &n.Device
	if build.HostApart(c) {
		where = &n.Host
	}
	where[device.Bounce] += int64((inShard + inReplica) / 8 * 8)
}

// snapshot is the closed form of staged, in bytes: a rank's share of the master
// copy and the states, which replicas of a shard divide.
func snapshot(c *config.Config, units []zero.UnitSize) int64 {
	if !build.Saves(c) {
		return 0
	}
	all := int64(0)
	for _, u := range units {
		share := sim.Part(c, u) / int64(u.Over(config.Mesh(c)).Replicate)
		if !u.Frozen {
			share *= int64(1 + len(build.Rules(c.Optimizer)[u.Rule].States()))
		}
		all += 4 * share
	}
	if c.Checkpoint.Async {
		return all
	}
	return min(all, build.SyncStaging)
}

// activations is the most of the arena a step of the model uses.
func activations(m hf.Model, t device.DType, rows, chunk int, recompute bool) int {
	if m.Family == "llama" {
		return zero.LlamaActivations(m.Llama(), t, rows, chunk, recompute)
	}
	return zero.GPT2Activations(m.GPT2(), t, rows, chunk, recompute)
}

// Limits of a search for settings.
const (
	fitLayers = 1000 // of a model whose settings are searched
	fitMicros = 32   // sizes of micro-batches that are tried
)
