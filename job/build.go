package job

import (
	"fmt"
	"math"
	"runtime"
	"slices"

	"zeroth/checkpoint"
	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/dry"
	"zeroth/offload"
	"zeroth/optim"
	"zeroth/zero"
)

// rule is the update rule the job names.
func (o Optimizer) rule() optim.Rule {
	switch o.Type {
	case "adamw":
		return optim.AdamW{Beta1: o.Betas[0], Beta2: o.Betas[1], Eps: o.Eps, Decay: o.WeightDecay}
	case "adam":
		return optim.Adam{Beta1: o.Betas[0], Beta2: o.Betas[1], Eps: o.Eps, Decay: o.WeightDecay}
	case "lion":
		return optim.Lion{Beta1: o.Betas[0], Beta2: o.Betas[1], Decay: o.WeightDecay}
	case "sgd":
		return optim.SGD{Momentum: o.Momentum, Decay: o.WeightDecay}
	}
	panic("job: optimizer " + o.Type)
}

// schedule is the learning rate over the job's steps.
func (c *Config) schedule() optim.Schedule {
	kinds := map[string]optim.Kind{"constant": optim.Constant, "linear": optim.Linear, "cosine": optim.Cosine}
	return optim.Schedule{Kind: kinds[c.Schedule.Type], LR: c.Optimizer.LR, MinLR: c.Schedule.MinLR, Warmup: c.Schedule.Warmup, Steps: c.Train.Steps}
}

// lossScale is dynamic where gradients are too small for their type.
func (c *Config) lossScale() optim.LossScale {
	if c.Precision == device.F16 {
		return optim.DynamicLossScale()
	}
	return optim.StaticLossScale(1)
}

// trainer is what every rank's trainer has in common, without a device.
func (c *Config) trainer() zero.Config {
	stage := zero.Stage(c.Zero.Stage)
	return zero.Config{
		Mesh:  c.Mesh(),
		Model: c.Model.network(), DType: c.Precision,
		Policy: stage.Policy(c.Zero.Prefetch, c.Zero.Recompute == "block"),
		Micro:  c.Train.Accumulate, B: c.Train.MicroBatch, T: c.Model.Context, Chunk: c.Train.LossChunk,
		Rule: c.Optimizer.rule(), Clip: c.Train.Clip, Scale: c.lossScale(),
	}
}

// resident keeps optimizer state in device memory.
func resident(dev device.Device, rule optim.Rule) func([]device.Buffer) (offload.Store, error) {
	return func(params []device.Buffer) (offload.Store, error) {
		return offload.NewResident(dev, params, len(rule.States()))
	}
}

// Footprint is what one rank of the job allocates, by category, learnt by
// rehearsing a step on a device that only counts.
func (c *Config) Footprint() (bytes device.Bytes, arena int, err error) {
	if arena, _, err = c.rehearse(math.MaxInt / 2); err != nil {
		return bytes, 0, err
	}
	_, usage, err := c.rehearse(arena)
	return usage.Live, arena, err
}

// workers is how many of the machine's processors a rank's kernels are split
// over.
func (c *Config) workers() int { return max(1, runtime.GOMAXPROCS(0)/c.Parallel.Ranks) }

// queues are the queues a trainer works on.
var queues = [...]string{"compute", "comm", "update"}

// sizes are the largest operands of the job's kernels.
func (c *Config) sizes() cpu.Sizes {
	m := c.Model
	s := cpu.Sizes{
		Type: c.Precision, Rows: c.Train.MicroBatch * m.Context, Width: m.Width, Vocab: m.Vocab,
		Attn: device.Attn{T: m.Context, D: m.Width / m.Heads},
	}
	for _, p := range parameters(m.network()) {
		s.Widest = max(s.Widest, slices.Max(p.Shape))
	}
	return s
}

// Workspace is the bytes a rank's device takes for its kernels.
func (c *Config) Workspace() int64 {
	n := len(queues)
	if c.saves() {
		n++ // the saver's
	}
	return cpu.Workspace(c.workers(), n, c.sizes())
}

// rehearse runs a step with an arena of the given size and returns how much of
// it was used.
func (c *Config) rehearse(arena int) (peak int, u device.Usage, err error) {
	mesh := c.Mesh()
	dev, z := &dry.Device{}, c.trainer()
	z.Device, z.Compute, z.Comm, z.Update = dev, dry.Queue{}, dry.Queue{}, dry.Queue{}
	z.Groups = collective.Ranks{
		World: collective.Dry{Of: mesh.World()}, Shard: collective.Dry{Of: mesh.Shard}, Replica: collective.Dry{Of: mesh.Replicate},
	}
	z.Store, z.ArenaSize = resident(dev, z.Rule), arena
	t, err := zero.New(z)
	if err != nil {
		return 0, u, err
	}
	if _, err := dev.Alloc(device.F32, c.staged(t), device.Snapshot); err != nil {
		return 0, u, err
	}
	if _, err := dev.Alloc(device.F32, int(c.Workspace()/4), device.Workspace); err != nil {
		return 0, u, err
	}
	err = t.Rehearse()
	return t.ArenaPeak(), dev.Usage(), err
}

// Rank is one rank of a job in this process: its device, its queues and its
// trainer. It belongs to one goroutine.
type Rank struct {
	Rank    int
	Device  *cpu.Device
	Queues  []*cpu.Queue // compute, comm, update
	Groups  collective.Ranks
	Trainer *zero.Trainer
	saver   *saver // nil for a job that makes no checkpoints
}

// Open builds every rank of the job, with parameters not yet set. wrap, if not
// nil, may put fault or delay wrappers around a rank's groups.
func (c *Config) Open(wrap func(rank int, g collective.Ranks) collective.Ranks) ([]*Rank, error) {
	_, arena, err := c.Footprint()
	if err != nil {
		return nil, err
	}
	var ranks []*Rank
	saves, tuner := collective.NewLocal(c.Parallel.Ranks), &checkpoint.Tuner{}
	for r, g := range collective.LocalWorld(c.Mesh()) {
		g.World = collective.Checked(g.World, c.Parallel.Timeout)
		g.Shard = collective.Checked(g.Shard, c.Parallel.Timeout)
		g.Replica = collective.Checked(g.Replica, c.Parallel.Timeout)
		if wrap != nil {
			g = wrap(r, g)
		}
		rank, err := c.openRank(r, g, arena)
		if err == nil && c.saves() {
			rank.saver, err = c.newSaver(rank, saves[r], tuner)
		}
		ranks = append(ranks, rank)
		if err != nil {
			for _, r := range ranks {
				r.Close()
			}
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return ranks, nil
}

func (c *Config) openRank(r int, g collective.Ranks, arena int) (rank *Rank, err error) {
	dev := cpu.New(c.workers())
	rank = &Rank{Rank: r, Device: dev, Groups: g}
	if err := dev.Reserve(c.sizes()); err != nil {
		return rank, err
	}
	for _, name := range queues {
		rank.Queues = append(rank.Queues, dev.NewQueue(name))
	}
	z := c.trainer()
	z.Device, z.Compute, z.Comm, z.Update = dev, rank.Queues[0], rank.Queues[1], rank.Queues[2]
	z.Groups, z.Store, z.ArenaSize = g, resident(dev, z.Rule), arena
	rank.Trainer, err = zero.New(z)
	return rank, err
}

// Close ends the rank: first its groups, so that work which waits for a peer
// ends, then its queues, then its memory.
func (r *Rank) Close() {
	_ = r.Groups.Close() // closing twice is fine, and in-process groups cannot fail to close
	if r.saver != nil {
		r.saver.close()
	}
	for _, q := range r.Queues {
		q.Close()
	}
	if r.Trainer != nil {
		r.Trainer.Free()
	}
	r.Device.Close()
}
