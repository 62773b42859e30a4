package zero

import (
	"fmt"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/offload"
	"zeroth/optim"
	"zeroth/shard"
)

// matrices performs updates that need whole matrices, regardless of how their state is sharded. For
// each such unit
//
//  1. every rank updates the momentum of its shard and writes its part of a buffer in the
//     rule's type, e bytes per element, which is gathered over the shard group;
//  2. each matrix is orthogonalized by one of the ranks that have the unit; each rank zeroes
//     the rest, so the following reduce-scatter, and all-reduce over replicas, add only zeros,
//     and no rounding depends on the number of ranks;
//  3. every rank updates its shard with its part.
//
// A rank sends 2e(S-1)/S bytes per element and, with N ranks, performs about 1/N of the operations.
// Orthogonalizing each matrix on every rank would save half of the bytes, e per element, but each
// rank would perform all operations: 30 times the width of a square matrix per element with Muon's
// five steps. At width 768 those are 23,000 operations for 2 bytes: worthwhile only if a rank
// computes a million times faster than a byte is transferred. Moonshot's distributed Muon does that
// (arXiv 2502.16982); Keller Jordan's and torchtitan's divide the work as here.
//
// If T ranks divide a unit's matrices, they gather it, too, and receive their parts after the
// second phase: a rank sends 2e(T-1) more bytes for each of its elements.
//
// The phases of a unit overlap with those of the next ones, in slots used in rotation.
//
// The first and the last phase run where the state is stored: for offloaded state in host memory,
// with the host's kernels, which give the same bits as the device's. That transfers e bytes per
// element in each direction, where the state alone would take 8. Whole matrices are orthogonalized
// on the device, so offloading changes no bits. On disk, the first phase reads and writes the state
// vectors, the last one the master copy: each once per step, as with an elementwise rule.
type matrices struct {
	units     []int // indices of the units
	elsewhere int   // number of units in other stages of the pipeline
	lens      []int // elements of each slot
	part      int   // elements of a rank's part of a slot in host memory, for offloaded state
	input     device.DType
	work      int // bytes of working space

	slots []device.Buffer // of type input
	parts []device.Buffer // this rank's part of each slot, in host memory; none if nothing is offloaded
	ready []device.Event  // of each slot: it has been gathered, and later scattered
	free  []device.Event  // of each slot: its last unit is done
	arena *device.Arena   // for the products
	of    [][]matrix      // of each unit
}

// matrix is a parameter, or a part of one, in a unit's layout.
type matrix struct {
	shard.Param
	mine bool // this rank orthogonalizes it
}

// matrixSlots returns how many units that need whole matrices are in progress at once.
func matrixSlots(units, prefetch int) int {
	if prefetch == 0 || units < 3 {
		return min(1, units)
	}
	return 3
}

// lag returns the distance in units between consecutive phases: with several slots, collectives of
// one unit overlap with computation for others.
func (m *matrices) lag() int { return min(1, len(m.lens)-1) }

// layOutMatrices determines the units, which rank orthogonalizes which matrix, and the memory
// needed, which is that of any matrix: with other ranks, this one may get others.
func (t *Trainer) layOutMatrices() {
	m := &t.matrices
	longest := 0
	for _, u := range t.cfg.Model.Units() {
		if _, ok := t.cfg.Rules[u.Params[0].Rule].(optim.Whole); ok && !u.Params[0].Frozen {
			m.elsewhere++
		}
	}
	for i, u := range t.runner.Units {
		rule, ok := t.cfg.Rules[u.Rule].(optim.Whole)
		if !ok || u.Frozen || u.Own().Len() == 0 {
			continue
		}
		across := t.across(u)
		m.units, m.input, longest = append(m.units, i), rule.Input(), max(longest, across*u.Layout.Len())
		if t.store.OnHost(i) {
			m.part = max(m.part, u.Own().Len())
		}
		m.of = append(m.of, matricesOf(u))
		for _, p := range m.of[len(m.of)-1] {
			rows, cols := p.Tensor()[0], p.Tensor()[1]
			work := rule.Work(rows, cols)
			if across > 1 {
				work += (m.input.Size()*rows*cols + 63) / 64 * 64
			}
			m.work = max(m.work, work)
		}
	}
	if m.elsewhere -= len(m.units); len(m.units) == 0 {
		return
	}
	for range matrixSlots(len(m.units), t.cfg.Policy.Prefetch) {
		m.lens = append(m.lens, longest)
	}
	m.ready, m.free = make([]device.Event, len(m.lens)), make([]device.Event, len(m.lens))
	t.shareMatrices()
}

// shareMatrices determines which rank orthogonalizes which matrix.
func (t *Trainer) shareMatrices() {
	m, ranks := &t.matrices, 0
	var costs []float64
	for k, i := range m.units {
		u := t.runner.Units[i]
		if n := updaters(u).Size() * u.Replica.Size() * t.across(u); ranks == 0 {
			ranks = n
		} else if n != ranks {
			panic(fmt.Sprintf("zero: the matrices of unit %s are updated by %d ranks, others by %d", u.Name, n, ranks))
		}
		for _, p := range m.of[k] {
			costs = append(costs, t.cfg.Rules[u.Rule].(optim.Whole).Flops(p.Tensor()[0], p.Tensor()[1]))
		}
	}
	if len(m.units) == 0 {
		return
	}
	owners := shard.Spread(costs, ranks)
	for k, i := range m.units {
		u := t.runner.Units[i]
		rank := u.Replica.Rank()*updaters(u).Size() + updaters(u).Rank()
		if n := t.across(u); n > 1 {
			rank = rank*n + t.cfg.Groups.Updates.Rank()
		}
		for j := range m.of[k] {
			m.of[k][j].mine = owners[0] == rank
			owners = owners[1:]
		}
	}
}

// matricesOf returns the matrices in a unit's layout.
func matricesOf(u *fsdp.Unit) (all []matrix) {
	for _, p := range u.Layout.Params {
		for _, x := range p.Matrices() {
			all = append(all, matrix{Param: x})
		}
	}
	return all
}

// updaters returns the ranks that share the update of a unit: only itself for a master.
func updaters(u *fsdp.Unit) collective.Group {
	if u.Layout.Master {
		return collective.Dry{Of: 1}
	}
	return u.Shard
}

// across returns the number of ranks that divide the matrices of a unit.
func (t *Trainer) across(u *fsdp.Unit) int {
	if u.Layout.Params[0].Cut.Full == nil {
		return 1
	}
	return t.cfg.Groups.Updates.Size()
}

// advance issues the first phase of the k-th unit that needs whole matrices, and later phases of
// previous units. It returns an error only if the update repeats.
func (t *Trainer) advance(k int) error {
	m := &t.matrices
	in := func(k int) bool { return 0 <= k && k < len(m.units) }
	if in(k) {
		t.moveMatrices(k)
	}
	if k -= m.lag(); in(k) {
		if err := t.awaitMatrices(k); err != nil {
			return err
		}
		t.orthogonalize(k)
	}
	if k -= m.lag(); in(k) {
		if err := t.awaitMatrices(k); err != nil {
			return err
		}
		if err := t.confirm(); err != nil {
			return err
		}
		t.applyMatrices(k)
	}
	return nil
}

// confirm waits until the exchanges of a unit have succeeded on all ranks, on GPUs: there, an exchange that others end early
// may leave undefined data without an error.
func (t *Trainer) confirm() error {
	if !t.Repeats() || t.sums.Device.Host {
		return nil
	}
	return t.Meet()
}

// awaitMatrices waits for the last exchange of the k-th unit if the update repeats. So the queues of updates never fail
// because of other ranks, and do everything that is issued on them.
func (t *Trainer) awaitMatrices(k int) error {
	if !t.Repeats() {
		return nil
	}
	return t.matrices.ready[k%len(t.matrices.slots)].Await()
}

// slot is memory that units use in rotation.
type slot struct {
	all         device.Buffer // the units of all ranks that divide its matrices, concatenated
	whole, own  device.Buffer // this rank's unit, and its shard of it
	piece       device.Buffer // the shard where its state is updated: own, or in host memory
	ready, free *device.Event // of matrices
}

// slot returns the slot of the k-th unit that needs whole matrices, with its length.
func (t *Trainer) slot(k int) slot {
	m, i := &t.matrices, t.matrices.units[k]
	u, at := t.runner.Units[i], k%len(t.matrices.slots)
	s := slot{all: m.slots[at].Slice(0, t.across(u)*u.Layout.Len()), ready: &m.ready[at], free: &m.free[at]}
	if s.whole = s.all; t.across(u) > 1 {
		s.whole = collective.Own(t.cfg.Groups.Updates, s.all)
	}
	s.own = collective.Own(updaters(u), s.whole)
	s.piece = s.own
	if t.store.OnHost(i) {
		s.piece = m.parts[at].Slice(0, s.own.N)
	}
	return s
}

// moveMatrices updates the momentum of this rank's shard and gathers the resulting matrices.
func (t *Trainer) moveMatrices(k int) {
	i := t.matrices.units[k]
	u, s := t.runner.Units[i], t.slot(k)
	rule, first := t.cfg.Rules[u.Rule].(optim.Whole), t.progress[i] == 0
	var moved device.Event
	for j := range t.store.Tiles(i) {
		st, q := t.borrow(i, j, offload.Vectors)
		if !st.OnHost {
			q.After(*s.free)
		}
		for _, r := range t.pieces[i][j] {
			h, p := t.hypers[r.group], t.piece(st, r)
			if first {
				rule.Move(q, h, p)
			}
			rule.Aim(q, h, p, s.piece.Slice(st.At.Lo+r.at.Lo, st.At.Lo+r.at.Hi))
		}
		moved = q.Mark()
		t.store.Release(i, j, moved, first)
	}
	t.progress[i] = max(t.progress[i], moving)
	if t.store.OnHost(i) {
		moved = t.store.SendState(i, s.own, s.piece, true, moved, *s.free)
	}
	c := t.cfg.Comm
	c.Label(u.Label(fsdp.GatherUpdate))
	c.After(moved)
	updaters(u).AllGather(c, s.whole, s.own)
	t.emit(fsdp.GatherUpdate, u, sent(s.whole, updaters(u), 1))
	if g := t.cfg.Groups.Updates; t.across(u) > 1 {
		collective.AllGather(g, c, s.all)
		t.exchanged(fsdp.Exchange, s.all, g)
	}
	*s.ready = c.Mark()
}

// orthogonalize runs the rule on the matrices that this rank owns and distributes the results to
// their shards.
func (t *Trainer) orthogonalize(k int) {
	m, i := &t.matrices, t.matrices.units[k]
	u, s := t.runner.Units[i], t.slot(k)
	all, own, rule := s.all, s.own, t.cfg.Rules[u.Rule].(optim.Whole)
	q, c := t.cfg.Update, t.cfg.Comm
	q.Label(u.Label(fsdp.Update))
	q.After(*s.ready)
	for _, p := range m.of[k] {
		if !p.mine {
			continue
		}
		if t.across(u) == 1 {
			rule.Orthogonalize(q, m.arena, device.Matrix(all.Slice(p.At.Lo, p.At.Hi), p.Shape[0], p.Shape[1]))
			continue
		}
		mark := m.arena.Mark()
		x := device.Matrix(m.arena.Take(all.Type, p.Tensor()[0]*p.Tensor()[1]), p.Tensor()[0], p.Tensor()[1])
		t.eachBlock(p.Param, all, u.Layout.Len(), x, func(part, of device.Mat) { q.CopyBlock(of, part) })
		rule.Orthogonalize(q, m.arena, x)
		t.eachBlock(p.Param, all, u.Layout.Len(), x, func(part, of device.Mat) { q.CopyBlock(part, of) })
		m.arena.Release(mark)
	}
	for from := 0; from < all.N; from += u.Layout.Len() {
		others := from // up to the next matrix of this rank, other ranks orthogonalize
		for _, p := range m.of[k] {
			if p.mine {
				q.Zero(all.Slice(others, from+p.At.Lo))
				others = from + p.At.Hi
			}
		}
		q.Zero(all.Slice(others, from+u.Layout.Len()))
	}
	c.Label(u.Label(fsdp.ScatterUpdate))
	c.After(q.Mark())
	if g := t.cfg.Groups.Updates; t.across(u) > 1 {
		collective.ReduceScatter(g, c, all)
		t.exchanged(fsdp.Exchange, all, g)
	}
	updaters(u).ReduceScatter(c, own, s.whole)
	t.emit(fsdp.ScatterUpdate, u, sent(s.whole, updaters(u), 1))
	c.Label(u.Label(fsdp.ShareUpdate))
	collective.AllReduce(u.Replica, c, own)
	t.emit(fsdp.ShareUpdate, u, sent(own, u.Replica, 2))
	*s.ready = c.Mark()
}

// eachBlock calls f with each block of a divided matrix: its position in the concatenated units of
// all ranks (each elements per rank), and its position in the whole matrix x.
func (t *Trainer) eachBlock(p shard.Param, all device.Buffer, each int, x device.Mat, f func(part, of device.Mat)) {
	index := t.cfg.Groups.Updates.Rank()
	for rank := range t.cfg.Groups.Updates.Size() {
		part, at := device.Matrix(all.Slice(rank*each+p.At.Lo, rank*each+p.At.Hi), p.Shape[0], p.Shape[1]), 0
		for _, own := range p.Cut.Take {
			lo, n := own.Lo+(rank-index)*own.Len(), own.Len() // all ranks have the same number
			if p.Cut.Dim == 0 {
				f(part.RowRange(at, at+n), x.RowRange(lo, lo+n))
			} else {
				f(part.Columns(at, at+n), x.Columns(lo, lo+n))
			}
			at += n
		}
	}
}

// sent returns the bytes that a rank sends when its parts of a buffer go around a ring a number of
// times.
func sent(b device.Buffer, g collective.Group, times int) int64 {
	return int64(times * (b.Bytes() / g.Size()) * (g.Size() - 1))
}

// applyMatrices updates this rank's shard of a unit.
func (t *Trainer) applyMatrices(k int) {
	i := t.matrices.units[k]
	u, s := t.runner.Units[i], t.slot(k)
	rule, ready := t.cfg.Rules[u.Rule].(optim.Whole), *s.ready
	if t.progress[i] == updated {
		*s.free = ready
		return
	}
	t.progress[i] = updated
	if t.store.OnHost(i) {
		ready = t.store.SendState(i, s.piece, s.own, false, ready, device.Event{})
	}
	*s.free = ready
	var done device.Event
	for j := range t.store.Tiles(i) {
		st, q := t.borrow(i, j, offload.Copy)
		q.After(ready)
		for _, r := range t.pieces[i][j] {
			rule.Apply(q, t.hypers[r.group], t.piece(st, r), s.piece.Slice(st.At.Lo+r.at.Lo, st.At.Lo+r.at.Hi))
		}
		used := q.Mark()
		if !st.OnHost {
			*s.free = used
		}
		done = t.store.Release(i, j, used, true)
	}
	u.MarkUpdated(done)
}
