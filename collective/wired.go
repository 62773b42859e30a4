package collective

import (
	"fmt"
	"sync"

	"zeroth/device"
)

// Wired is a rank of a group whose ranks may be in other processes, connected by a Wire.
//
// Every rank sends its call to all others in a note. Then parts of the buffer travel along the
// operation's route, flat or by host, whichever is cheaper. Parts are cut into chunks of at most 1
// MiB, two of which are in flight to each peer: the note of the call grants memory for the first
// ones, and each credit for one more. So nothing is sent to a rank without memory for it, and
// receiving, adding and sending overlap. All ranks process chunks in the same order, chunk by chunk
// and, within a chunk, part by part, so there can be no deadlock.
//
// If a peer can read a rank's part directly, the part is lent to it whole, with the call (see
// Lender). Then only the call and the acknowledgement are sent, and the reader needs no memory for
// the part, as in Local.
//
// Chunks of a gather and finished sums are received at their destination. Terms of sums are
// received in bounce memory, and a chunk is added once all of its terms are there, in the order and
// with the kernel of Local.
//
// The host must be able to address all buffers; Staged handles other memory.
type Wired struct {
	Primitives
	wire    Wire
	lender  Lender // the wire, or nil if it is no Lender
	failure *failure
	calls   freeList[wiredCall]
	routing *routing

	bounce    device.Buffer   // of BounceBytes, or as much as operations have needed so far
	busy      [sumSlots]bool  // slots of sums being sent
	peers     []peer          // (Size) by rank; this rank's own is unused
	announced []call          // (Size) calls of all ranks
	terms     []device.Buffer // (Size + 1) terms of a sum
	peerLeft  error           // why the first peer left
	agreement

	mu           sync.Mutex // guards the fields below, which Missing reads
	issued       int        // operations issued so far
	inside       bool       // an operation is in progress
	progress     uint64     // number of events so far
	lastProgress uint64     // progress at the last Missing
	waitsFor     []awaited  // (Size) what is awaited from each peer
	uncalled     int        // peers whose call has not arrived
}

// peer is the state of an operation with one other rank. Counts are of messages.
type peer struct {
	called   bool // its call has arrived
	ahead    bool // its call of the next operation has arrived, in next
	lends    bool // it lends memory with that call
	done     bool // nothing is outstanding in either direction
	posted   int  // memory posted by this rank
	received int
	taken    int // received and added
	allowed  int // memory granted by the peer
	made     int // sums computed for it
	sent     int // posted
	written  int // sent
	next     call
	lent     bool           // everything for it is lent
	whole    []byte         // everything from it, lent; nil if it sends chunks
	chunk    [window][]byte // received and not yet added, if not in bounce memory
}

// awaited says which message this rank waits for from a peer.
type awaited uint8

const (
	awaitNothing awaited = iota
	awaitCall
	awaitChunks
)

// WireQueue is a queue that runs the operations of a Wired.
type WireQueue interface {
	device.Queue
	Call(name string, f func() error)
	// AddUp sets dst to the sum of src, like LocalQueue's SumAll, but immediately, in host memory,
	// on the calling goroutine. For 16-bit types, some of src may be float32.
	AddUp(dst device.Buffer, src []device.Buffer)
}

// NewWired opens a group over a wire.
func NewWired(w Wire) *Wired { return NewWiredBy(w, Cheapest) }

// NewWiredBy opens a group with a routing, which must be the same on all ranks.
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
	g := &Wired{wire: w, lender: lender, failure: f, routing: newRouting(w.Rank(), host, how), peers: make([]peer, n), announced: make([]call, n),
		terms: make([]device.Buffer, 0, n+1), waitsFor: make([]awaited, n)}
	g.Issue = g.issue
	if w, ok := w.(interface{ During(func() string) }); ok {
		w.During(g.during)
	}
	return g
}

// during names the operation in progress for errors of the wire, or returns "".
func (g *Wired) during() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.inside {
		return ""
	}
	c := g.announced[g.Rank()]
	return fmt.Sprintf("operation %d (%v%s)", c.seq, c, after(": ", c.about()))
}

func (g *Wired) Rank() int      { return g.wire.Rank() }
func (g *Wired) Size() int      { return g.wire.Size() }
func (g *Wired) Name(r int) int { return g.wire.Name(r) }

func (g *Wired) issue(q device.Queue, o Op, whole, own device.Buffer) {
	what := newCall(g, q, o, whole, own)
	on, ok := q.(WireQueue)
	if !ok {
		panic(fmt.Sprintf("collective: %v between processes on a %T, which is not a WireQueue", what, q))
	}
	if whole.N > 0 && (!whole.Host || !own.Host) {
		panic(fmt.Sprintf("collective: %v between processes of memory that the host cannot address; use Staged", what))
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

// lost implements agreeing. It reports a peer that has left before the next operation fails, if the
// wire supports that.
func (g *Wired) lost() (why error, gone bool) {
	if w, ok := g.wire.(interface{ Lost() (error, bool) }); ok {
		why, gone = w.Lost()
	}
	if g.wire.Ended() != nil {
		why = g.why()
	}
	return why, gone
}

// doRun performs the operation on the queue's goroutine.
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

// begin sends the call to all peers and posts memory for their messages.
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
	for i := 1; i < g.Size(); i++ { // start at different peers, to avoid flooding rank 0
		p := (g.Rank() + i) % g.Size()
		for range min(window, c.incoming(p)) {
			c.post(p)
		}
		c.announce(p, n)
	}
	switch c.op {
	case allGather:
		if to := Own(g, c.whole); to.Ptr != c.own.Ptr {
			copy(to.Raw(), c.own.Raw())
		}
	case exchange:
		copy(Own(g, c.own).Raw(), Own(g, c.whole).Raw())
	}
	for p := range g.peers {
		if g.peers[p].ahead {
			g.peers[p].ahead = false
			if err := c.receiveCall(p, g.peers[p].next, g.peers[p].lends); err != nil {
				return err
			}
		}
	}
	return c.sum()
}

// measure chooses the route and cuts the parts into chunks.
func (c *wiredCall) measure() {
	g := c.g
	part, elem := c.part().N, c.t.Size()
	c.routes = g.routing.choose(c.call, part)
	switch c.op {
	case allGather:
		c.route = c.routes.gather
	case broadcast:
		c.route = c.routes.broadcast
	case exchange:
		c.route = c.routes.exchange
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
	c.added, c.have, c.differs = 0, 0, false
	c.open = g.Size() - 1
}

// UseBounce gives the group, or the one it wraps, memory for terms of sums, BounceBytes for the
// largest reduction. The caller frees it after Close and Wait on the group's queues. Without enough
// of it, the group allocates. UseBounce returns false if the group needs none.
func UseBounce(g Group, b device.Buffer) bool {
	w, ok := inspectable(g).(*Wired)
	if ok && b.Host {
		w.bounce, w.routing.planned = b, b.Bytes()
	}
	return ok
}

// UseLinks makes the group, or the one it wraps, choose routes by measured links. Call it between
// operations, with the same links on all ranks.
func UseLinks(g Group, l Links) {
	if w, ok := inspectable(g).(*Wired); ok {
		w.routing.links = l
	}
}

// Bounce returns the size of the bounce memory in bytes.
func (g *Wired) Bounce() int { return g.bounce.Bytes() }

// reserve ensures enough bounce memory for an operation.
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
	g.inside, g.uncalled = true, g.Size()-1
	g.announced[g.Rank()] = c.call
	for p := range g.peers {
		q := &g.peers[p]
		*q = peer{ahead: q.ahead, next: q.next, lends: q.lends}
		g.waitsFor[p] = awaitCall
	}
	g.waitsFor[g.Rank()] = awaitNothing
	clear(g.busy[:])
	return g.peerLeft
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

// abandon ends the group because of an error and returns the error for operations. After that,
// peers no longer access the operation's memory.
func (g *Wired) abandon(err error) error {
	g.wire.Abort(err)
	for _, again := g.wire.Poll(); again == nil; _, again = g.wire.Poll() {
	}
	return g.why()
}

// why returns the error of this rank's operations after the group's end.
func (g *Wired) why() error {
	why := g.wire.Ended()
	if why == error(ErrPeerLost{g.Name(g.Rank())}) {
		return ErrClosed // closed by this rank
	}
	g.failure.pass(why)
	return why
}

func (g *Wired) Close() error {
	g.wire.Abort(g.failure.reason())
	return nil
}

func (g *Wired) Abort(err error) {
	g.wire.Abort(err)
	_ = g.why() // passes on the reason
}

// Missing implements Inspectable. Peers are missing while their call has not arrived. After that,
// the peers with outstanding messages are missing, but only if nothing has moved since the previous
// call of Missing.
func (g *Wired) Missing() (names []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	still := g.progress == g.lastProgress
	g.lastProgress = g.progress
	if !g.inside || g.wire.Ended() != nil || g.uncalled == 0 && !still {
		return nil
	}
	want := awaitCall
	if g.uncalled == 0 {
		want = awaitChunks
	}
	for p, what := range g.waitsFor {
		if what == want {
			names = append(names, g.Name(p))
		}
	}
	return names
}
