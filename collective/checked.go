package collective

import (
	"encoding/binary"
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
	Ranks [][]int       // for whom: Watched.Missing
	Limit time.Duration // what they exceeded
}

func (e ErrLate) Error() string {
	chain := make([]string, len(e.Ranks))
	for i, r := range e.Ranks {
		chain[i] = ranks(r)
	}
	return fmt.Sprintf("%s: rank %d waited %v for %s", e.Op, e.Rank, e.Limit, strings.Join(chain, ", which waited for "))
}

func (e ErrLate) Is(target error) bool { return target == ErrClosed }

// printLen is the number of int32 of a rank's fingerprint of an operation: its
// number and its length in two halves each, the primitive, the element type, and
// the beginning of the label of its queue's work.
const printLen = 6 + labelLen/4

// checked is a group whose ranks compare every operation before it touches data.
type checked struct {
	Group
	inner   Watched // Group, or what it wraps
	limit   time.Duration
	prints  device.Buffer // (Size × printLen) int32, of the operation the queue is at
	calls   []call        // (Size) what they say
	free    freeList[checkedCall]
	issued  int
	watcher *time.Timer // runs look, from now until Close

	mu     sync.Mutex
	now    call      // the last operation this rank came to
	since  time.Time // when it did
	closed bool
}

// checkedCall is an operation on its way through a queue. Its three functions
// are bound once.
type checkedCall struct {
	call
	g                   *checked
	begin, compare, end func() error
}

// Checked is g with two nets under it. Before each operation the ranks gather
// fingerprints of it on g, in host memory: if one differs, the operation fails
// on every rank with an error that names both sides, before it touches data.
// What the work of the queue is called is part of it, so that a gather of one
// unit does not pass for that of another of equal size.
// And if a rank keeps others waiting for the deadline (0: DefaultDeadline), the
// operation fails on every one of them with ErrLate, and the group ends. The
// deadline is counted from a rank's own arrival. g, or the group that g wraps,
// is Watched.
func Checked(g Group, deadline time.Duration) Group {
	if deadline == 0 {
		deadline = DefaultDeadline
	}
	inner := watched(g)
	if inner == nil {
		panic(fmt.Sprintf("collective: a %T has no Missing and Abort, so no deadline can be kept", g))
	}
	c := &checked{Group: g, inner: inner, limit: deadline, calls: make([]call, g.Size()),
		prints: device.OfI32(make([]int32, g.Size()*printLen))}
	c.mu.Lock() // look reads watcher
	defer c.mu.Unlock()
	c.watcher = time.AfterFunc(deadline, c.look)
	return c
}

// Unwrap is the group underneath.
func (g *checked) Unwrap() Group { return g.Group }

// AllGather implements Group.
func (g *checked) AllGather(q device.Queue, b device.Buffer) {
	c := g.issue(q, allGather, b)
	g.Group.AllGather(q, b)
	q.Do(c.end)
}

// ReduceScatter implements Group.
func (g *checked) ReduceScatter(q device.Queue, b device.Buffer) {
	c := g.issue(q, reduceScatter, b)
	g.Group.ReduceScatter(q, b)
	q.Do(c.end)
}

// issue puts the comparison of the coming operation on the queue.
func (g *checked) issue(q device.Queue, o op, b device.Buffer) *checkedCall {
	what := newCall(g, o, b)
	copy(what.label[:], q.Labelled())
	what.seq = g.issued
	g.issued++
	c := g.free.take()
	if c == nil {
		c = &checkedCall{g: g}
		c.begin, c.compare, c.end = c.doBegin, c.doCompare, c.doEnd
	}
	c.call = what
	q.Do(c.begin)
	g.Group.AllGather(q, g.prints)
	q.Do(c.compare)
	return c
}

func (c *checkedCall) doBegin() error {
	own := Own(c.g, c.g.prints).I32()
	own[0], own[1] = int32(c.seq), int32(c.seq>>32)
	own[2], own[3] = int32(c.n), int32(c.n>>32)
	own[4], own[5] = int32(c.op), int32(c.t)
	for i := range own[6:] {
		own[6+i] = int32(binary.LittleEndian.Uint32(c.label[4*i:]))
	}
	c.g.mu.Lock()
	c.g.now, c.g.since = c.call, time.Now()
	c.g.mu.Unlock()
	return nil
}

func (c *checkedCall) doCompare() error {
	for r := range c.g.calls {
		p := Part(c.g, c.g.prints, r).I32()
		c.g.calls[r] = call{seq: int(uint32(p[0])) | int(p[1])<<32, n: int(uint32(p[2])) | int(p[3])<<32,
			op: op(p[4]), t: device.DType(p[5])}
		for i, x := range p[6:] {
			binary.LittleEndian.PutUint32(c.g.calls[r].label[4*i:], uint32(x))
		}
	}
	err := disagreement(c.g.calls, c.g.inner.Name)
	if err != nil {
		c.g.inner.Abort(err)
	}
	return err
}

func (c *checkedCall) doEnd() error {
	c.g.free.give(c)
	return nil
}

// look runs when the last operation may be over its deadline. If it is, and
// waits for ranks, look ends the group in their name; else it comes back at the
// earliest time that can change. An operation that waits for nobody is left
// alone: it is over, or moves data, or has failed.
func (g *checked) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	if left := g.limit - time.Since(g.since); left > 0 {
		g.watcher.Reset(left)
		return
	}
	missing := g.inner.Missing()
	if len(missing) == 0 {
		g.watcher.Reset(g.limit)
		return
	}
	g.inner.Abort(ErrLate{fmt.Sprintf("operation %d (%v)", g.now.seq, g.now), g.inner.Name(g.Rank()), missing, g.limit})
}

// Close implements Group and ends the watch.
func (g *checked) Close() error {
	g.mu.Lock()
	g.closed = true
	g.watcher.Stop()
	g.mu.Unlock()
	return g.Group.Close()
}
