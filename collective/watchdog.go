package collective

import (
	"fmt"
	"sync"
	"time"

	"zeroth/device"
)

// DefaultDeadline is how long ranks wait for each other by default: enough for a rank to write or
// read a checkpoint.
const DefaultDeadline = 5 * time.Minute

// ErrLate reports which ranks kept another rank's operation waiting past its deadline. It ends the
// group and matches ErrClosed.
type ErrLate struct {
	Wait                // of the rank that gave up
	Limit time.Duration // the deadline
	Stuck string        // what blocks all ranks, if known; see OnLate
}

func (e ErrLate) Error() string {
	text := fmt.Sprintf("operation %d (%s): rank %d waited %v for %s", e.Seq, e.Call(), e.Rank, e.Limit, RankNames(e.For))
	if e.Stuck != "" {
		text += "; " + e.Stuck
	}
	return text
}

func (e ErrLate) Is(target error) bool { return target == ErrClosed }

// watchdog is a group whose operations are recorded and have a deadline.
type watchdog struct {
	Primitives
	Under
	RecordedGroup
	inner    Inspectable // Group, or a group that it wraps
	limit    time.Duration
	recorder *Recorder
	at       int // index in the recorder's groups
	free     freeList[begun]
	issued   int
	timer    *time.Timer // calls look, until Close
	awake    Awake

	mu     sync.Mutex
	now    Operation     // the last operation that this rank started
	since  time.Duration // when it started, or was last found to wait for no rank
	asleep time.Duration // awake.Lost then
	closed bool
}

// Watchdog wraps g with a deadline and a Recorder of its own.
func Watchdog(g Group, deadline time.Duration) Group {
	return NewRecorder().Watchdog(g, deadline, "group", false)
}

// Watchdog wraps g with a deadline (0: DefaultDeadline): if a rank makes others wait that long, the
// operation fails on all of them with ErrLate, and the group ends. The deadline starts when a rank
// arrives. g, or a group that it wraps, must be Inspectable. Operations are recorded; those of a
// background group do not count as waiting in a step.
func (r *Recorder) Watchdog(g Group, deadline time.Duration, name string, background bool) Group {
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
	w := &watchdog{Under: Under{g}, RecordedGroup: RecordedGroup{name, ranks, background}, inner: inner, limit: deadline, recorder: r, awake: Awake{Period: min(deadline/4, time.Second)}}
	w.Issue = w.issue
	r.mu.Lock()
	w.at, r.groups = len(r.groups), append(r.groups, w)
	r.mu.Unlock()
	w.mu.Lock() // look reads timer
	defer w.mu.Unlock()
	w.asleep = w.awake.Lost()
	w.timer = time.AfterFunc(w.awake.Period, w.look)
	return w
}

func (g *watchdog) issue(q device.Queue, o Op, whole, own device.Buffer) {
	b := g.begin(q, o, whole)
	Do(g.Group, q, o, whole, own)
	b.then(q, b.done, b.launched)
}

// begun is an operation on a queue; its functions are bound once, to avoid allocations.
type begun struct {
	Operation
	g                     *watchdog
	n                     uint64 // number in the recorder
	start, done, launched func() error
}

// begin records an operation that is about to be issued and makes the queue record its start.
func (g *watchdog) begin(q device.Queue, o Op, whole device.Buffer) *begun {
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

// then runs queued after the work on q. On an asynchronous device it runs launched at once, since
// all work issued so far has been launched.
func (*begun) then(q device.Queue, queued, launched func() error) {
	if s, ok := q.(StreamQueue); ok {
		s.Now("", launched)
	} else {
		q.Do(queued)
	}
}

func (b *begun) doStart() error {
	b.g.mu.Lock()
	defer b.g.mu.Unlock()
	b.g.recorder.start(b.n, &b.Operation)
	b.g.now, b.g.since, b.g.asleep = b.Operation, b.Started, b.g.awake.Lost()
	return nil
}

func (b *begun) finish(as string) error {
	b.g.recorder.finish(b.n, &b.Operation, as)
	b.g.free.give(b)
	return nil
}

// look runs periodically. If the last operation has exceeded its deadline, without the time in
// which this process was stopped, and still waits for ranks, look ends the group and names them. An
// operation that waits for no rank is ignored: it is complete, moves data, or has failed.
//
// Before ending the group, look asks all ranks whom they wait for, if possible; the operation may
// complete in the meantime.
func (g *watchdog) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	missing, stuck := g.late(), ""
	if ask := g.recorder.asks(); missing != nil && ask != nil {
		g.mu.Unlock()
		stuck = ask()
		g.mu.Lock()
		missing = g.late()
	}
	if missing != nil {
		g.inner.Abort(ErrLate{g.wait(g.now, missing), g.limit, stuck})
	}
}

// late returns the ranks that the last operation waits for if it has exceeded its deadline;
// otherwise it reschedules look.
func (g *watchdog) late() []int {
	if g.closed {
		return nil
	}
	lost := g.awake.Lost()
	if remaining := g.limit - (g.recorder.now() - g.since) + (lost - g.asleep); remaining > 0 {
		g.timer.Reset(min(remaining, g.awake.Period))
		return nil
	}
	missing := g.inner.Missing()
	if missing == nil {
		g.since, g.asleep = g.recorder.now(), lost
		g.timer.Reset(g.awake.Period)
	}
	return missing
}

// wait returns where the rank is.
func (g *watchdog) wait(o Operation, missing []int) Wait {
	w := o.Wait(g.inner.Name(g.Rank()), g.Name, g.recorder.now())
	w.For = missing
	return w
}

// Close implements Group and stops the watchdog.
func (g *watchdog) Close() error {
	g.mu.Lock()
	g.closed = true
	g.timer.Stop()
	g.mu.Unlock()
	return g.Group.Close()
}
