package collective

import (
	"fmt"
	"unsafe"

	"zeroth/device"
)

// wiredCall is an operation on a queue; run is bound once, to avoid allocations.
type wiredCall struct {
	call
	g          *Wired
	q          WireQueue
	whole, own device.Buffer
	routes     *routes
	*route
	chunk   int // elements per chunk
	chunks  int // chunks per part
	slot    int // bytes of a slot of bounce memory
	added   int // chunks added
	have    int // peers of near that have sent the next chunk
	open    int // peers that are not done
	differs bool
	run     func() error
}

// over reports whether everything is received, added and sent.
func (c *wiredCall) over() bool { return c.open == 0 && c.added == c.items() }

// items returns the number of chunks that this rank adds.
func (c *wiredCall) items() int { return len(c.adds) * c.chunks }

// incoming and outgoing return the number of messages from and to a peer.
func (c *wiredCall) incoming(p int) int { return len(c.in[p].parts) * c.chunks }
func (c *wiredCall) outgoing(p int) int { return len(c.out[p].parts) * c.chunks }

// handle processes an event.
func (c *wiredCall) handle(e Event) error {
	g := c.g
	p := &g.peers[e.Peer]
	switch e.Kind {
	case Noted:
		if e.Note[0] == noteCredit {
			p.allowed++
			break
		}
		if e.Note[0] == noteAgree || e.Note[0] == noteHeard {
			if p.called {
				return g.noteEarly(e.Peer, e.Note)
			}
			return nil // an agreement on another call; its own call follows
		}
		next, err := decodeCall(&e.Note, g.Name(e.Peer))
		if err != nil {
			return err
		}
		if p.called {
			p.ahead, p.next, p.lends = true, next, e.Lends
			return nil
		}
		if err := c.receiveCall(e.Peer, next, e.Lends); err != nil {
			return err
		}
		return c.sum()
	case Sent:
		if p.lent {
			p.written = c.outgoing(e.Peer)
			break
		}
		c.freed(e.Peer)
		p.written++
	case Received:
		if p.received++; p.received > c.incoming(e.Peer) {
			return fmt.Errorf("rank %d sends more than %d messages", g.Name(e.Peer), c.incoming(e.Peer))
		}
		c.received(e.Peer, e.Lent)
	case Left:
		if g.peerLeft == nil {
			g.peerLeft = e.Why
		}
		if c.needs(e.Peer) {
			return e.Why
		}
		return nil
	}
	c.send(e.Peer)
	return c.sum()
}

// needs reports whether the operation needs a peer to complete. Messages already handed to the wire
// do not count, since the peer may have them.
func (c *wiredCall) needs(p int) bool {
	return !c.g.peers[p].called || c.g.peers[p].received < c.incoming(p) || c.g.peers[p].sent < c.outgoing(p)
}

// announce sends the call to a peer and, if possible, lends it everything it needs: that must be
// available now and contiguous.
func (c *wiredCall) announce(to int, n Note) {
	g, s := c.g, &c.out[to]
	if g.lender == nil || c.chunks == 0 || len(s.parts) != 1 || !(s.kind == term || s.kind == exchanged || s.kind == copied && int(s.parts[0]) == g.Rank()) ||
		!g.lender.NoteLending(to, n, c.only(s).Raw()) {
		g.wire.Note(to, n)
		return
	}
	g.peers[to].lent, g.peers[to].sent = true, c.outgoing(to)
}

// part returns memory of the length of a part.
func (c *wiredCall) part() device.Buffer {
	if c.op == exchange {
		return Own(c.g, c.own)
	}
	return c.own
}

// only returns the only part of a stream to a peer, in this rank's memory.
func (c *wiredCall) only(s *stream) device.Buffer {
	if s.kind == copied && int(s.parts[0]) == c.g.Rank() {
		return c.own
	}
	return c.at(int(s.parts[0]))
}

// at returns part r of the buffer; broadcast and reduce have only one.
func (c *wiredCall) at(r int) device.Buffer {
	if c.op == broadcast || c.op == reduce {
		return c.own
	}
	return Part(c.g, c.whole, r)
}

// receiveCall compares a peer's call with this rank's own, borrows the memory lent with it and
// starts sending to the peer. A disagreement is reported once all calls have arrived.
func (c *wiredCall) receiveCall(p int, its call, lends bool) error {
	g := c.g
	g.peers[p].called = true
	g.announced[p] = its
	g.mu.Lock()
	g.uncalled--
	all := g.uncalled == 0
	g.mu.Unlock()
	if its != c.call {
		c.differs = true
	} else {
		g.peers[p].allowed += min(window, c.outgoing(p))
		if lends {
			if err := c.borrow(p); err != nil {
				return err
			}
		}
	}
	if all && c.differs {
		return divergence(g.announced, g.Name)
	}
	c.send(p)
	return nil
}

// borrow uses memory lent by a peer instead of chunks.
func (c *wiredCall) borrow(from int) error {
	g, p, s := c.g, &c.g.peers[from], &c.in[from]
	b := g.lender.Borrow(from)
	if b == nil {
		return nil // the peer has left; the wire will report that
	}
	if len(s.parts) != 1 || len(b) != c.part().Bytes() {
		return fmt.Errorf("rank %d lends %d bytes, %d parts of %d are expected", g.Name(from), len(b), len(s.parts), c.part().Bytes())
	}
	p.posted, p.received = c.incoming(from), c.incoming(from)
	if s.kind == term {
		p.whole = b
		c.have++
		return nil
	}
	to, step := c.at(int(s.parts[0])).Raw(), pastCaches
	if s.kind == exchanged {
		to = Part(g, c.own, from).Raw()
	}
	if c.whole.Bytes() < manyBytes {
		step /= 2
	}
	for lo := 0; lo < len(b); lo += step {
		copy(to[lo:min(lo+step, len(to))], b[lo:])
	}
	g.wire.Done(from)
	if c.relays && int(s.parts[0]) == from {
		c.relay()
	}
	return nil
}

// copy bypasses the caches when it copies at least pastCaches bytes at once. That pays off for
// buffers of at least manyBytes, which would be evicted before use.
const pastCaches, manyBytes = 1 << 20, 8 << 20

// send posts the available messages that the peer has memory for.
func (c *wiredCall) send(to int) {
	p := &c.g.peers[to]
	for p.sent < min(p.allowed, c.outgoing(to)) && c.ready(to, p.sent) {
		c.g.wire.Send(to, c.source(to, p.sent).Raw())
		p.sent++
	}
	if !p.done && !c.needs(to) && p.written == c.outgoing(to) {
		p.done = true
		c.open--
	}
	c.note(to)
}

// ready reports whether message i to a peer is available.
func (c *wiredCall) ready(to, i int) bool {
	s := &c.out[to]
	switch s.kind {
	case partial, final:
		return i < c.g.peers[to].made
	case copied:
		chunk, part := s.at(i)
		return part == c.g.Rank() || c.g.peers[part].received > chunk
	}
	return true
}

// source returns the memory of message i to a peer.
func (c *wiredCall) source(to, i int) device.Buffer {
	s := &c.out[to]
	chunk, part := s.at(i)
	switch {
	case s.kind == partial || s.kind == final:
		return c.sumSlot(c.itemOf(s, i))
	case s.kind == copied && part == c.g.Rank():
		return c.cut(c.own, chunk)
	}
	return c.cut(c.at(part), chunk)
}

// itemOf returns the index of message i of sums among the chunks that this rank adds.
func (c *wiredCall) itemOf(s *stream, i int) int {
	return i/len(s.parts)*len(c.adds) + int(s.item[i%len(s.parts)])
}

// freed releases the slot of the oldest sum posted to a peer. Call it before counting the message
// as written.
func (c *wiredCall) freed(to int) {
	if s := &c.out[to]; s.kind == partial || s.kind == final {
		c.g.busy[c.itemOf(s, c.g.peers[to].written)%sumSlots] = false
	}
}

// received processes a message from a peer.
func (c *wiredCall) received(from int, lent []byte) {
	p := &c.g.peers[from]
	i := p.received - 1
	if c.in[from].kind.bounced() {
		p.chunk[i%window] = lent
	} else if lent != nil {
		copy(c.destination(from, i).Raw(), lent)
		c.g.wire.Done(from)
	}
	switch c.in[from].kind {
	case term:
		if p.received == p.taken+1 {
			c.have++
		}
	case copied:
		c.again(from)
		if _, part := c.in[from].at(p.received - 1); c.relays && part == from {
			c.relay()
		}
	case final, exchanged:
		c.again(from)
	}
}

// relay sends received parts to the ranks of this host.
func (c *wiredCall) relay() {
	for p := range c.out {
		if len(c.out[p].parts) > 1 {
			c.send(p)
		}
	}
}

// note updates the state that Missing reads.
func (c *wiredCall) note(from int) {
	what := awaitNothing
	switch p := &c.g.peers[from]; {
	case !p.called:
		what = awaitCall
	case p.received < c.incoming(from) || p.written < c.outgoing(from):
		what = awaitChunks
	}
	c.g.mu.Lock()
	c.g.progress++
	c.g.waitsFor[from] = what
	c.g.mu.Unlock()
}

// cut returns chunk k of a part.
func (c *wiredCall) cut(part device.Buffer, k int) device.Buffer {
	return part.Slice(k*c.chunk, min((k+1)*c.chunk, part.N))
}

// post posts memory for the peer's next message.
func (c *wiredCall) post(from int) {
	p := &c.g.peers[from]
	to := c.destination(from, p.posted)
	p.posted++
	c.g.wire.Recv(from, to.Raw())
}

// destination returns the memory for message i from a peer.
func (c *wiredCall) destination(from, i int) device.Buffer {
	s := &c.in[from]
	chunk, part := s.at(i)
	switch s.kind {
	case copied:
		return c.cut(c.at(part), chunk)
	case final:
		return c.cut(c.own, chunk)
	case exchanged:
		return c.cut(Part(c.g, c.own, part), chunk)
	}
	t := c.t
	if s.kind == partial {
		t = accumulator(t)
	}
	return c.slotAt(int(c.bounceIndex[from])*window+i%window, t, chunk)
}

// sumSlot returns the slot in which sum n of this rank waits to be sent.
func (c *wiredCall) sumSlot(n int) device.Buffer {
	t := c.t
	if !c.last {
		t = accumulator(t)
	}
	return c.slotAt(c.routes.streams*window+n%sumSlots, t, n/len(c.adds))
}

// slotAt returns a slot of bounce memory, for chunk k of a part.
func (c *wiredCall) slotAt(n int, t device.DType, k int) device.Buffer {
	b := device.Buffer{Type: t, Host: true, N: c.cut(c.own, k).N}
	if b.N > 0 {
		b.Ptr = unsafe.Add(c.g.bounce.Ptr, n*c.slot)
	}
	return b
}

// again posts memory for the peer's next message, if any, and grants it.
func (c *wiredCall) again(from int) {
	if c.g.peers[from].posted < c.incoming(from) {
		c.post(from)
		c.g.wire.Note(from, Note{noteCredit})
	}
}

// sum adds chunks whose terms are complete, as long as there are slots for the sums.
func (c *wiredCall) sum() error {
	for c.addable() {
		i, chunk := c.added%len(c.adds), c.added/len(c.adds)
		to := int(c.after[i])
		sum := c.cut(c.own, chunk)
		if to != c.g.Rank() {
			sum = c.sumSlot(c.added)
			c.g.busy[c.added%sumSlots] = true
		}
		c.q.AddUp(sum, c.addends(i, chunk))
		c.added++
		c.consume(i)
		if to != c.g.Rank() {
			c.g.peers[to].made++
			c.send(to)
		}
	}
	return nil
}

// addable reports whether the next chunk can be added.
func (c *wiredCall) addable() bool {
	if c.added == c.items() || c.have < len(c.near) {
		return false
	}
	i := c.added % len(c.adds)
	if !c.first {
		if p := &c.g.peers[c.before[i]]; p.received == p.taken {
			return false
		}
	}
	return int(c.after[i]) == c.g.Rank() || !c.g.busy[c.added%sumSlots]
}

// addends returns the terms of chunk k of part adds[i]: the partial sum of previous hosts, then the
// ranks' own values in rank order.
func (c *wiredCall) addends(i, k int) []device.Buffer {
	g := c.g
	terms := g.terms[:0]
	if !c.first {
		from := int(c.before[i])
		terms = append(terms, c.addend(from))
	}
	mine := c.cut(c.at(int(c.adds[i])), k)
	for n, p := range c.near {
		if int(p) > g.Rank() && (n == 0 || int(c.near[n-1]) < g.Rank()) {
			terms = append(terms, mine)
		}
		terms = append(terms, c.addend(int(p)))
	}
	if n := len(c.near); n == 0 || int(c.near[n-1]) < g.Rank() {
		terms = append(terms, mine)
	}
	return terms
}

// addend returns the oldest message of a peer that is not yet added.
func (c *wiredCall) addend(from int) device.Buffer {
	p := &c.g.peers[from]
	b := c.destination(from, p.taken)
	if p.whole != nil {
		b.Ptr = unsafe.Pointer(&p.whole[p.taken*c.chunk*c.t.Size()])
	} else if lent := p.chunk[p.taken%window]; lent != nil {
		b.Ptr = unsafe.Pointer(unsafe.SliceData(lent))
	}
	return b
}

// consume releases the terms of adds[i].
func (c *wiredCall) consume(i int) {
	c.have = 0
	for _, p := range c.near {
		c.release(int(p))
		if it := &c.g.peers[p]; it.received > it.taken {
			c.have++
		}
	}
	if !c.first {
		c.release(int(c.before[i]))
	}
}

// release releases the oldest message of a peer.
func (c *wiredCall) release(from int) {
	p := &c.g.peers[from]
	chunk := &p.chunk[p.taken%window]
	p.taken++
	if *chunk != nil || p.whole != nil && p.taken == c.incoming(from) {
		*chunk, p.whole = nil, nil
		c.g.wire.Done(from)
	}
	c.again(from)
}
