package collective

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"zeroth/device"
)

// Engine is one rank's end of a library with its own collectives on device memory, such as NCCL.
// Operations are issued by the rank's goroutine; the other methods may be called from any
// goroutine.
type Engine interface {
	// AllGather, ReduceScatter, Broadcast and Reduce enqueue the Group's operation after the work
	// issued on q.
	AllGather(q device.Queue, whole, own device.Buffer) error
	ReduceScatter(q device.Queue, own, whole device.Buffer) error
	Broadcast(q device.Queue, b device.Buffer) error
	Reduce(q device.Queue, b device.Buffer) error
	// Pending reports whether an enqueued operation is incomplete.
	Pending() bool
	// Err returns an asynchronous error of the library, or nil.
	Err() error
	// Abort terminates pending operations, whose buffers are then undefined, and the engine.
	Abort()
	// Close ends the engine once nothing is pending, or after most.
	Close(most time.Duration)
}

// EngineQueue is a queue on which an Engine's operations run.
type EngineQueue interface {
	StreamQueue
	// Fail makes an error stick. It may be called from any goroutine.
	Fail(err error)
}

// Engined is a rank of a group that runs operations on device memory with an Engine, summing in the
// engine's order and rounding instead of Group's. Operations on host memory use the wrapped group
// and keep its bits.
//
// Libraries do not detect that ranks call different operations: they hang or corrupt memory. So the
// ranks first agree through the wrapped group, as Local does on streams: issuing an operation
// returns when all ranks have made the same call and it is in the stream. A goroutine polls the
// group and the engine for later failures. It makes the queue fail and aborts the engine, which
// releases everyone waiting for the queue. If a peer leaves, operations that may no longer need it
// get drainTime to complete.
type Engined struct {
	Primitives
	agreed
	engine      Engine
	calls       freeList[engineCall]
	closed      chan struct{}
	inAgreement atomic.Bool  // agreement in progress
	aborts      atomic.Int64 // since when the engine has been aborting, in nanoseconds since 1970; 0: it is not
	close       sync.Once
	ended       chan struct{} // closed when the goroutine ends

	mu    sync.Mutex
	queue EngineQueue // of the last operation; nil if there was none
	over  bool        // the queue was made to fail
	broke error       // error of the engine, returned by this rank's operations; or nil
}

type agreed struct{ agreeing } // below Primitives

// agreeing is a group whose ranks can agree that they make the same call, without moving data.
type agreeing interface {
	Inspectable
	// number returns the sequence number of the rank's next operation, for agree's call.
	number() int
	agree(c call) error
	// lost returns why the group has ended, or will end with its next operation. Gone reports that
	// a peer died instead of leaving: nothing more will come from it.
	lost() (why error, gone bool)
}

// drainTime limits how long an operation may continue after losing a peer, which may have closed
// its group after completing its own share.
const drainTime = 3 * time.Second

// enginePoll is the interval at which the engine is polled.
const enginePoll = 20 * time.Millisecond

// lossTime is how long a group may take to notice a lost peer after an engine has reported an
// error.
const lossTime = time.Second

// EndedSoon returns why a group ends within the time that it may take to notice a lost peer, which may be
// the cause of an engine's error, or nil.
func EndedSoon(g Group) error {
	for end := time.Now().Add(lossTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if why := Ended(g); why != nil {
			return why
		}
	}
	return nil
}

// engineCall is an operation being issued; run is bound once, to avoid allocations.
type engineCall struct {
	call
	g          *Engined
	q          EngineQueue
	whole, own device.Buffer
	run        func() error
}

// NewEngined makes an engine work for an unwrapped Local or Wired. Close closes both; Wait waits
// for that.
func NewEngined(g Group, e Engine) *Engined {
	m, ok := g.(agreeing)
	if !ok {
		panic(fmt.Sprintf("collective: an engine for a %T, whose ranks cannot agree", g))
	}
	x := &Engined{agreed: agreed{m}, engine: e, closed: make(chan struct{}), ended: make(chan struct{})}
	x.Issue = x.issue
	go x.poll()
	return x
}

func (g *Engined) issue(q device.Queue, o Op, whole, own device.Buffer) {
	if whole.Host && own.Host || o == exchange {
		Do(g.agreeing, q, o, whole, own)
		return
	}
	what := newCall(g, q, o, whole, own)
	what.seq = g.number()
	on, ok := q.(EngineQueue)
	if !ok {
		panic(fmt.Sprintf("collective: %v by an engine on a %T, which is not an EngineQueue", what, q))
	}
	c := g.calls.take()
	if c == nil {
		c = &engineCall{g: g}
		c.run = c.doRun
	}
	c.call, c.q, c.whole, c.own = what, on, whole, own
	on.Now(o.String(), c.run)
}

// doRun agrees with the other ranks and enqueues the operation.
func (c *engineCall) doRun() error {
	g := c.g
	defer func() {
		c.q, c.whole, c.own = nil, device.Buffer{}, device.Buffer{}
		g.calls.give(c)
	}()
	g.inAgreement.Store(true)
	err := g.agree(c.call)
	g.inAgreement.Store(false)
	if err != nil || c.n == 0 {
		return g.cause(err)
	}
	if why := Ended(g.agreeing); why != nil || !g.use(c.q) { // the group ended after all ranks arrived: without this rank's share, the operation fails everywhere
		g.Abort(why)
		return g.cause(Ended(g.agreeing))
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
		return g.cause(why)
	}
	return err
}

// cause returns the error of a failed operation: an error of the engine takes precedence over the
// group's end.
func (g *Engined) cause(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil && g.broke != nil {
		return g.broke
	}
	return err
}

// use records the queue of an operation. It returns false if the group is over.
func (g *Engined) use(q EngineQueue) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = q
	return !g.over
}

// poll polls group and engine until the group is closed, and then ends the engine.
func (g *Engined) poll() {
	defer close(g.ended)
	tick := time.NewTicker(enginePoll)
	defer tick.Stop()
	for {
		select {
		case <-g.closed:
			if g.drain() {
				g.engine.Close(drainTime)
			} else {
				g.end(Ended(g.agreeing)) // names a peer, if this rank closed because of it
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
		case gone, !g.drain(): // else its next operation fails
			g.Abort(why)
		}
	}
}

// fail ends the group after an error of the engine; the other ranks see this rank leave. The error
// may be caused by a lost peer: if the group notices that, too, the peer is named.
func (g *Engined) fail(err error) {
	if why := EndedSoon(g.agreeing); why != nil {
		g.Abort(why)
		return
	}
	g.mu.Lock()
	g.broke = err
	g.mu.Unlock()
	_ = g.agreeing.Close()
	g.end(err)
}

// drain waits until nothing is pending. It returns false after drainTime or when a peer that may be
// needed has died.
func (g *Engined) drain() bool {
	for end := time.Now().Add(drainTime); g.engine.Pending(); time.Sleep(time.Millisecond) {
		if _, gone := g.lost(); gone || time.Now().After(end) {
			return false
		}
	}
	return true
}

// end makes the queue fail and then terminates pending operations.
func (g *Engined) end(why error) {
	g.mu.Lock()
	q, first, broke := g.queue, !g.over, g.broke != nil
	g.over = true
	g.mu.Unlock()
	if !first {
		return
	}
	if q != nil && (broke || g.engine.Pending()) { // after an error, earlier operations may be incomplete even if none is pending
		q.Fail(why)
	}
	g.aborts.Store(time.Now().UnixNano())
	g.engine.Abort()
	g.aborts.Store(0)
}

// Hangs reports whether the engine has been aborting for longer than a time. Operations in progress may then never end.
func (g *Engined) Hangs(most time.Duration) bool {
	since := g.aborts.Load()
	return since > 0 && time.Since(time.Unix(0, since)) > most
}

func (g *Engined) Abort(err error) {
	g.agreeing.Abort(err)
	if why := Ended(g.agreeing); why != nil { // the first reason counts
		err = why
	}
	g.end(err)
}

// Missing implements Inspectable. After all ranks have arrived, the engine cannot report which rank
// it waits for, so Missing returns all others.
func (g *Engined) Missing() []int {
	if m := g.agreeing.Missing(); m != nil || g.inAgreement.Load() {
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

func (g *Engined) Close() error {
	err := g.agreeing.Close()
	g.close.Do(func() { close(g.closed) })
	return err
}

// Wait waits until the engine has ended, after Close, at most for a time. It reports whether it has.
func (g *Engined) Wait(most time.Duration) bool {
	select {
	case <-g.ended:
		return true
	case <-time.After(most):
		return false
	}
}

// Introduce distributes rank 0's secret to all ranks, so that the ends of an Engine can find each
// other. It waits for q, at most limit.
func Introduce(g Group, q device.Queue, limit time.Duration, secret func() ([]byte, error)) ([]byte, error) {
	in := inspectable(g)
	late := time.AfterFunc(limit, func() { in.Abort(fmt.Errorf("not all ranks joined within %v", limit)) })
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
		return nil, errors.New("rank 0 has no secret")
	}
	return all[0], nil
}

// Ended returns why the group has ended, or nil while it is open. Use it while waiting for its
// ranks by other means, as an Engine does during setup.
func Ended(g Group) error {
	m, ok := g.(agreeing)
	if !ok {
		return nil
	}
	why, _ := m.lost()
	return why
}
