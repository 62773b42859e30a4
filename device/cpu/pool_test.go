package cpu

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"zeroth/device/cpu/kernel"

	"go.uber.org/goleak"
)

// countTask returns a task of n pieces that counts how often each is run.
func countTask(n, grain int) (*task, []atomic.Int32) {
	counts := make([]atomic.Int32, n)
	return &task{n: n, grain: grain, run: func(_ *kernel.Args, _ *kernel.Worker, lo, hi int) {
		for i := lo; i < hi; i++ {
			counts[i].Add(1)
		}
	}}, counts
}

// TestPoolRunsEveryPieceOnce checks that every piece has run once when split returns, whether the
// workers spin, are parked, or are about to park.
func TestPoolRunsEveryPieceOnce(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, workers := range []int{1, 2, 3, 7} {
		d := NewHost(workers)
		own := newWorkspace(d)
		rng := rand.New(rand.NewPCG(1, uint64(workers)))
		for range 300 {
			tk, counts := countTask(1+rng.IntN(50), 1+rng.IntN(4))
			d.pool.split(tk, own)
			for i := range counts {
				if got := counts[i].Load(); got != 1 {
					t.Fatalf("%d workers: piece %d of %d run %d times", workers, i, tk.n, got)
				}
			}
			if rng.IntN(4) == 0 {
				time.Sleep(time.Duration(rng.Int64N(int64(3 * spinTime))))
			}
		}
		d.Close()
	}
}

// TestPoolIsShared splits kernels on two queues concurrently; one of them gets the pool.
func TestPoolIsShared(t *testing.T) {
	d := NewHost(3)
	defer d.Close()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			own := newWorkspace(d)
			for range 300 {
				tk, counts := countTask(20, 1)
				d.pool.split(tk, own)
				for i := range counts {
					if got := counts[i].Load(); got != 1 {
						t.Errorf("piece %d run %d times", i, got)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// TestPoolSendsLateWorkersBack checks that split does not wait for workers that have not started.
func TestPoolSendsLateWorkersBack(t *testing.T) {
	c := &pool{done: make(chan struct{}, 1)}
	for range 2 { // their goroutines never respond
		c.workers = append(c.workers, &poolWorker{wake: make(chan struct{}, 1)})
	}
	c.workers[1].state.Store(parked)
	tk, counts := countTask(10, 1)
	c.split(tk, &workspace{})
	for i := range counts {
		if counts[i].Load() != 1 {
			t.Errorf("piece %d run %d times", i, counts[i].Load())
		}
	}
	for i, h := range c.workers {
		if s := h.state.Load(); s != idle {
			t.Errorf("worker %d is in state %d, want %d", i, s, idle)
		}
	}
	if len(c.workers[1].wake) != 1 {
		t.Error("the parked worker was not woken")
	}
}

// TestPoolParks checks that a worker without work parks, so that an idle device uses no processor
// time.
func TestPoolParks(t *testing.T) {
	d := NewHost(2)
	defer d.Close()
	h := d.pool.workers[0]
	for deadline := time.Now().Add(10 * time.Second); h.state.Load() != parked; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the worker is in state %d after 10 s", h.state.Load())
		}
	}
}

// TestPoolSpinsOnlyWithProcessorsToSpare checks that workers spin only if each has a processor.
func TestPoolSpinsOnlyWithProcessorsToSpare(t *testing.T) {
	looks := func() (n int) {
		spin(func() bool { n++; return false })
		return n
	}
	before := pooled.Load()
	defer pooled.Store(before)
	pooled.Store(1 << 30)
	if n := looks(); n != 1 {
		t.Errorf("%d looks with more workers than processors, want 1", n)
	}
	pooled.Store(0)
	if n := looks(); n < 2 {
		t.Errorf("%d looks with processors to spare", n)
	}
}

// BenchmarkPool measures splitting an empty kernel, with spinning workers and, after a pause, with
// parked ones.
func BenchmarkPool(b *testing.B) {
	for name, rest := range map[string]time.Duration{"spinning": 0, "parked": 4 * spinTime} {
		b.Run(name, func(b *testing.B) {
			d := NewHost(2)
			defer d.Close()
			own := newWorkspace(d)
			tk := &task{n: 2, grain: 1, run: func(*kernel.Args, *kernel.Worker, int, int) {}}
			var inside time.Duration
			for b.Loop() {
				time.Sleep(rest)
				start := time.Now()
				d.pool.split(tk, own)
				inside += time.Since(start)
			}
			b.ReportMetric(float64(inside.Nanoseconds())/float64(b.N), "ns/split")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// bound is a Memory that reports each goroutine that is bound to it.
type bound struct {
	Memory
	by chan bool
}

func (b bound) Bind() { b.by <- true }

// TestNearBindsAll checks that all workers and all queues of a device are bound to the processors of its memory.
func TestNearBindsAll(t *testing.T) {
	b := bound{pages{}, make(chan bool)}
	d := NewHostFrom(3, b)
	q, r := d.NewQueue("q"), d.NewQueue("r")
	for range 4 {
		<-b.by
	}
	q.Close()
	r.Close()
	d.Close()
}
