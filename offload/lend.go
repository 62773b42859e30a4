package offload

import (
	"slices"

	"zeroth/device"
	"zeroth/shard"
)

// slot is staging memory that tiles use in turn.
type slot struct {
	buf  device.Buffer
	free device.Event // fires when its last user is done
}

// ring is a set of slots used in turn: tile t always has slot t modulo their number.
type ring struct {
	slots []slot
	turns int // number of tiles that use a slot
	len   int // elements of a slot
}

// turn adds a tile that needs n elements and returns its turn.
func (r *ring) turn(n int) int {
	r.len = max(r.len, n)
	r.turns++
	return r.turns - 1
}

func (r *ring) at(turn int) *slot { return &r.slots[turn%len(r.slots)] }

// Acquire lends part of a tile's state. Work on it must wait for Ready. The caller must
// Release it before acquiring another tile, unless CanOverlap reports true for the two.
func (s *Store) Acquire(unit, i int, part Part) State {
	return s.lend(unit, i, part, s.units[unit].tiles[i].moves[part])
}

// Peek is Acquire for reading the elements in the given range of the shard only; other
// elements on disk need not be read. Release the tile unchanged.
func (s *Store) Peek(unit, i int, in shard.Range) State {
	u := &s.units[unit]
	t := &u.tiles[i]
	if len(u.vecs) == 0 {
		return s.lend(unit, i, All, moves{})
	}
	wanted := func(first, end int) bool {
		at := 0
		for _, v := range u.vecs {
			if at+v.Bytes(in.Lo-t.at.Lo) < end && first < at+v.Bytes(in.Hi-t.at.Lo) {
				return true
			}
			at += padded(v, t.at.Len()) * device.F32.Size()
		}
		return false
	}
	load := func() error { return s.disk.readSome(t.block, s.states.at(t.state).buf, wanted) }
	return s.lend(unit, i, All, moves{bytes: t.block.some(wanted), load: load})
}

// CanOverlap reports whether two tiles can be on loan at the same time, because they share
// no slot.
func (s *Store) CanOverlap(unitA, a, unitB, b int) bool {
	ua, ub := &s.units[unitA], &s.units[unitB]
	ta, tb := &ua.tiles[a], &ub.tiles[b]
	same := func(r *ring, takesA, takesB bool, turnA, turnB int) bool {
		return takesA && takesB && r.at(turnA) == r.at(turnB)
	}
	return !same(&s.states, len(ua.vecs) > 0, len(ub.vecs) > 0, ta.state, tb.state) &&
		!same(&s.outgoing, !ua.updatedInPlace() && !ua.onHost, !ub.updatedInPlace() && !ub.onHost, ta.out, tb.out) &&
		!same(&s.params, ua.throughHost(), ub.throughHost(), ta.param, tb.param)
}

// lend lends a part of a tile and loads the parts of it that are on disk by m.
func (s *Store) lend(unit, i int, lent Part, m moves) State {
	u := &s.units[unit]
	t := &u.tiles[i]
	t.lent = lent
	lo, hi := t.at.Lo, t.at.Hi
	st := State{At: t.at, OnHost: u.onHost, Grad: part(u.grad, lo, hi)}
	if lent != Vectors {
		st.Master = t.master
	}
	if lent != Copy {
		st.Vec = t.vec
	}
	switch {
	case lent == Vectors:
	case !u.updatedInPlace():
		o := s.out(u, t)
		st.Param, st.Ready[0] = u.as(o.buf, hi-lo), o.free
		if u.Frozen { // the only copy
			st.Ready[0] = s.read(u.labels.param, t.paramBlock.len, o.free, t.loadParam)
		}
	case u.copies && !u.alone || u.Frozen:
		st.Param = u.rest.Slice(lo, hi)
	}
	if m.bytes > 0 {
		st.Ready[1] = s.read(u.labels.state, m.bytes, s.states.at(t.state).free, m.load)
	}
	return st
}

// part returns a slice of a buffer, or an empty buffer for an empty one.
func part(b device.Buffer, lo, hi int) device.Buffer {
	if b.N == 0 {
		return b
	}
	return b.Slice(lo, hi)
}

// out returns the slot for a tile's updated parameter if the parameter does not rest in the memory
// where it is updated.
func (s *Store) out(u *unit, t *tile) *slot {
	if u.onHost {
		return s.params.at(t.param)
	}
	return s.outgoing.at(t.out)
}

// Release returns a tile's state to the store; used must fire when the borrower is done. If
// changed, the lent part of the state is saved and the parameter copied to where it rests.
// When the returned event fires, all elements of the parameter have their new value there.
func (s *Store) Release(unit, i int, used device.Event, changed bool) device.Event {
	u := &s.units[unit]
	t := &u.tiles[i]
	if m := t.moves[t.lent]; m.bytes > 0 {
		sl := s.states.at(t.state)
		sl.free = used
		if changed {
			sl.free = s.write(u.labels.state, m.bytes, used, m.save)
		}
	}
	if u.updatedInPlace() || t.lent == Vectors {
		return used
	}
	o := s.out(u, t)
	o.free = used
	if !changed {
		return used
	}
	return s.writeBack(u, t, o, used)
}

// writeBack copies a tile's updated parameter from its slot to its storage, after used has fired.
func (s *Store) writeBack(u *unit, t *tile, o *slot, used device.Event) device.Event {
	src := u.as(o.buf, t.at.Len())
	switch {
	case u.param == Device:
		o.free = s.copy(s.cfg.ToDevice, u.labels.param, used, device.Event{}, u.rest.Slice(t.at.Lo, t.at.Hi), src)
	case u.param == Host:
		o.free = s.copy(s.cfg.ToHost, u.labels.param, used, device.Event{}, u.rest.Slice(t.at.Lo, t.at.Hi), src)
	case u.onHost:
		o.free = s.write(u.labels.param, t.paramBlock.len, used, t.saveParam)
	default: // from the device to the disk
		h := s.params.at(t.param)
		o.free = s.copy(s.cfg.ToHost, u.labels.param, used, h.free, u.as(h.buf, t.at.Len()), src)
		h.free = s.write(u.labels.param, t.paramBlock.len, o.free, t.saveParam)
		return h.free
	}
	return o.free
}

// Fetch fills dst, in device memory, with a unit's parameter shard, after free (dst may be
// overwritten) and updated (the shard has its newest value) have fired. Reads from the disk
// do not wait for free, only for their slots. That orders them after the writes of their
// tiles, because a tile always uses the same slot.
func (s *Store) Fetch(unit int, dst device.Buffer, free, updated device.Event) device.Event {
	u, q := &s.units[unit], s.cfg.ToDevice
	if u.param == Host {
		return s.copy(s.cfg.ToDevice, u.labels.param, free, updated, dst, u.rest)
	}
	for i := range u.tiles {
		t := &u.tiles[i]
		sl := s.params.at(t.param)
		read := s.read(u.labels.param, t.paramBlock.len, sl.free, t.loadParam)
		sl.free = s.copy(s.cfg.ToDevice, u.labels.param, read, free, dst.Slice(t.at.Lo, t.at.Hi), u.as(sl.buf, t.at.Len()))
	}
	return q.Mark()
}

// SendState copies data that an update on one side needs between the device and the host,
// after both events have fired.
func (s *Store) SendState(unit int, dst, src device.Buffer, toDevice bool, a, b device.Event) device.Event {
	q := s.cfg.ToHost
	if toDevice {
		q = s.cfg.ToDevice
	}
	return s.copy(q, s.units[unit].labels.state, a, b, dst, src)
}

// Queues returns the queues on which the store issues work that outlives a step. When they
// are idle, everything written to the store has reached its destination.
func (s *Store) Queues() []device.Queue {
	all := []device.Queue{s.cfg.ToHost, s.cfg.ToDevice, s.cfg.Read, s.cfg.Write}
	return slices.DeleteFunc(all, func(q device.Queue) bool { return q == nil })
}
