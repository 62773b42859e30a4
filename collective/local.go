package collective

import (
	"fmt"
	"sync"

	"zeroth/device"
)

// Local is a rank of a group of goroutine ranks in one process. Their queues read each other's
// memory directly.
//
// An operation has three phases, each an entry of its queue. First the ranks meet: each publishes
// what others may read (its own part of a gather, the whole buffer of a reduction or an exchange, rank
// 0's buffer of a broadcast) and waits for the others; the last to arrive checks that all calls are equal.
// Then each queue does its share of the work, copies or a sum. Then each waits until all have
// finished, because others may read its buffer until then.
//
// The work itself needs no further synchronization. In a gather, rank r writes all parts but its
// own, which is the only one that others read. In a reduction, rank r writes only its own part; if
// that is part r of its buffer, rank r is also its only reader.
//
// Once all ranks have arrived, an operation cannot fail, so Close does not affect it: an operation
// completes on all ranks or on none, a rank never returns while others read its memory, and a rank
// may close right after its last operation without disturbing others that have not yet left it.
//
// On a StreamQueue, the first and the last phase are not entries of the queue: the rank executes
// them when it issues the operation, and publishes marks along with its buffer, one for when the
// buffer may be read and one for when its share is done. The other ranks' queues wait for these
// marks, so the host never waits for the device.
type Local struct {
	Primitives
	shared  *rendezvous
	rank    int
	failure *failure

	calls freeList[localCall]

	// guarded by shared.mu
	issued int  // operations issued so far
	inside bool // an operation has published its buffer and not left
}

// rendezvous is the state shared by the ranks of a group.
type rendezvous struct {
	names []int // of the ranks, in errors

	mu        sync.Mutex
	moved     sync.Cond       // signals changes of the fields below
	calls     []call          // (Size) by rank, valid if present
	bufs      []device.Buffer // (Size) the buffer that each rank publishes, valid if present
	ready     []device.Event  // (Size) on a StreamQueue, when bufs may be read
	done      []device.Event  // (Size) on a StreamQueue, when each rank has read the others' buffers
	present   []bool          // (Size) ranks waiting in the current rendezvous
	arrived   int             // number of true elements of present
	rounds    uint64          // completed rendezvous
	disagreed error           // result of the last rendezvous
	busy      int             // ranks that have arrived and not finished their share
	ended     error           // reason of the end; nil while open
}

// failure is the reason that a rank's groups, which share it, give to their peers when they end. It
// starts as ErrPeerLost with the rank's own name. Once one of the groups ends because of another
// rank, the others pass on that reason.
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

// localCall is an operation on a queue. Its functions are bound once, to avoid allocations.
type localCall struct {
	call
	l             *Local
	whole, own    device.Buffer
	arrive, leave func() error
	to, from      []device.Buffer // (Size) operands of the work, set by arrive
	arrived       bool            // arrive has succeeded
}

// LocalQueue is a queue that performs the work of a Local. Slices passed to it are read when the
// work runs.
type LocalQueue interface {
	device.Queue
	Call(name string, f func() error)              // Do, with a name for traces
	CopyAll(name string, dst, src []device.Buffer) // dst[i] = src[i], unless they are the same memory
	SumAll(name string, dst, src []device.Buffer)  // dst[0] = the element-wise sum of src in order, as Group defines it
}

// StreamQueue is a LocalQueue of an asynchronous device: operations are launched when they are
// issued, and host functions would have to wait for them. Slices passed to it are read when the
// work is issued.
type StreamQueue interface {
	LocalQueue
	// Now runs f immediately, unless the queue has failed; its error sticks.
	Now(name string, f func() error)
	// AfterPeer is After for a mark of another rank's queue. That queue's error is not propagated:
	// this rank sees it when the group ends.
	AfterPeer(e device.Event)
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

// newLocal opens a group whose ranks have the given names in errors.
func newLocal(names []int, failures []*failure) []*Local {
	size := len(names)
	r := &rendezvous{names: names, calls: make([]call, size), bufs: make([]device.Buffer, size), present: make([]bool, size),
		ready: make([]device.Event, size), done: make([]device.Event, size)}
	r.moved.L = &r.mu
	ls := make([]*Local, size)
	for i := range ls {
		ls[i] = &Local{shared: r, rank: i, failure: failures[i]}
		ls[i].Issue = ls[i].issue
	}
	return ls
}

func (l *Local) Rank() int      { return l.rank }
func (l *Local) Size() int      { return len(l.shared.names) }
func (l *Local) Name(r int) int { return l.shared.names[r] }

// Waiting names the phases of an operation in which a rank waits for others, in traces. The working
// phase is named after the operation.
const Waiting = "wait for peers"

func (l *Local) issue(q device.Queue, o Op, whole, own device.Buffer) {
	what := newCall(l, q, o, whole, own)
	on, ok := q.(LocalQueue)
	if !ok {
		panic(fmt.Sprintf("collective: %v between goroutine ranks on a %T, which is not a LocalQueue", what, q))
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
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	l.issued++
	return l.issued - 1
}

func (l *Local) newCall(what call) *localCall {
	c := l.calls.take()
	if c == nil {
		c = &localCall{l: l, to: make([]device.Buffer, l.Size()), from: make([]device.Buffer, l.Size())}
		c.arrive, c.leave = c.doArrive, c.doLeave
	}
	c.call, c.arrived = what, false
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
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	if l.shared.ended == nil {
		return nil, false
	}
	return l.why(), false
}

// work issues this rank's share of the operation.
func (c *localCall) work(q LocalQueue) {
	switch c.op {
	case allGather, exchange:
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

// onStream executes the operation now and orders its work by marks. A rank whose queue fails
// between the phases still leaves, since others wait for it.
func (c *localCall) onStream(q StreamQueue) {
	l, at := c.l, c.l.shared
	l.mark(q, at.ready)
	q.Now(Waiting, c.arrive)
	if !c.arrived {
		return
	}
	l.after(q, at.ready)
	c.work(q)
	l.mark(q, at.done)
	_ = c.doLeave() // never fails
	l.after(q, at.done)
}

// mark publishes a mark of the queue, if there are other ranks.
func (l *Local) mark(q StreamQueue, marks []device.Event) {
	if l.Size() == 1 {
		return
	}
	e := q.Mark()
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	marks[l.rank] = e
}

// after makes the queue wait for the other ranks' marks, which stay valid until this rank issues
// its next operation.
func (l *Local) after(q StreamQueue, marks []device.Event) {
	for r, e := range marks {
		if r != l.rank {
			q.AfterPeer(e)
		}
	}
}

// published returns the buffer that other ranks read.
func (c *localCall) published() device.Buffer {
	if c.op == reduceScatter || c.op == exchange {
		return c.whole
	}
	return c.own
}

// operands collects the buffers of the work: every rank's own part for a gather, starting with the
// next rank's, so that no two ranks read from one rank at a time; part Rank of all buffers for a
// reduction or an exchange, rank 0's buffer for a broadcast, or all buffers for a reduce.
func (c *localCall) operands() {
	switch c.op {
	case broadcast:
		c.to[0], c.from[0] = c.own, c.l.shared.bufs[0]
		return
	case reduce:
		c.to[0] = c.own
		copy(c.from, c.l.shared.bufs)
		return
	}
	for r, from := range c.l.shared.bufs {
		turn := (r - c.l.rank - 1 + c.l.Size()) % c.l.Size()
		switch c.op {
		case allGather:
			c.to[turn], c.from[turn] = Part(c.l, c.whole, r), from
		case exchange:
			c.to[turn], c.from[turn] = Part(c.l, c.own, r), Own(c.l, from)
		default:
			c.to[0], c.from[r] = c.own, Own(c.l, from)
		}
	}
}

// doArrive returns nil once all ranks have arrived and agree; bufs may then be read until doLeave.
func (c *localCall) doArrive() error {
	err := c.l.arrive(c)
	if err != nil {
		c.end()
		return err
	}
	c.operands()
	c.arrived = true
	return nil
}

// end drops references to the buffers and recycles c.
func (c *localCall) end() {
	c.whole, c.own = device.Buffer{}, device.Buffer{}
	clear(c.to)
	clear(c.from)
	c.l.calls.give(c)
}

// arrive publishes a call and waits for the other ranks.
func (l *Local) arrive(c *localCall) error {
	r := l.shared
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended != nil {
		return l.why()
	}
	if l.inside {
		panic(fmt.Sprintf("collective: rank %d runs %v during %v: its queues are not ordered by a mark", l.Name(l.rank), c.call, r.calls[l.rank]))
	}
	l.inside = true
	r.calls[l.rank], r.bufs[l.rank], r.present[l.rank] = c.call, c.published(), true
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

// open completes the current rendezvous. A disagreement ends the group.
func (r *rendezvous) open(disagreed error) {
	if disagreed == nil {
		r.busy = len(r.names)
	} else {
		clear(r.bufs)
		r.end(disagreed)
	}
	clear(r.present)
	r.arrived, r.disagreed = 0, disagreed
	r.rounds++
	r.moved.Broadcast()
}

// await returns true when the current rendezvous completes, or false if the group ends first.
func (r *rendezvous) await() bool {
	for round := r.rounds; r.rounds == round; r.moved.Wait() {
		if r.ended != nil {
			return false
		}
	}
	return true
}

// doLeave returns when every rank has finished its share of the operation.
func (c *localCall) doLeave() error {
	l, r := c.l, c.l.shared
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy--; r.busy == 0 {
		clear(r.bufs) // their owners may free them now
		r.moved.Broadcast()
	}
	for r.busy > 0 { // the next operation, which sets busy again, needs this rank
		r.moved.Wait()
	}
	l.inside = false
	c.end()
	return nil
}

// why returns the error of this rank's operations after the group's end.
func (l *Local) why() error {
	if l.shared.ended == error(ErrPeerLost{l.Name(l.rank)}) {
		return ErrClosed // closed by this rank
	}
	l.failure.pass(l.shared.ended)
	return l.shared.ended
}

func (l *Local) Close() error {
	reason := l.failure.reason()
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	l.shared.end(reason)
	return nil
}

func (l *Local) Abort(err error) {
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	l.shared.end(err)
	_ = l.why() // passes on the reason
}

// end ends the group; only the first reason counts.
func (r *rendezvous) end(why error) {
	if r.ended == nil {
		r.ended = why
		r.moved.Broadcast()
	}
}

func (l *Local) Missing() (names []int) {
	r := l.shared
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended != nil || !r.present[l.rank] {
		return nil
	}
	for i, ok := range r.present {
		if !ok {
			names = append(names, r.names[i])
		}
	}
	return names
}
