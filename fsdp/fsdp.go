// Package fsdp keeps parameters sharded at rest and gathers them for use.
//
// A unit contains the parameters of one module, or of several that share them, concatenated and cut
// into equal shards for the ranks that it belongs to. A module may use several units. The schedule
// is two loops over the model's modules, Runner.Forward and Runner.Backward: each gathers the units
// of upcoming modules into slots on the communication queue while the compute queue works on the
// current one, and reduce-scatters each unit's gradient while the next is computed.
//
// A ZeRO stage determines which memory is kept after use; see Policy. New allocates everything;
// passes allocate nothing.
//
// A unit used by several modules (a tied embedding, used first and last) has its own slot and
// gradient at every stage: it is gathered once for all uses, which add to the same gradient, and
// that is reduced once.
package fsdp

import (
	"zeroth/collective"
	"zeroth/device"
	"zeroth/nn"
)

// Policy selects which memory is kept after use.
type Policy struct {
	KeepParams bool         // every unit has its own slot and stays whole until it is updated
	KeepGrads  bool         // gradients stay whole across micro-batches and are reduced once, at the last
	Prefetch   int          // number of units gathered ahead: Prefetch+1 slots are shared
	Recompute  nn.Recompute // which activations of inner modules are computed again before Backward

	// HostActivations copies what Forward keeps to the host, and back for Backward. Passes are not split.
	HostActivations bool
}

// ParamSlots returns the number of slots shared by units that are not kept whole.
func (p Policy) ParamSlots() int { return p.Prefetch + 1 }

// GradSlots returns the number of shared slots for gradients of one micro-batch: with two, one is
// reduced while the other is written. Kept gradients need only one, since they are accumulated on
// the queue that writes the next.
func (p Policy) GradSlots() int {
	if p.KeepGrads {
		return 1
	}
	return min(2, p.Prefetch+1)
}

// Compute is the queue on which modules run.
type Compute interface {
	device.Queue
	nn.Ops
	// Decode sets dst, of any float type and without gaps, to the elements of a coded matrix.
	Decode(dst device.Mat, codes device.Buffer, code device.Code)
}

// Comm is the queue for collectives and for sums of their results.
type Comm interface {
	device.Queue
	AddTo(y, a, b device.Buffer)
	Cast(dst, src device.Buffer)
}

// Config describes a Runner. The caller closes the queues and groups, after Free.
type Config struct {
	Device  device.Device
	Compute Compute
	Comm    Comm
	Model   *nn.Model    // or a part of one, see nn.Model.Part
	Units   []*Unit      // from LayOut, with offloading set
	DType   device.DType // of parameters in use, and of activations
	Policy  Policy
	Tree    *Tree   // of the sums of gradients, which are not kept then; nil: in the order of micro-batches, ranks and replicas
	Micro   int     // micro-batches per step; 0 for forward passes only
	More    bool    // there may be more of them later, see Clear
	Split   bool    // backward passes are split into InputGrad and WeightGrad
	Chunks  []Chunk // consecutive chunks of Model; nil: one chunk with one flight
	Streams int     // slots for the residual stream, or its gradient, between chunks; see OpenStream
	Arenas  []int   // bytes of each arena, from Peaks of a dry run; nil: unlimited, on a device that only counts

	Host     Host     // for offloaded state; unused without it
	Listener Listener // may be nil
}

// Chunk is a range of consecutive modules: the whole model, or a stage of a pipeline.
type Chunk struct {
	Lo, Hi  int // modules of Config.Model
	Flights int // maximum number of micro-batches between their forward and backward passes
}

// Groups are the ranks that a unit belongs to.
type Groups struct {
	Shard   collective.Group // ranks that together hold one copy of the unit
	Replica collective.Group // ranks that hold the same shard
	// Tied means that modules of another stage, whose ranks are in Replica, use the unit, too. Its
	// gradient is summed over Replica at the end of a step.
	Tied bool
}

// Host is memory outside the device, with the queues that copy to and from it.
type Host struct {
	Device   device.Device
	ToHost   device.Queue // copies from Config.Device
	ToDevice device.Queue // copies to Config.Device
	Params   Source
}

// Source holds the parameter shards of units with ParamOffloaded.
type Source interface {
	// Fetch copies a unit's shard to dst after two events: dst is free, and the shard has its
	// newest value. It returns the event of completion.
	Fetch(unit int, dst device.Buffer, free, updated device.Event) device.Event
}

// Align divides the length of every shard. Sums of squares are computed over blocks of this length,
// so that no sharding divides a block.
const Align = 64

// step is a module in the schedule.
type step struct {
	mod       nn.Module
	units     []*Unit         // the first names the step
	decoded   []int           // where the values of each unit with a Code begin in Runner.decoded
	w         []device.Buffer // views of the units' parameters in their slots
	dw        []device.Buffer // views of their gradients in their gradient slots
	kept      []device.Buffer // views of their gradients in Unit.kept
	recompute nn.Recompute    // the level of an inner module
	restorer  nn.Restorer     // mod, if it is one
	lookup    bool            // Backward does not read the parameters
	deferred  []bool          // by parameter, whether InputGrad defers its gradient to WeightGrad; nil: none
}

// passed is the state of a step for one micro-batch.
type passed struct {
	mark  int           // height of kept data before y
	x, y  device.Buffer // input and output
	saved nn.Saved

	onHost device.Buffer // with Policy.HostActivations: y and saved, float32 whatever their types

	noted [2]int          // gradients [lo, hi) of Flight.later
	rest  []device.Buffer // gradients of parameters that are not deferred
}

// Flight is memory for a micro-batch between its forward and backward passes through a chunk.
type Flight struct {
	Chunk
	kept             *device.Arena // data kept from the forward to the backward pass
	host             *device.Arena // likewise, in host memory; nil without Policy.HostActivations
	passed           []passed      // by module of the chunk
	later            nn.Later      // between InputGrad and WeightGrad
	keeping, working scratch       // for passes that save, and for others
}

// scratch is memory for a pass: an arena for working space and one for kept data.
type scratch struct {
	*device.Arena
	kept *device.Arena
}

// Keep implements nn.Scratch.
func (s *scratch) Keep(t device.DType, n int) device.Buffer { return s.kept.Take(t, n) }

// reads reports whether a pass in this direction reads the unit's parameters.
func (s *step) reads(dir int) bool { return dir > 0 || !s.lookup }

// slot is memory for one whole unit at a time.
type slot struct {
	buf   device.Buffer // (longest Len of its units) compute dtype, or I32 for codes
	owner *Unit
	ready device.Event // the owner is whole in buf
	free  device.Event // compute is done with buf
}

// gradSlot is memory for the unsharded gradient of one unit at a time.
type gradSlot struct {
	buf   device.Buffer // (longest Len of its units) float32
	owner *Unit         // the unit whose gradient was last written to buf
	free  device.Event  // the reduction is done with buf
}

// Runner is one rank's schedule over a model.
type Runner struct {
	cfg   Config
	Units []*Unit // in order of first use
	steps []step
	slots []slot
	grads []gradSlot
	back  gradSlot // (longest ShardLen) float32: a sum from the host, to be added to

	places  []place       // with Policy.HostActivations
	tree    *folding      // with Config.Tree
	decoded device.Buffer // (largest sum of Len of Unit.Values over a step) compute dtype: coded parameters, for one pass of a step

	arenas  []*device.Arena // working space; then flights, if there are several; then streams, places, and the host's
	alike   []int           // of each arena, the first one for the same passes of other micro-batches
	streams []*device.Arena
	flights [][]*Flight // of each chunk
	in      *step       // whose module is running; nil in between
	op      Op          // the current pass
	micro   int         // the micro-batch of the pass
	held    []owned
}

// stored returns the type of a unit's shard.
func (r *Runner) stored(u *Unit) device.DType {
	switch {
	case u.coded():
		return device.I32
	case u.Single:
		return device.F32
	}
	return r.cfg.DType
}

// owned is memory and the device that frees it.
type owned struct {
	dev device.Device
	buf device.Buffer
}

// Forward issues a micro-batch's forward pass through a flight's chunk. x is the chunk's input,
// empty at the model's first; Forward returns its output, empty at the model's last. With train,
// everything that Backward needs is saved, and Backward must follow; otherwise the output is valid
// until the flight's next pass.
func (r *Runner) Forward(f *Flight, bt *nn.Batch, micro int, x device.Buffer, train bool) device.Buffer {
	defer r.blame()
	r.micro = micro
	c, n := r.cfg.Compute, bt.Held()*r.cfg.Model.Width
	floor := f.kept.Mark()
	next := f.Lo
	for i := f.Lo; i < f.Hi; i++ {
		next = r.ahead(f, next, i, 1) // into slots released by steps before i, while step i computes
		s := r.await(i, 1)
		p, mem := &f.passed[i-f.Lo], r.home(f, i)
		p.mark, p.x, p.y = f.kept.Mark(), x, device.Buffer{}
		if i+1 < len(r.steps) || r.cfg.Model.After {
			p.y = mem.Keep(r.cfg.DType, n)
		}
		saved, above := &p.saved, f.kept.Mark()
		if s.recompute == nn.RecomputeBlock {
			mem = &f.working
		}
		if s.recompute == nn.RecomputeBlock || !train {
			saved = nil
		}
		bt.Recompute = s.recompute // without train, too: then a pass takes no more of each arena than one of training
		r.pass(Forward, i, saved != nil, false)
		s.mod.Forward(c, mem, s.w, bt, p.x, p.y, saved)
		r.pass(Forward, i, saved != nil, true)
		if saved == nil {
			f.kept.Release(above)
		}
		if r.leave(s); train {
			r.sendKept(f, i)
		}
		x = p.y
	}
	if !train {
		f.kept.Release(floor)
	}
	return x
}

// Backward issues a micro-batch's backward pass through a flight's chunk and the reduction of its
// gradients. Units may still be in slots from the forward pass. Micro counts the step's
// micro-batches from 0, in order. Backward replaces d, the gradient of Forward's output, by that of
// its input.
func (r *Runner) Backward(f *Flight, bt *nn.Batch, micro int, d device.Buffer) {
	defer r.blame()
	r.micro = micro
	c, work := r.cfg.Compute, r.arenas[0]
	next := f.Hi - 1
	for i := next; i >= f.Lo; i-- {
		next = r.ahead(f, next, i, -1)
		r.bringKept(f, i)
		s := r.await(i, -1)
		p, floor := &f.passed[i-f.Lo], work.Mark()
		r.restore(f, &f.working, bt, i)
		dw := r.gradient(s, micro)
		r.pass(Backward, i, false, false)
		s.mod.Backward(c, &f.working, s.w, dw, bt, p.x, d, &p.saved)
		r.pass(Backward, i, false, true)
		work.Release(floor)
		f.kept.Release(p.mark)
		r.leave(s)
		r.reduceAll(s, i, micro)
	}
}

// Again reports what a module's Backward computes again, see nn.Batch.
func (r *Runner) Again(done bool) {
	r.emit(Event{Op: Recompute, Step: -1, Done: done})
}

// restore computes the activations of step i that its Forward did not save.
func (r *Runner) restore(f *Flight, mem *scratch, bt *nn.Batch, i int) {
	s, p := &r.steps[i], &f.passed[i-f.Lo]
	if s.recompute == nn.SaveAll {
		return
	}
	if s.recompute > nn.RecomputeNone {
		r.pass(Recompute, i, true, false)
		defer r.pass(Recompute, i, true, true)
	}
	if s.restorer != nil {
		bt.Recompute = s.recompute
		s.restorer.Restore(r.cfg.Compute, mem, s.w, bt, p.x, &p.saved)
		return
	}
	bt.Recompute = nn.SaveAll
	s.mod.Forward(r.cfg.Compute, mem, s.w, bt, p.x, p.y, &p.saved)
}

// reduceAll reduces the units of a step that no earlier step uses.
func (r *Runner) reduceAll(s *step, i, micro int) {
	for _, u := range s.units {
		if i == u.first && u.trained() {
			r.reduce(u, micro)
		}
	}
}

// ahead gathers the units of the steps from next on, in the pass's direction, up to Prefetch steps
// after step i, which is about to be issued. It stops before a slot that a step from i to there
// still needs. It returns the next step to gather.
func (r *Runner) ahead(f *Flight, next, i, dir int) int {
	for ; next >= f.Lo && next < f.Hi && (next-i)*dir <= r.cfg.Policy.Prefetch; next += dir {
		s := &r.steps[next]
		if !s.reads(dir) {
			continue
		}
		for _, u := range s.units {
			if o := r.slots[u.slot].owner; o != nil && o != u && (o.first-i)*dir >= 0 && (next-o.first)*dir > 0 {
				return next
			}
		}
		for _, u := range s.units {
			r.gather(u)
		}
	}
	return next
}

// gather makes a unit whole in its slot, on the communication queue, unless it already is.
func (r *Runner) gather(u *Unit) {
	s := &r.slots[u.slot]
	if s.owner == u && !u.stale {
		return
	}
	q, whole := r.cfg.Comm, s.buf.Slice(0, u.Layout.Len())
	q.Label(u.labels[Gather])
	own := u.Param
	if u.ParamOffloaded || u.MasterOnly {
		own = u.own(whole)
	}
	if u.ParamOffloaded {
		q.After(r.cfg.Host.Params.Fetch(u.index, own, s.free, u.updated))
	} else {
		q.After(s.free)
		q.After(u.updated)
	}
	if u.MasterOnly && own.N > 0 {
		q.Cast(own, u.Master)
	}
	u.Shard.AllGather(q, whole, own)
	r.emitFor(Gather, u, u.sends(Gather, whole.Bytes()))
	u.stays = false
	r.hold(u)
	s.owner, s.ready, u.stale = u, q.Mark(), false
}

// await makes the compute queue wait until the units of step i are whole.
func (r *Runner) await(i, dir int) *step {
	s := &r.steps[i]
	label := s.units[0].labels[Forward]
	if dir < 0 {
		label = s.units[0].labels[Backward]
	}
	r.cfg.Compute.Label(label)
	if !s.reads(dir) {
		return s
	}
	for k, u := range s.units {
		sl := &r.slots[u.slot]
		if sl.owner != u {
			panic("fsdp: unit " + u.Name + " is used before it is gathered")
		}
		r.cfg.Compute.After(sl.ready)
		if u.coded() {
			r.decode(u, sl.buf, r.decoded.Slice(s.decoded[k], s.decoded[k]+u.Values.Len()))
		}
	}
	return s
}

// decode decodes a unit for a pass to values, on the queue that reads it.
func (r *Runner) decode(u *Unit, whole, values device.Buffer) {
	for i, p := range u.Values.Params {
		at := u.Layout.Params[i].At
		rows, cols := p.Flat()
		r.cfg.Compute.Decode(device.Matrix(values.Slice(p.At.Lo, p.At.Hi), rows, cols), whole.Slice(at.Lo, at.Hi), u.Code)
	}
}

// leave records that the operations issued so far include the last use of a step's units.
func (r *Runner) leave(s *step) {
	done := r.cfg.Compute.Mark()
	for _, u := range s.units {
		r.slots[u.slot].free = done
	}
}

// gradient returns the buffers for gradients in a step's Backward: at the first micro-batch the
// kept ones, if any, else the units' slots, once their last reductions are done. A module that adds
// to a gradient begun by another stage's starts with zeros.
func (r *Runner) gradient(s *step, micro int) []device.Buffer {
	dw := s.dw
	for _, u := range s.units {
		if !u.trained() {
			continue
		}
		if r.cfg.Policy.KeepGrads && micro == 0 {
			if dw = s.kept; !u.GradOffloaded {
				r.cfg.Compute.After(u.read)
			}
		} else {
			g := &r.grads[u.dwSlot]
			r.cfg.Compute.After(g.free)
			if g.owner != nil && g.owner != u {
				r.emitFor(Vacate, g.owner, 0)
				r.use(g.owner, gradSlotted, false)
			}
			g.owner = u
		}
		if u.Tied && r.cfg.Model.After && s == &r.steps[u.last] {
			r.cfg.Compute.Zero(r.whole(u, micro))
		}
	}
	return dw
}

// whole returns the memory of a unit's unsharded gradient for a micro-batch.
func (r *Runner) whole(u *Unit, micro int) device.Buffer {
	if r.cfg.Policy.KeepGrads && micro == 0 {
		return u.kept
	}
	return r.grads[u.dwSlot].buf.Slice(0, u.Layout.Len())
}

// reduce adds the unit's gradient of this micro-batch, complete on this rank, to its sum over ranks
// and micro-batches.
func (r *Runner) reduce(u *Unit, micro int) {
	c, q, p := r.cfg.Compute, r.cfg.Comm, r.cfg.Policy
	last, g, buf := micro == r.cfg.Micro-1, &r.grads[u.dwSlot], r.whole(u, micro)
	for _, gap := range u.gaps {
		c.Zero(buf.Slice(gap.Lo, gap.Hi))
	}
	if p.KeepGrads {
		if micro > 0 {
			c.AddTo(u.kept, u.kept, buf)
		}
		if !last {
			return
		}
		buf = u.kept
	}
	q.Label(u.labels[Reduce])
	q.After(c.Mark())
	if !u.GradOffloaded {
		q.After(u.read)
	}
	own := u.own(buf)
	if !u.GradOffloaded && micro == 0 {
		own = u.Grad
	}
	if r.tree == nil {
		u.Shard.ReduceScatter(q, own, buf)
	} else {
		r.fold(u, buf, micro)
	}
	r.emitFor(Reduce, u, u.sends(Reduce, buf.Bytes()))
	if !p.KeepGrads {
		if !u.GradOffloaded {
			r.use(u, gradShard, true)
		}
		if p.Prefetch == 0 {
			r.use(u, gradSlotted, false) // the next unit waits for the slot
		}
	}
	if u.GradOffloaded {
		r.send(u, own, g, micro)
		return
	}
	if !p.KeepGrads {
		if micro > 0 && r.tree == nil {
			q.AddTo(u.Grad, u.Grad, own)
		}
		g.free = q.Mark()
	}
	if last && !u.Tied {
		r.replicate(u, u.Grad)
		u.Reduced = q.Mark()
	}
}

// replicate sums a shard of a unit's gradient over its replicas.
func (r *Runner) replicate(u *Unit, grad device.Buffer) {
	q := r.cfg.Comm
	q.Label(u.labels[Replicate])
	times := 2
	if r.tree == nil {
		collective.AllReduce(u.Replica, q, grad)
	} else {
		r.foldReplicas(u, grad)
		times = r.tree.pieces + 1
	}
	r.emitFor(Replicate, u, times*around(u.Replica.Size(), grad.Bytes()))
}

// send adds this micro-batch's gradient shard, in own on the device, to the sum on the host: the
// sum is copied back, added on the device, and sent.
func (r *Runner) send(u *Unit, own device.Buffer, g *gradSlot, micro int) {
	q, h := r.cfg.Comm, r.cfg.Host
	if micro > 0 && !r.cfg.Policy.KeepGrads {
		back := r.back.buf.Slice(0, own.N)
		q.After(move(h.ToDevice, u.labels[FromHost], r.back.free, u.sent, back, u.Grad))
		r.emitFor(FromHost, u, 0)
		q.AddTo(own, back, own)
		r.back.free = q.Mark()
	}
	last := micro == r.cfg.Micro-1
	if last {
		if u.Tied {
			u.partial = own // End continues
			return
		}
		r.replicate(u, own)
	}
	r.toHost(u, own)
	if !r.cfg.Policy.KeepGrads {
		g.free = u.sent
	}
	if last {
		u.Reduced = u.sent
	}
}

// toHost sends a shard of a unit's gradient to host memory.
func (r *Runner) toHost(u *Unit, own device.Buffer) {
	q, h := r.cfg.Comm, r.cfg.Host
	u.sent = move(h.ToHost, u.labels[ToHost], q.Mark(), u.read, u.Grad, own)
	r.emitFor(ToHost, u, 0)
}

// move issues a copy after two events and returns the event of its completion.
func move(q device.Queue, label string, a, b device.Event, dst, src device.Buffer) device.Event {
	q.Label(label)
	q.After(a)
	q.After(b)
	q.Copy(dst, src)
	return q.Mark()
}
