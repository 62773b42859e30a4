package collective

import (
	"fmt"
	"sync"
	"unsafe"

	"zeroth/device"
)

// Wired is a rank of a group whose ranks may be in other processes, over a Wire.
//
// An operation is a flat exchange. Every rank tells every other what it calls,
// by a note. Part r of a gather goes from rank r to all; part r of a reduction
// from all to rank r, which adds in rank order. A part travels in chunks of at
// most a mebibyte, of which two are in flight to each peer: a note of the call
// says that the rank has memory for the first ones, a credit that it has for
// one more. So nothing is ever sent to who has no memory for it, and receiving,
// adding and sending go on at once.
//
// Chunks of a gather are received where they belong, those of a reduction into
// bounce memory of peers × 2 chunks, from where they are added, all ranks' of a
// chunk at once, in the order and by the kernel of Local.
//
// The host can address all buffers; those of other memory are Staged's.
type Wired struct {
	wire    Wire
	failure *failure
	calls   freeList[wiredCall]

	bounce []float64       // (peers × window × slot bytes) or shorter
	peers  []peer          // (Size) by rank; this rank's own is not used
	said   []call          // (Size) what the ranks call
	terms  []device.Buffer // (Size) of a sum
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
// chunks.
type peer struct {
	came     bool // its call
	ahead    bool // its call of the next operation, which is in next
	done     bool // nothing is outstanding, of either side
	posted   int  // this rank has posted memory for
	received int
	allowed  int // the peer has memory for
	sent     int // posted
	written  int // out
	next     call
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
	chunk      int // elements of a chunk
	chunks     int // of a part
	added      int // chunks of a reduction
	have       int // peers that have sent chunk number added
	open       int // peers that are not done
	parted     bool
	run        func() error
}

// WireQueue is a queue that runs the operations of a Wired.
type WireQueue interface {
	device.Queue
	Call(name string, f func() error)
	// AddUp sets dst to the sum of src, as LocalQueue's SumAll does, but now, in
	// host memory, on the calling goroutine.
	AddUp(dst device.Buffer, src []device.Buffer)
}

const (
	// window is the chunks in flight to each peer.
	window = 2
	// mostChunk and leastChunk are bytes: a chunk is shorter where there are so
	// many peers that bounce memory would be more than mostBounce.
	mostChunk, leastChunk = 1 << 20, 1 << 16
	mostBounce            = 128 << 20
)

// chunkBytes is the bytes of a chunk in a group of a size.
func chunkBytes(size int) int {
	return min(mostChunk, max(leastChunk, mostBounce/(window*max(1, size-1))&^63))
}

// BounceBytes is the bounce memory of a rank of a group that reduces parts of up
// to so many bytes.
func BounceBytes(size, part int) int {
	return (size - 1) * window * min(chunkBytes(size), (part+63)&^63)
}

// NewWired is a group over a wire.
func NewWired(w Wire) *Wired { return newWired(w, &failure{why: ErrPeerLost{w.Name(w.Rank())}}) }

func newWired(w Wire, f *failure) *Wired {
	n := w.Size()
	return &Wired{wire: w, failure: f, peers: make([]peer, n), said: make([]call, n), terms: make([]device.Buffer, n), waitsFor: make([]owes, n)}
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
	g.mu.Lock()
	what.seq = g.issued
	g.issued++
	g.mu.Unlock()
	c := g.calls.take()
	if c == nil {
		c = &wiredCall{g: g}
		c.run = c.doRun
	}
	c.call, c.q, c.whole, c.own = what, on, whole, own
	on.Call(o.String(), c.run)
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
	if c.op == reduceScatter {
		g.reserve(c)
	}
	if err := g.enter(c); err != nil {
		return err
	}
	var n Note
	c.encode(&n, chunkBytes(g.Size()))
	for i := 1; i < g.Size(); i++ { // not all to rank 0 at first
		p := (g.Rank() + i) % g.Size()
		for range min(window, c.chunks) {
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

// measure cuts the parts into chunks.
func (c *wiredCall) measure() {
	part := PartLen(c.g, c.whole)
	c.chunk = chunkBytes(c.g.Size()) / c.t.Size()
	c.chunks = (part + c.chunk - 1) / c.chunk
	c.added, c.have, c.parted = 0, 0, false
	c.open = c.g.Size() - 1
}

// reserve has bounce memory for the operation's parts, allocated by the first
// that needs so much.
func (g *Wired) reserve(c *wiredCall) {
	if words := BounceBytes(g.Size(), PartLen(g, c.whole)*c.t.Size()) / 8; len(g.bounce) < words {
		g.bounce = make([]float64, words)
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
	c.whole, c.own, c.q = device.Buffer{}, device.Buffer{}, nil
	clear(g.terms)
	g.calls.give(c)
	return err
}

// over is whether all is received, added and out.
func (c *wiredCall) over() bool { return c.open == 0 && (c.op == allGather || c.added == c.chunks) }

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
		p.written++
	case Received:
		if p.received++; p.received == c.added+1 {
			c.have++
		}
		if c.op == allGather {
			c.again(e.Peer)
		}
	case Left:
		if g.gone == nil {
			g.gone = e.Why
		}
		if c.needs(p) {
			return e.Why
		}
		return nil
	}
	c.send(e.Peer)
	return c.sum()
}

// needs is whether the operation cannot end without the peer. What has been
// handed to the wire is not waited for: the peer may have it.
func (c *wiredCall) needs(p *peer) bool {
	return !p.came || p.received < c.chunks || p.sent < c.chunks
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
		g.peers[p].allowed += min(window, c.chunks)
	}
	if all && c.parted {
		return divergence(g.said, g.Name)
	}
	c.send(p)
	return nil
}

// send posts what the peer has memory for.
func (c *wiredCall) send(to int) {
	p := &c.g.peers[to]
	for p.sent < min(p.allowed, c.chunks) {
		from := c.own
		if c.op == reduceScatter {
			from = Part(c.g, c.whole, to)
		}
		c.g.wire.Send(to, c.cut(from, p.sent).Raw())
		p.sent++
	}
	if !p.done && !c.needs(p) && p.written == c.chunks {
		p.done = true
		c.open--
	}
	c.note(to)
}

// note keeps what Missing reads.
func (c *wiredCall) note(from int) {
	what := nothing
	switch p := &c.g.peers[from]; {
	case !p.came:
		what = itsCall
	case p.received < c.chunks || p.written < c.chunks:
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

// post has memory for the peer's next chunk.
func (c *wiredCall) post(from int) {
	p := &c.g.peers[from]
	to := Part(c.g, c.whole, from)
	if c.op == reduceScatter {
		to = c.slot(from, p.posted)
	}
	if c.op == allGather {
		to = c.cut(to, p.posted)
	}
	p.posted++
	c.g.wire.Recv(from, to.Raw())
}

// again posts memory for another chunk, if there is one, and lets the peer know.
func (c *wiredCall) again(from int) {
	if c.g.peers[from].posted < c.chunks {
		c.post(from)
		c.g.wire.Note(from, Note{noteCredit})
	}
}

// slot is bounce memory for chunk k of a peer.
func (c *wiredCall) slot(from, k int) device.Buffer {
	g := c.g
	if from > g.Rank() {
		from--
	}
	words := BounceBytes(g.Size(), PartLen(g, c.whole)*c.t.Size()) / 8 / window / (g.Size() - 1)
	at := (from*window + k%window) * words
	b := device.Buffer{Type: c.t, Host: true, N: c.cut(c.own, k).N}
	if b.N > 0 {
		b.Ptr = unsafe.Pointer(&g.bounce[at])
	}
	return b
}

// sum adds the chunks that all ranks have sent.
func (c *wiredCall) sum() error {
	g := c.g
	for c.op == reduceScatter && c.added < c.chunks && c.have == g.Size()-1 {
		for r := range g.terms {
			if r == g.Rank() {
				g.terms[r] = c.cut(Own(g, c.whole), c.added)
			} else {
				g.terms[r] = c.slot(r, c.added)
			}
		}
		c.q.AddUp(c.cut(c.own, c.added), g.terms)
		c.added++
		c.have = 0
		for p := range g.peers {
			if p == g.Rank() {
				continue
			}
			if g.peers[p].received > c.added {
				c.have++
			}
			c.again(p)
		}
	}
	return nil
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
