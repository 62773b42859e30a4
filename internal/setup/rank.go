package setup

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/job/spec"
	"zeroth/offload"
	"zeroth/zero"
)

// HostMemory returns the memory that the host can address. Transfers to and from the device pass
// through it, and checkpoints are staged in it.
func (r *Rank) HostMemory() Device {
	if r.Host != nil {
		return r.Host
	}
	return r.Device
}

// Rank is one rank of a job in this process: its devices, its queues and its trainer. It belongs
// to one goroutine.
type Rank struct {
	Rank       int // in the world
	LocalIndex int // index among the ranks of this process
	Device     Device
	Host       Device // host memory if separate from the device's, else nil
	Queues     Queues
	Groups     collective.Ranks
	Trainer    *zero.Trainer
	Planned    Footprint // its allocations

	Recorder *collective.Recorder // of its operations
	Opening  []device.Span        // waits of its host since it was opened, for traces

	timeout time.Duration
	dead    time.Duration   // parallel.dead_after: NCCL may take as long to abort a communicator
	wires   device.Buffer   // in Host: staging memory of Groups; may be empty
	joined  []joined        // groups with NCCL communicators
	bounce  []device.Buffer // host memory of the groups for reductions in progress
	adds    []device.Buffer // in Device: memory for exact sums over NCCL
	ends    []func()        // called before the queues are closed
	shadows Device          // device of the queues that compare with the CPU's kernels; nil: none
	Lost    atomic.Bool     // Together has abandoned the rank
}

// Hooks are test hooks: wrappers and substitutes for the parts of a rank. The zero value changes
// nothing.
type Hooks struct {
	WrapGroups func(rank int, g collective.Ranks) collective.Ranks // wraps a rank's groups to inject faults or delays; may be nil
	Files      vfs.ScratchFS                                       // file system for offloading and checkpoints; nil is the machine's
	Tile       int                                                 // maximum elements offloaded at a time; 0 is offload's choice

	WrapTrainer func(rank int, z *zero.Config) // modifies the configuration of a rank's trainer; may be nil
	Workers     int                            // of a rank's kernels; 0 is the rank's share of the processors
}

// Open builds and connects the job's ranks in this process. Their parameters are not set yet.
func Open(j *Job) (ranks []*Rank, err error) {
	defer func() {
		if err != nil {
			CloseAll(ranks)
			ranks = nil
		}
	}()
	if j.Connection, err = j.World.Connect(spec.Mesh(j.Job)); err != nil {
		return nil, err
	}
	for i, r := range j.At.Local {
		rank, err := newRank(j, r, j.Connection.Groups[i], j.Connection.Memory)
		ranks, rank.LocalIndex, rank.Recorder = append(ranks, rank), i, collective.NewRecorder()
		if err != nil {
			return ranks, fmt.Errorf("rank %d: %w", r, err)
		}
	}
	if err := allAtOnce(j, ranks, (*Rank).connect); err != nil {
		return ranks, err
	}
	if ask := j.Connection.OnLate; ask != nil {
		ask(recorders(ranks))
	}
	run := fmt.Sprintf("%08x", rand.Uint32())
	planned := map[int]*needs{} // by place
	for _, rank := range ranks {
		at := RankKind(j.Job, rank.Rank)
		if planned[at] == nil {
			if planned[at], err = dryNeeds(j, at); err != nil {
				return ranks, err
			}
		}
		rank.Groups = j.wrap(rank.Rank, rank.Groups, rank.Recorder)
		if err := rank.equip(j, planned[at], run); err != nil {
			return ranks, fmt.Errorf("rank %d: %w", rank.Rank, err)
		}
	}
	return ranks, allAtOnce(j, ranks, (*Rank).register)
}

// equip allocates the memory of a connected rank and builds its trainer. On a rank that only
// counts, the needs are still unknown: zero.
func (r *Rank) equip(j *Job, n *needs, run string) error {
	r.Planned = n.Footprint
	if err := r.stage(j); err != nil {
		return err
	}
	if err := r.reserve(j, r.Planned.Device); err != nil {
		return err
	}
	if err := r.open(j, n.arenas, run); err != nil {
		return err
	}
	return r.lend(j, n)
}

func recorders(ranks []*Rank) (all []*collective.Recorder) {
	for _, r := range ranks {
		all = append(all, r.Recorder)
	}
	return all
}

// wrap adds the job's deadline, a recorder and the test hooks to a rank's groups.
func (j *Job) wrap(r int, g collective.Ranks, rec *collective.Recorder) collective.Ranks {
	for role, of := range g.All() {
		*of = rec.Watchdog(*of, j.Parallel.Timeout, role.String(), false)
	}
	if j.Hooks.WrapGroups != nil {
		g = j.Hooks.WrapGroups(r, g)
	}
	return g
}

// newRank opens a rank's devices and queues. The caller must also close the partial rank returned
// with an error.
func newRank(c *Job, r int, g collective.Ranks, mem cpu.Memory) (rank *Rank, err error) {
	rank = &Rank{Rank: r, Groups: g, timeout: c.Parallel.Timeout, dead: c.Parallel.DeadAfter}
	if rank.Device, err = of(c).Open(r, c.workers(), sizes(c.Job), c.Parallel.Memory); err != nil {
		return rank, err
	}
	share(rank.Device, mem)
	rank.openQueues(rank.Device, Compute, Comm, Update)
	if c.Shadow {
		if err := rank.shadow(c); err != nil {
			return rank, err
		}
	}
	if HostApart(c.Job) {
		err = rank.openHost(c, mem)
	}
	for l, g := range g.Links {
		if g != nil && err == nil {
			rank.openQueues(rank.Device, LinkQueue(collective.Link(l)))
		}
	}
	return rank, err
}

// openQueues opens queues on one of the rank's devices.
func (r *Rank) openQueues(d Device, roles ...QueueRole) {
	for _, role := range roles {
		r.Queues[role] = d.NewQueue(role)
	}
}

// openHost opens the rank's separate host memory and its queues.
func (r *Rank) openHost(c *Job, mem cpu.Memory) (err error) {
	b, o, workers := of(c), c.Zero.Offload, c.workers()
	if !o.State() {
		workers = 1 // nothing is computed there
	}
	if r.Host, err = b.OpenHost(r.Rank, workers); err == nil && b.Name() == "cpu" { // a GPU's host memory is pinned
		share(r.Host, mem)
	}
	if err != nil || !o.Any() {
		return err
	}
	copies := r.Host
	if b.DeviceCopies() {
		copies = r.Device
	}
	if o.State() {
		r.openQueues(r.Host, HostUpdate)
	}
	r.openQueues(copies, ToHost, ToDevice)
	if o.Disk() {
		r.openQueues(r.Host, Read, Write)
	}
	return nil
}

// OpenSaves opens the queue and the staging memory of saves during training, which the caller
// closes and frees.
func (r *Rank) OpenSaves(c *spec.Job) (Queue, device.Buffer, error) {
	b, err := r.HostMemory().Alloc(device.F32, r.stagingLen(c), device.Snapshot)
	if err != nil {
		return nil, b, err
	}
	return r.Device.NewQueue(Save), b, nil
}

// stagingLen returns the float32 elements of the staging memory of saves.
func (r *Rank) stagingLen(c *spec.Job) int {
	n := r.Trainer.StateLen()
	if !c.Checkpoint.Async {
		n = min(n, SyncStaging/4)
	}
	return n
}

// GrowSaves returns the staging memory of saves after a loss, and plans it: those that are left have more
// to save each. It frees was, unless it returns that.
func (r *Rank) GrowSaves(c *spec.Job, was device.Buffer) (b device.Buffer, err error) {
	n := r.stagingLen(c)
	if n <= was.N {
		return was, nil
	}
	r.HostMemory().Free(was)
	in := &r.Planned.Device
	if r.Host != nil {
		in = &r.Planned.Host
	}
	in[device.Snapshot] += 4 * int64(n-was.N)
	return r.HostMemory().Alloc(device.F32, n, device.Snapshot)
}

// stage makes the groups pass through host memory, if they need it.
func (r *Rank) stage(c *Job) error {
	if !c.At.Staged || !of(c).HostApart() {
		return nil
	}
	b, err := r.Host.Alloc(device.F32, WireStaging/4, device.Wires)
	if err != nil {
		return err
	}
	r.wires = b
	r.useWires()
	return nil
}

// useWires makes the rank's groups pass through host memory, if there is any for that.
func (r *Rank) useWires() {
	if r.wires.N == 0 {
		return
	}
	parts, bytes := staging(&r.Groups)
	each, i := bytes/r.wires.Type.Size(), 0
	for _, g := range r.Groups.All() {
		*g = collective.Staged(*g, r.wires.Slice(parts[i]*each, (parts[i]+1)*each))
		i++
	}
}

// insideModules reports whether groups with a role use the queue of modules, not that of units.
func insideModules(role collective.Role) bool {
	return role == collective.Tensor || role == collective.Context || role == collective.Experts
}

// share makes a device that supports it allocate send buffers where other processes can read them.
func share(d Device, mem cpu.Memory) {
	if d, ok := d.(interface{ Share(cpu.Memory) }); ok && mem != nil {
		d.Share(mem)
	}
}

// planned is implemented by devices that can reserve a plan's memory at once: each category in at
// most allocs allocations.
type planned interface {
	ReservePlan(plan device.Bytes, allocs int) error
}

// reserve reserves the plan's memory, except work space, which is already allocated. A unit has a
// shard, a gradient, a slot of each, a master copy and state.
func (r *Rank) reserve(c *Job, plan device.Bytes) error {
	d, ok := r.Device.(planned)
	if !ok {
		return nil
	}
	plan[device.Workspace] = 0
	return d.ReservePlan(plan, 8*len(spec.Network(c.Job).Units())+64)
}

// open builds the rank's trainer. On a rank that only counts, arenas is nil.
func (r *Rank) open(c *Job, arenas []int, run string) (err error) {
	z, q, o := Trainer(c.Job, r.Rank), &r.Queues, c.Zero.Offload.Config()
	z.Device, z.Host, z.Groups, z.Arenas = r.Device, r.HostMemory(), r.Groups, arenas
	z.Compute, z.Comm, z.Update, z.HostUpdate = q[Compute], q[Comm], q[Update], q[HostUpdate]
	for l := range collective.PipelineLinks {
		z.Pipeline.Queues[l] = q[LinkQueue(l)]
	}
	o.ToHost, o.ToDevice, o.Read, o.Write, o.Tile = q[ToHost], q[ToDevice], q[Read], q[Write], c.Hooks.Tile
	if arenas != nil {
		z.Pipeline.FailFast = true
		o.Scratch = offload.Scratch{Files: c.Files(), Dir: c.Zero.Offload.Path, Run: run, Rank: r.Rank, Timeout: c.Parallel.Timeout / 2}
	}
	z.Offload = o
	if wrap := c.Hooks.WrapTrainer; wrap != nil {
		wrap(r.Rank, &z)
	}
	r.Trainer, err = zero.New(z)
	return err
}

// AtClose makes Close call f after closing the groups and before closing the queues.
func (r *Rank) AtClose(f func()) { r.ends = append(r.ends, f) }

// Close closes first the rank's groups, to end work that waits for a peer, then its queues and its
// memory. It does nothing for a rank that Together has abandoned.
func (r *Rank) Close() {
	if r.Lost.Load() {
		return
	}
	if r.part() != nil {
		return // its queues would wait, too
	}
	for _, end := range r.ends {
		end()
	}
	for _, q := range r.Queues.All() {
		q.Close()
	}
	if r.Trainer != nil {
		r.Trainer.Free()
	}
	for _, b := range r.bounce {
		r.HostMemory().Free(b)
	}
	if r.Device != nil {
		for _, b := range r.adds {
			r.Device.Free(b)
		}
		r.Device.Close()
	}
	if r.Host != nil {
		r.Host.Free(r.wires)
		r.Host.Close()
	}
	if r.shadows != nil {
		r.shadows.Close()
	}
}

// CloseAll closes every rank. None of them may be working.
func CloseAll(ranks []*Rank) {
	for _, r := range ranks {
		r.Close()
	}
}
