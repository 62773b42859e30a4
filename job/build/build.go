package build

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"zeroth/checkpoint"
	"zeroth/checkpoint/vfs"
	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/dry"
	"zeroth/job/config"
	"zeroth/offload"
	"zeroth/optim"
	"zeroth/zero"
)

// Rule is the update rule the job names.
func Rule(o config.Optimizer) optim.Rule {
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
	panic("build: optimizer " + o.Type)
}

// Schedule is the learning rate over the job's steps.
func Schedule(c *config.Config) optim.Schedule {
	kinds := map[string]optim.Kind{"constant": optim.Constant, "linear": optim.Linear, "cosine": optim.Cosine}
	return optim.Schedule{Kind: kinds[c.Schedule.Type], LR: c.Optimizer.LR, MinLR: c.Schedule.MinLR, Warmup: c.Schedule.Warmup, Steps: c.Train.Steps}
}

// lossScale is dynamic where gradients are too small for their type.
func lossScale(c *config.Config) optim.LossScale {
	if c.Precision == device.F16 {
		return optim.DynamicLossScale()
	}
	return optim.StaticLossScale(1)
}

// Trainer is what every rank's trainer has in common, without a device.
func Trainer(c *config.Config) zero.Config {
	stage := zero.Stage(c.Zero.Stage)
	return zero.Config{
		Mesh:  config.Mesh(c),
		Model: config.Network(c), DType: c.Precision,
		Policy: stage.Policy(c.Zero.Prefetch, c.Zero.Recompute == "block"),
		Micro:  c.Train.Accumulate, B: c.Train.MicroBatch, T: c.Model.Context, Chunk: c.Train.LossChunk,
		Rule: Rule(c.Optimizer), Clip: c.Train.Clip, Scale: lossScale(c),
	}
}

// Footprint is what one rank of a job allocates, and for good.
type Footprint struct {
	Device device.Bytes // by category
	Host   device.Bytes // of what is offloaded, by category
	Disk   int64        // bytes of its file
	Arena  int          // bytes of activations, which are in Device too
}

// Plus is f and times g.
func (f Footprint) Plus(g Footprint, times int) Footprint {
	for use := range device.Uses {
		f.Device[use] += int64(times) * g.Device[use]
		f.Host[use] += int64(times) * g.Host[use]
	}
	f.Disk += int64(times) * g.Disk
	f.Arena += times * g.Arena
	return f
}

// DryRun is a Footprint, learnt by a dry run of a step on devices that only count.
func DryRun(c *config.Config) (Footprint, error) { return DryRunWith(c, Hooks{}, FewMicro) }

// FewMicro is how many micro-batches of a step a dry run has at most: the first,
// one of those between, which are all alike, and the last.
const FewMicro = 3

// Micros is the job with at most so many micro-batches a step.
func Micros(c *config.Config, n int) *config.Config {
	x := *c
	x.Train.Accumulate = min(n, x.Train.Accumulate)
	return &x
}

// DryRunWith is DryRun of at most so many micro-batches, three or
// more.
func DryRunWith(c *config.Config, h Hooks, micros int) (f Footprint, err error) {
	x := Micros(c, micros)
	if f, err = Rehearse(x, math.MaxInt/2, h); err != nil {
		return f, err
	}
	return Rehearse(x, f.Arena, h)
}

// Workers is how many of the machine's processors a rank's kernels are split
// over.
func Workers(c *config.Config) int { return max(1, runtime.GOMAXPROCS(0)/c.Parallel.Ranks) }

// Queues are the queues a trainer works on, on the device.
var Queues = [...]string{"compute", "comm", "update"}

// sizes are the largest operands of the job's kernels.
func sizes(c *config.Config) cpu.Sizes {
	m := c.Model
	s := cpu.Sizes{
		Type: c.Precision, Rows: c.Train.MicroBatch * m.Context, Width: m.Width, Vocab: m.Vocab,
		Attn: device.Attn{T: m.Context, D: m.Width / m.Heads}, Rope: m.Family == "llama",
	}
	for _, p := range config.Parameters(c) {
		s.Widest = max(s.Widest, slices.Max(p.Shape))
	}
	return s
}

// Workspace is the bytes a rank's device takes for its kernels.
func Workspace(c *config.Config) int64 {
	n := len(Queues)
	if Saves(c) {
		n++ // the saver's
	}
	return cpu.Workspace(Workers(c), n, sizes(c))
}

// HostQueues and DiskQueues are those of what is offloaded, on the host.
var (
	HostQueues = [...]string{"host", "to host", "to device"}
	DiskQueues = [...]string{"read", "write"}
)

// HostWorkspace is the bytes a rank's host takes for the kernels of updates.
func HostWorkspace(c *config.Config) int64 {
	n := len(HostQueues)
	if c.Zero.Offload.Disk() {
		n += len(DiskQueues)
	}
	return cpu.Workspace(Workers(c), n, cpu.Sizes{})
}

// Rehearse runs a step with an arena of the given size. The footprint's Arena
// is how much of it was used.
func Rehearse(c *config.Config, arena int, h Hooks) (f Footprint, err error) {
	t, dev, host, err := Rehearsal(c, arena, h, func(*zero.Config) {})
	if err != nil {
		return f, err
	}
	t.Rehearse()
	return Footprint{Device: dev.Usage().Live, Host: host.Usage().Live, Disk: t.DiskBytes(), Arena: t.ArenaPeak()}, nil
}

// Rehearsal is the first rank on a device that only counts, and a host that
// does, with all allocated that a run allocates. wrap may put something
// between it and what it is built from.
func Rehearsal(c *config.Config, arena int, h Hooks, wrap func(*zero.Config)) (t *zero.Trainer, dev, host *dry.Device, err error) {
	mesh := config.Mesh(c)
	dev, host = &dry.Device{Host: !cpu.Separate}, &dry.Device{Host: true}
	z := Trainer(c)
	z.Device, z.Host, z.Compute, z.Comm, z.Update = dev, host, dry.Queue{}, dry.Queue{}, dry.Queue{}
	z.Groups = collective.Ranks{
		World: collective.Dry{Of: mesh.World()}, Shard: collective.Dry{Of: mesh.Shard}, Replica: collective.Dry{Of: mesh.Replicate},
	}
	z.Offload, z.ArenaSize = c.Zero.Offload.Config(), arena
	z.Offload.Tile = h.Tile
	offloads := c.Zero.Offload.Any()
	if !HostApart(c) {
		z.Host = dev
	}
	if offloads {
		q := dry.Queue{}
		z.HostUpdate = q
		z.Offload.ToHost, z.Offload.ToDevice, z.Offload.Read, z.Offload.Write = q, q, q, q
	}
	hostMemory := z.Host
	wrap(&z)
	if t, err = zero.New(z); err != nil {
		return nil, nil, nil, err
	}
	if _, err := hostMemory.Alloc(device.F32, Staged(c, t), device.Snapshot); err != nil {
		return nil, nil, nil, err
	}
	if _, err = dev.Alloc(device.F32, int(Workspace(c)/4), device.Workspace); err == nil && offloads {
		_, err = host.Alloc(device.F32, int(HostWorkspace(c)/4), device.Workspace)
	}
	return t, dev, host, err
}

// HostApart says whether a rank's host memory is accounted apart from its device's:
// the host cannot address that, or something is offloaded.
func HostApart(c *config.Config) bool { return cpu.Separate || c.Zero.Offload.Any() }

// HostMemory is the memory that the host may address: where what crosses to and
// from the device passes through, and checkpoints are staged.
func (r *Rank) HostMemory() *cpu.Device {
	if r.Host != nil {
		return r.Host
	}
	return r.Device
}

// Rank is one rank of a job in this process: its devices, its queues and its
// trainer. It belongs to one goroutine.
type Rank struct {
	Rank    int
	Device  *cpu.Device
	Host    *cpu.Device  // host memory, where it is apart from the device's; else nil
	Queues  []*cpu.Queue // compute, comm, update; with offload host, to host, to device; with a disk read, write
	Groups  collective.Ranks
	Trainer *zero.Trainer
	timeout time.Duration
	ends    []func()    // what is to be closed before the queues
	Lost    atomic.Bool // Together has left it behind
}

// Hooks are test hooks: wrappers and stand-ins for what a rank is built from. The
// zero value is the machine as it is.
type Hooks struct {
	WrapGroups func(rank int, g collective.Ranks) collective.Ranks // fault or delay wrappers around a rank's groups; may be nil
	Files      offload.Files                                       // the disk; nil is the machine's
	Tile       int                                                 // most elements offloaded at a time; 0 is offload's choice
	Saves      vfs.FS                                              // where checkpoints are written; nil is the machine's

	WrapTrainer func(rank int, z *zero.Config) // puts wrappers around what a rank's trainer is built from; may be nil
	Workers     int                            // of a rank's kernels; 0 is the rank's share of the processors
	Hold        *checkpoint.Hold               // of the folder of checkpoints; nil: each save takes its own
}

// Open builds every rank of the job, with parameters not yet set.
func Open(c *config.Config, h Hooks) ([]*Rank, error) {
	plan, err := DryRunWith(c, h, FewMicro)
	if err != nil {
		return nil, err
	}
	return OpenPlanned(c, plan, h)
}

// OpenPlanned builds the ranks of a plan.
func OpenPlanned(c *config.Config, plan Footprint, h Hooks) ([]*Rank, error) {
	if h.Files == nil {
		h.Files = offload.OS{}
	}
	run := fmt.Sprintf("%08x", rand.Uint32())
	var ranks []*Rank
	for r, g := range collective.LocalWorld(config.Mesh(c)) {
		g.World = collective.Watch(g.World, c.Parallel.Timeout)
		g.Shard = collective.Watch(g.Shard, c.Parallel.Timeout)
		g.Replica = collective.Watch(g.Replica, c.Parallel.Timeout)
		if h.WrapGroups != nil {
			g = h.WrapGroups(r, g)
		}
		rank, err := newRank(c, r, g, cmp.Or(h.Workers, Workers(c)))
		ranks = append(ranks, rank)
		if err == nil {
			err = rank.open(c, plan.Arena, run, h)
		}
		if err != nil {
			CloseAll(ranks)
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return ranks, nil
}

// newRank makes a rank's devices and queues.
func newRank(c *config.Config, r int, g collective.Ranks, workers int) (*Rank, error) {
	rank := &Rank{Rank: r, Device: cpu.New(workers), Groups: g, timeout: c.Parallel.Timeout}
	rank.Device.Budget(c.Parallel.Memory)
	if err := rank.Device.Reserve(sizes(c)); err != nil {
		return rank, err
	}
	open := func(d *cpu.Device, names ...string) {
		for _, name := range names {
			rank.Queues = append(rank.Queues, d.NewQueue(name))
		}
	}
	open(rank.Device, Queues[:]...)
	switch {
	case c.Zero.Offload.Any():
		rank.Host = cpu.NewHost(workers)
		if err := rank.Host.Reserve(cpu.Sizes{}); err != nil {
			return rank, err
		}
		open(rank.Host, HostQueues[:]...)
	case HostApart(c):
		rank.Host = cpu.NewHost(1) // nothing is computed there
	}
	if c.Zero.Offload.Disk() {
		open(rank.Host, DiskQueues[:]...)
	}
	return rank, nil
}

func (r *Rank) open(c *config.Config, arena int, run string, h Hooks) (err error) {
	z, q := Trainer(c), r.Queues
	z.Device, z.Host, z.Compute, z.Comm, z.Update = r.Device, r.HostMemory(), q[0], q[1], q[2]
	z.Groups, z.Offload, z.ArenaSize = r.Groups, c.Zero.Offload.Config(), arena
	o := &z.Offload
	if c.Zero.Offload.Any() {
		z.HostUpdate = q[3]
		o.ToHost, o.ToDevice, o.Tile = q[4], q[5], h.Tile
	}
	if c.Zero.Offload.Disk() {
		o.Read, o.Write = q[6], q[7]
		o.Scratch = offload.Scratch{Files: h.Files, Dir: c.Zero.Offload.Path, Run: run, Rank: r.Rank, Timeout: c.Parallel.Timeout / 2}
	}
	if h.WrapTrainer != nil {
		h.WrapTrainer(r.Rank, &z)
	}
	r.Trainer, err = zero.New(z)
	return err
}

// AtClose has f called when the rank is closed, after its groups and before its
// queues.
func (r *Rank) AtClose(f func()) { r.ends = append(r.ends, f) }

// Close ends the rank: first its groups, so that work which waits for a peer
// ends, then its queues, then its memory. A rank that Together has left behind
// keeps them all.
func (r *Rank) Close() {
	if r.Lost.Load() {
		return
	}
	_ = r.Groups.Close() // closing twice is fine, and in-process groups cannot fail to close
	for _, end := range r.ends {
		end()
	}
	for _, q := range r.Queues {
		q.Close()
	}
	if r.Trainer != nil {
		r.Trainer.Free()
	}
	r.Device.Close()
	if r.Host != nil {
		r.Host.Close()
	}
}

// CloseAll closes every rank. It must not be called while one is at work.
func CloseAll(ranks []*Rank) {
	for _, r := range ranks {
		r.Close()
	}
}

// DeviceTotal is the bytes of a rank's device.
func (f Footprint) DeviceTotal() int64 { return f.Device.Total() }

// Memory is the bytes of the machine's memory that a rank takes: here ranks are
// threads of it, so that device and host are one.
func (f Footprint) Memory() int64 { return f.Device.Total() + f.Host.Total() }

// Both is device and host together, by category.
func (f Footprint) Both() (b device.Bytes) {
	for use := range b {
		b[use] = f.Device[use] + f.Host[use]
	}
	return b
}

// SyncStaging is the bytes of staging memory of a save that training waits for.
const SyncStaging = 32 << 20

// Staged is the elements of staging memory a rank's saves use.
func Staged(c *config.Config, t *zero.Trainer) int {
	if !Saves(c) {
		return 0
	}
	if c.Checkpoint.Async {
		return StateLen(c, t)
	}
	return min(StateLen(c, t), SyncStaging/4)
}

// StateLen is the most elements of state a rank saves.
func StateLen(c *config.Config, t *zero.Trainer) int { return len(t.Kinds()) * t.ShareLen() }

// Saves says whether the job makes checkpoints.
func Saves(c *config.Config) bool { return c.Checkpoint.Every > 0 || c.Checkpoint.SaveOnExit }
