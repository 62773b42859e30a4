package cpu

import (
	"sync"
	"sync/atomic"
)

// worker is the private memory of one goroutine that runs pieces of kernels.
type worker struct {
	scratch []float32
	ends    [5][16]float32 // the last elements of arrays, filled up to a vector
}

// floats is work space of n elements, valid until the next call; its contents
// are undefined.
func (w *worker) floats(n int) []float32 {
	if len(w.scratch) < n {
		w.scratch = make([]float32, n)
	}
	return w.scratch[:n]
}

// crew is the helpers that the queues of a device share: size-1 goroutines
// beside the queue's own. One kernel at a time has the crew; a queue that finds
// it taken runs its kernel alone.
type crew struct {
	mu   sync.Mutex // held while a kernel is split
	wake []chan struct{}
	idle sync.WaitGroup // helpers still on the kernel
	gone sync.WaitGroup // helper goroutines
	job  *task
	next atomic.Int64 // first piece nobody has taken
	each int64        // pieces taken at a time
}

func newCrew(size int) *crew {
	c := &crew{wake: make([]chan struct{}, max(0, size-1))}
	for i := range c.wake {
		c.wake[i] = make(chan struct{}, 1)
		c.gone.Add(1)
		go c.help(c.wake[i])
	}
	return c
}

func (c *crew) help(wake chan struct{}) {
	defer c.gone.Done()
	w := &worker{}
	for range wake {
		c.take(w)
		c.idle.Done()
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

// split runs all pieces of t, on the caller and as many helpers as its grain
// makes worthwhile, and returns when they are done.
func (c *crew) split(t *task, w *worker) {
	helpers := min(len(c.wake), t.n/t.grain-1)
	if helpers < 1 || !c.mu.TryLock() {
		t.run(t, w, 0, t.n)
		return
	}
	defer c.mu.Unlock()
	c.job = t
	c.next.Store(0)
	c.each = int64(max(t.grain, t.n/(4*(helpers+1))))
	c.idle.Add(helpers)
	for _, wake := range c.wake[:helpers] {
		wake <- struct{}{}
	}
	c.take(w)
	c.idle.Wait()
}

func (c *crew) close() {
	for _, wake := range c.wake {
		close(wake)
	}
	c.gone.Wait()
}
