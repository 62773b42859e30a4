package cpu

import (
	"fmt"
	"math"
	"sync"
	"time"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// ringLen limits how far the host runs ahead of a queue.
const ringLen = 256

// task is an entry of a queue: a kernel over n independent pieces of work, several such phases, a
// host function, or an event to wait for.
type task struct {
	name   string
	label  string         // from Label, for example "unit h.3"
	run    kernel.RunFunc // computes pieces [lo, hi)
	n      int            // number of pieces
	grain  int            // minimum number of pieces that justifies another worker
	phases func(t *task, q *Queue)
	fn     func() error
	after  device.Event
	kernel.Args
}

// Queue is a goroutine that runs tasks in order.
type Queue struct {
	name     string
	w        *workspace
	pool     *pool
	products *products
	rope     *rotary

	mu     sync.Mutex
	more   sync.Cond // a task was issued, or the queue closed
	reach  sync.Cond // done has reached wanted
	wanted uint64    // smallest value of done that a caller waits for
	ring   [ringLen]task
	issued uint64 // tasks written to the ring; task s is ring[s%ringLen]
	done   uint64 // completed tasks; done <= issued <= done+ringLen
	fine   uint64 // those before the one that failed
	err    error
	closed bool
	ended  chan struct{}
	label  string
	trace  func(device.Span)
}

// NewQueue starts a queue; Close ends it. If its working space cannot be allocated, all of its work
// fails with that error.
func (d *Device) NewQueue(name string) *Queue {
	q := &Queue{name: name, w: newWorkspace(d), pool: d.pool, products: &d.products, rope: &d.rope, ended: make(chan struct{}), wanted: math.MaxUint64}
	q.more.L, q.reach.L = &q.mu, &q.mu
	q.err = q.w.grow(d.scratch)
	go func() {
		d.bind()
		q.serve()
	}()
	return q
}

// Name returns the name passed to NewQueue.
func (q *Queue) Name() string { return q.name }

// Trace calls f after each subsequent task, from the queue's goroutine, or stops if f is nil. The
// queue must be idle.
func (q *Queue) Trace(f func(device.Span)) { q.trace = f }

// Close waits for the issued work and ends the queue's goroutine.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	q.more.Signal()
	q.mu.Unlock()
	<-q.ended
	q.w.dev.Free(q.w.mem)
	q.w.mem, q.w.Scratch = device.Buffer{}, nil
}

// issue claims the next ring entry. If the ring is full, it blocks until half of it is done: waking
// up for each entry would cost the queue more than small kernels do. The caller fills in the entry
// and calls commit. A queue has one issuing goroutine.
func (q *Queue) issue(name string) *task {
	q.mu.Lock()
	if q.issued-q.done == ringLen {
		q.until(q.done + ringLen/2)
	}
	if q.closed {
		panic("cpu: work issued on a closed queue")
	}
	t := &q.ring[q.issued%ringLen]
	q.mu.Unlock()
	t.name, t.label, t.run, t.n, t.grain = name, q.label, nil, 0, 1
	t.phases, t.fn, t.after = nil, nil, device.Event{}
	if Separate {
		t.Args = kernel.Args{} // do not retain an earlier task's arguments
	}
	return t
}

func (q *Queue) commit() {
	if Separate {
		q.address(&q.ring[q.issued%ringLen])
	}
	q.mu.Lock()
	q.issued++
	q.more.Signal()
	q.mu.Unlock()
}

// kernel commits t as n pieces of work; grain is the minimum number of pieces that justifies
// another worker.
func (q *Queue) kernel(t *task, run kernel.RunFunc, n, grain int) {
	t.run, t.n, t.grain = run, n, max(1, grain)
	q.commit()
}

// phase runs n pieces of one phase of a task, on the pool if workers exceeds 1, and returns when
// they are done.
func (q *Queue) phase(t *task, run kernel.RunFunc, n, grain, workers int) {
	t.run, t.n, t.grain = run, n, grain
	if workers > 1 {
		q.pool.split(t, q.w)
	} else {
		run(&t.Args, &q.w.Worker, 0, n)
	}
}

func (q *Queue) serve() {
	defer close(q.ended)
	q.mu.Lock()
	for {
		for q.done == q.issued && !q.closed {
			q.more.Wait()
		}
		if q.done == q.issued {
			q.mu.Unlock() // not deferred: a task must panic without holding the mutex
			return
		}
		t := &q.ring[q.done%ringLen]
		failed := q.err != nil
		q.mu.Unlock()
		var err error
		if !failed {
			err = q.exec(t)
		}
		q.mu.Lock()
		if q.err == nil && err != nil {
			q.err, q.fine = err, q.done
		}
		if q.done++; q.done >= q.wanted {
			q.wanted = math.MaxUint64
			q.reach.Broadcast()
		}
	}
}

func (q *Queue) exec(t *task) error {
	if q.trace == nil {
		return q.do(t)
	}
	start := time.Now()
	err := q.do(t)
	q.trace(device.Span{Queue: q.name, Label: t.label, Task: t.name, Start: start, End: time.Now()})
	return err
}

func (q *Queue) do(t *task) error {
	switch {
	case t.fn != nil:
		return t.call()
	case t.after.On != nil:
		return t.after.Await()
	case t.phases != nil:
		t.phases(t, q)
	case t.n > 0:
		q.pool.split(t, q.w)
	}
	return nil
}

// call runs a host function. Its error or panic is prefixed with the label.
func (t *task) call() error {
	defer func() {
		if why := recover(); why != nil {
			if t.label != "" {
				why = fmt.Sprintf("%s: %v", t.label, why)
			}
			panic(why)
		}
	}()
	return labelled(t.label, t.fn())
}

func labelled(label string, err error) error {
	if err == nil || label == "" {
		return err
	}
	return fmt.Errorf("%s: %w", label, err)
}

// Label implements device.Queue.
func (q *Queue) Label(what string) { q.label = what }

// Labelled implements device.Queue.
func (q *Queue) Labelled() string { return q.label }

// Do implements device.Queue.
func (q *Queue) Do(f func() error) { q.Call("do", f) }

// Call is like Do with a name for traces.
func (q *Queue) Call(name string, f func() error) {
	q.issue(name).fn = f
	q.commit()
}

// Mark implements device.Queue.
func (q *Queue) Mark() device.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	return device.Event{On: q, Seq: q.issued}
}

// After implements device.Queue. It adopts a failed queue's error.
func (q *Queue) After(e device.Event) {
	if e.On == nil {
		return
	}
	q.issue("wait").after = e
	q.commit()
}

// Await implements device.Fence. A later failure is no error of the event: what waits for it may belong to an update that
// is to be completed.
func (q *Queue) Await(seq uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.until(seq); 0 < seq && seq <= q.fine {
		return nil
	}
	return q.err
}

// until waits until seq tasks are done. The caller holds q.mu.
func (q *Queue) until(seq uint64) {
	for q.done < seq {
		q.wanted = min(q.wanted, seq)
		q.reach.Wait()
	}
}

// Wait implements device.Queue.
func (q *Queue) Wait() error {
	q.mu.Lock()
	seq := q.issued
	q.mu.Unlock()
	return q.Await(seq)
}

// Clear waits for the issued work and forgets the error of a failure whose cause is gone.
func (q *Queue) Clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.until(q.issued)
	q.err, q.fine = nil, 0
}

// Copy implements device.Queue.
func (q *Queue) Copy(dst, src device.Buffer) {
	if dst.Type != src.Type || dst.N != src.N {
		panic(fmt.Sprintf("cpu: copy of %d %v to %d %v", src.N, src.Type, dst.N, dst.Type))
	}
	t := q.issue(copying)
	t.B[0], t.B[1] = dst, src
	q.kernel(t, kernel.RunCopy, dst.Bytes(), copyGrain)
}

const (
	copying   = "copy"
	copyGrain = 1 << 18 // bytes
)

// CopyAll copies each src[i] to dst[i], of equal type and length, on one worker; name appears in
// traces. The memory of each pair must be disjoint or identical; identical pairs are skipped. The
// slices are read when the task runs, so an earlier host function may set their elements.
func (q *Queue) CopyAll(name string, dst, src []device.Buffer) {
	t := q.issue(name)
	t.Many = [2][]device.Buffer{dst, src}
	q.kernel(t, kernel.RunCopyAll, 1, 1)
}

// SumAll sets dst[0] to the sum of the sources, like AddUp, on one worker; name appears in
// traces. As in CopyAll, the slices are read when the task runs. Sources may be in other devices'
// memory.
func (q *Queue) SumAll(name string, dst, src []device.Buffer) {
	t := q.issue(name)
	t.Many = [2][]device.Buffer{dst, src}
	q.kernel(t, kernel.RunSumAll, 1, 1)
}
