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

	mu     sync.Mutex
	more   sync.Cond // an event, the end, or busy fell to 0
	events queue[collective.Event]
	from   []inbox       // (Size) by rank
	to     []outbox      // (Size) likewise
	busy   int           // memory of this rank's that a link or another rank is in
	gone   error         // why the first peer left
	broken bool          // the connection of one has
	during func() string // names the operation under way; nil: nobody has said
	ended  error
}

// inbox is what one peer may send.
type inbox struct {
	posted queue[[]byte] // memory for its next frames
	notes  int           // of its notes, not taken yet
	left   bool
	lends  []byte // what it lends with a note, until it is borrowed; nil: nothing
	lent   int    // frames of its memory that this rank may be reading
}

// outbox is what is on its way to one peer.
type outbox struct {
	lent    queue[bool] // of each frame, in the order of sending: whether it was lent
	written int         // frames that are out and not yet told of, of those not lent
	done    int         // and of those lent
	at      int         // lent ones that the peer may be reading
}

func newPort(n *Net, group, rank int, names []int) *port {
	p := &port{net: n, group: group, rank: rank, names: names, from: make([]inbox, len(names)), to: make([]outbox, len(names))}
	p.more.L = &p.mu
	return p
}

// Rank implements collective.Wire.
func (p *port) Rank() int { return p.rank }

// Size implements collective.Wire.
func (p *port) Size() int { return len(p.names) }

// Name implements collective.Wire.
func (p *port) Name(r int) int { return p.names[r] }

// Host implements collective.Wire.
func (p *port) Host(r int) int { return p.net.host(p.names[r]) }

// During has f name the operation under way, or return "".
func (p *port) During(f func() string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.during = f
}

// doing names the operation under way, or returns "".
func (p *port) doing() string {
	p.mu.Lock()
	f := p.during
	p.mu.Unlock()
	if f == nil {
		return ""
	}
	return f()
}

// beside is the port of a peer in this process, nil if it is elsewhere.
func (p *port) beside(peer int) *port { return p.net.ports[end{p.group, peer}] }

// Note implements collective.Wire.
func (p *port) Note(to int, n collective.Note) {
	if q := p.beside(to); q != nil {
		_ = q.noted(p.rank, n, nil) // a rank of this process keeps to what is agreed
		return
	}
	p.net.link(p.names[to]).push(out{kind: kindNote, p: p, to: to, note: n})
}

// NoteLending implements collective.Lender.
func (p *port) NoteLending(to int, n collective.Note, b []byte) bool {
	if len(b) == 0 {
		return false
	}
	if q := p.beside(to); q != nil {
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

// Borrow implements collective.Lender.
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

// refuse gives back what a peer lends and nobody has borrowed.
func (p *port) refuse(from int) {
	p.mu.Lock()
	any := p.from[from].lends != nil
	p.from[from].lends = nil
	p.mu.Unlock()
	if any {
		p.giveBack(from)
	}
}

// Send implements collective.Wire.
func (p *port) Send(to int, b []byte) {
	if q := p.beside(to); q != nil {
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

// lend notes that a peer will read a frame where it is.
func (p *port) lend(to int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to[to].lent.push(true)
	p.to[to].at++
	p.busy++
}

// borrow is told of a frame in a peer's memory; an error says that it is not read.
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

// Done implements collective.Wire.
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

// giveBack tells a peer that a frame of its memory is not read any more.
func (p *port) giveBack(from int) {
	if q := p.beside(from); q != nil {
		q.returned(p.rank)
		return
	}
	p.net.link(p.names[from]).push(out{kind: kindDone, p: p, to: from})
}

// returned is told that a peer does not read a frame of this rank's any more; once
// the peer was lost, that is known.
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

// forgotten is told that a peer is lost: it reads nothing any more.
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

// out tells of the frames to a peer that are out, in the order of sending, with p.mu
// held.
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

// Recv implements collective.Wire.
func (p *port) Recv(from int, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from[from].posted.push(b)
}

// Poll implements collective.Wire.
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

// giveAll gives back what this rank may have read until its end, with p.mu held.
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

// reading is whether this rank may be reading memory of peers.
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

// Ended implements collective.Wire.
func (p *port) Ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// Lost is why the first peer left, which Poll tells in its turn; nil while all are
// there. Broken says that the connection to one has broken: it may have ended in the
// middle of anything.
func (p *port) Lost() (why error, broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone, p.broken
}

// breaks is left, of a peer whose connection broke.
func (p *port) breaks(peer int, why error) bool {
	news := p.left(peer, why)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = p.broken || news
	return news
}

// Abort implements collective.Wire.
func (p *port) Abort(why error) {
	if !p.end(why) {
		return
	}
	for r := range p.from {
		p.refuse(r)
	}
	reason := collective.EncodeReason(why)
	for r, name := range p.names {
		switch q := p.beside(r); {
		case r == p.rank:
		case q != nil:
			q.left(p.rank, why)
		default:
			if l := p.net.linked(name); l != nil { // else it has not come, and another may not
				l.push(out{kind: kindLeft, p: p, to: r, reason: reason})
			}
		}
	}
	for _, l := range p.net.connected() {
		l.interrupt(p)
	}
}

// abandon is Abort, with connections that are broken or not.
func (p *port) abandon(why error, broken bool) {
	p.mu.Lock()
	p.broken = p.broken || broken
	p.mu.Unlock()
	p.Abort(why)
}

// end is false if the wire has ended already.
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

// event appends an event, with p.mu held.
func (p *port) event(e collective.Event) {
	if p.ended == nil {
		p.events.push(e)
		p.more.Signal()
	}
}

// noted receives a note and what the peer lends with it, nil for nothing. More of
// either than a peer may send is an error.
func (p *port) noted(from int, n collective.Note, lends []byte) error {
	taken, err := p.note(from, n, lends)
	if !taken && err == nil && lends != nil {
		p.giveBack(from)
	}
	return err
}

// note is noted; false where nobody takes notes of the peer any more.
func (p *port) note(from int, n collective.Note, lends []byte) (taken bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := &p.from[from]
	switch {
	case in.left || p.ended != nil:
		return false, nil
	case in.notes == collective.NotesAhead:
		return false, unexpected{fmt.Sprintf("rank %d sends more notes than it may", p.names[from])}
	case lends != nil && in.lends != nil:
		return false, unexpected{fmt.Sprintf("rank %d lends more than it may", p.names[from])}
	case lends != nil:
		in.lends = lends
	}
	in.notes++
	p.event(collective.Event{Kind: collective.Noted, Peer: from, Note: n, Lends: lends != nil})
	return true, nil
}

// take is the memory for a peer's next frame, which is in use until give; nil
// where the wire has ended. A frame that nobody has posted memory for is an
// error.
func (p *port) take(from, n int) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, err := p.expected(from, n)
	if err == nil {
		p.busy++
	}
	return b, err
}

// expected is the memory for a peer's next frame, with p.mu held.
func (p *port) expected(from, n int) ([]byte, error) {
	in := &p.from[from]
	switch {
	case p.ended != nil:
		return nil, p.ended
	case in.left || in.posted.len() == 0:
		return nil, unexpected{fmt.Sprintf("rank %d sends %d bytes that nobody waits for", p.names[from], n)}
	case len(*in.posted.front()) != n:
		return nil, unexpected{fmt.Sprintf("rank %d sends %d bytes, %d are expected", p.names[from], n, len(*in.posted.front()))}
	}
	return in.posted.pop(), nil
}

// unexpected is what a peer must not send.
type unexpected struct{ what string }

func (u unexpected) Error() string { return u.what }

// Forged is whether a connection was given up for what its peer has sent.
func Forged(err error) bool { return errors.As(err, new(unexpected)) }

// give ends the use of what take gave, filled or not.
func (p *port) give(from int, filled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if filled {
		p.event(collective.Event{Kind: collective.Received, Peer: from})
	}
	p.release()
}

// hold keeps the memory of a frame to be sent in use until release or sent; false
// where the wire has ended.
func (p *port) hold() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended == nil {
		p.busy++
	}
	return p.ended == nil
}

// release, with p.mu held, ends a use.
func (p *port) release() {
	if p.busy--; p.busy == 0 {
		p.more.Broadcast()
	}
}

// drop ends what hold began.
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

// left is told that nothing more comes from a peer; only the first reason counts.
// It is false if the peer had left already or the wire had ended.
func (p *port) left(peer int, why error) bool {
	defer p.refuse(peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	in := &p.from[peer]
	if in.left || p.ended != nil {
		return false
	}
	in.left = true
	if p.gone == nil {
		p.gone = why
	}
	p.event(collective.Event{Kind: collective.Left, Peer: peer, Why: why})
	return true
}

// queue is a first-in-first-out list that keeps its memory.
type queue[T any] struct {
	items []T
	first int // of those that are still there
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
