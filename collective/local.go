package collective

import (
	"fmt"
	"sync"

	"zeroth/device"
)

// Local is a rank of a group of goroutine ranks in one process, whose queues
// read each other's memory directly.
//
// An operation has three phases, each an entry of its queue. The ranks come together:
// each publishes what the others may read, its own part of a gather, the whole
// of a reduction, rank 0 what it broadcasts, and waits for them, and the last to come checks that all make
// the same call. Then each queue does its own share of the work: copies or a
// sum. Then each waits until all have done theirs, because until then others may
// read its buffer.
//
// The work needs no further order. In a gather rank r writes its parts other
// than its own, which everybody else reads. In a reduction rank r writes its own
// part alone; where that is part r of its buffer it is the only reader, and
// everybody else reads the other parts.
//
// Once all ranks have come, an operation needs nothing but time, so Close does
// not touch it: an operation is done on all ranks or on none, a rank never
// returns while others read its memory, and a rank that closes right after its
// last operation does no harm to ranks still leaving it.
//
// On a StreamQueue the first and the last phase are not entries of the queue: a
// rank goes through them when it issues the operation, and with its buffer it
// publishes marks, of when it may be read and of when its own share is done. The
// other ranks' queues wait for those marks, so that the host waits for no work.
type Local struct {
	at      *rendezvous
	rank    int
	failure *failure

	calls freeList[localCall]

	// under at.mu
	issued int  // operations issued so far
	inside bool // an operation has published its buffer and not left
}

// rendezvous is what the ranks of a group share.
type rendezvous struct {
	names []int // of the ranks, in errors

	mu        sync.Mutex
	moved     sync.Cond       // any of the fields below changed
	calls     []call          // (Size) by rank, valid where here
	bufs      []device.Buffer // (Size) what each lets the others read, likewise
	ready     []device.Event  // (Size) when it may be read, of those on a StreamQueue
	done      []device.Event  // (Size) when each has read the others', likewise
	here      []bool          // rank waits in the rendezvous under way
	arrived   int             // number of true elements of here
	rounds    uint64          // complete ones
	disagreed error           // of the last complete one
	busy      int             // ranks that have come and not done their share
	ended     error           // why; nil while open
}

// failure is shared by the groups of one rank: what its end means to the others.
// That is ErrPeerLost with the rank's own name until one of its groups ends for a
// reason from elsewhere, which it then passes on.
type failure struct {
	mu  sync.Mutex
	why error
}

func (f *failure) pass(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.why = why
}

func (f *failure) reason() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.why
}

// localCall is an operation on its way through a queue. Its phases on the host
// are bound once.
type localCall struct {
	call
	l             *Local
	whole, own    device.Buffer
	arrive, leave func() error
	to, from      []device.Buffer // (Size) the work's operands, set by arrive
	came          bool            // arrive has
}

// LocalQueue is a queue that does the work of a Local. The slices are read when
// the work runs.
type LocalQueue interface {
	device.Queue
	Call(name string, f func() error)              // Do, with a name for traces
	CopyAll(name string, dst, src []device.Buffer) // dst[i] = src[i], unless they are the same memory
	SumAll(name string, dst, src []device.Buffer)  // dst[0] = the sum of src element by element in their order, as Group says
}

// StreamQueue is a LocalQueue of a device that works on its own time: what is
// issued is launched at once, and host functions have to wait for it. Its slices
// are read when the work is issued.
type StreamQueue interface {
	LocalQueue
	// Now runs f at once, unless the queue has failed; its error sticks.
	Now(name string, f func() error)
	// Behind is After for a mark of another rank's queue, whose error stays there:
	// this rank hears of it when the group ends.
	Behind(e device.Event)
}

// NewLocal opens a group of goroutine ranks; element r is rank r's end.
func NewLocal(size int) []*Local {
	if size < 1 {
		panic(fmt.Sprintf("collective: group of %d ranks", size))
	}
	names, failures := make([]int, size), make([]*failure, size)
	for r := range names {
		names[r], failures[r] = r, &failure{why: ErrPeerLost{r}}
	}
	return newLocal(names, failures)
}

// newLocal opens a group of ranks that errors call by the given names.
func newLocal(names []int, failures []*failure) []*Local {
	size := len(names)
	r := &rendezvous{names: names, calls: make([]call, size), bufs: make([]device.Buffer, size), here: make([]bool, size),
		ready: make([]device.Event, size), done: make([]device.Event, size)}
	r.moved.L = &r.mu
	ls := make([]*Local, size)
	for i := range ls {
		ls[i] = &Local{at: r, rank: i, failure: failures[i]}
	}
	return ls
}

// Rank implements Group.
func (l *Local) Rank() int { return l.rank }

// Size implements Group.
func (l *Local) Size() int { return len(l.at.names) }

// Name implements Inspectable.
func (l *Local) Name(r int) int { return l.at.names[r] }

// AllGather implements Group.
func (l *Local) AllGather(q device.Queue, whole, own device.Buffer) {
	l.issue(q, allGather, whole, own)
}

// ReduceScatter implements Group.
func (l *Local) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	l.issue(q, reduceScatter, whole, own)
}

// Broadcast implements Group.
func (l *Local) Broadcast(q device.Queue, b device.Buffer) { l.issue(q, broadcast, b, b) }

// Reduce implements Group.
func (l *Local) Reduce(q device.Queue, b device.Buffer) { l.issue(q, reduce, b, b) }

// Waiting is what the phases of an operation in which a rank waits for the
// others are called in traces; the one in which it works has the operation's
// name.
const Waiting = "wait for peers"

func (l *Local) issue(q device.Queue, o op, whole, own device.Buffer) {
	what := newCall(l, q, o, whole, own)
	on, ok := q.(LocalQueue)
	if !ok {
		panic(fmt.Sprintf("collective: %v between goroutine ranks on a %T, which is no LocalQueue", what, q))
	}
	what.seq = l.number()
	c := l.newCall(what)
	c.whole, c.own = whole, own
	if s, ok := on.(StreamQueue); ok {
		c.onStream(s)
		return
	}
	on.Call(Waiting, c.arrive)
	c.work(on)
	on.Call(Waiting, c.leave)
}

// number implements agreeing.
func (l *Local) number() int {
	l.at.mu.Lock()
	defer l.at.mu.Unlock()
	l.issued++
	return l.issued - 1
}

func (l *Local) newCall(what call) *localCall {
	c := l.calls.take()
	if c == nil {
		c = &localCall{l: l, to: make([]device.Buffer, l.Size()), from: make([]device.Buffer, l.Size())}
		c.arrive, c.leave = c.doArrive, c.doLeave
	}
	c.call, c.came = what, false
	return c
}

// agree implements agreeing.
func (l *Local) agree(what call) error {
	c := l.newCall(what)
	if err := l.arrive(c); err != nil {
		c.end()
		return err
	}
	return c.doLeave()
}

// lost implements agreeing.
func (l *Local) lost() (why error, gone bool) {
	l.at.mu.Lock()
	defer l.at.mu.Unlock()
	if l.at.ended == nil {
		return nil, false
	}
	return l.why(), false
}

// work issues the rank's share.
func (c *localCall) work(q LocalQueue) {
	switch c.op {
	case allGather:
		q.CopyAll(c.op.String(), c.to, c.from)
	case reduceScatter:
		q.SumAll(c.op.String(), c.to[:1], c.from)
	case broadcast:
		q.CopyAll(c.op.String(), c.to[:1], c.from[:1])
	case reduce:
		if c.l.rank == 0 {
			q.SumAll(c.op.String(), c.to[:1], c.from)
		}
	}
}

// onStream goes through the operation now and leaves its order to marks. A rank
// whose queue fails between the two phases still leaves: the others wait for it.
func (c *localCall) onStream(q StreamQueue) {
	l, at := c.l, c.l.at
	ready := q.Mark()
	at.mu.Lock()
	at.ready[l.rank] = ready
	at.mu.Unlock()
	q.Now(Waiting, c.arrive)
	if !c.came {
		return
	}
	l.after(q, at.ready)
	c.work(q)
	done := q.Mark()
	at.mu.Lock()
	at.done[l.rank] = done
	at.mu.Unlock()
	_ = c.doLeave() // which cannot fail
	l.after(q, at.done)
}

// after has the queue wait for the other ranks' marks, which stay until this rank
// issues its next operation.
func (l *Local) after(q StreamQueue, marks []device.Event) {
	for r, e := range marks {
		if r != l.rank {
			q.Behind(e)
		}
	}
}

// shared is what the other ranks read.
func (c *localCall) shared() device.Buffer {
	if c.op == reduceScatter {
		return c.whole
	}
	return c.own
}

// operands are what the work is on: every rank's own part, the rank's too if it
// is not in place, or part Rank of all ranks' buffers, or rank 0's, or all of all.
func (c *localCall) operands() {
	switch c.op {
	case broadcast:
		c.to[0], c.from[0] = c.own, c.l.at.bufs[0]
		return
	case reduce:
		c.to[0] = c.own
		copy(c.from, c.l.at.bufs)
		return
	}
	for r, from := range c.l.at.bufs {
		if c.op == allGather {
			c.to[r], c.from[r] = Part(c.l, c.whole, r), from
		} else {
			c.to[0], c.from[r] = c.own, Own(c.l, from)
		}
	}
}

// doArrive returns nil once all ranks have come and agree; bufs may then be read
// until doLeave.
func (c *localCall) doArrive() error {
	err := c.l.arrive(c)
	if err != nil {
		c.end()
		return err
	}
	c.operands()
	c.came = true
	return nil
}

// end forgets the operation's buffers and makes it free for another.
func (c *localCall) end() {
	c.whole, c.own = device.Buffer{}, device.Buffer{}
	clear(c.to)
	clear(c.from)
	c.l.calls.give(c)
}

// arrive publishes a call and waits for the other ranks'.
func (l *Local) arrive(c *localCall) error {
	r := l.at
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended != nil {
		return l.why()
	}
	if l.inside {
		panic(fmt.Sprintf("collective: rank %d runs %v during %v: its queues are not ordered by a mark", l.Name(l.rank), c.call, r.calls[l.rank]))
	}
	l.inside = true
	r.calls[l.rank], r.bufs[l.rank], r.here[l.rank] = c.call, c.shared(), true
	r.arrived++
	if r.arrived == l.Size() {
		r.open(disagreement(r.calls, l.Name))
	} else if ok := r.await(); !ok {
		l.inside, r.bufs[l.rank] = false, device.Buffer{}
		return l.why()
	}
	if r.disagreed != nil {
		l.inside = false
		return l.why()
	}
	return nil
}

// open completes the rendezvous under way. Ranks that disagree end the group.
func (r *rendezvous) open(disagreed error) {
	if disagreed == nil {
		r.busy = len(r.names)
	} else {
		clear(r.bufs)
		r.end(disagreed)
	}
	clear(r.here)
	r.arrived, r.disagreed = 0, disagreed
	r.rounds++
	r.moved.Broadcast()
}

// await returns true when the rendezvous under way is complete, false when the
// group ends before.
func (r *rendezvous) await() bool {
	for round := r.rounds; r.rounds == round; r.moved.Wait() {
		if r.ended != nil {
			return false
		}
	}
	return true
}

// doLeave returns when every rank has done its share of the operation.
func (c *localCall) doLeave() error {
	l, r := c.l, c.l.at
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy--; r.busy == 0 {
		clear(r.bufs) // their owners may free them now
		r.moved.Broadcast()
	}
	for r.busy > 0 { // the next one, which sets it again, needs this rank
		r.moved.Wait()
	}
	l.inside = false
	c.end()
	return nil
}

// why is what operations of this rank fail with after the group's end.
func (l *Local) why() error {
	if l.at.ended == error(ErrPeerLost{l.Name(l.rank)}) {
		return ErrClosed // by this rank
	}
	l.failure.pass(l.at.ended)
	return l.at.ended
}

// Close implements Group.
func (l *Local) Close() error {
	reason := l.failure.reason()
	l.at.mu.Lock()
	defer l.at.mu.Unlock()
	l.at.end(reason)
	return nil
}

// Abort implements Inspectable.
func (l *Local) Abort(err error) {
	l.at.mu.Lock()
	defer l.at.mu.Unlock()
	l.at.end(err)
	_ = l.why() // which passes it on
}

// end ends the group; only the first reason counts.
func (r *rendezvous) end(why error) {
	if r.ended == nil {
		r.ended = why
		r.moved.Broadcast()
	}
}

// Missing implements Inspectable.
func (l *Local) Missing() (names []int) {
	r := l.at
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended != nil || !r.here[l.rank] {
		return nil
	}
	for i, here := range r.here {
		if !here {
			names = append(names, r.names[i])
		}
	}
	return names
}
