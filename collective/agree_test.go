package collective_test

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/collective/socket"
	"zeroth/device"
	"zeroth/device/cpu"
)

// countingWire counts notes.
type countingWire struct {
	collective.Wire
	notes *atomic.Int64
}

func (w countingWire) Note(to int, n collective.Note) {
	w.notes.Add(1)
	w.Wire.Note(to, n)
}

// agreeing holds ranks of one process, connected by socket wires. Their engines do nothing, so
// operations on device memory only agree.
type agreeing struct {
	groups []*collective.Engined
	queues []*stream
	notes  atomic.Int64
}

// stream is a queue for an engine's operations.
type stream struct {
	*cpu.Queue
	mu  sync.Mutex
	err error
}

func (s *stream) Now(_ string, f func() error) {
	if s.failed() == nil {
		s.Fail(f())
	}
}
func (s *stream) AfterPeer(device.Event) {}
func (s *stream) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}
func (s *stream) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// nothing is an engine whose operations complete at once.
type nothing struct{ calls atomic.Int64 }

func (n *nothing) AllGather(device.Queue, device.Buffer, device.Buffer) error {
	n.calls.Add(1)
	return nil
}
func (n *nothing) ReduceScatter(device.Queue, device.Buffer, device.Buffer) error {
	n.calls.Add(1)
	return nil
}
func (n *nothing) Broadcast(device.Queue, device.Buffer) error {
	n.calls.Add(1)
	return nil
}
func (n *nothing) Reduce(device.Queue, device.Buffer) error {
	n.calls.Add(1)
	return nil
}
func (*nothing) Pending() bool       { return false }
func (*nothing) Err() error          { return nil }
func (*nothing) Abort()              {}
func (*nothing) Close(time.Duration) {}

func newAgreeing(t *testing.T, size int) *agreeing {
	t.Helper()
	all := make([]int, size)
	for r := range all {
		all[r] = r
	}
	net := socket.New(socket.Config{Processes: 1, PerProcess: size, Groups: [][]int{all}})
	d := cpu.New(1)
	a := &agreeing{}
	for r := range size {
		w := collective.NewWired(countingWire{net.Wire(0, r), &a.notes})
		a.groups = append(a.groups, collective.NewEngined(w, &nothing{}))
		a.queues = append(a.queues, &stream{Queue: d.NewQueue("comm")})
	}
	t.Cleanup(func() {
		for r, g := range a.groups {
			_ = g.Close()
			g.Wait(time.Minute)
			a.queues[r].Close()
		}
		net.Close()
		d.Close()
	})
	return a
}

// each runs f on every rank concurrently and returns the errors of the queues.
func (a *agreeing) each(f func(r int, g *collective.Engined, q *stream)) []error {
	errs := make([]error, len(a.groups))
	var all sync.WaitGroup
	for r, g := range a.groups {
		all.Go(func() {
			f(r, g, a.queues[r])
			errs[r] = a.queues[r].failed()
		})
	}
	all.Wait()
	return errs
}

// remote returns memory that the host cannot address, which nobody accesses.
func remote(g collective.Group) (whole, own device.Buffer) {
	whole = device.Buffer{Type: device.F32, N: 2 * g.Size()}
	return whole, device.Buffer{Type: device.F32, N: 2}
}

// TestRanksAgreeInFewNotes checks that ranks agree on consecutive calls, also between operations on
// host memory, with about 2 log N notes each.
func TestRanksAgreeInFewNotes(t *testing.T) {
	for _, size := range []int{2, 8, 9, 16, 33, 100} {
		a := newAgreeing(t, size)
		const calls = 20
		for _, err := range a.each(func(_ int, g *collective.Engined, q *stream) {
			for range calls {
				whole, own := remote(g)
				g.AllGather(q, whole, own)
			}
		}) {
			if err != nil {
				t.Fatalf("%d ranks: %v", size, err)
			}
		}
		each := min(size-1, 2*bits.Len(uint(size-1))-1)
		if size <= 8 {
			each = size - 1
		}
		if got, want := a.notes.Load(), int64(calls*size*each); got != want {
			t.Errorf("%d ranks: %d notes, want %d", size, got, want)
		}
		for _, err := range a.each(func(r int, g *collective.Engined, q *stream) {
			for i := range 6 {
				whole, own := remote(g)
				g.AllGather(q, whole, own)
				if i%2 == 0 {
					x := make([]float32, size)
					x[r] = float32(r)
					collective.AllGather(g, q, device.OfF32(x))
					if err := q.Wait(); err != nil {
						q.Fail(err)
					}
					for j, v := range x {
						if v != float32(j) {
							q.Fail(fmt.Errorf("element %d is %v", j, v))
						}
					}
				}
			}
		}) {
			if err != nil {
				t.Fatalf("%d ranks, beside host memory: %v", size, err)
			}
		}
	}
}

// TestRanksThatDifferAreNamed checks that any difference (another call, a skipped operation, an
// operation on host memory) is reported to all ranks with the sides, before an engine starts.
func TestRanksThatDifferAreNamed(t *testing.T) {
	const size = 21
	for odd, want := range map[int]string{
		0:  "operation 1: rank 0 calls reduce-scatter of 42 fp32, ranks 1-20 all-gather of 42 fp32",
		4:  "operation 1: rank 4 calls reduce of 42 fp32, ranks 0-3,5-20 all-gather of 42 fp32",
		7:  "operation 1: rank 7 calls all-gather of 42 fp32 as operation 2, ranks 0-6,8-20 all-gather of 42 fp32",
		20: "operation 1: rank 20 calls all-gather of 63 fp32, ranks 0-19 all-gather of 42 fp32",
	} {
		a := newAgreeing(t, size)
		for r, err := range a.each(func(r int, g *collective.Engined, q *stream) {
			whole, own := remote(g)
			g.AllGather(q, whole, own)
			switch {
			case r == odd && r == 0:
				g.ReduceScatter(q, own, whole)
				return
			case r == odd && r == 4:
				g.Reduce(q, whole)
				return
			case r == odd && r == 7: // skip one operation
				q.Fail(errors.New("broken"))
				g.AllGather(q, whole, own)
				q.err = nil
			case r == odd && r == 20:
				x := device.OfF32(make([]float32, 63))
				collective.AllGather(g, q, x)
				q.Fail(q.Wait())
				return
			}
			g.AllGather(q, whole, own)
		}) {
			if !errors.As(err, new(collective.ErrDiverged)) || err.Error() != want {
				t.Errorf("rank %d differs: rank %d says %v\nwant %s", odd, r, err, want)
			}
		}
	}
}

// TestRanksThatDoNotComeAreNamed checks that exactly the ranks to which an absent rank owes a note
// name it, so present ranks are never named. An absent rank stays unnamed only if all ranks it owes
// notes are absent, too.
func TestRanksThatDoNotComeAreNamed(t *testing.T) {
	const size = 19
	for _, absent := range [][]int{{0}, {11}, {4, 5, 6, 7}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}} {
		a := newAgreeing(t, size)
		enough := errors.New("enough")
		var named sync.WaitGroup
		named.Go(func() {
			for r := 0; r < size; time.Sleep(time.Millisecond) {
				var want []int
				if !slices.Contains(absent, r) {
					want = owing(r, size, absent)
				}
				if slices.Equal(a.groups[r].Missing(), want) { // eventually
					r++
				}
			}
			for _, g := range a.groups {
				g.Abort(enough)
			}
		})
		for r, err := range a.each(func(r int, g *collective.Engined, q *stream) {
			whole, own := remote(g)
			g.AllGather(q, whole, own)
			if !slices.Contains(absent, r) {
				g.AllGather(q, whole, own)
			}
		}) {
			if slices.Contains(absent, r) != (err == nil) || err != nil && err.Error() != enough.Error() {
				t.Errorf("%v absent: rank %d says %v", absent, r, err)
			}
		}
		named.Wait()
	}
}

// owing returns the absent ranks that owe rank r their call.
func owing(r, size int, absent []int) (names []int) {
	for d := 1; d < size; d *= 2 {
		if p := (r - d + size) % size; slices.Contains(absent, p) {
			names = append(names, p)
		}
	}
	slices.Sort(names)
	return names
}

// TestRanksThatLeaveAreNamed checks that all ranks name a rank that leaves instead of agreeing.
func TestRanksThatLeaveAreNamed(t *testing.T) {
	const size = 19
	for _, leaves := range []int{0, 9, 18} {
		a := newAgreeing(t, size)
		for r, err := range a.each(func(r int, g *collective.Engined, q *stream) {
			whole, own := remote(g)
			for i := range 5 {
				if r == leaves && i == 4 {
					_ = g.Close()
					return
				}
				g.AllGather(q, whole, own)
			}
		}) {
			var lost collective.ErrPeerLost
			if r != leaves && (!errors.As(err, &lost) || lost.Rank != leaves) {
				t.Errorf("rank %d leaves: rank %d says %v", leaves, r, err)
			}
		}
	}
}
