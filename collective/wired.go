package collective

import (
	"fmt"
	"sync"
	"unsafe"

	"zeroth/device"
)

// Wired is a rank of a group whose ranks may be in other processes, over a Wire.
//
// Every rank tells every other what it calls, by a note. Then parts of the buffer
// travel as the operation's route says, flat or by host: whichever costs less. A
// part travels in chunks of at most a mebibyte, of which two are in flight to each
// peer: a note of the call says that the rank has memory for the first ones, a
// credit that it has for one more. So nothing is ever sent to who has no memory for
// it, and receiving, adding and sending go on at once. What depends on what is the
// same for all: chunk by chunk, and of a chunk part by part. So nobody waits in a
// circle.
//
// Chunks of a gather, and finished sums, are received where they belong; what is to
// be added into bounce memory, from where all that make up a chunk are added at once,
// in the order and by the kernel of Local.
//
// The host can address all buffers; those of other memory are Staged's.
type Wired struct {
	wire    Wire
	failure *failure
	calls   freeList[wiredCall]
	routing *routing

	bounce device.Buffer   // of BounceBytes, or of what operations have needed so far
	busy   [outgoing]bool  // slots of sums that are on their way
	peers  []peer          // (Size) by rank; this rank's own is not used
	said   []call          // (Size) what the ranks call
	terms  []device.Buffer // (Size + 1) of a sum
	gone   error           // why the first peer left

	mu       sync.Mutex // of what follows, which Missing reads
	issued   int        // operations issued so far
	inside   bool       // an operation is under way
	progress uint64     // events of operations so far
	looked   uint64     // progress when Missing last looked
	waitsFor []owes     // (Size) what is outstanding of each peer
	unheard  int        // peers whose call has not come
}

// peer is an operation as far as it concerns one other rank. Numbers are of
// messages.
type peer struct {
	came     bool // its call
	ahead    bool // its call of the next operation, which is in next
	done     bool // nothing is outstanding, of either side
	posted   int  // this rank has posted memory for
	received int
	taken    int // of received, what has been added
	allowed  int // the peer has memory for
	made     int // sums for it
	sent     int // posted
	written  int // out
	next     call
	lent     [window][]byte // of messages that have come and were not added: where they are, if not in bounce memory
}

// owes is what is outstanding of a peer.
type owes uint8

const (
	nothing owes = iota
	itsCall
	chunks
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

// WireQueue is a queue that runs the operations of a Wired.
type WireQueue interface {
	device.Queue
	Call(name string, f func() error)
	// AddUp sets dst to the sum of src, as LocalQueue's SumAll does, but now, in
	// host memory, on the calling goroutine. Of 16-bit types some may be float32.
	AddUp(dst device.Buffer, src []device.Buffer)
}

// NewWired is a group over a wire.
func NewWired(w Wire) *Wired { return NewWiredBy(w, Cheapest) }

// NewWiredBy is NewWired with a routing, the same on all ranks.
func NewWiredBy(w Wire, how Routing) *Wired {
	return newWired(w, &failure{why: ErrPeerLost{w.Name(w.Rank())}}, how)
}

func newWired(w Wire, f *failure, how Routing) *Wired {
	n := w.Size()
	host := make([]int, n)
	for r := range host {
		host[r] = w.Host(r)
	}
	return &Wired{wire: w, failure: f, routing: newRouting(w.Rank(), host, how), peers: make([]peer, n), said: make([]call, n),
		terms: make([]device.Buffer, 0, n+1), waitsFor: make([]owes, n)}
}

// Rank implements Group.
func (g *Wired) Rank() int { return g.wire.Rank() }

// Size implements Group.
func (g *Wired) Size() int { return g.wire.Size() }

// Name implements Inspectable.
func (g *Wired) Name(r int) int { return g.wire.Name(r) }

// AllGather implements Group.
func (g *Wired) AllGather(q device.Queue, whole, own device.Buffer) {
	g.issue(q, allGather, whole, own)
}

// ReduceScatter implements Group.
func (g *Wired) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	g.issue(q, reduceScatter, whole, own)
}

func (g *Wired) issue(q device.Queue, o op, whole, own device.Buffer) {
	what := newCall(g, q, o, whole, own)
	on, ok := q.(WireQueue)
	if !ok {
		panic(fmt.Sprintf("collective: %v between processes on a %T, which is no WireQueue", what, q))
	}
	if whole.N > 0 && (!whole.Host || !own.Host) {
		panic(fmt.Sprintf("collective: %v between processes of memory that the host cannot address: wants Staged", what))
	}
	what.seq = g.number()
	c := g.newCall(what)
	c.q, c.whole, c.own = on, whole, own
	on.Call(o.String(), c.run)
}

// number implements agreeing.
func (g *Wired) number() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.issued++
	return g.issued - 1
}

func (g *Wired) newCall(what call) *wiredCall {
	c := g.calls.take()
	if c == nil {
		c = &wiredCall{g: g}
		c.run = c.doRun
	}
	c.call = what
	return c
}

// agree implements agreeing: an operation on nothing.
func (g *Wired) agree(what call) error { return g.newCall(what).doRun() }

// lost implements agreeing: a peer that has left ends the next operation, if the wire
// can tell before that.
func (g *Wired) lost() (why error, gone bool) {
	if g.wire.Ended() != nil {
		return g.why(), false
	}
	if w, ok := g.wire.(interface{ Lost() (error, bool) }); ok {
		return w.Lost()
	}
	return nil, false
}

// doRun does the operation, on the queue's goroutine.
func (c *wiredCall) doRun() error {
	err := c.g.begin(c)
	for err == nil && !c.over() {
		var e Event
		if e, err = c.g.wire.Poll(); err == nil {
			err = c.handle(e)
		}
	}
	return c.g.end(c, err)
}

// begin makes the call known to all, and posts memory for what comes.
func (g *Wired) begin(c *wiredCall) error {
	if why := g.wire.Ended(); why != nil {
		return why
	}
	c.measure()
	if err := g.enter(c); err != nil {
		return err
	}
	var n Note
	c.encode(&n, c.routes.chunk)
	for i := 1; i < g.Size(); i++ { // not all to rank 0 at first
		p := (g.Rank() + i) % g.Size()
		for range min(window, c.comes(p)) {
			c.post(p)
		}
		g.wire.Note(p, n)
	}
	if c.op == allGather {
		if to := Own(g, c.whole); to.Ptr != c.own.Ptr {
			copy(to.Raw(), c.own.Raw())
		}
	}
	for p := range g.peers {
		if g.peers[p].ahead {
			g.peers[p].ahead = false
			if err := c.heard(p, g.peers[p].next); err != nil {
				return err
			}
		}
	}
	return c.sum()
}

// measure chooses the route and cuts the parts into chunks.
func (c *wiredCall) measure() {
	g := c.g
	part, elem := PartLen(g, c.whole), c.t.Size()
	c.routes = g.routing.of(c.call)
	c.route = c.routes.gather
	if c.op == reduceScatter {
		c.route, elem = c.routes.reduce, accumulator(c.t).Size()
		c.slot = slotBytes(c.routes.chunk, part, c.t)
		g.reserve(c.routes.slots() * c.slot)
	}
	c.chunk = c.routes.chunk / elem
	c.chunks = (part + c.chunk - 1) / c.chunk
	c.added, c.have, c.parted = 0, 0, false
	c.open = g.Size() - 1
}

// UseBounce gives the group, or the one that it wraps, the memory for chunks that
// are added, of BounceBytes for the largest reduction; the group's owner frees it
// after Close and Wait on its queues. Without it, or with less, the group allocates.
// It is false if the group needs none.
func UseBounce(g Group, b device.Buffer) bool {
	w, ok := inspectable(g).(*Wired)
	if ok && b.Host {
		w.bounce = b
	}
	return ok
}

// Bounce is the bytes of memory for chunks that are added.
func (g *Wired) Bounce() int { return g.bounce.Bytes() }

// reserve has bounce memory for an operation.
func (g *Wired) reserve(bytes int) {
	if g.bounce.Bytes() < bytes {
		g.bounce = device.OfF64(make([]float64, bytes/8))
	}
}

// enter marks the group as busy with the operation.
func (g *Wired) enter(c *wiredCall) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside {
		panic(fmt.Sprintf("collective: rank %d runs %v during another operation: its queues are not ordered by a mark", g.Name(g.Rank()), c.call))
	}
	g.inside, g.unheard = true, g.Size()-1
	g.said[g.Rank()] = c.call
	for p := range g.peers {
		q := &g.peers[p]
		*q = peer{ahead: q.ahead, next: q.next}
		g.waitsFor[p] = itsCall
	}
	g.waitsFor[g.Rank()] = nothing
	clear(g.busy[:])
	return g.gone
}

// end leaves the operation.
func (g *Wired) end(c *wiredCall, err error) error {
	if err != nil {
		g.wire.Abort(err)
		for _, again := g.wire.Poll(); again == nil; _, again = g.wire.Poll() {
		} // nobody is in the operation's memory any more
		err = g.why()
	}
	g.mu.Lock()
	g.inside = false
	g.mu.Unlock()
	c.whole, c.own, c.q, c.route = device.Buffer{}, device.Buffer{}, nil, nil
	clear(g.terms[:cap(g.terms)])
	g.calls.give(c)
	return err
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
		next, err := decodeCall(&e.Note)
		if err != nil {
			return err
		}
		if p.came {
			p.ahead, p.next = true, next
			return nil
		}
		return c.heard(e.Peer, next)
	case Sent:
		c.freed(e.Peer)
		p.written++
	case Received:
		p.received++
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

// heard compares the call of a peer with the rank's own and begins to send to it.
// Ranks that disagree find that out when all have called.
func (c *wiredCall) heard(p int, its call) error {
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
	}
	if all && c.parted {
		return divergence(g.said, g.Name)
	}
	c.send(p)
	return nil
}

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
	return c.cut(Part(c.g, c.whole, part), chunk)
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
		p.lent[i%window] = lent
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
		return c.cut(Part(c.g, c.whole, part), chunk)
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
	mine := c.cut(Part(g, c.whole, int(c.adds[i])), k)
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
	if lent := p.lent[p.taken%window]; lent != nil {
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
	if p.lent[p.taken%window] != nil {
		p.lent[p.taken%window] = nil
		c.g.wire.Done(from)
	}
	p.taken++
	c.again(from)
}

// why is what operations of this rank fail with after the group's end.
func (g *Wired) why() error {
	why := g.wire.Ended()
	if why == error(ErrPeerLost{g.Name(g.Rank())}) {
		return ErrClosed // by this rank
	}
	g.failure.pass(why)
	return why
}

// Close implements Group.
func (g *Wired) Close() error {
	g.wire.Abort(g.failure.reason())
	return nil
}

// Abort implements Inspectable.
func (g *Wired) Abort(err error) {
	g.wire.Abort(err)
	_ = g.why() // which passes it on
}

// Missing implements Inspectable. Peers whose call has not come are missing at once;
// where all have called, those from whom nothing comes and to whom nothing goes,
// if nothing at all has moved since it was last asked.
func (g *Wired) Missing() [][]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	still := g.progress == g.looked
	g.looked = g.progress
	if !g.inside || g.wire.Ended() != nil || g.unheard == 0 && !still {
		return nil
	}
	want := itsCall
	if g.unheard == 0 {
		want = chunks
	}
	var names []int
	for p, what := range g.waitsFor {
		if what == want {
			names = append(names, g.Name(p))
		}
	}
	if names == nil {
		return nil
	}
	return [][]int{sorted(names)}
}
