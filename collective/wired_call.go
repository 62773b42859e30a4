package collective

import (
	"fmt"
	"unsafe"

	"zeroth/device"
)

// wiredCall is an operation on its way through a queue; run is bound once.
type wiredCall struct {
	call
	g          *Wired
	q          WireQueue
	whole, own device.Buffer
	routes     *routes
	*route
	chunk  int // elements of a chunk
	chunks int // of a part
	slot   int // bytes of a slot of bounce memory
	added  int // chunks of adds
	have   int // of near, those that have sent what comes next
	open   int // peers that are not done
	parted bool
	run    func() error
}

// over is whether all is received, added and out.
func (c *wiredCall) over() bool { return c.open == 0 && c.added == c.items() }

// items is how many chunks the rank adds.
func (c *wiredCall) items() int { return len(c.adds) * c.chunks }

// comes and goes are the messages from and to a peer.
func (c *wiredCall) comes(p int) int { return len(c.in[p].parts) * c.chunks }
func (c *wiredCall) goes(p int) int  { return len(c.out[p].parts) * c.chunks }

// handle takes the operation a step further.
func (c *wiredCall) handle(e Event) error {
	g := c.g
	p := &g.peers[e.Peer]
	switch e.Kind {
	case Noted:
		if e.Note[0] == noteCredit {
			p.allowed++
			break
		}
		if e.Note[0] == noteCome || e.Note[0] == noteHeard {
			if p.came {
				return g.noteEarly(e.Peer, e.Note)
			}
			return nil // it agrees to another call, and tells which when it has heard of this one
		}
		next, err := decodeCall(&e.Note, g.Name(e.Peer))
		if err != nil {
			return err
		}
		if p.came {
			p.ahead, p.next, p.lends = true, next, e.Lends
			return nil
		}
		if err := c.heard(e.Peer, next, e.Lends); err != nil {
			return err
		}
		return c.sum()
	case Sent:
		if p.lent {
			p.written = c.goes(e.Peer)
			break
		}
		c.freed(e.Peer)
		p.written++
	case Received:
		if p.received++; p.received > c.comes(e.Peer) {
			return fmt.Errorf("rank %d sends more than its %d messages", g.Name(e.Peer), c.comes(e.Peer))
		}
		c.came(e.Peer, e.Lent)
	case Left:
		if g.gone == nil {
			g.gone = e.Why
		}
		if c.needs(e.Peer) {
			return e.Why
		}
		return nil
	}
	c.send(e.Peer)
	return c.sum()
}

// needs is whether the operation cannot end without the peer. What has been
// handed to the wire is not waited for: the peer may have it.
func (c *wiredCall) needs(p int) bool {
	return !c.g.peers[p].came || c.g.peers[p].received < c.comes(p) || c.g.peers[p].sent < c.goes(p)
}

// tell makes the call known to a peer, and lends it what goes to it, where that is
// there from the begin and in one piece.
func (c *wiredCall) tell(to int, n Note) {
	g, s := c.g, &c.out[to]
	if g.lender == nil || c.chunks == 0 || len(s.parts) != 1 || !(s.of == term || s.of == copied && int(s.parts[0]) == g.Rank()) ||
		!g.lender.NoteLending(to, n, c.part(s).Raw()) {
		g.wire.Note(to, n)
		return
	}
	g.peers[to].lent, g.peers[to].sent = true, c.goes(to)
}

// part is the only part of a stream, in the rank's own memory.
func (c *wiredCall) part(s *stream) device.Buffer {
	if s.of == copied && int(s.parts[0]) == c.g.Rank() {
		return c.own
	}
	return c.at(int(s.parts[0]))
}

// at is where part r of the buffer is: that of a broadcast or a reduce has one.
func (c *wiredCall) at(r int) device.Buffer {
	if c.op == broadcast || c.op == reduce {
		return c.own
	}
	return Part(c.g, c.whole, r)
}

// heard compares the call of a peer with the rank's own, takes what is lent with it
// and begins to send to it. Ranks that disagree find that out when all have called.
func (c *wiredCall) heard(p int, its call, lends bool) error {
	g := c.g
	g.peers[p].came = true
	g.said[p] = its
	g.mu.Lock()
	g.unheard--
	all := g.unheard == 0
	g.mu.Unlock()
	if its != c.call {
		c.parted = true
	} else {
		g.peers[p].allowed += min(window, c.goes(p))
		if lends {
			if err := c.borrow(p); err != nil {
				return err
			}
		}
	}
	if all && c.parted {
		return divergence(g.said, g.Name)
	}
	c.send(p)
	return nil
}

// borrow takes what a peer lends in place of chunks.
func (c *wiredCall) borrow(from int) error {
	g, p, s := c.g, &c.g.peers[from], &c.in[from]
	b := g.lender.Borrow(from)
	if b == nil {
		return nil // it has left, as the wire will tell
	}
	if len(s.parts) != 1 || len(b) != c.own.Bytes() {
		return fmt.Errorf("rank %d lends %d bytes, %d parts of %d are expected", g.Name(from), len(b), len(s.parts), c.own.Bytes())
	}
	p.posted, p.received = c.comes(from), c.comes(from)
	if s.of == term {
		p.whole = b
		c.have++
		return nil
	}
	to, step := c.part(s).Raw(), pastCaches
	if c.whole.Bytes() < manyBytes {
		step /= 2
	}
	for lo := 0; lo < len(b); lo += step {
		copy(to[lo:min(lo+step, len(to))], b[lo:])
	}
	g.wire.Done(from)
	if c.relays && int(s.parts[0]) == from {
		c.passOn()
	}
	return nil
}

// pastCaches is from how many bytes on copy writes past the caches. It shall where the
// whole is manyBytes: what is gathered then is not in them when it is used.
const pastCaches, manyBytes = 1 << 20, 8 << 20

// send posts what is there and the peer has memory for.
func (c *wiredCall) send(to int) {
	p := &c.g.peers[to]
	for p.sent < min(p.allowed, c.goes(to)) && c.ready(to, p.sent) {
		c.g.wire.Send(to, c.leaves(to, p.sent).Raw())
		p.sent++
	}
	if !p.done && !c.needs(to) && p.written == c.goes(to) {
		p.done = true
		c.open--
	}
	c.note(to)
}

// ready is whether message i to a peer is there.
func (c *wiredCall) ready(to, i int) bool {
	s := &c.out[to]
	switch s.of {
	case partial, final:
		return i < c.g.peers[to].made
	case copied:
		chunk, part := s.at(i)
		return part == c.g.Rank() || c.g.peers[part].received > chunk
	}
	return true
}

// leaves is where message i to a peer is.
func (c *wiredCall) leaves(to, i int) device.Buffer {
	s := &c.out[to]
	chunk, part := s.at(i)
	switch {
	case s.of == partial || s.of == final:
		return c.sumSlot(c.itemOf(s, i))
	case s.of == copied && part == c.g.Rank():
		return c.cut(c.own, chunk)
	}
	return c.cut(c.at(part), chunk)
}

// itemOf is which of the chunks that the rank adds is message i of sums.
func (c *wiredCall) itemOf(s *stream, i int) int {
	return i/len(s.parts)*len(c.adds) + int(s.item[i%len(s.parts)])
}

// freed is called when the oldest message to a peer is out, before it is counted: the
// slot of a sum is free.
func (c *wiredCall) freed(to int) {
	if s := &c.out[to]; s.of == partial || s.of == final {
		c.g.busy[c.itemOf(s, c.g.peers[to].written)%outgoing] = false
	}
}

// came is called when a message has come.
func (c *wiredCall) came(from int, lent []byte) {
	p := &c.g.peers[from]
	i := p.received - 1
	if c.in[from].of.bounced() {
		p.chunk[i%window] = lent
	} else if lent != nil {
		copy(c.enters(from, i).Raw(), lent)
		c.g.wire.Done(from)
	}
	switch c.in[from].of {
	case term:
		if p.received == p.taken+1 {
			c.have++
		}
	case copied:
		c.again(from)
		if _, part := c.in[from].at(p.received - 1); c.relays && part == from {
			c.passOn()
		}
	case final:
		c.again(from)
	}
}

// passOn sends to the ranks of this host what others sent to it.
func (c *wiredCall) passOn() {
	for p := range c.out {
		if len(c.out[p].parts) > 1 {
			c.send(p)
		}
	}
}

// note keeps what Missing reads.
func (c *wiredCall) note(from int) {
	what := nothing
	switch p := &c.g.peers[from]; {
	case !p.came:
		what = itsCall
	case p.received < c.comes(from) || p.written < c.goes(from):
		what = chunks
	}
	c.g.mu.Lock()
	c.g.progress++
	c.g.waitsFor[from] = what
	c.g.mu.Unlock()
}

// cut is chunk k of a part.
func (c *wiredCall) cut(part device.Buffer, k int) device.Buffer {
	return part.Slice(k*c.chunk, min((k+1)*c.chunk, part.N))
}

// post has memory for the peer's next message.
func (c *wiredCall) post(from int) {
	p := &c.g.peers[from]
	to := c.enters(from, p.posted)
	p.posted++
	c.g.wire.Recv(from, to.Raw())
}

// enters is where message i of a peer belongs.
func (c *wiredCall) enters(from, i int) device.Buffer {
	s := &c.in[from]
	chunk, part := s.at(i)
	switch s.of {
	case copied:
		return c.cut(c.at(part), chunk)
	case final:
		return c.cut(c.own, chunk)
	}
	t := c.t
	if s.of == partial {
		t = accumulator(t)
	}
	return c.slotAt(int(c.place[from])*window+i%window, t, chunk)
}

// sumSlot is where chunk n of those that the rank adds waits to be sent.
func (c *wiredCall) sumSlot(n int) device.Buffer {
	t := c.t
	if !c.last {
		t = accumulator(t)
	}
	return c.slotAt(c.routes.streams*window+n%outgoing, t, n/len(c.adds))
}

// slotAt is a slot of bounce memory, for chunk k of a part.
func (c *wiredCall) slotAt(n int, t device.DType, k int) device.Buffer {
	b := device.Buffer{Type: t, Host: true, N: c.cut(c.own, k).N}
	if b.N > 0 {
		b.Ptr = unsafe.Add(c.g.bounce.Ptr, n*c.slot)
	}
	return b
}

// again posts memory for another message, if there is one, and lets the peer know.
func (c *wiredCall) again(from int) {
	if c.g.peers[from].posted < c.comes(from) {
		c.post(from)
		c.g.wire.Note(from, Note{noteCredit})
	}
}

// sum adds chunks of which all is there, as far as there is room for the sums.
func (c *wiredCall) sum() error {
	for c.addable() {
		i, chunk := c.added%len(c.adds), c.added/len(c.adds)
		to := int(c.after[i])
		sum := c.cut(c.own, chunk)
		if to != c.g.Rank() {
			sum = c.sumSlot(c.added)
			c.g.busy[c.added%outgoing] = true
		}
		c.q.AddUp(sum, c.addends(i, chunk))
		c.added++
		c.take(i)
		if to != c.g.Rank() {
			c.g.peers[to].made++
			c.send(to)
		}
	}
	return nil
}

// addable is whether the chunk that comes next can be added.
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
	return int(c.after[i]) == c.g.Rank() || !c.g.busy[c.added%outgoing]
}

// addends are what chunk k of part adds[i] is the sum of: what others have summed,
// then the ranks' own, in rank order.
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

// addend is where the oldest message of a peer that is not added is.
func (c *wiredCall) addend(from int) device.Buffer {
	p := &c.g.peers[from]
	b := c.enters(from, p.taken)
	if p.whole != nil {
		b.Ptr = unsafe.Pointer(&p.whole[p.taken*c.chunk*c.t.Size()])
	} else if lent := p.chunk[p.taken%window]; lent != nil {
		b.Ptr = unsafe.Pointer(unsafe.SliceData(lent))
	}
	return b
}

// take has used what was added of adds[i].
func (c *wiredCall) take(i int) {
	c.have = 0
	for _, p := range c.near {
		c.took(int(p))
		if it := &c.g.peers[p]; it.received > it.taken {
			c.have++
		}
	}
	if !c.first {
		c.took(int(c.before[i]))
	}
}

// took has used the oldest message of a peer.
func (c *wiredCall) took(from int) {
	p := &c.g.peers[from]
	chunk := &p.chunk[p.taken%window]
	p.taken++
	if *chunk != nil || p.whole != nil && p.taken == c.comes(from) {
		*chunk, p.whole = nil, nil
		c.g.wire.Done(from)
	}
	c.again(from)
}
