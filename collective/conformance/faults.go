package conformance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/device"
)

// lost checks that err, of a rank, is what the loss of the victim looks like.
func lost(r *rank, victim int, err error) error {
	var peer collective.ErrPeerLost
	isPeer := errors.As(err, &peer)
	switch {
	case !errors.Is(err, collective.ErrClosed):
		return fmt.Errorf("error %v after rank %d closed", err, victim)
	case r.Rank() == victim && isPeer:
		return fmt.Errorf("the rank that closed hears: %v", err)
	case r.Rank() != victim && (!isPeer || peer.Rank != victim):
		return fmt.Errorf("error %v after rank %d closed, want its name", err, victim)
	}
	return nil
}

// later checks that the operations after the group's end fail in the same way.
// A queue that has not failed yet carries them.
func later(r *rank, victim int) error {
	r.AllGather(r.q[1], device.OfF32(make([]float32, r.Size())))
	return lost(r, victim, r.q[1].Wait())
}

// testAbortBlocked closes one rank after some complete operations, while all
// others wait in the next one. They close in turn, as soon as they hear of it.
func testAbortBlocked(t *testing.T, open func(int) []collective.Group) {
	for size := 2; size <= 5; size++ {
		for victim := range size {
			m := newTeam(t, open(size))
			m.must(func(r *rank) error {
				b := device.OfF32(make([]float32, 3*size))
				for range victim {
					r.AllGather(r.q[0], b)
				}
				if r.Rank() == victim {
					if err := r.q[0].Wait(); err != nil {
						return err
					}
					time.Sleep(2 * time.Millisecond) // for the others to get there
					return errors.Join(r.Close(), r.Close(), later(r, victim))
				}
				if size%2 == 0 {
					r.ReduceScatter(r.q[0], b)
				} else {
					r.AllGather(r.q[0], b)
				}
				collective.AllReduce(r, r.q[0], b)
				err := lost(r, victim, r.q[0].Wait())
				return errors.Join(err, r.Close(), later(r, victim))
			})
			m.end()
		}
	}
}

// testAbortAnytime closes one rank at a random instant of everybody's work,
// its own included.
func testAbortAnytime(t *testing.T, open func(int) []collective.Group) {
	rng := rand.New(rand.NewPCG(4, 1))
	for range 40 {
		size := 2 + rng.IntN(4)
		victim, n, wait := rng.IntN(size), rng.IntN(3000), time.Duration(rng.IntN(1000))*time.Microsecond
		m := newTeam(t, open(size))
		m.must(func(r *rank) error {
			done := make(chan error, 1)
			go func() {
				b := device.OfF32(make([]float32, n*size))
				var err error
				for err == nil { // until the group ends
					collective.AllReduce(r, r.q[0], b)
					err = r.q[0].Wait()
				}
				done <- err
			}()
			if r.Rank() == victim {
				time.Sleep(wait)
				if err := r.Close(); err != nil {
					return err
				}
			}
			err := lost(r, victim, <-done)
			return errors.Join(err, r.Close(), later(r, victim))
		})
		m.end()
	}
}

// testCloseWhenDone closes every rank the moment its last operation is done:
// that operation has succeeded on all of them.
func testCloseWhenDone(t *testing.T, open func(int) []collective.Group) {
	for i := range 200 {
		size := 1 + i%5
		m := newTeam(t, open(size))
		m.must(func(r *rank) error {
			b := device.OfF32(make([]float32, size))
			b.F32()[r.Rank()] = 1
			if i%2 == 0 {
				r.AllGather(r.q[0], b)
			} else {
				r.ReduceScatter(r.q[0], b)
			}
			return errors.Join(r.q[0].Wait(), r.Close())
		})
		m.end()
	}
}

// testFailedQueue has a rank whose queue fails for a reason of its own: it
// skips its operations, keeps its error, and closes; the others hear of it.
func testFailedQueue(t *testing.T, open func(int) []collective.Group) {
	m := newTeam(t, open(3))
	defer m.end()
	broken := errors.New("broken")
	m.must(func(r *rank) error {
		b := device.OfF32(make([]float32, 3))
		if r.Rank() == 1 {
			r.q[0].Do(func() error { return broken })
		}
		collective.AllReduce(r, r.q[0], b)
		err := r.q[0].Wait()
		if r.Rank() == 1 {
			if err != broken {
				return fmt.Errorf("error %v of a queue that failed with %v", err, broken)
			}
			return r.Close()
		}
		return lost(r, 1, err)
	})
}
