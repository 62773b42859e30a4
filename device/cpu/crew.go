package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A crew is the helpers that the queues of a device share: goroutines beside
// the queue's own that live as long as the device. One kernel at a time has
// the crew; a queue that finds it taken runs its kernel alone.
//
// Between two kernels of a step lie microseconds, and waking a parked goroutine
// takes tens of them. So a helper that has run out of work looks out for more
// for spinTime before it parks, and a queue that has finished its share looks
// out for its helpers' end likewise. They look out only where every worker of
// the process can have a processor of its own: ranks that share processors
// would keep each other from working.
//
// Threads are left to the system's scheduler: bound to processors they were no
// faster (BenchmarkMatMul, 2 workers, 128 to 1536 in each direction), parking
// them cost more, and two processes would bind theirs to the same ones.
//
// A helper that is called and has not come when the rest of the work is done
// is sent back: a late helper never makes a kernel later.
type crew struct {
	mu      sync.Mutex // held while a kernel is split
	helpers []*helper
	gone    sync.WaitGroup // helper goroutines

	job  *task
	next atomic.Int64 // first piece nobody has taken
	each int64        // pieces taken at a time

	left   atomic.Int32 // workers that may still be on the kernel
	parked atomic.Bool  // the queue sleeps until left is 0
	done   chan struct{}
}

// spinTime is how long a worker looks out for work or for the others' end
// before it parks. The gap between the kernels of a step is shorter; waking
// costs about as much.
const spinTime = 50 * time.Microsecond

// crewed is the number of workers, queues included, of all devices that have
// helpers.
var crewed atomic.Int64

// mayspin is whether every worker of the process has a processor.
func mayspin() bool { return crewed.Load() <= int64(runtime.GOMAXPROCS(0)) }

// The states of a helper. Called and quitting are set by others, which send on
// wake if they find it parked; running and parked by the helper.
const (
	idle     = iota // looks out for a call, or is about to
	parked          // sleeps until something comes from wake
	called          // there is work
	running         // at work
	quitting        // the device closes
)

// helper is a worker of a crew.
type helper struct {
	w     *worker
	state atomic.Int32
	wake  chan struct{} // (1)
}

func newCrew(workers []*worker) *crew {
	c := &crew{done: make(chan struct{}, 1)}
	for _, w := range workers {
		h := &helper{w: w, wake: make(chan struct{}, 1)}
		c.helpers = append(c.helpers, h)
		c.gone.Go(func() { c.help(h) })
	}
	crewed.Add(c.size())
	return c
}

// size is the number of workers that look out for each other.
func (c *crew) size() int64 {
	if len(c.helpers) == 0 {
		return 0
	}
	return int64(len(c.helpers) + 1)
}

func (c *crew) close() {
	crewed.Add(-c.size())
	for _, h := range c.helpers {
		h.tell(quitting)
	}
	c.gone.Wait()
}

func (c *crew) help(h *helper) {
	for h.await() {
		c.take(h.w)
		h.state.CompareAndSwap(running, idle)
		c.leave()
	}
}

// tell gives a helper that is not at work a new state.
func (h *helper) tell(state int32) {
	if h.state.Swap(state) == parked {
		h.wake <- struct{}{}
	}
}

// await returns true when the helper is called and now runs, false when it is
// to quit.
func (h *helper) await() bool {
	for {
		spin(func() bool { return h.state.Load() != idle })
		switch {
		case h.state.CompareAndSwap(called, running):
			return true
		case h.state.CompareAndSwap(idle, parked):
			<-h.wake
		case h.state.Load() == quitting:
			return false
		}
	}
}

// spinRounds ends a spin where the clock does not: a test's fake clock stands
// still while a goroutine runs. A round is 0.4 to 6 microseconds.
const spinRounds = 256

// spin waits for a condition, but not long.
func spin(until func() bool) {
	if until() || !mayspin() {
		return
	}
	start := time.Now()
	for i := 0; i < spinRounds && time.Since(start) < spinTime; i++ {
		for range 16 {
			pause(8)
			if until() {
				return
			}
		}
	}
}

// take runs pieces of the current kernel until none is left.
func (c *crew) take(w *worker) {
	t, n := c.job, int64(c.job.n)
	for {
		lo := c.next.Add(c.each) - c.each
		if lo >= n {
			return
		}
		t.run(t, w, int(lo), int(min(lo+c.each, n)))
	}
}

// leave notes that a worker is done with the kernel.
func (c *crew) leave() {
	if c.left.Add(-1) == 0 && c.parked.CompareAndSwap(true, false) {
		c.done <- struct{}{}
	}
}

// split runs all pieces of t, on the caller and as many helpers as its grain
// makes worthwhile, and returns when they are done.
func (c *crew) split(t *task, w *worker) {
	n := min(len(c.helpers), t.n/t.grain-1)
	if n < 1 || !c.mu.TryLock() {
		t.run(t, w, 0, t.n)
		return
	}
	defer c.mu.Unlock()
	c.job = t
	c.next.Store(0)
	c.each = int64(max(t.grain, t.n/(4*(n+1))))
	c.left.Store(int32(n + 1))
	for _, h := range c.helpers[:n] {
		h.tell(called)
	}
	c.take(w)
	for _, h := range c.helpers[:n] {
		if h.state.CompareAndSwap(called, idle) {
			c.leave()
		}
	}
	c.leave()
	c.await()
}

// await returns when all workers are done with the kernel.
func (c *crew) await() {
	spin(func() bool { return c.left.Load() == 0 })
	for c.left.Load() != 0 {
		c.parked.Store(true)
		if c.left.Load() == 0 && c.parked.CompareAndSwap(true, false) {
			return
		}
		<-c.done // perhaps from a worker that was late with the last kernel's end: then once more
	}
}
