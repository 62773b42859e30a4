package socket

import (
	"errors"
	"fmt"
	"sync"

	"zeroth/collective"
)

// port is one rank's end of a group.
type port struct {
	net   *Net
	group int
	rank  int
	names []int // world ranks
	hosts []int // their hosts

	mu       sync.Mutex
	more     sync.Cond // signals events, the end, and busy reaching 0
	events   queue[collective.Event]
	from     []inbox       // (Size) by rank
	to       []outbox      // (Size) by rank
	busy     int           // number of this rank's buffers used by links or other ranks
	peerLeft error         // why the first peer left
	broken   bool          // a peer's connection has broken
	during   func() string // names the current operation; may be nil
	ended    error
}

// inbox is the state of receiving from a peer.
type inbox struct {
	posted queue[[]byte] // memory for its next frames
	notes  int           // notes not yet polled
	left   bool
	lends  []byte // memory it lends with a note, until borrowed, or nil
	lent   int    // frames of its memory that this rank may be reading
}

// outbox is the state of sending to a peer.
type outbox struct {
	lent    queue[bool] // for each frame in sending order: whether it was lent
	written int         // frames written and not yet reported, of those not lent
	done    int         // frames read and not yet reported, of those lent
	at      int         // lent frames that the peer may be reading
}

func newPort(n *Net, group, rank int, names []int) *port {
	p := &port{net: n, group: group, rank: rank, names: names, from: make([]inbox, len(names)), to: make([]outbox, len(names))}
	p.more.L = &p.mu
	return p
}

func (p *port) Rank() int      { return p.rank }
func (p *port) Size() int      { return len(p.names) }
func (p *port) Name(r int) int { return p.names[r] % (p.net.cfg.Processes * p.net.cfg.PerProcess) }
func (p *port) Host(r int) int { return p.hosts[r] }

// During sets the function that names the current operation, or returns "".
func (p *port) During(f func() string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.during = f
}

// doing names the current operation, or returns "".
func (p *port) doing() string {
	p.mu.Lock()
	f := p.during
	p.mu.Unlock()
	if f == nil {
		return ""
	}
	return f()
}

// localPeer returns the port of a peer in this process, or nil.
func (p *port) localPeer(peer int) *port { return p.net.ports()[end{p.group, peer}] }

func (p *port) Note(to int, n collective.Note) {
	if q := p.localPeer(to); q != nil {
		_ = q.noted(p.rank, n, nil) // ranks of this process do not violate the protocol
		return
	}
	p.net.link(p.names[to]).push(out{kind: kindNote, p: p, to: to, note: n})
}

func (p *port) NoteLending(to int, n collective.Note, b []byte) bool {
	if len(b) == 0 {
		return false
	}
	if q := p.localPeer(to); q != nil {
		p.lend(to)
		_ = q.noted(p.rank, n, b)
		return true
	}
	l := p.net.link(p.names[to])
	at, ok := l.lends(b)
	if ok {
		p.lend(to)
		l.push(out{kind: kindLending, p: p, to: to, note: n, data: b, at: at})
	}
	return ok
}

func (p *port) Borrow(from int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := &p.from[from]
	b := in.lends
	if b != nil {
		in.lends = nil
		in.posted.empty()
		in.lent++
	}
	return b
}

// refuse returns memory that a peer lends and that was not borrowed.
func (p *port) refuse(from int) {
	p.mu.Lock()
	any := p.from[from].lends != nil
	p.from[from].lends = nil
	p.mu.Unlock()
	if any {
		p.giveBack(from)
	}
}

func (p *port) Send(to int, b []byte) {
	if q := p.localPeer(to); q != nil {
		p.lend(to)
		if err := q.borrow(p.rank, b); err != nil {
			p.returned(to)
		}
		return
	}
	l := p.net.link(p.names[to])
	if at, ok := l.lends(b); ok {
		p.lend(to)
		l.push(out{kind: kindLent, p: p, to: to, data: b, at: at})
		return
	}
	p.mu.Lock()
	p.to[to].lent.push(false)
	p.mu.Unlock()
	l.push(out{kind: kindData, p: p, to: to, data: b})
}

// lend records that a peer is going to read a frame directly.
func (p *port) lend(to int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to[to].lent.push(true)
	p.to[to].at++
	p.busy++
}

// borrow receives a frame in a peer's memory. It returns an error if the frame will not be read.
func (p *port) borrow(from int, b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.expected(from, len(b)); err != nil {
		return err
	}
	p.from[from].lent++
	p.event(collective.Event{Kind: collective.Received, Peer: from, Lent: b})
	return nil
}

func (p *port) Done(from int) {
	p.mu.Lock()
	any := p.from[from].lent > 0
	if any {
		p.from[from].lent--
	}
	p.mu.Unlock()
	if any {
		p.giveBack(from)
	}
}

// giveBack notifies a peer that a frame of its memory is no longer read.
func (p *port) giveBack(from int) {
	if q := p.localPeer(from); q != nil {
		q.returned(p.rank)
		return
	}
	p.net.link(p.names[from]).push(out{kind: kindDone, p: p, to: from})
}

// returned records that a peer has finished reading one of this rank's frames. It has no effect
// after the peer was lost.
func (p *port) returned(by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to[by].at > 0 {
		p.to[by].at--
		p.to[by].done++
		p.release()
		p.out(by)
	}
}

// forgotten records that a lost peer no longer reads anything.
func (p *port) forgotten(r int) {
	for p.lending(r) {
		p.returned(r)
	}
}

func (p *port) lending(to int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.to[to].at > 0
}

// out reports the frames to a peer that are complete, in sending order. The caller holds p.mu.
func (p *port) out(to int) {
	o := &p.to[to]
	for o.lent.len() > 0 {
		of := &o.written
		if *o.lent.front() {
			of = &o.done
		}
		if *of == 0 {
			return
		}
		*of--
		o.lent.pop()
		p.event(collective.Event{Kind: collective.Sent, Peer: to})
	}
}

func (p *port) Recv(from int, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from[from].posted.push(b)
}

func (p *port) Poll() (collective.Event, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.events.len() == 0 && p.ended == nil {
		p.more.Wait()
	}
	if p.ended != nil {
		p.giveAll()
		for p.busy > 0 {
			p.more.Wait()
		}
		return collective.Event{}, p.ended
	}
	e := p.events.pop()
	if e.Kind == collective.Noted {
		p.from[e.Peer].notes--
	}
	return e, nil
}

// giveAll returns everything that this rank may have been reading. The caller holds p.mu.
func (p *port) giveAll() {
	for r := range p.from {
		for p.from[r].lent > 0 {
			p.from[r].lent--
			p.mu.Unlock()
			p.giveBack(r)
			p.mu.Lock()
		}
	}
}

// reading reports whether this rank may be reading memory of peers.
func (p *port) reading() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, in := range p.from {
		if in.lent > 0 {
			return true
		}
	}
	return false
}

func (p *port) Ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// Lost returns why the first peer left, before Poll reports it, or nil. Broken reports that a
// connection broke, possibly in the middle of an operation.
func (p *port) Lost() (why error, broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peerLeft, p.broken
}

// breaks records that a peer's connection broke.
func (p *port) breaks(peer int, why error) bool {
	news := p.left(peer, why)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = p.broken || news
	return news
}

func (p *port) Abort(why error) {
	if !p.end(why) {
		return
	}
	for r := range p.from {
		p.refuse(r)
	}
	reason := collective.EncodeReason(why)
	for r, name := range p.names {
		switch q := p.localPeer(r); {
		case r == p.rank:
		case q != nil:
			q.left(p.rank, why)
		default:
			if l := p.net.linked(name); l != nil { // otherwise it is not connected
				l.push(out{kind: kindLeft, p: p, to: r, reason: reason})
			}
		}
	}
	for _, l := range p.net.connected() {
		l.interrupt(p)
	}
}

// abandon aborts and records whether a connection broke.
func (p *port) abandon(why error, broken bool) {
	p.mu.Lock()
	p.broken = p.broken || broken
	p.mu.Unlock()
	p.Abort(why)
}

// end records the end. It returns false if the wire had already ended.
func (p *port) end(why error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		return false
	}
	p.ended = why
	for i := range p.from {
		p.from[i].posted = queue[[]byte]{}
	}
	p.events = queue[collective.Event]{}
	p.more.Broadcast()
	return true
}

// event appends an event. The caller holds p.mu.
func (p *port) event(e collective.Event) {
	if p.ended == nil {
		p.events.push(e)
		p.more.Signal()
	}
}

// noted receives a note and the memory lent with it, or nil. It returns an error if the peer
// exceeds its limits.
func (p *port) noted(from int, n collective.Note, lends []byte) error {
	taken, err := p.note(from, n, lends)
	if !taken && err == nil && lends != nil {
		p.giveBack(from)
	}
	return err
}

// note does noted's work. It returns false if it ignores the note.
func (p *port) note(from int, n collective.Note, lends []byte) (taken bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := &p.from[from]
	switch {
	case in.left || p.ended != nil:
		return false, nil
	case in.notes == collective.NotesAhead:
		return false, unexpected{fmt.Sprintf("rank %d sends too many notes", p.names[from])}
	case lends != nil && in.lends != nil:
		return false, unexpected{fmt.Sprintf("rank %d lends too much memory", p.names[from])}
	case lends != nil:
		in.lends = lends
	}
	in.notes++
	p.event(collective.Event{Kind: collective.Noted, Peer: from, Note: n, Lends: lends != nil})
	return true, nil
}

// take returns the memory for a peer's next frame, in use until give. It returns an error if the
// wire has ended or no memory is posted.
func (p *port) take(from, n int) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, err := p.expected(from, n)
	if err == nil {
		p.busy++
	}
	return b, err
}

// expected returns the memory for a peer's next frame. The caller holds p.mu.
func (p *port) expected(from, n int) ([]byte, error) {
	in := &p.from[from]
	switch {
	case p.ended != nil:
		return nil, p.ended
	case in.left || in.posted.len() == 0:
		return nil, unexpected{fmt.Sprintf("rank %d sends %d unexpected bytes", p.names[from], n)}
	case len(*in.posted.front()) != n:
		return nil, unexpected{fmt.Sprintf("rank %d sends %d bytes, %d are expected", p.names[from], n, len(*in.posted.front()))}
	}
	return in.posted.pop(), nil
}

// unexpected is a protocol violation.
type unexpected struct{ what string }

func (u unexpected) Error() string { return u.what }

// Forged reports whether a connection was closed because its peer violated the protocol.
func Forged(err error) bool { return errors.As(err, new(unexpected)) }

// give ends the use of memory from take, which may have been filled.
func (p *port) give(from int, filled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if filled {
		p.event(collective.Event{Kind: collective.Received, Peer: from})
	}
	p.release()
}

// hold marks the memory of a frame as in use until release or sent. It returns false if the wire
// has ended.
func (p *port) hold() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended == nil {
		p.busy++
	}
	return p.ended == nil
}

// release ends one use of memory. The caller holds p.mu.
func (p *port) release() {
	if p.busy--; p.busy == 0 {
		p.more.Broadcast()
	}
}

// drop ends a use started by hold.
func (p *port) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release()
}

func (p *port) sent(to int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to[to].written++
	p.out(to)
}

// left records that a peer has ended; only its first reason counts. It returns false if the peer
// had left already or the wire had ended.
func (p *port) left(peer int, why error) bool {
	defer p.refuse(peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	in := &p.from[peer]
	if in.left || p.ended != nil {
		return false
	}
	in.left = true
	if p.peerLeft == nil {
		p.peerLeft = why
	}
	p.event(collective.Event{Kind: collective.Left, Peer: peer, Why: why})
	return true
}

// queue is a FIFO that reuses its memory.
type queue[T any] struct {
	items []T
	first int // index of the first remaining item
}

func (q *queue[T]) len() int  { return len(q.items) - q.first }
func (q *queue[T]) front() *T { return &q.items[q.first] }
func (q *queue[T]) push(x T) {
	if q.first > 0 && len(q.items) == cap(q.items) {
		n := copy(q.items, q.items[q.first:])
		clear(q.items[n:])
		q.items, q.first = q.items[:n], 0
	}
	q.items = append(q.items, x)
}

func (q *queue[T]) empty() {
	clear(q.items)
	q.items, q.first = q.items[:0], 0
}

func (q *queue[T]) pop() (x T) {
	x, q.items[q.first] = q.items[q.first], x
	if q.first++; q.first == len(q.items) {
		q.items, q.first = q.items[:0], 0
	}
	return x
}
