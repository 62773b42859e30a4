package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"zeroth/device/cpu/kernel"
)

// pool contains the workers shared by the queues of a device: goroutines in addition to the
// queues' own, which live as long as the device. Only one kernel at a time uses the pool; a queue
// that finds it busy runs its kernel alone.
//
// The gap between two kernels of a step is a few microseconds, while waking a parked goroutine
// takes tens of them. So a worker without work spins for spinTime before it parks, and so does a
// queue that has finished its share and waits for its workers. They spin only if every worker of
// the process can have its own processor; otherwise ranks would slow each other down.
//
// The operating system schedules the threads, among the processors of one node if their memory is
// Near. Binding each to a processor was no faster (BenchmarkMatMul, 2 workers, 128 to 1536 in each
// dimension), made parking more expensive, and would bind the threads of two processes to the same
// processors.
//
// A worker that has been called but has not started when the rest of the work is done is sent
// back, so a late worker never delays a kernel.
type pool struct {
	mu      sync.Mutex // held while a kernel is split
	workers []*poolWorker
	gone    sync.WaitGroup // worker goroutines

	job  *task
	next atomic.Int64 // first piece not yet taken
	each int64        // pieces taken at a time

	running atomic.Int32 // workers that may still be running the kernel
	parked  atomic.Bool  // the queue sleeps until running is 0
	done    chan struct{}
}

// spinTime is how long a worker waits for work, or a queue for its workers, before it parks. The
// gap between the kernels of a step is shorter; waking costs about as much.
const spinTime = 50 * time.Microsecond

// pooled is the number of workers, including queues, of all devices with workers.
var pooled atomic.Int64

// mayspin reports whether every worker of the process can have its own processor.
func mayspin() bool { return pooled.Load() <= int64(runtime.GOMAXPROCS(0)) }

// The states of a worker. Others set called and quitting, and send on wake if they find it parked;
// the worker sets running and parked.
const (
	idle     = iota // spinning, or about to
	parked          // sleeping until a value arrives on wake
	called          // there is work
	running         // working
	quitting        // the device is closing
)

// poolWorker is a goroutine of a pool.
type poolWorker struct {
	w     *workspace
	state atomic.Int32
	wake  chan struct{} // (1)
}

func newPool(workers []*workspace, bind func()) *pool {
	p := &pool{done: make(chan struct{}, 1)}
	for _, w := range workers {
		h := &poolWorker{w: w, wake: make(chan struct{}, 1)}
		p.workers = append(p.workers, h)
		p.gone.Go(func() {
			bind()
			p.work(h)
		})
	}
	pooled.Add(p.size())
	return p
}

// size returns the number of workers that spin for each other.
func (p *pool) size() int64 {
	if len(p.workers) == 0 {
		return 0
	}
	return int64(len(p.workers) + 1)
}

func (p *pool) close() {
	pooled.Add(-p.size())
	for _, h := range p.workers {
		h.set(quitting)
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

// set gives a worker that is not working a new state.
func (h *poolWorker) set(state int32) {
	if h.state.Swap(state) == parked {
		h.wake <- struct{}{}
	}
}

// await returns true when the worker is called and now running, or false when it must quit.
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

// spinRounds limits a spin if the clock does not: a test's fake clock stands still while a
// goroutine runs. One round takes 0.4 to 6 microseconds.
const spinRounds = 256

// spin waits briefly for a condition.
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

// take runs pieces of the current kernel until none remain.
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

// leave records that a worker has finished its share of the kernel.
func (p *pool) leave() {
	if p.running.Add(-1) == 0 && p.parked.CompareAndSwap(true, false) {
		p.done <- struct{}{}
	}
}

// split runs all pieces of t on the caller and as many workers as the task's grain justifies, and
// returns when they are done.
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
	p.running.Store(int32(n + 1))
	for _, h := range p.workers[:n] {
		h.set(called)
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

// await returns when all workers have finished their share.
func (p *pool) await() {
	spin(func() bool { return p.running.Load() == 0 })
	for p.running.Load() != 0 {
		p.parked.Store(true)
		if p.running.Load() == 0 && p.parked.CompareAndSwap(true, false) {
			return
		}
		<-p.done // may come from a worker that finished the previous kernel late; then wait again
	}
}
