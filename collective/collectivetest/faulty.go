package collectivetest

import (
	"math/rand/v2"
	"sync"
	"time"

	"zeroth/collective"
	"zeroth/device"
)

// Fault describes how one operation is disturbed; the zero Fault does nothing.
type Fault struct {
	Delay time.Duration // the queue sleeps before the operation, at most until Close
	Err   error         // the operation fails with this error instead of being issued
	Drop  bool          // the operation is never issued
}

// Plan returns the fault of a rank's operation n, counted from 0 in issue order.
type Plan func(n int) Fault

// At returns a plan with one fault.
func At(n int, f Fault) Plan {
	return func(i int) Fault {
		if i == n {
			return f
		}
		return Fault{}
	}
}

// faulty is a group with a plan of faults.
type faulty struct {
	collective.Primitives
	collective.Under
	plan   Plan
	issued int
	gone   chan struct{} // closed by Close
	close  sync.Once
}

// Faulty wraps g to inject the faults of a plan.
func Faulty(g collective.Group, plan Plan) collective.Group {
	f := &faulty{Under: collective.Under{Group: g}, plan: plan, gone: make(chan struct{})}
	f.Issue = func(q device.Queue, o collective.Op, whole, own device.Buffer) {
		if f.pass(q) {
			collective.Do(g, q, o, whole, own)
		}
	}
	return f
}

// Delays returns a plan of random delays below most, one before each operation, determined by the
// seed, the rank and the operation's number.
func Delays(seed uint64, rank int, most time.Duration) Plan {
	return func(n int) Fault {
		rng := rand.New(rand.NewPCG(seed, uint64(rank)<<32|uint64(n)))
		return Fault{Delay: time.Duration(rng.Int64N(int64(most)))}
	}
}

// Delayed wraps g with random delays.
func Delayed(g collective.Group, seed uint64, most time.Duration) collective.Group {
	return Faulty(g, Delays(seed, g.Rank(), most))
}

// pass injects the next operation's fault and reports whether to issue the operation.
func (g *faulty) pass(q device.Queue) bool {
	f := g.plan(g.issued)
	g.issued++
	if f.Delay > 0 {
		q.Do(func() error { g.sleep(f.Delay); return nil })
	}
	if f.Err != nil {
		q.Do(func() error { return f.Err })
	}
	return f.Err == nil && !f.Drop
}

func (g *faulty) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-g.gone:
	}
}

// Close implements Group and wakes a delayed operation.
func (g *faulty) Close() error {
	g.close.Do(func() { close(g.gone) })
	return g.Group.Close()
}
