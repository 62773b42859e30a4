package collective

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"zeroth/device"
)

// Engine is one rank's end of a library that has collectives of its own on a
// device's memory, such as NCCL. The rank's goroutine issues operations; the other
// methods are any goroutine's.
type Engine interface {
	// AllGather, ReduceScatter, Broadcast and Reduce put a Group's operation behind what was
	// issued on q.
	AllGather(q device.Queue, whole, own device.Buffer) error
	ReduceScatter(q device.Queue, own, whole device.Buffer) error
	Broadcast(q device.Queue, b device.Buffer) error
	Reduce(q device.Queue, b device.Buffer) error
	// Pending says whether an operation that was put into a queue is not done.
	Pending() bool
	// Err is what the library has found out meanwhile, nil while all is well.
	Err() error
	// Abort ends pending operations, whose buffers are then undefined, and the engine.
	Abort()
	// Close ends the engine when nothing is pending, for so long at most.
	Close(most time.Duration)
}

// EngineQueue is a queue on which an Engine's operations run.
type EngineQueue interface {
	StreamQueue
	// Fail has an error stick, from any goroutine.
	Fail(err error)
}

// Engined is a rank of a group whose operations on a device's memory are an
// Engine's. Its sums have the engine's order and rounding, not Group's. Those on
// host memory are the group's underneath, with its bits.
//
// Libraries do not notice when ranks call different operations: they hang, or mix up
// memory. So the ranks agree first, by the group underneath, as those of a Local on
// streams do: who issues an operation returns when all have called the same one and
// it is in the stream. What is then lost a goroutine of the group notices, which asks
// the group and the engine: it has the queue fail and the engine abort, so that who
// waits for the queue is told. An operation that needs nothing more of who left has
// the time of farewell to end.
type Engined struct {
	agreeing
	engine Engine
	calls  freeList[engineCall]
	closed chan struct{}
	comes  atomic.Bool // a call is being agreed on
	close  sync.Once
	ended  chan struct{} // the goroutine has

	mu    sync.Mutex
	queue EngineQueue // of the last operation; nil: there was none
	over  bool        // the queue has failed
	broke error       // what the engine has found out, which this rank's operations fail with; or nil
}

// agreeing is a group that can have its ranks agree: they make the same call, and
// nothing moves.
type agreeing interface {
	Inspectable
	// number is that of the rank's next operation, which agree gets with its call.
	number() int
	agree(c call) error
	// lost is why the group has ended, or will with its next operation. Gone says that
	// a peer did not leave by itself: nothing more comes of it.
	lost() (why error, gone bool)
}

// farewell is how long an operation may go on that has lost a peer: it has what it
// needs of one that has closed its group after its own.
const farewell = 3 * time.Second

// enginePause is how often the engine is asked.
const enginePause = 20 * time.Millisecond

// hearsay is how long the group may take to hear of a peer that is gone after the engine
// has found out that something is wrong.
const hearsay = time.Second

// engineCall is an operation being issued; run is bound once.
type engineCall struct {
	call
	g          *Engined
	q          EngineQueue
	whole, own device.Buffer
	run        func() error
}

// NewEngined has an engine work for a group, a Local or a Wired that nothing wraps.
// Close closes both, Wait waits for that.
func NewEngined(g Group, e Engine) *Engined {
	m, ok := g.(agreeing)
	if !ok {
		panic(fmt.Sprintf("collective: an engine for a %T, whose ranks cannot agree", g))
	}
	x := &Engined{agreeing: m, engine: e, closed: make(chan struct{}), ended: make(chan struct{})}
	go x.poll()
	return x
}

// AllGather implements Group.
func (g *Engined) AllGather(q device.Queue, whole, own device.Buffer) {
	g.issue(q, allGather, whole, own)
}

// ReduceScatter implements Group.
func (g *Engined) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	g.issue(q, reduceScatter, whole, own)
}

// Broadcast implements Group.
func (g *Engined) Broadcast(q device.Queue, b device.Buffer) { g.issue(q, broadcast, b, b) }

// Reduce implements Group.
func (g *Engined) Reduce(q device.Queue, b device.Buffer) { g.issue(q, reduce, b, b) }

func (g *Engined) issue(q device.Queue, o op, whole, own device.Buffer) {
	if whole.Host && own.Host {
		switch o {
		case allGather:
			g.agreeing.AllGather(q, whole, own)
		case reduceScatter:
			g.agreeing.ReduceScatter(q, own, whole)
		case broadcast:
			g.agreeing.Broadcast(q, own)
		case reduce:
			g.agreeing.Reduce(q, own)
		}
		return
	}
	what := newCall(g, q, o, whole, own)
	what.seq = g.number()
	on, ok := q.(EngineQueue)
	if !ok {
		panic(fmt.Sprintf("collective: %v by an engine on a %T, which is no EngineQueue", what, q))
	}
	c := g.calls.take()
	if c == nil {
		c = &engineCall{g: g}
		c.run = c.doRun
	}
	c.call, c.q, c.whole, c.own = what, on, whole, own
	on.Now(o.String(), c.run)
}

// doRun agrees with the other ranks and puts the operation into the stream.
func (c *engineCall) doRun() error {
	g := c.g
	defer func() {
		c.q, c.whole, c.own = nil, device.Buffer{}, device.Buffer{}
		g.calls.give(c)
	}()
	g.comes.Store(true)
	err := g.agree(c.call)
	g.comes.Store(false)
	if err != nil || c.n == 0 {
		return g.because(err)
	}
	if why := Ended(g.agreeing); why != nil || !g.uses(c.q) { // since all have come: this rank's share is not done, so nobody's is
		g.Abort(why)
		return g.because(Ended(g.agreeing))
	}
	switch c.op {
	case allGather:
		err = g.engine.AllGather(c.q, c.whole, c.own)
	case reduceScatter:
		err = g.engine.ReduceScatter(c.q, c.own, c.whole)
	case broadcast:
		err = g.engine.Broadcast(c.q, c.own)
	case reduce:
		err = g.engine.Reduce(c.q, c.own)
	}
	if why := Ended(g.agreeing); err != nil && why != nil {
		return g.because(why)
	}
	return err
}

// because is why an operation fails, if it does: what broke the engine comes before that the
// group has ended.
func (g *Engined) because(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil && g.broke != nil {
		return g.broke
	}
	return err
}

// uses notes the queue of an operation; false where the group is over.
func (g *Engined) uses(q EngineQueue) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = q
	return !g.over
}

// poll asks group and engine until the group is closed, and then ends the engine.
func (g *Engined) poll() {
	defer close(g.ended)
	tick := time.NewTicker(enginePause)
	defer tick.Stop()
	for {
		select {
		case <-g.closed:
			if g.settles() {
				g.engine.Close(farewell)
			} else {
				g.end(Ended(g.agreeing)) // a peer's name, if this rank closed because of it
			}
			return
		case <-tick.C:
		}
		why, gone := g.lost()
		switch {
		case why == nil:
			if err := g.engine.Err(); err != nil {
				g.fail(err)
			}
		case gone, !g.settles(): // else its next operation is told
			g.Abort(why)
		}
	}
}

// fail ends the group because of what the engine has found out: it is for the others as if
// this rank had left. What it has found out may be that a peer is gone, of which the group
// hears, too: then the peer is named.
func (g *Engined) fail(err error) {
	for end := time.Now().Add(hearsay); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if why, _ := g.lost(); why != nil {
			g.Abort(why)
			return
		}
	}
	g.mu.Lock()
	g.broke = err
	g.mu.Unlock()
	_ = g.agreeing.Close()
	g.end(err)
}

// settles waits for what is pending, for the time of farewell, or until a peer is gone that
// it may need.
func (g *Engined) settles() bool {
	for end := time.Now().Add(farewell); g.engine.Pending(); time.Sleep(time.Millisecond) {
		if _, gone := g.lost(); gone || time.Now().After(end) {
			return false
		}
	}
	return true
}

// end has the queue fail, and then what is pending end.
func (g *Engined) end(why error) {
	g.mu.Lock()
	q, first, broke := g.queue, !g.over, g.broke != nil
	g.over = true
	g.mu.Unlock()
	if !first {
		return
	}
	if q != nil && (broke || g.engine.Pending()) { // nobody knows since when it has moved nothing
		q.Fail(why)
	}
	g.engine.Abort()
}

// Abort implements Inspectable.
func (g *Engined) Abort(err error) {
	g.agreeing.Abort(err)
	if why := Ended(g.agreeing); why != nil { // the first reason counts
		err = why
	}
	g.end(err)
}

// Missing implements Inspectable. Where all have come and the engine does not end,
// it cannot tell for whom it waits: for any of the others.
func (g *Engined) Missing() []int {
	if m := g.agreeing.Missing(); m != nil || g.comes.Load() {
		return m
	}
	if g.Size() == 1 || !g.engine.Pending() {
		return nil
	}
	var others []int
	for r := range g.Size() {
		if r != g.Rank() {
			others = append(others, g.Name(r))
		}
	}
	return others
}

// Close implements Group.
func (g *Engined) Close() error {
	err := g.agreeing.Close()
	g.close.Do(func() { close(g.closed) })
	return err
}

// Wait waits until the engine has ended, after Close.
func (g *Engined) Wait() { <-g.ended }

// Introduce gives every rank of a group what rank 0 has, a secret by which an
// Engine's ends find each other. It waits for q, at most for the time of the limit.
func Introduce(g Group, q device.Queue, limit time.Duration, secret func() ([]byte, error)) ([]byte, error) {
	in := inspectable(g)
	late := time.AfterFunc(limit, func() { in.Abort(fmt.Errorf("not all ranks have come within %v", limit)) })
	defer late.Stop()
	var mine []byte
	var failed error
	if g.Rank() == 0 {
		if mine, failed = secret(); failed != nil {
			mine = nil
		}
	}
	all, err := GatherBytes(g, q, mine)
	switch {
	case failed != nil:
		return nil, failed
	case err != nil:
		return nil, err
	case len(all[0]) == 0:
		return nil, errors.New("rank 0 has nothing to begin with")
	}
	return all[0], nil
}

// Ended is why the group has ended, nil while it is open: for who waits for its
// ranks elsewhere, as an Engine does that begins.
func Ended(g Group) error {
	m, ok := g.(agreeing)
	if !ok {
		return nil
	}
	why, _ := m.lost()
	return why
}
