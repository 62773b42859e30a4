//go:build cuda

package cuda_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cuda"
)

// breaks is an engine with the error returned by err, whose rank's gathers move nothing.
type breaks struct {
	*cuda.Communicator
	err   func() error
	over  sync.Once
	ended chan struct{} // closed by Abort
}

var errLink = errors.New("NCCL: a link is down")

func (b *breaks) Err() error { return b.err() }

func (b *breaks) AllGather(_ device.Queue, _, _ device.Buffer) error { return nil }

func (b *breaks) Abort() {
	b.Communicator.Abort()
	b.over.Do(func() { close(b.ended) })
}

// broken runs three ranks, of which rank 1 breaks when all have begun a gather. It returns each
// rank's error, and that of its next operation.
func broken(t *testing.T, err func(all []*collective.Engined) error) (errs, next []error) {
	c := newClique(t, overWires)
	ends, errs := c.join(3, mustID(t), never)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	under, end := overWires(3)
	defer end()
	var begun atomic.Bool
	b := &breaks{ended: make(chan struct{})}
	groups := make([]*collective.Engined, 3)
	for r := range groups {
		var e collective.Engine = ends[r]
		if r == 1 {
			b.Communicator, e = ends[r], b
			b.err = func() error {
				if !begun.Load() {
					return nil
				}
				return err(groups)
			}
		}
		groups[r] = collective.NewEngined(under[r], e)
	}
	next = make([]error, 3)
	var issued, all sync.WaitGroup
	issued.Add(3)
	for r, g := range groups {
		all.Go(func() {
			x, q := on(t, c.devs[r], device.F32, 3), c.devs[r].NewQueue("comm")
			defer q.Close()
			defer c.devs[r].Free(x)
			collective.AllGather(g, q, x)
			issued.Done()
			if r == 1 { // its queue has nothing to wait for
				select {
				case <-b.ended:
				case <-time.After(time.Minute):
					t.Error("NCCL is not told to abort")
					g.Close()
				}
			}
			errs[r] = q.Wait()
			again := c.devs[r].NewQueue("again")
			defer again.Close()
			collective.AllGather(g, again, x)
			next[r] = again.Wait()
			g.Close()
			g.Wait(time.Minute)
		})
	}
	issued.Wait()
	begun.Store(true)
	all.Wait()
	return errs, next
}

// TestNCCLErrorNamesRank checks that an error detected by NCCL is the failure of its rank: the
// others see it as lost, and it gets NCCL's error.
func TestNCCLErrorNamesRank(t *testing.T) {
	if !again(t, 3) {
		return
	}
	errs, next := broken(t, func([]*collective.Engined) error { return errLink })
	for _, r := range []int{0, 2} {
		wantLost(t, errs[r], 1)
		wantLost(t, next[r], 1)
	}
	if !errors.Is(errs[1], errLink) || !errors.Is(next[1], errLink) {
		t.Errorf("rank 1: %v and then %v, want %v", errs[1], next[1], errLink)
	}
}

// TestNCCLErrorOfAPeer checks that if the error is caused by a lost peer, of which the group
// learns, too, the peer is named.
func TestNCCLErrorOfAPeer(t *testing.T) {
	if !again(t, 3) {
		return
	}
	_, next := broken(t, func(all []*collective.Engined) error {
		all[2].Close()
		for collective.Ended(all[1]) == nil { // rank 1 has just been polled
			time.Sleep(time.Millisecond)
		}
		return errLink
	})
	for r := range 2 {
		wantLost(t, next[r], 2)
	}
}

func wantLost(t *testing.T, err error, rank int) {
	t.Helper()
	var lost collective.ErrPeerLost
	if !errors.As(err, &lost) || lost.Rank != rank {
		t.Errorf("%v, want peer %d lost", err, rank)
	}
}
