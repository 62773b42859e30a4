package collective

import (
	"fmt"
	"strings"
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
	Op    string        // "operation 7 (all-gather of 96 fp32)"
	Rank  int           // that waited, by Name
	Ranks [][]int       // for whom: Inspectable.Missing
	Limit time.Duration // what they exceeded
	Stuck string        // whom all wait for in the end, if that is known: Recorder.OnLate
}

func (e ErrLate) Error() string {
	chain := make([]string, len(e.Ranks))
	for i, r := range e.Ranks {
		chain[i] = ranks(r)
	}
	text := fmt.Sprintf("%s: rank %d waited %v for %s", e.Op, e.Rank, e.Limit, strings.Join(chain, ", which waited for "))
	if e.Stuck != "" {
		text += "; " + e.Stuck
	}
	return text
}

func (e ErrLate) Is(target error) bool { return target == ErrClosed }

// watchdog is a group whose operations have a deadline.
type watchdog struct {
	Group
	inner  Inspectable // Group, or what it wraps
	limit  time.Duration
	free   freeList[begun]
	issued int
	timer  *time.Timer // runs look, from now until Close

	recorder *Recorder // may be nil
	group    int       // its number there

	mu     sync.Mutex
	now    call      // the last operation this rank came to
	since  time.Time // when it did
	closed bool
}

// Watchdog is g with a deadline (0: DefaultDeadline): if a rank keeps others waiting
// for so long, the operation fails on every one of them with ErrLate, and the
// group ends. It is counted from a rank's own arrival. g, or the group that g
// wraps, is Inspectable.
func Watchdog(g Group, deadline time.Duration) Group { return newWatchdog(g, deadline) }

func newWatchdog(g Group, deadline time.Duration) *watchdog {
	if deadline == 0 {
		deadline = DefaultDeadline
	}
	inner := inspectable(g)
	if inner == nil {
		panic(fmt.Sprintf("collective: a %T has no Missing and Abort, so no deadline can be kept", g))
	}
	w := &watchdog{Group: g, inner: inner, limit: deadline}
	w.mu.Lock() // look reads timer
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(deadline, w.look)
	return w
}

// Unwrap is the group underneath.
func (g *watchdog) Unwrap() Group { return g.Group }

// AllGather implements Group.
func (g *watchdog) AllGather(q device.Queue, whole, own device.Buffer) {
	b := g.begin(q, allGather, whole, own)
	g.Group.AllGather(q, whole, own)
	g.leave(q, b)
}

// ReduceScatter implements Group.
func (g *watchdog) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	b := g.begin(q, reduceScatter, whole, own)
	g.Group.ReduceScatter(q, own, whole)
	g.leave(q, b)
}

// begin puts a note of the coming operation on the queue.
func (g *watchdog) begin(q device.Queue, o op, whole, own device.Buffer) *begun {
	what := newCall(g, q, o, whole, own)
	what.seq = g.issued
	g.issued++
	b := g.free.take()
	if b == nil {
		b = &begun{g: g}
		b.note, b.leave, b.launched = b.doNote, b.doLeave, b.doLaunched
	}
	b.call = what
	if g.recorder != nil {
		b.n = g.recorder.issue(g.group, what)
	}
	if s, ok := q.(StreamQueue); ok { // it is issued, and so reached, at once
		s.Now("", b.note)
	} else {
		q.Do(b.note)
	}
	return b
}

// leave has the recorder hear when the queue is through with the operation, or, on
// a device that works on its own time, that it has it.
func (g *watchdog) leave(q device.Queue, b *begun) {
	if g.recorder == nil {
		return
	}
	if s, ok := q.(StreamQueue); ok {
		s.Now("", b.launched)
	} else {
		q.Do(b.leave)
	}
}

// begun is an operation on its way through a queue; its functions are bound once.
type begun struct {
	call
	g                     *watchdog
	n                     uint64 // of the recorder
	note, leave, launched func() error
}

func (b *begun) doNote() error {
	b.g.mu.Lock()
	b.g.now, b.g.since = b.call, time.Now()
	b.g.mu.Unlock()
	if b.g.recorder == nil {
		b.g.free.give(b)
	} else {
		b.g.recorder.start(b.n)
	}
	return nil
}

func (b *begun) doLeave() error { return b.finish(false) }

func (b *begun) doLaunched() error { return b.finish(true) }

func (b *begun) finish(launched bool) error {
	b.g.recorder.finish(b.n, launched)
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
	missing := g.late()
	if missing == nil {
		return
	}
	stuck := ""
	if g.recorder != nil && g.recorder.ask != nil {
		g.mu.Unlock()
		stuck = g.recorder.ask()
		g.mu.Lock()
		if missing = g.late(); missing == nil {
			return
		}
	}
	g.inner.Abort(ErrLate{fmt.Sprintf("operation %d (%v)", g.now.seq, g.now), g.inner.Name(g.Rank()), missing, g.limit, stuck})
}

// late is for whom the last operation waits, over its deadline; if it does not, look comes
// back.
func (g *watchdog) late() [][]int {
	if g.closed {
		return nil
	}
	if left := g.limit - time.Since(g.since); left > 0 {
		g.timer.Reset(left)
		return nil
	}
	missing := g.inner.Missing()
	if len(missing) == 0 {
		g.timer.Reset(g.limit)
		return nil
	}
	return missing
}

// Close implements Group and ends the watchdog.
func (g *watchdog) Close() error {
	g.mu.Lock()
	g.closed = true
	g.timer.Stop()
	g.mu.Unlock()
	return g.Group.Close()
}
