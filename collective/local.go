package collective

import (
	"fmt"
	"slices"
	"sync"

	"zeroth/device"
)

// Local is a rank of a group of goroutine ranks in one process, whose queues
// read each other's memory directly.
//
// An operation has three phases, each an entry of its queue. The ranks meet:
// each publishes what the others may read, its own part of a gather, the whole
// of a reduction, and waits for them, and the last to come checks that all make
// the same call. Then each queue does its own share of the work: copies or a
// sum. Then each waits until all have done theirs, because until then others may
// read its buffer.
//
// The work needs no further order. In a gather rank r writes its parts other
// than its own, which everybody else reads. In a reduction rank r writes its own
// part alone; where that is part r of its buffer it is the only reader, and
// everybody else reads the other parts.
//
// Once all ranks have met, an operation needs nothing but time, so Close does
// not touch it: an operation is done on all ranks or on none, a rank never
// returns while others read its memory, and a rank that closes right after its
// last operation does no harm to ranks still leaving it.
type Local struct {
	room *room
	rank int
	fate *fate

	calls freeList[localCall]

	// under room.mu
	issued int  // operations issued so far
	inside bool // an operation has published its buffer and not left
}

// room is what the ranks of a group share.
type room struct {
	names []int   // of the ranks, in errors
	fates []*fate // of the ranks

	mu      sync.Mutex
	moved   sync.Cond       // any of the fields below changed
	calls   []call          // (Size) by rank, valid where here
	bufs    []device.Buffer // (Size) what each lets the others read, likewise
	here    []bool          // rank waits in the meeting under way
	arrived int             // number of true elements of here
	met     uint64          // complete meetings
	verdict error           // of the last complete meeting
	busy    int             // ranks that have met and not done their share
	ended   error           // why; nil while open
}

// fate is shared by the groups of one rank: what the rank waits for, and what
// its end means to the others. That is ErrPeerLost with the rank's own name
// until one of its groups ends for a reason from elsewhere, which it then
// passes on.
type fate struct {
	mu    sync.Mutex
	why   error
	waits *room // in whose meeting the rank waits, or waited when its group ended; nil if in none
}

func (f *fate) pass(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.why = why
}

func (f *fate) reason() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.why
}

func (f *fate) wait(in *room) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waits = in
}

func (f *fate) waitsIn() *room {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waits
}

// localCall is an operation on its way through a queue. Its phases on the host
// are bound once.
type localCall struct {
	call
	l           *Local
	whole, own  device.Buffer
	meet, leave func() error
	to, from    []device.Buffer // (Size) the work's operands, set by meet
}

// LocalQueue is a queue that does the work of a Local. The slices are read when
// the work runs.
type LocalQueue interface {
	device.Queue
	Call(name string, f func() error)              // Do, with a name for traces
	CopyAll(name string, dst, src []device.Buffer) // dst[i] = src[i], unless they are the same memory
	SumAll(name string, dst, src []device.Buffer)  // dst[0] = the sum of src element by element in their order, as Group says
}

// NewLocal opens a group of goroutine ranks; element r is rank r's end.
func NewLocal(size int) []*Local {
	if size < 1 {
		panic(fmt.Sprintf("collective: group of %d ranks", size))
	}
	names, fates := make([]int, size), make([]*fate, size)
	for r := range names {
		names[r], fates[r] = r, &fate{why: ErrPeerLost{r}}
	}
	return newLocal(names, fates)
}

// newLocal opens a group of ranks that errors call by the given names.
func newLocal(names []int, fates []*fate) []*Local {
	size := len(names)
	r := &room{names: names, fates: fates, calls: make([]call, size), bufs: make([]device.Buffer, size), here: make([]bool, size)}
	r.moved.L = &r.mu
	ls := make([]*Local, size)
	for i := range ls {
		ls[i] = &Local{room: r, rank: i, fate: fates[i]}
	}
	return ls
}

// Rank implements Group.
func (l *Local) Rank() int { return l.rank }

// Size implements Group.
func (l *Local) Size() int { return len(l.room.names) }

// Name implements Watched.
func (l *Local) Name(r int) int { return l.room.names[r] }

// AllGather implements Group.
func (l *Local) AllGather(q device.Queue, whole, own device.Buffer) {
	l.issue(q, allGather, whole, own)
}

// ReduceScatter implements Group.
func (l *Local) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	l.issue(q, reduceScatter, whole, own)
}

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
	l.room.mu.Lock()
	what.seq = l.issued
	l.issued++
	l.room.mu.Unlock()
	c := l.calls.take()
	if c == nil {
		c = &localCall{l: l, to: make([]device.Buffer, l.Size()), from: make([]device.Buffer, l.Size())}
		c.meet, c.leave = c.doMeet, c.doLeave
	}
	c.call, c.whole, c.own = what, whole, own
	on.Call(Waiting, c.meet)
	if o == allGather {
		on.CopyAll(o.String(), c.to, c.from)
	} else {
		on.SumAll(o.String(), c.to[:1], c.from)
	}
	on.Call(Waiting, c.leave)
}

// shared is what the other ranks read.
func (c *localCall) shared() device.Buffer {
	if c.op == allGather {
		return c.own
	}
	return c.whole
}

// operands are what the work is on: every rank's own part, the rank's too if it
// is not in place, or part Rank of all ranks' buffers.
func (c *localCall) operands() {
	for r, from := range c.l.room.bufs {
		if c.op == allGather {
			c.to[r], c.from[r] = Part(c.l, c.whole, r), from
		} else {
			c.to[0], c.from[r] = c.own, Own(c.l, from)
		}
	}
}

// doMeet returns nil once all ranks have met and agree; bufs may then be read
// until doLeave.
func (c *localCall) doMeet() error {
	err := c.l.met(c)
	if err != nil {
		c.end()
		return err
	}
	c.operands()
	return nil
}

// end forgets the operation's buffers and makes it free for another.
func (c *localCall) end() {
	c.whole, c.own = device.Buffer{}, device.Buffer{}
	clear(c.to)
	clear(c.from)
	c.l.calls.give(c)
}

// met publishes a call and waits for the other ranks'.
func (l *Local) met(c *localCall) error {
	r := l.room
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
	} else if ok := r.await(l.fate); !ok {
		l.inside, r.bufs[l.rank] = false, device.Buffer{}
		return l.why()
	}
	if r.verdict != nil {
		l.inside = false
		return l.why()
	}
	return nil
}

// open completes the meeting under way. Ranks that disagree end the group.
func (r *room) open(verdict error) {
	if verdict == nil {
		r.busy = len(r.names)
	} else {
		clear(r.bufs)
		r.end(verdict)
	}
	clear(r.here)
	r.arrived, r.verdict = 0, verdict
	r.met++
	r.moved.Broadcast()
}

// await returns true when the meeting under way is complete, false when the
// group ends before.
func (r *room) await(f *fate) bool {
	f.wait(r)
	for meeting := r.met; r.met == meeting; r.moved.Wait() {
		if r.ended != nil {
			return false
		}
	}
	f.wait(nil)
	return true
}

// doLeave returns when every rank has done its share of the operation.
func (c *localCall) doLeave() error {
	l, r := c.l, c.l.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy--; r.busy == 0 {
		clear(r.bufs) // their owners may free them now
		r.moved.Broadcast()
	}
	for r.busy > 0 { // the next meeting, which sets it again, needs this rank
		r.moved.Wait()
	}
	l.inside = false
	c.end()
	return nil
}

// why is what operations of this rank fail with after the group's end.
func (l *Local) why() error {
	if l.room.ended == error(ErrPeerLost{l.Name(l.rank)}) {
		return ErrClosed // by this rank
	}
	l.fate.pass(l.room.ended)
	return l.room.ended
}

// Close implements Group.
func (l *Local) Close() error {
	reason := l.fate.reason()
	l.room.mu.Lock()
	defer l.room.mu.Unlock()
	l.room.end(reason)
	return nil
}

// Abort implements Watched.
func (l *Local) Abort(err error) {
	l.room.mu.Lock()
	defer l.room.mu.Unlock()
	l.room.end(err)
	_ = l.why() // which passes it on
}

// end ends the group; only the first reason counts.
func (r *room) end(why error) {
	if r.ended == nil {
		r.ended = why
		r.moved.Broadcast()
	}
}

// Missing implements Watched: a search through the groups in which the ranks
// that are missing wait in turn.
func (l *Local) Missing() [][]int {
	if !l.room.holds(l.rank) {
		return nil
	}
	var chain [][]int
	var busy []int
	seen := []*room{l.room}
	for todo := seen; len(todo) > 0; {
		var next []*room
		var names []int
		for _, m := range absent(todo) {
			names = append(names, m.name)
			in := m.fate.waitsIn()
			if in == nil {
				busy = append(busy, m.name)
			} else if !slices.Contains(seen, in) {
				seen, next = append(seen, in), append(next, in)
			}
		}
		chain, todo = append(chain, sorted(names)), next
	}
	if busy != nil {
		return [][]int{sorted(busy)}
	}
	return chain
}

func sorted(names []int) []int {
	slices.Sort(names)
	return slices.Compact(names)
}

// member is a rank of a room.
type member struct {
	name int
	fate *fate
}

// absent is the ranks that the meetings under way in the rooms wait for, or
// waited for when the group ended.
func absent(rooms []*room) (out []member) {
	for _, r := range rooms {
		r.mu.Lock()
		for i, here := range r.here {
			if !here {
				out = append(out, member{r.names[i], r.fates[i]})
			}
		}
		r.mu.Unlock()
	}
	return out
}

// holds says whether a rank waits in the meeting under way.
func (r *room) holds(rank int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended == nil && r.here[rank]
}
