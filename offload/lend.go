package offload

import (
	"zeroth/device"
	"zeroth/shard"
)

// slot is staging memory that tiles take in turn.
type slot struct {
	buf  device.Buffer
	free device.Event // whoever had it last is done with it
}

// ring is slots that tiles take in turn: tile t has slot t modulo their number,
// always the same.
type ring struct {
	slots []slot
	turns int // tiles that take a slot
	len   int // elements of a slot
}

// turn counts a tile that needs n elements.
func (r *ring) turn(n int) int {
	r.len = max(r.len, n)
	r.turns++
	return r.turns - 1
}

func (r *ring) at(turn int) *slot { return &r.slots[turn%len(r.slots)] }

// Acquire lends the state of a tile, or a part of it; whoever works on it waits for
// Ready first. It must be released before one is acquired that is not Apart from it.
func (s *Store) Acquire(unit, i int, part Part) State {
	return s.lend(unit, i, part, s.units[unit].tiles[i].moves[part])
}

// Peek is Acquire to look at elements in of the shard alone: of what rests on
// disk others need not have been read. The tile is released unchanged.
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

// Apart is whether two tiles can be on loan at once: they take no slot of each
// other.
func (s *Store) Apart(unitA, a, unitB, b int) bool {
	ua, ub := &s.units[unitA], &s.units[unitB]
	ta, tb := &ua.tiles[a], &ub.tiles[b]
	same := func(r *ring, takesA, takesB bool, turnA, turnB int) bool {
		return takesA && takesB && r.at(turnA) == r.at(turnB)
	}
	return !same(&s.states, len(ua.vecs) > 0, len(ub.vecs) > 0, ta.state, tb.state) &&
		!same(&s.outgoing, !ua.atHand() && !ua.onHost, !ub.atHand() && !ub.onHost, ta.out, tb.out) &&
		!same(&s.params, ua.throughHost(), ub.throughHost(), ta.param, tb.param)
}

// lend lends a part of a tile, of whose state m brings what is on disk.
func (s *Store) lend(unit, i int, of Part, m moves) State {
	u := &s.units[unit]
	t := &u.tiles[i]
	t.lent = of
	lo, hi := t.at.Lo, t.at.Hi
	st := State{At: t.at, OnHost: u.onHost, Grad: part(u.grad, lo, hi)}
	if of != Vectors {
		st.Master = t.master
	}
	if of != Copy {
		st.Vec = t.vec
	}
	switch {
	case of == Vectors:
	case !u.atHand():
		o := s.out(u, t)
		st.Param, st.Ready[0] = o.buf.Slice(0, hi-lo), o.free
		if u.Frozen { // it is nowhere else
			st.Ready[0] = s.do(s.read(unit, t.paramBlock.len).ofParam(), o.free, device.Event{}, t.loadParam)
		}
	case u.copies || u.Frozen:
		st.Param = u.rest.Slice(lo, hi)
	}
	if m.bytes > 0 {
		st.Ready[1] = s.do(s.read(unit, m.bytes), s.states.at(t.state).free, device.Event{}, m.load)
	}
	return st
}

// part is a slice of a buffer, or of none.
func part(b device.Buffer, lo, hi int) device.Buffer {
	if b.N == 0 {
		return b
	}
	return b.Slice(lo, hi)
}

// out is the slot a tile's parameter is written to where it is updated, when
// it does not rest there.
func (s *Store) out(u *unit, t *tile) *slot {
	if u.onHost {
		return s.params.at(t.param)
	}
	return s.outgoing.at(t.out)
}

// Release takes a tile's state back; used fires when whoever borrowed it is
// done. If changed, what was lent of the state is kept and the parameter brought to
// where it rests: all its elements have their new value there when the event returned
// has fired.
func (s *Store) Release(unit, i int, used device.Event, changed bool) device.Event {
	u := &s.units[unit]
	t := &u.tiles[i]
	if m := t.moves[t.lent]; m.bytes > 0 {
		sl := s.states.at(t.state)
		sl.free = used
		if changed {
			sl.free = s.do(s.write(unit, m.bytes), used, device.Event{}, m.save)
		}
	}
	if u.atHand() || t.lent == Vectors {
		return used
	}
	o := s.out(u, t)
	o.free = used
	if !changed {
		return used
	}
	return s.writeBack(unit, t, o, used)
}

// writeBack moves a tile's parameter from the slot it was written to, once used
// has fired, to where it rests.
func (s *Store) writeBack(unit int, t *tile, o *slot, used device.Event) device.Event {
	u, src := &s.units[unit], o.buf.Slice(0, t.at.Len())
	switch {
	case u.param == Device:
		o.free = s.copy(s.toDevice(unit), used, device.Event{}, u.rest.Slice(t.at.Lo, t.at.Hi), src)
	case u.param == Host:
		o.free = s.copy(s.toHost(unit), used, device.Event{}, u.rest.Slice(t.at.Lo, t.at.Hi), src)
	case u.onHost:
		o.free = s.do(s.write(unit, t.paramBlock.len).ofParam(), used, device.Event{}, t.saveParam)
	default: // from the device to the disk
		h := s.params.at(t.param)
		o.free = s.copy(s.toHost(unit), used, h.free, h.buf.Slice(0, t.at.Len()), src)
		h.free = s.do(s.write(unit, t.paramBlock.len).ofParam(), o.free, device.Event{}, t.saveParam)
		return h.free
	}
	return o.free
}

// Fetch fills dst, in device memory, with a unit's parameter shard once both
// events have fired: the memory is free, the shard has its newest value. Reads
// of the disk do not wait for the memory, only for their slots; and those are
// free when the tiles are written, for a tile always takes the same.
func (s *Store) Fetch(unit int, dst device.Buffer, free, updated device.Event) device.Event {
	u, q := &s.units[unit], s.cfg.ToDevice
	if u.param == Host {
		return s.copy(s.toDevice(unit), free, updated, dst, u.rest)
	}
	for i := range u.tiles {
		t := &u.tiles[i]
		sl := s.params.at(t.param)
		read := s.do(s.read(unit, t.paramBlock.len).ofParam(), sl.free, device.Event{}, t.loadParam)
		sl.free = s.copy(s.toDevice(unit), read, free, dst.Slice(t.at.Lo, t.at.Hi), sl.buf.Slice(0, t.at.Len()))
	}
	return q.Mark()
}

// SendState brings something between the device and the host, once both events have
// fired, that the update of a unit's state in the one needs of the other.
func (s *Store) SendState(unit int, dst, src device.Buffer, k Kind, a, b device.Event) device.Event {
	q := s.cfg.ToHost
	if k == ToDevice {
		q = s.cfg.ToDevice
	}
	return s.copy(Event{Kind: k, Unit: unit, Queue: q}, a, b, dst, src)
}

// Queues are those the store issues work on that outlives a step: when they
// are idle, all it was given has reached where it rests.
func (s *Store) Queues() (qs []device.Queue) {
	for _, q := range []device.Queue{s.cfg.ToHost, s.cfg.ToDevice, s.cfg.Read, s.cfg.Write} {
		if q != nil {
			qs = append(qs, q)
		}
	}
	return qs
}
