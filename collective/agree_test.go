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

// telling is a wire that counts notes.
type telling struct {
	collective.Wire
	notes *atomic.Int64
}

func (w telling) Note(to int, n collective.Note) {
	w.notes.Add(1)
	w.Wire.Note(to, n)
}

// agreeing are ranks of one process over sockets' wires, with engines that do nothing, so
// that their operations on a device's memory are agreements alone.
type agreeing struct {
	groups []*collective.Engined
	queues []*stream
	notes  atomic.Int64
}

// stream is a queue that an engine's operations can be issued on.
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
func (s *stream) Behind(device.Event) {}
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

// nothing is an engine whose operations are done at once.
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
		w := collective.NewWired(telling{net.Wire(0, r), &a.notes})
		a.groups = append(a.groups, collective.NewEngined(w, &nothing{}))
		a.queues = append(a.queues, &stream{Queue: d.NewQueue("comm")})
	}
	t.Cleanup(func() {
		for r, g := range a.groups {
			_ = g.Close()
			g.Wait()
			a.queues[r].Close()
		}
		net.Close()
		d.Close()
	})
	return a
}

// each runs f on every rank at once and returns what its queue says.
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

// apart is memory that the host cannot address, which nobody touches.
func apart(g collective.Group) (whole, own device.Buffer) {
	whole = device.Buffer{Type: device.F32, N: 2 * g.Size()}
	return whole, device.Buffer{Type: device.F32, N: 2}
}

// Ranks agree on one call after the other, also beside operations on the host's memory,
// in about twice the logarithm of their number of notes each, and not one to each other.
func TestRanksAgreeInFewNotes(t *testing.T) {
	for _, size := range []int{2, 8, 9, 16, 33, 100} {
		a := newAgreeing(t, size)
		const calls = 20
		for _, err := range a.each(func(_ int, g *collective.Engined, q *stream) {
			for range calls {
				whole, own := apart(g)
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
				whole, own := apart(g)
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

// Whatever differs, all ranks are told who calls what: another call, an operation skipped,
// one on the host's memory; and no engine has begun.
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
			whole, own := apart(g)
			g.AllGather(q, whole, own)
			switch {
			case r == odd && r == 0:
				g.ReduceScatter(q, own, whole)
				return
			case r == odd && r == 4:
				g.Reduce(q, whole)
				return
			case r == odd && r == 7: // it skips one
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

// Who waits for a rank that does not come is one of those that it would have told, and
// names it; the others name nobody. So all that is named is absent, and each that is absent is
// named unless all it would tell are absent, too.
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
				if slices.Equal(a.groups[r].Missing(), want) { // in the end it is
					r++
				}
			}
			for _, g := range a.groups {
				g.Abort(enough)
			}
		})
		for r, err := range a.each(func(r int, g *collective.Engined, q *stream) {
			whole, own := apart(g)
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

// owing is whom a rank misses: of those that tell it their call, who is absent.
func owing(r, size int, absent []int) (names []int) {
	for d := 1; d < size; d *= 2 {
		if p := (r - d + size) % size; slices.Contains(absent, p) {
			names = append(names, p)
		}
	}
	slices.Sort(names)
	return names
}

// A rank that leaves instead of agreeing is named by all.
func TestRanksThatLeaveAreNamed(t *testing.T) {
	const size = 19
	for _, leaves := range []int{0, 9, 18} {
		a := newAgreeing(t, size)
		for r, err := range a.each(func(r int, g *collective.Engined, q *stream) {
			whole, own := apart(g)
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
