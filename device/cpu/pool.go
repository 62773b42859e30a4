package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"zeroth/device/cpu/kernel"
)

// pool is the workers that the queues of a device share: goroutines beside
// the queue's own that live as long as the device. One kernel at a time has
// the pool; a queue that finds it taken runs its kernel alone.
//
// Between two kernels of a step lie microseconds, and waking a parked goroutine
// takes tens of them. So a worker that has run out of work looks out for more
// for spinTime before it parks, and a queue that has finished its share looks
// out for its workers' end likewise. They look out only where every worker of
// the process can have a processor of its own: ranks that share processors
// would keep each other from working.
//
// Threads are left to the system's scheduler: bound to processors they were no
// faster (BenchmarkMatMul, 2 workers, 128 to 1536 in each direction), parking
// them cost more, and two processes would bind theirs to the same ones.
//
// A worker that is called and has not come when the rest of the work is done
// is sent back: a late worker never makes a kernel later.
type pool struct {
	mu      sync.Mutex // held while a kernel is split
	workers []*poolWorker
	gone    sync.WaitGroup // worker goroutines

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

// pooled is the number of workers, queues included, of all devices that have
// workers.
var pooled atomic.Int64

// mayspin is whether every worker of the process has a processor.
func mayspin() bool { return pooled.Load() <= int64(runtime.GOMAXPROCS(0)) }

// The states of a worker. Called and quitting are set by others, which send on
// wake if they find it parked; running and parked by the worker.
const (
	idle     = iota // looks out for a call, or is about to
	parked          // sleeps until something comes from wake
	called          // there is work
	running         // at work
	quitting        // the device closes
)

// poolWorker is a goroutine of a pool.
type poolWorker struct {
	w     *workspace
	state atomic.Int32
	wake  chan struct{} // (1)
}

func newPool(workers []*workspace) *pool {
	p := &pool{done: make(chan struct{}, 1)}
	for _, w := range workers {
		h := &poolWorker{w: w, wake: make(chan struct{}, 1)}
		p.workers = append(p.workers, h)
		p.gone.Go(func() { p.work(h) })
	}
	pooled.Add(p.size())
	return p
}

// size is the number of workers that look out for each other.
func (p *pool) size() int64 {
	if len(p.workers) == 0 {
		return 0
	}
	return int64(len(p.workers) + 1)
}

func (p *pool) close() {
	pooled.Add(-p.size())
	for _, h := range p.workers {
		h.tell(quitting)
	}
	p.gone.Wait()
}

func (p *pool) work(h *poolWorker) {
	for h.await() {
		p.take(h.w)
		h.state.CompareAndSwap(running, idle)
		p.leave()
	}
}

// tell gives a worker that is not at work a new state.
func (h *poolWorker) tell(state int32) {
	if h.state.Swap(state) == parked {
		h.wake <- struct{}{}
	}
}

// await returns true when the worker is called and now runs, false when it is
// to quit.
func (h *poolWorker) await() bool {
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
			kernel.Pause(8)
			if until() {
				return
			}
		}
	}
}

// take runs pieces of the current kernel until none is left.
func (p *pool) take(w *workspace) {
	t, n := p.job, int64(p.job.n)
	for {
		lo := p.next.Add(p.each) - p.each
		if lo >= n {
			return
		}
		t.run(&t.Args, &w.Worker, int(lo), int(min(lo+p.each, n)))
	}
}

// leave notes that a worker is done with the kernel.
func (p *pool) leave() {
	if p.left.Add(-1) == 0 && p.parked.CompareAndSwap(true, false) {
		p.done <- struct{}{}
	}
}

// split runs all pieces of t, on the caller and as many workers as its grain
// makes worthwhile, and returns when they are done.
func (p *pool) split(t *task, w *workspace) {
	n := min(len(p.workers), t.n/t.grain-1)
	if n < 1 || !p.mu.TryLock() {
		t.run(&t.Args, &w.Worker, 0, t.n)
		return
	}
	defer p.mu.Unlock()
	p.job = t
	p.next.Store(0)
	p.each = int64(max(t.grain, t.n/(4*(n+1))))
	p.left.Store(int32(n + 1))
	for _, h := range p.workers[:n] {
		h.tell(called)
	}
	p.take(w)
	for _, h := range p.workers[:n] {
		if h.state.CompareAndSwap(called, idle) {
			p.leave()
		}
	}
	p.leave()
	p.await()
}

// await returns when all workers are done with the kernel.
func (p *pool) await() {
	spin(func() bool { return p.left.Load() == 0 })
	for p.left.Load() != 0 {
		p.parked.Store(true)
		if p.left.Load() == 0 && p.parked.CompareAndSwap(true, false) {
			return
		}
		<-p.done // perhaps from a worker that was late with the last kernel's end: then once more
	}
}
