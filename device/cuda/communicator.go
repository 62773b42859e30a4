//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"zeroth/device"
	"zeroth/device/cuda/driver"
)

// Communicator is a rank's end of an NCCL communicator, a collective.Engine.
type Communicator struct {
	dev    *Device
	ending atomic.Bool // set by Abort: waits for NCCL give up

	rank, ranks int
	exact       bool            // this device adds, in rank order
	bounce      device.Buffer   // of exact sums
	terms       []device.Buffer // of an exact sum; used by the issuing goroutine

	mu    sync.Mutex
	comm  *driver.Comm // nil after its end
	last  driver.Event // after the last operation
	begun bool         // last is valid
	known []driver.Registration
}

// errEnded is returned by operations of a communicator that has ended.
var errEnded = errors.New("NCCL: the communicator has ended")

// spin is how long the host polls before it sleeps: longer than NCCL usually takes to enqueue an
// operation. NCCL is polled at intervals after that.
const (
	spin  = 200 * time.Microsecond
	pause = 50 * time.Microsecond
)

// NewCommunicatorID returns the secret by which the ranks of a communicator find each other.
func NewCommunicatorID() ([]byte, error) {
	if _, err := driver.OpenNCCL(); err != nil {
		return nil, err
	}
	return driver.NCCLID()
}

// Join opens the device's end of a communicator with an id, as one of its ranks, once all have
// joined. It gives up with stop's error.
func (d *Device) Join(id []byte, ranks, rank int, stop func() error) (*Communicator, error) {
	if _, err := driver.OpenNCCL(); err != nil {
		return nil, err
	}
	c := &Communicator{dev: d, rank: rank, ranks: ranks}
	var err error
	if c.last, err = d.gpu.NewEvent(false); err != nil {
		return nil, err
	}
	type begun struct {
		comm *driver.Comm
		err  error
	}
	done := make(chan begun, 1)
	go func() { // versions before 2.14 block until all have joined, without regard to stop
		comm, err := d.gpu.NewComm(ranks, id, rank)
		done <- begun{comm, err}
	}()
	for c.comm == nil {
		select {
		case b := <-done:
			if b.err != nil {
				return nil, b.err
			}
			c.comm = b.comm
		case <-time.After(time.Millisecond):
			if why := stop(); why != nil {
				return nil, why
			}
		}
	}
	if err := c.settled(stop); err != nil {
		c.Abort()
		return nil, err
	}
	return c, nil
}

// settled waits until NCCL has completed what it started, or returns stop's error.
func (c *Communicator) settled(stop func() error) error {
	for {
		err := c.comm.State()
		if err != driver.ErrInProgress {
			return err
		}
		if why := stop(); why != nil {
			return why
		}
		time.Sleep(time.Millisecond)
	}
}

// types maps types to NCCL's.
var types = map[device.DType]int{
	device.F32: driver.NCCLFloat32, device.BF16: driver.NCCLBFloat16, device.F16: driver.NCCLFloat16,
	device.F64: driver.NCCLFloat64, device.I32: driver.NCCLInt32, device.I64: driver.NCCLInt64,
}

func (c *Communicator) AllGather(on device.Queue, whole, own device.Buffer) error {
	q := c.streamOf(on, whole, own)
	return c.run(q, func() error { return c.comm.AllGather(q.stream, whole.Ptr, own.Ptr, own.N, types[own.Type]) })
}

// ReduceScatter implements collective.Engine: NCCL adds or, after AddExactly, this device.
func (c *Communicator) ReduceScatter(on device.Queue, own, whole device.Buffer) error {
	q := c.streamOf(on, whole, own)
	if c.exact {
		return c.exactSum(q, own, whole)
	}
	return c.run(q, func() error { return c.comm.ReduceScatter(q.stream, own.Ptr, whole.Ptr, own.N, types[own.Type]) })
}

func (c *Communicator) Broadcast(on device.Queue, b device.Buffer) error {
	q := c.streamOf(on, b)
	return c.run(q, func() error { return c.comm.Broadcast(q.stream, c.rank, c.ranks, b.Ptr, b.Bytes()) })
}

// Reduce implements collective.Engine, with sums like ReduceScatter's.
func (c *Communicator) Reduce(on device.Queue, b device.Buffer) error {
	q := c.streamOf(on, b)
	if c.exact {
		return c.exactReduce(q, b)
	}
	return c.run(q, func() error { return c.comm.Reduce(q.stream, c.rank, b.Ptr, b.N, types[b.Type]) })
}

// streamOf returns the queue of an operation. It panics if the queue or a buffer belongs to another
// device.
func (c *Communicator) streamOf(on device.Queue, bs ...device.Buffer) *Queue {
	if w, ok := on.(interface{ Unwrap() device.Queue }); ok { // a wrapper that shadows a queue
		on = w.Unwrap()
	}
	q, ok := on.(*Queue)
	if !ok || q.dev != c.dev {
		panic(fmt.Sprintf("cuda: a communicator of %v on a %T of another device", c.dev, on))
	}
	for _, b := range bs {
		if b.Host {
			panic("cuda: NCCL on host memory")
		}
	}
	return q
}

// run enqueues an operation on the queue's stream and records an event after it.
func (c *Communicator) run(q *Queue, f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.comm == nil || c.ending.Load() {
		return errEnded
	}
	q.flush() // f enqueues NCCL's work after that
	err := f()
	if err == driver.ErrInProgress {
		err = c.comm.Settle(spin)
	}
	for ; err == driver.ErrInProgress && !c.ending.Load(); err = c.comm.State() {
		time.Sleep(pause)
	}
	if err == driver.ErrInProgress {
		err = errEnded
	}
	if err == nil {
		q.put.Record(c.last)
		err = q.put.Run()
	}
	c.begun = c.begun || err == nil
	return err
}

func (c *Communicator) Pending() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun && !c.last.Reached()
}

// Err implements collective.Engine. While an operation is being enqueued, it returns nil, since the
// issuer gets the error.
func (c *Communicator) Err() error {
	if !c.mu.TryLock() {
		return nil
	}
	defer c.mu.Unlock()
	if c.comm == nil || c.ending.Load() {
		return nil
	}
	if err := c.comm.State(); err != driver.ErrInProgress {
		return err
	}
	return nil
}

func (c *Communicator) Abort() {
	c.ending.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.comm != nil {
		_ = c.comm.Abort() // nothing can be done about an error
		c.comm = nil
	}
	c.begun = false
}

func (c *Communicator) Close(most time.Duration) {
	c.mu.Lock()
	if c.comm == nil {
		c.mu.Unlock()
		return
	}
	err := c.comm.State()
	if err == nil { // else NCCL may still write what it registers to memory that forget frees
		c.forget()
		err = c.comm.Finalize()
		for end := time.Now().Add(most); err == driver.ErrInProgress && time.Now().Before(end); err = c.comm.State() {
			time.Sleep(time.Millisecond)
		}
	}
	if err == nil {
		_ = c.comm.Close() // nothing can be done about an error
		c.comm = nil
	}
	c.mu.Unlock()
	c.Abort()
}
