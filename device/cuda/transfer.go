//go:build cuda

package cuda

import (
	"fmt"
	"sync"

	"zeroth/device"
	"zeroth/device/cuda/kernel"
)

// Transfer is a queue for work that waits for the host: copies for offloading, which wait for the
// host's computations, and collectives carried by the host. The issuer must not block, so a
// goroutine passes the work to a stream, in order, each piece once the host's work that it waits
// for is done. Waiting for a mark waits until it is in the stream, and no longer.
type Transfer struct {
	kernel.Ops
	stream *Queue // used by the goroutine
	tasks  chan transfer
	ended  chan struct{}
	label  string
	calls  sync.Pool // of *kernel.Call

	mu     sync.Mutex
	moved  sync.Cond // signals changes of sunk
	issued uint64    // number of marks
	sunk   uint64    // number of marks in the stream
}

// transfer is an entry of one kind.
type transfer struct {
	kind     kind
	label    string
	name     string // of fn
	fn       func() error
	call     *kernel.Call
	dst, src device.Buffer // src: only for copies
	after    device.Event
}

type kind uint8

const (
	run kind = iota
	launch
	copying
	zeroing
	waiting
	marking
)

// transfersAhead is the maximum number of entries by which the issuer may be ahead of the stream.
const transfersAhead = 256

// NewTransfer opens a stream for work that waits for the host; Close ends it.
func (d *Device) NewTransfer(name string) *Transfer {
	t := &Transfer{stream: d.NewQueue(name), tasks: make(chan transfer, transfersAhead), ended: make(chan struct{})}
	t.moved.L = &t.mu
	t.calls.New = func() any { return new(kernel.Call) }
	t.Ops = kernel.Ops{To: t}
	go t.serve()
	return t
}

// Name returns the name passed to NewTransfer.
func (t *Transfer) Name() string { return t.stream.Name() }

// Trace is like Queue's.
func (t *Transfer) Trace(f func(device.Span)) { t.stream.Trace(f) }

func (t *Transfer) serve() {
	defer close(t.ended)
	for x := range t.tasks {
		t.stream.Label(x.label)
		t.put(x)
		if len(t.tasks) == 0 {
			t.stream.flush() // more may not come for long
		}
	}
}

// put passes an entry to the stream.
func (t *Transfer) put(x transfer) {
	switch x.kind {
	case run:
		t.stream.Call(x.name, x.fn)
	case launch:
		t.stream.Launch(x.call)
		t.calls.Put(x.call)
	case copying:
		t.stream.Copy(x.dst, x.src)
	case zeroing:
		t.stream.Zero(x.dst)
	case waiting:
		t.stream.After(x.after)
	case marking:
		t.stream.Mark()
		t.mu.Lock()
		t.sunk++
		t.moved.Broadcast()
		t.mu.Unlock()
	}
}

func (t *Transfer) issue(x transfer) {
	x.label = t.label
	t.tasks <- x
}

func (t *Transfer) Label(what string) { t.label = what }
func (t *Transfer) Labelled() string  { return t.label }

func (t *Transfer) Launch(c *kernel.Call) {
	mine := t.calls.Get().(*kernel.Call)
	*mine = *c
	t.issue(transfer{kind: launch, call: mine})
}

func (t *Transfer) Copy(dst, src device.Buffer) {
	if dst.Type != src.Type || dst.N != src.N {
		panic(fmt.Sprintf("cuda: copy of %d %v to %d %v", src.N, src.Type, dst.N, dst.Type))
	}
	t.issue(transfer{kind: copying, dst: dst, src: src})
}

// Zero sets every element of b to 0.
func (t *Transfer) Zero(b device.Buffer) { t.issue(transfer{kind: zeroing, dst: b}) }

const noProducts = "cuda: a product on a queue of copies"

// MatMul panics, like all products: they belong to the compute queue.
func (t *Transfer) MatMul(_, _, _ device.Mat, _ device.Buffer, _ bool) { panic(noProducts) }

// MatMulOnto panics.
func (t *Transfer) MatMulOnto(_, _, _, _ device.Mat, _ device.Buffer) { panic(noProducts) }

// MatMulActivate panics.
func (t *Transfer) MatMulActivate(_, _, _, _ device.Mat, _ device.Buffer, _ device.Activation) {
	panic(noProducts)
}

// MatMulActivateGrad panics.
func (t *Transfer) MatMulActivateGrad(_, _, _, _ device.Mat, _ device.Activation) { panic(noProducts) }

// WeightGrad panics.
func (t *Transfer) WeightGrad(_ device.Mat, _ device.Buffer, _, _ device.Mat) { panic(noProducts) }
func (t *Transfer) Do(f func() error)                                         { t.Call("do", f) }

// Call is Do with a name for traces.
func (t *Transfer) Call(name string, f func() error) {
	t.issue(transfer{kind: run, name: name, fn: f})
}

// AddUp sets dst to the sum of src, immediately and in host memory, as defined by collective.Group.
func (t *Transfer) AddUp(dst device.Buffer, src []device.Buffer) { t.stream.AddUp(dst, src) }

func (t *Transfer) After(e device.Event) {
	if e.On != nil && e.On != device.Fence(t) {
		t.issue(transfer{kind: waiting, after: e})
	}
}

func (t *Transfer) Mark() device.Event {
	t.mu.Lock()
	t.issued++
	seq := t.issued
	t.mu.Unlock()
	t.issue(transfer{kind: marking})
	return device.Event{On: t, Seq: seq}
}

// sink waits until a mark is in the stream.
func (t *Transfer) sink(seq uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.sunk < seq {
		t.moved.Wait()
	}
}

func (t *Transfer) Await(seq uint64) error {
	t.sink(seq)
	return t.stream.Await(seq)
}

func (t *Transfer) Wait() error {
	t.sink(t.Mark().Seq)
	return t.stream.Wait()
}

// Clear is like Queue's.
func (t *Transfer) Clear() {
	t.sink(t.Mark().Seq)
	t.stream.Clear()
}

// Close waits for the issued work and ends goroutine and stream.
func (t *Transfer) Close() {
	close(t.tasks)
	<-t.ended
	t.stream.Close()
}
