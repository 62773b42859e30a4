//go:build cuda

package cuda

import (
	"fmt"
	"sync"

	"zeroth/device"
	"zeroth/device/cuda/kernel"
)

// Transfer is a queue of copies between the device and the host. Copies of offload
// wait for what the host computes, and whoever issues them is not to: so a goroutine
// puts them into the stream, in their order, each once the host's work is done that
// it waits for. Whoever waits for a mark waits until it is in the stream, and no
// longer.
type Transfer struct {
	*Queue // the stream, which is the goroutine's
	tasks  chan transfer
	ended  chan struct{}
	label  string

	mu     sync.Mutex
	moved  sync.Cond // sunk changed
	issued uint64    // marks
	sunk   uint64    // of these, in the stream
}

// transfer is one entry: a function, a copy, an event to wait for, or a mark.
type transfer struct {
	label    string
	fn       func() error
	dst, src device.Buffer
	after    device.Event
	mark     bool
}

// transfersAhead bounds how far who issues is ahead of the stream.
const transfersAhead = 256

// NewTransfer opens a stream for copies; Close ends it.
func (d *Device) NewTransfer(name string) *Transfer {
	t := &Transfer{Queue: d.NewQueue(name), tasks: make(chan transfer, transfersAhead), ended: make(chan struct{})}
	t.moved.L = &t.mu
	t.Ops = kernel.Ops{To: noKernels{name}}
	go t.serve()
	return t
}

// noKernels is where the kernels of a Transfer go.
type noKernels struct{ queue string }

func (n noKernels) Launch(c *kernel.Call) {
	panic(fmt.Sprintf("cuda: %s on queue %s, which only copies", c.Kernel.Name, n.queue))
}

func (t *Transfer) serve() {
	defer close(t.ended)
	for x := range t.tasks {
		t.Queue.Label(x.label)
		switch {
		case x.mark:
			t.Queue.Mark()
			t.mu.Lock()
			t.sunk++
			t.moved.Broadcast()
			t.mu.Unlock()
		case x.fn != nil:
			t.Queue.Do(x.fn)
		case x.after.On != nil:
			t.Queue.After(x.after)
		default:
			t.Queue.Copy(x.dst, x.src)
		}
	}
}

// Label implements device.Queue.
func (t *Transfer) Label(what string) { t.label = what }

// Labelled implements device.Queue.
func (t *Transfer) Labelled() string { return t.label }

// Copy implements device.Queue.
func (t *Transfer) Copy(dst, src device.Buffer) {
	if dst.Type != src.Type || dst.N != src.N {
		panic(fmt.Sprintf("cuda: copy of %d %v to %d %v", src.N, src.Type, dst.N, dst.Type))
	}
	t.tasks <- transfer{label: t.label, dst: dst, src: src}
}

// Do implements device.Queue.
func (t *Transfer) Do(f func() error) { t.tasks <- transfer{label: t.label, fn: f} }

// After implements device.Queue.
func (t *Transfer) After(e device.Event) {
	if e.On != nil && e.On != device.Fence(t) {
		t.tasks <- transfer{label: t.label, after: e}
	}
}

// Mark implements device.Queue.
func (t *Transfer) Mark() device.Event {
	t.mu.Lock()
	t.issued++
	seq := t.issued
	t.mu.Unlock()
	t.tasks <- transfer{label: t.label, mark: true}
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

// Await implements device.Fence.
func (t *Transfer) Await(seq uint64) error {
	t.sink(seq)
	return t.Queue.Await(seq)
}

// Wait implements device.Queue.
func (t *Transfer) Wait() error {
	t.sink(t.Mark().Seq)
	return t.Queue.Wait()
}

// Close waits for the issued work and ends goroutine and stream.
func (t *Transfer) Close() {
	close(t.tasks)
	<-t.ended
	t.Queue.Close()
}
