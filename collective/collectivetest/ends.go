package collectivetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/tests/nightly"
)

// lost checks that err is the error of rank me after losing the victim.
func lost(me, victim int, err error) error {
	var peer collective.ErrPeerLost
	isPeer := errors.As(err, &peer)
	switch {
	case !errors.Is(err, collective.ErrClosed):
		return fmt.Errorf("error %v after rank %d closed", err, victim)
	case me == victim && isPeer:
		return fmt.Errorf("the rank that closed gets: %v", err)
	case me != victim && (!isPeer || peer.Rank != victim):
		return fmt.Errorf("error %v after rank %d closed, want its name", err, victim)
	}
	return nil
}

// later checks that operations after the group's end fail in the same way, on a queue that has not
// failed.
func later(r *rank, victim int) error {
	collective.AllGather(r, r.q[1], device.OfF32(make([]float32, r.Size())))
	return lost(r.Rank(), victim, r.q[1].Wait())
}

// testAbortBlocked closes one rank after some operations, while the others wait in the next one.
// They close in turn when they get the error.
func testAbortBlocked(t *testing.T, open func(int) []collective.Group) {
	for size := 2; size <= 5; size++ {
		for victim := range size {
			withTeam(t, open(size), func(m *team) {
				m.must(func(r *rank) error {
					b := newGuarded(device.F32, 3*size).Buffer
					for range victim {
						collective.AllGather(r, r.q[0], b)
					}
					if r.Rank() == victim {
						return closeLate(r)
					}
					if size%2 == 0 {
						collective.ReduceScatter(r, r.q[0], b)
					}
					collective.AllReduce(r, r.q[0], b)
					collective.AllGather(r, r.q[0], b)
					err := lost(r.Rank(), victim, r.q[0].Wait())
					return errors.Join(err, r.Close(), later(r, victim))
				})
			})
		}
	}
}

// closeLate closes twice while the others wait.
func closeLate(r *rank) error {
	if err := r.q[0].Wait(); err != nil {
		return err
	}
	time.Sleep(2 * time.Millisecond) // for the others to reach the operation
	return errors.Join(r.Close(), r.Close(), later(r, r.Rank()))
}

// testAbortAnytime closes one rank at a random instant, also during its own work.
func testAbortAnytime(t *testing.T, open func(int) []collective.Group) {
	rng := rand.New(rand.NewPCG(4, 1))
	for range nightly.Of(20, 40) {
		size := 2 + rng.IntN(4)
		victim, n, wait := rng.IntN(size), rng.IntN(3000), time.Duration(rng.IntN(1000))*time.Microsecond
		withTeam(t, open(size), func(m *team) {
			m.must(func(r *rank) error {
				done := make(chan error, 1)
				go func() { done <- untilError(r, n*size) }()
				if r.Rank() == victim {
					time.Sleep(wait)
					if err := r.Close(); err != nil {
						return err
					}
				}
				err := lost(r.Rank(), victim, <-done)
				return errors.Join(err, r.Close(), later(r, victim))
			})
		})
	}
}

// untilError performs operations on n elements until one fails.
func untilError(r *rank, n int) (err error) {
	b := newGuarded(device.F32, n).Buffer
	for err == nil {
		collective.AllReduce(r, r.q[0], b)
		err = r.q[0].Wait()
	}
	return err
}

// testCloseWhenDone closes every rank immediately after its last operation, which must succeed on
// all of them.
func testCloseWhenDone(t *testing.T, open func(int) []collective.Group) {
	for i := range nightly.Of(50, 200) {
		size := 1 + i%5
		withTeam(t, open(size), func(m *team) {
			m.must(func(r *rank) error {
				b := newGuarded(device.F32, size).Buffer
				if i%2 == 0 {
					collective.AllGather(r, r.q[0], b)
				} else {
					collective.ReduceScatter(r, r.q[0], b)
				}
				return errors.Join(r.q[0].Wait(), r.Close())
			})
		})
	}
}

// testFailedQueue fails a rank's queue for a reason unrelated to the group: the rank skips its
// operations, keeps its error, and closes; the others learn of it.
func testFailedQueue(t *testing.T, open func(int) []collective.Group) {
	const lame = 1
	broken := errors.New("broken")
	withTeam(t, open(3), func(m *team) {
		m.must(func(r *rank) error {
			b := newGuarded(device.F32, 3).Buffer
			if r.Rank() == lame {
				r.q[0].Do(func() error { return broken })
			}
			collective.AllReduce(r, r.q[0], b)
			err := r.q[0].Wait()
			if r.Rank() != lame {
				return lost(r.Rank(), lame, err)
			}
			if err != broken {
				return fmt.Errorf("error %v of a queue that failed with %v", err, broken)
			}
			return r.Close()
		})
	})
}
