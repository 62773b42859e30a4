package collective

import (
	"fmt"
	"sync"
	"time"

	"zeroth/device"
)

// DefaultDeadline is how long ranks wait for each other if nobody says
// otherwise: enough for a rank that writes a checkpoint, or reads one.
const DefaultDeadline = 5 * time.Minute

// ErrLate says which ranks kept an operation of another waiting beyond its
// deadline. The group has ended with it, so it is an ErrClosed.
type ErrLate struct {
	Wait                // of the rank that gave up
	Limit time.Duration // what they exceeded
	Stuck string        // whom all wait for in the end, if that is known: OnLate
}

func (e ErrLate) Error() string {
	text := fmt.Sprintf("operation %d (%s): rank %d waited %v for %s", e.Seq, e.Call(), e.Rank, e.Limit, RankNames(e.For))
	if e.Stuck != "" {
		text += "; " + e.Stuck
	}
	return text
}

func (e ErrLate) Is(target error) bool { return target == ErrClosed }

// watchdog is a group whose operations have a deadline and are recorded.
type watchdog struct {
	Group
	RecordedGroup
	inner    Inspectable // Group, or what it wraps
	limit    time.Duration
	recorder *Recorder
	at       int // in its groups
	free     freeList[begun]
	issued   int
	timer    *time.Timer // runs look, from now until Close

	mu     sync.Mutex
	now    Operation // the last one this rank came to
	closed bool
}

// Watchdog is g with a deadline and a Recorder of its own.
func Watchdog(g Group, deadline time.Duration) Group {
	return NewRecorder().Watchdog(g, deadline, "group", false)
}

// Watchdog is g with a deadline (0: DefaultDeadline): if a rank keeps others waiting
// for so long, the operation fails on every one of them with ErrLate, and the
// group ends. It is counted from a rank's own arrival. g, or the group that g
// wraps, is Inspectable. Its operations are recorded; those of a group that is used
// beside training do not count as waiting in a step.
func (r *Recorder) Watchdog(g Group, deadline time.Duration, name string, beside bool) Group {
	if deadline == 0 {
		deadline = DefaultDeadline
	}
	inner := inspectable(g)
	if inner == nil {
		panic(fmt.Sprintf("collective: a %T has no Missing and Abort, so no deadline can be kept", g))
	}
	ranks := make([]int, g.Size())
	for i := range ranks {
		ranks[i] = inner.Name(i)
	}
	w := &watchdog{Group: g, RecordedGroup: RecordedGroup{name, ranks, beside}, inner: inner, limit: deadline, recorder: r}
	r.mu.Lock()
	w.at, r.groups = len(r.groups), append(r.groups, w)
	r.mu.Unlock()
	w.mu.Lock() // look reads timer
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(deadline, w.look)
	return w
}

// Unwrap is the group underneath.
func (g *watchdog) Unwrap() Group { return g.Group }

// AllGather implements Group.
func (g *watchdog) AllGather(q device.Queue, whole, own device.Buffer) {
	b := g.begin(q, allGather, whole)
	g.Group.AllGather(q, whole, own)
	b.then(q, b.done, b.launched)
}

// ReduceScatter implements Group.
func (g *watchdog) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	b := g.begin(q, reduceScatter, whole)
	g.Group.ReduceScatter(q, own, whole)
	b.then(q, b.done, b.launched)
}

// Broadcast implements Group.
func (g *watchdog) Broadcast(q device.Queue, b device.Buffer) {
	o := g.begin(q, broadcast, b)
	g.Group.Broadcast(q, b)
	o.then(q, o.done, o.launched)
}

// Reduce implements Group.
func (g *watchdog) Reduce(q device.Queue, b device.Buffer) {
	o := g.begin(q, reduce, b)
	g.Group.Reduce(q, b)
	o.then(q, o.done, o.launched)
}

// begun is an operation on its way through a queue; its functions are bound once.
type begun struct {
	Operation
	g                     *watchdog
	n                     uint64 // of the recorder
	start, done, launched func() error
}

// begin records the coming operation and puts a note of it on the queue.
func (g *watchdog) begin(q device.Queue, o op, whole device.Buffer) *begun {
	b, label := g.free.take(), q.Labelled()
	if b == nil {
		b = &begun{g: g}
		b.start = b.doStart
		b.done = func() error { return b.finish(Done) }
		b.launched = func() error { return b.finish(Launched) }
	}
	b.Operation = Operation{Group: g.at, Seq: g.issued, Op: o.String(), Label: label[:min(len(label), labelLen)], Type: whole.Type.String(), Count: whole.N, Bytes: whole.Bytes()}
	b.n = g.recorder.issue(&b.Operation)
	g.issued++
	b.then(q, b.start, b.start)
	return b
}

// then runs one of two functions: behind what is on the queue, or, on a device that
// works on its own time, at once, for what was issued is launched.
func (*begun) then(q device.Queue, behind, launched func() error) {
	if s, ok := q.(StreamQueue); ok {
		s.Now("", launched)
	} else {
		q.Do(behind)
	}
}

func (b *begun) doStart() error {
	b.g.mu.Lock()
	defer b.g.mu.Unlock()
	b.g.recorder.start(b.n, &b.Operation)
	b.g.now = b.Operation
	return nil
}

func (b *begun) finish(as string) error {
	b.g.recorder.finish(b.n, &b.Operation, as)
	b.g.free.give(b)
	return nil
}

// look runs when the last operation may be over its deadline. If it is, and
// waits for ranks, look ends the group in their name; else it comes back at the
// earliest time that can change. An operation that waits for nobody is left
// alone: it is over, or moves data, or has failed.
//
// Before that it has all ranks asked for whom they wait, where somebody can: the
// operation may end meanwhile.
func (g *watchdog) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	missing, stuck := g.late(), ""
	if ask := g.recorder.ask; missing != nil && ask != nil {
		g.mu.Unlock()
		stuck = ask()
		g.mu.Lock()
		missing = g.late()
	}
	if missing != nil {
		g.inner.Abort(ErrLate{g.wait(g.now, missing), g.limit, stuck})
	}
}

// late is for whom the last operation waits, over its deadline; if it does not, look comes
// back.
func (g *watchdog) late() []int {
	if g.closed {
		return nil
	}
	if left := g.limit - (g.recorder.now() - g.now.Started); left > 0 {
		g.timer.Reset(left)
		return nil
	}
	missing := g.inner.Missing()
	if missing == nil {
		g.timer.Reset(g.limit)
	}
	return missing
}

// wait is where the rank is.
func (g *watchdog) wait(o Operation, missing []int) Wait {
	w := o.Wait(g.inner.Name(g.Rank()), g.Name, g.recorder.now())
	w.For = missing
	return w
}

// Close implements Group and ends the watchdog.
func (g *watchdog) Close() error {
	g.mu.Lock()
	g.closed = true
	g.timer.Stop()
	g.mu.Unlock()
	return g.Group.Close()
}
