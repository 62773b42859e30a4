//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"zeroth/device"
	processor "zeroth/device/cpu/kernel"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/kernel"
)

// markRing is the number of events of a queue. Marks use them in rotation: waiting for an old mark
// then waits for a newer one, whose work has been issued, too, so there is no deadlock.
const markRing = 256

// Queue is a stream. One goroutine issues work on it: kernels, products and copies on the device
// are collected, a dozen at most, and passed to the driver together, at the latest when the queue
// is marked, waits or is waited for, or its label changes. An issuer that leaves the queue alone
// must mark it.
type Queue struct {
	dev    *Device
	name   string
	stream driver.Stream
	put    *driver.Commands           // collected commands
	marks  [markRing + 1]driver.Event // the last one is for Call
	marked uint64                     // number of marks so far
	label  string                     // also of collected commands
	told   markLabels                 // of the marks
	blas   *driver.BLAS               // nil before the first product
	spans  spans
	kernel.Ops

	broken atomic.Bool // err is set
	mu     sync.Mutex
	err    error  // the first error
	fine   uint64 // marks that it does not concern: those before the work that was skipped first
}

// NewQueue opens a stream; Close ends it. If it cannot be opened, all work on it fails with that
// error.
func (d *Device) NewQueue(name string) *Queue { return d.newQueue(name, false) }

// NewUrgentQueue is NewQueue for a stream with precedence over others: for collectives, which other
// ranks wait for, in parallel with products that fill the GPU.
func (d *Device) NewUrgentQueue(name string) *Queue { return d.newQueue(name, true) }

func (d *Device) newQueue(name string, urgent bool) *Queue {
	q := &Queue{dev: d, name: name}
	q.Ops = kernel.Ops{To: q, Work: d.parts, Choice: d.choice}
	var errs []error
	for i := range q.marks {
		var err error
		q.marks[i], err = d.gpu.NewEvent(false)
		errs = append(errs, err)
	}
	var err error
	q.stream, err = d.gpu.NewStream(urgent)
	q.put = q.stream.Commands()
	q.fail(errors.Join(append(errs, err)...))
	return q
}

// Name returns the name passed to NewQueue.
func (q *Queue) Name() string { return q.name }

// Close waits for the issued work and ends the stream.
func (q *Queue) Close() {
	_ = q.Wait() // callers that need the error have waited
	if q.blas != nil {
		_ = q.blas.Close()
	}
	_ = q.stream.Close()
	for _, e := range q.marks {
		_ = e.Close()
	}
	q.spans.close()
}

// fail makes the first error stick, with the queue's label and device.
func (q *Queue) fail(err error) {
	if err == nil {
		return
	}
	err = fmt.Errorf("%v: %w", q.dev, err)
	if q.label != "" {
		err = fmt.Errorf("%s: %w", q.label, err)
	}
	q.Fail(err)
}

// Fail makes an error stick, unless there is one. It may be called from any goroutine: issued work may have failed, so the
// error concerns all marks.
func (q *Queue) Fail(err error) { q.takeOver(err, 0) }

// takeOver makes an error stick that concerns later marks than those that are fine.
func (q *Queue) takeOver(err error, fine uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err, q.fine = err, fine
		q.broken.Store(true)
	}
	q.fine = min(q.fine, fine)
}

// Clear waits for the issued work and forgets a failure, unless the GPU has failed.
func (q *Queue) Clear() {
	_ = q.Wait()
	q.mu.Lock()
	q.err, q.fine = nil, 0
	q.broken.Store(false)
	q.mu.Unlock()
	_ = q.Wait()
}

// failed returns the queue's error so far.
func (q *Queue) failed() error { return q.failedAt(math.MaxUint64) }

// failedAt returns the queue's error so far, if it concerns a mark. What waits for an earlier one may belong to an update that
// is to be completed.
func (q *Queue) failedAt(seq uint64) error {
	if !q.broken.Load() {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if seq <= q.fine {
		return nil
	}
	return q.err
}

// commands returns where to add the next command.
func (q *Queue) commands() *driver.Commands {
	if q.put.Full() {
		q.flush()
	}
	return q.put
}

// flush passes collected commands to the driver.
func (q *Queue) flush() {
	if err := q.put.Run(); err != nil {
		q.fail(err)
	}
}

// begin begins a task, which end ends. It returns false if the queue has failed.
func (q *Queue) begin(task string) bool {
	if q.broken.Load() {
		return false
	}
	if q.spans.told != nil {
		q.spans.begin(q, task)
	}
	return true
}

func (q *Queue) end() {
	if q.spans.told != nil {
		q.spans.end(q)
	}
}

func (q *Queue) Label(what string) {
	if what != q.label {
		q.flush()
		q.label = what
	}
}

func (q *Queue) Labelled() string { return q.label }

func (q *Queue) Mark() device.Event {
	q.marked++
	q.told.note(q.marked, q.label)
	q.commands().Record(q.marks[q.marked%markRing])
	q.flush()
	return device.Event{On: q, Seq: q.marked}
}

// After implements device.Queue. For work of a host's queue, the issuer blocks.
func (q *Queue) After(e device.Event) {
	q.flush()
	switch on := e.On.(type) {
	case nil:
	case *Queue:
		if on == q {
			return
		}
		q.AfterPeer(e)
		if err := on.failedAt(e.Seq); err != nil {
			q.takeOver(err, q.marked)
		}
	case *Transfer:
		on.sink(e.Seq)
		q.After(device.Event{On: on.stream, Seq: e.Seq})
	default:
		if q.leftOut(q.name, q.label, "host") {
			return
		}
		if err := e.Await(); err != nil {
			q.takeOver(err, q.marked)
		}
	}
}

// AfterPeer is After for a mark of a Queue whose error is not adopted.
func (q *Queue) AfterPeer(e device.Event) {
	on, ok := e.On.(*Queue)
	if !ok {
		panic(fmt.Sprintf("cuda: a mark of a %T among those of GPUs", e.On))
	}
	if !q.leftOut(q.name, q.label, on.name) {
		q.commands().After(on.marks[e.Seq%markRing])
		q.flush()
	}
}

func (q *Queue) Await(seq uint64) error {
	if !q.leftOut("host", q.told.of(seq), q.name) {
		q.fail(q.marks[seq%markRing].Await(0))
	}
	return q.failedAt(seq)
}

// Wait spins, unlike Do: waking a thread would take 30 µs of each generated token.
func (q *Queue) Wait() error {
	q.flush()
	q.fail(q.stream.Wait())
	q.spans.flush()
	return q.failed()
}

// Do implements device.Queue: it waits for previously issued work and runs f.
func (q *Queue) Do(f func() error) { q.Call("do", f) }

// Call is Do with a name for traces.
func (q *Queue) Call(name string, f func() error) {
	q.commands().Record(q.marks[markRing])
	q.flush()
	q.fail(q.marks[markRing].Await(spin))
	q.spans.flush()
	q.Now(name, f)
}

// Now runs f immediately unless the queue has failed; f's error sticks. Without a name it is not
// traced.
func (q *Queue) Now(name string, f func() error) {
	q.flush()
	if q.failed() != nil {
		return
	}
	start := time.Now()
	err := f()
	q.spans.host(q, name, start)
	if err != nil && q.label != "" {
		err = fmt.Errorf("%s: %w", q.label, err)
	}
	if err != nil {
		q.takeOver(err, q.marked)
	}
}

func (q *Queue) Copy(dst, src device.Buffer) {
	if dst.Type != src.Type || dst.N != src.N {
		panic(fmt.Sprintf("cuda: copy of %d %v to %d %v", src.N, src.Type, dst.N, dst.Type))
	}
	if dst.N == 0 {
		return
	}
	if dst.Host && src.Host {
		q.Call("copy", func() error { copy(dst.Raw(), src.Raw()); return nil })
		return
	}
	q.copy("copy", dst, src)
}

// copy passes host memory to the driver immediately: it may be on the Go heap, whose address alone
// is passed to C, and may change afterwards.
func (q *Queue) copy(task string, dst, src device.Buffer) {
	if !q.begin(task) {
		return
	}
	switch c := q.commands(); {
	case src.Host:
		c.ToDevice(dst.Ptr, src.Ptr, dst.Bytes())
	case dst.Host:
		c.ToHost(dst.Ptr, src.Ptr, dst.Bytes())
	default:
		c.OnDevice(dst.Ptr, src.Ptr, dst.Bytes())
	}
	q.end()
	if src.Host || dst.Host {
		q.flush()
		runtime.KeepAlive(dst.Ptr)
		runtime.KeepAlive(src.Ptr)
	}
}

// Zero sets every element of b to 0.
func (q *Queue) Zero(b device.Buffer) {
	if b.N == 0 {
		return
	}
	if b.Host {
		q.Call("zero", func() error { clear(b.Raw()); return nil })
		return
	}
	if q.begin("zero") {
		q.commands().Zero(b.Ptr, b.Bytes())
		q.end()
	}
}

// CopyAll copies each src[i] to dst[i], of equal type and length, with a name for traces. Each pair
// must be the same memory, in which case nothing is done, or not overlap. Sources may be other
// devices' memory.
func (q *Queue) CopyAll(name string, dst, src []device.Buffer) {
	for i := range dst {
		if dst[i].Ptr == src[i].Ptr || dst[i].N == 0 {
			continue
		}
		if dst[i].Host && src[i].Host {
			q.Call(name, func() error { copy(dst[i].Raw(), src[i].Raw()); return nil })
			continue
		}
		q.copy(name, dst[i], src[i])
	}
}

// SumAll sets dst, of one element, to the element-wise sum of the sources in order, as defined by
// collective.Group. Sources may be other devices' memory. A single source that is dst needs no work.
func (q *Queue) SumAll(_ string, dst, src []device.Buffer) {
	switch {
	case len(src) > 1 && len(q.dev.peers) > 0:
		q.SumPeers(dst[0], src)
	case len(src) > 1 || src[0].Ptr != dst[0].Ptr:
		q.SumInto(dst[0], src)
	}
}

// AddUp sets dst to the sum of src, like SumAll, but immediately, in host memory, on the caller's
// goroutine.
func (q *Queue) AddUp(dst device.Buffer, src []device.Buffer) { processor.AddUp(dst, src) }

func (q *Queue) Launch(c *kernel.Call) {
	if !q.begin(c.Kernel.Name) {
		return
	}
	if f, err := q.dev.gpu.function(c.Kernel); err != nil {
		q.fail(err)
	} else {
		q.commands().Launch(*f, c.Grid, c.Shared, c.Args())
	}
	q.end()
}
