package collective

import (
	"fmt"
	"sync"

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
// A peer that can read a rank's part where it is is lent it whole, with the call
// (Lender). Then a call and the news that the part was read are all that is sent, and
// who reads it needs no memory for it: it works as a rank of Local does.
//
// Chunks of a gather, and finished sums, are received where they belong; what is to
// be added into bounce memory, from where all that make up a chunk are added at once,
// in the order and by the kernel of Local.
//
// The host can address all buffers; those of other memory are Staged's.
type Wired struct {
	wire    Wire
	lender  Lender // the wire; nil: it is none
	failure *failure
	calls   freeList[wiredCall]
	routing *routing

	bounce device.Buffer   // of BounceBytes, or of what operations have needed so far
	busy   [outgoing]bool  // slots of sums that are on their way
	peers  []peer          // (Size) by rank; this rank's own is not used
	said   []call          // (Size) what the ranks call
	terms  []device.Buffer // (Size + 1) of a sum
	gone   error           // why the first peer left
	agreement

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
	lends    bool // with that it lends memory
	done     bool // nothing is outstanding, of either side
	posted   int  // this rank has posted memory for
	received int
	taken    int // of received, what has been added
	allowed  int // the peer has memory for
	made     int // sums for it
	sent     int // posted
	written  int // out
	next     call
	lent     bool           // all that goes to it is lent to it
	whole    []byte         // all that comes from it, which it lends; nil: chunks come
	chunk    [window][]byte // of messages that have come and were not added: where they are, if not in bounce memory
}

// owes is what is outstanding of a peer.
type owes uint8

const (
	nothing owes = iota
	itsCall
	chunks
)

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
	lender, _ := w.(Lender)
	g := &Wired{wire: w, lender: lender, failure: f, routing: newRouting(w.Rank(), host, how), peers: make([]peer, n), said: make([]call, n),
		terms: make([]device.Buffer, 0, n+1), waitsFor: make([]owes, n)}
	if w, ok := w.(interface{ During(func() string) }); ok {
		w.During(g.during)
	}
	return g
}

// during names the operation under way, for errors of the wire; empty if there is none.
func (g *Wired) during() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.inside {
		return ""
	}
	c := g.said[g.Rank()]
	return fmt.Sprintf("operation %d (%v%s)", c.seq, c, after(": ", c.about()))
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

// Broadcast implements Group.
func (g *Wired) Broadcast(q device.Queue, b device.Buffer) { g.issue(q, broadcast, b, b) }

// Reduce implements Group.
func (g *Wired) Reduce(q device.Queue, b device.Buffer) { g.issue(q, reduce, b, b) }

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

// lost implements agreeing: a peer that has left ends the next operation, if the wire
// can tell before that.
func (g *Wired) lost() (why error, gone bool) {
	if w, ok := g.wire.(interface{ Lost() (error, bool) }); ok {
		why, gone = w.Lost()
	}
	if g.wire.Ended() != nil {
		why = g.why()
	}
	return why, gone
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
		c.tell(p, n)
	}
	if c.op == allGather {
		if to := Own(g, c.whole); to.Ptr != c.own.Ptr {
			copy(to.Raw(), c.own.Raw())
		}
	}
	for p := range g.peers {
		if g.peers[p].ahead {
			g.peers[p].ahead = false
			if err := c.heard(p, g.peers[p].next, g.peers[p].lends); err != nil {
				return err
			}
		}
	}
	return c.sum()
}

// measure chooses the route and cuts the parts into chunks.
func (c *wiredCall) measure() {
	g := c.g
	part, elem := c.own.N, c.t.Size()
	c.routes = g.routing.of(c.call, part)
	switch c.op {
	case allGather:
		c.route = c.routes.gather
	case broadcast:
		c.route = c.routes.broadcast
	case reduce:
		c.route, elem = c.routes.collect, accumulator(c.t).Size()
		c.slot = slotBytes(c.routes.chunk, part, c.t)
		if g.Rank() == 0 {
			g.reserve(c.routes.slots() * c.slot)
		}
	case reduceScatter:
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
		w.bounce, w.routing.planned = b, b.Bytes()
	}
	return ok
}

// UseLinks has the group, or the one that it wraps, choose its ways by what its links
// were measured to carry: between operations, and the same on all ranks.
func UseLinks(g Group, l Links) {
	if w, ok := inspectable(g).(*Wired); ok {
		w.routing.links = l
	}
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
		*q = peer{ahead: q.ahead, next: q.next, lends: q.lends}
		g.waitsFor[p] = itsCall
	}
	g.waitsFor[g.Rank()] = nothing
	clear(g.busy[:])
	return g.gone
}

// end leaves the operation.
func (g *Wired) end(c *wiredCall, err error) error {
	if err != nil {
		err = g.abandon(err)
	}
	g.mu.Lock()
	g.inside = false
	g.mu.Unlock()
	c.whole, c.own, c.q, c.route = device.Buffer{}, device.Buffer{}, nil, nil
	clear(g.terms[:cap(g.terms)])
	g.calls.give(c)
	return err
}

// abandon ends the group because of an error, and returns what operations fail with.
// Then nobody is in an operation's memory any more.
func (g *Wired) abandon(err error) error {
	g.wire.Abort(err)
	for _, again := g.wire.Poll(); again == nil; _, again = g.wire.Poll() {
	}
	return g.why()
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
func (g *Wired) Missing() (names []int) {
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
	for p, what := range g.waitsFor {
		if what == want {
			names = append(names, g.Name(p))
		}
	}
	return names
}
