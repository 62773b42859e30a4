package collectivetest

import (
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/tests/nightly"
)

// checkText compares an error's text.
func checkText(err error, want string) error {
	if err == nil || err.Error() != want {
		return fmt.Errorf("error %v\nwant %s", err, want)
	}
	return nil
}

// testDivergence makes rank 2 of 4 issue a different call, after one on which all agree: all ranks
// must get the same error.
func testDivergence(t *testing.T, open func(int) []collective.Group) {
	f32 := func(n int) device.Buffer { return device.OfF32(make([]float32, n)) }
	gather := func(b device.Buffer) func(*rank) { return func(r *rank) { collective.AllGather(r, r.q[0], clone(b)) } }
	reduce := func(b device.Buffer) func(*rank) {
		return func(r *rank) { collective.ReduceScatter(r, r.q[0], clone(b)) }
	}
	send := func(b device.Buffer) func(*rank) { return func(r *rank) { r.Broadcast(r.q[0], clone(b)) } }
	collect := func(b device.Buffer) func(*rank) { return func(r *rank) { r.Reduce(r.q[0], clone(b)) } }
	tests := []struct {
		odd, rest func(*rank)
		want      string
	}{
		{reduce(f32(96)), gather(f32(96)), "operation 1: rank 2 calls reduce-scatter of 96 fp32, ranks 0,1,3 all-gather of 96 fp32"},
		{gather(f32(100)), gather(f32(96)), "operation 1: rank 2 calls all-gather of 100 fp32, ranks 0,1,3 all-gather of 96 fp32"},
		{gather(device.OfF64(make([]float64, 96))), gather(f32(96)), "operation 1: rank 2 calls all-gather of 96 fp64, ranks 0,1,3 all-gather of 96 fp32"},
		{send(f32(100)), send(f32(96)), "operation 1: rank 2 calls broadcast of 100 fp32, ranks 0,1,3 broadcast of 96 fp32"},
		{collect(f32(96)), send(f32(96)), "operation 1: rank 2 calls reduce of 96 fp32, ranks 0,1,3 broadcast of 96 fp32"},
		{gather(f32(0)), reduce(f32(4)), "operation 1: rank 2 calls all-gather of 0 fp32, ranks 0,1,3 reduce-scatter of 4 fp32"},
	}
	for _, test := range tests {
		withTeam(t, open(4), func(m *team) {
			m.must(func(r *rank) error {
				collective.AllGather(r, r.q[0], f32(8))
				if r.Rank() == 2 {
					test.odd(r)
				} else {
					test.rest(r)
				}
				err := r.q[0].Wait()
				if !errors.As(err, new(collective.ErrDiverged)) {
					return fmt.Errorf("error %T", err)
				}
				return checkText(err, test.want)
			})
		})
	}
}

// testDivergenceOfSeveral tests sides of equal size and a skipped operation.
func testDivergenceOfSeveral(t *testing.T, open func(int) []collective.Group) {
	withTeam(t, open(4), func(m *team) {
		m.must(func(r *rank) error {
			if r.Rank() == 3 {
				r.q[1].Do(func() error { return errors.New("broken") })
				collective.AllGather(r, r.q[1], device.OfI32(make([]int32, 4))) // skipped
			}
			if r.Rank() < 2 {
				collective.ReduceScatter(r, r.q[0], device.OfF64(make([]float64, 8)))
			} else {
				collective.AllGather(r, r.q[0], device.OfI32(make([]int32, 4)))
			}
			return checkText(r.q[0].Wait(), "operation 0: rank 2 calls all-gather of 4 int32, rank 3 all-gather of 4 int32 as operation 1, ranks 0,1 reduce-scatter of 8 fp64")
		})
	})
}

// testLate keeps ranks 2 and 3 of 4 out of the last of several operations with a deadline; all
// ranks that wait get the error, and so does a rank that arrives late.
func testLate(t *testing.T, open func(int) []collective.Group) {
	nightly.Long(t)
	const limit = time.Second
	groups := open(4)
	for i, g := range groups {
		if g != nil {
			groups[i] = collective.Watchdog(g, limit)
		}
	}
	want := regexp.MustCompile(`^operation 7 \(all-gather of 96 fp32\): rank [01] waited 1s for ranks 2,3$`)
	withTeam(t, groups, func(m *team) {
		m.must(func(r *rank) error {
			for range 7 {
				collective.AllGather(r, r.q[0], device.OfF32(make([]float32, 96)))
			}
			if r.Rank() >= 2 {
				if err := r.q[0].Wait(); err != nil {
					return err
				}
				time.Sleep(2 * limit)
			}
			collective.AllGather(r, r.q[0], device.OfF32(make([]float32, 96)))
			err := r.q[0].Wait()
			var late collective.ErrLate
			if !errors.Is(err, collective.ErrClosed) || !errors.As(err, &late) || !want.MatchString(err.Error()) {
				return fmt.Errorf("error %v\nwant %v", err, want)
			}
			return nil
		})
	})
}

// testAllocations counts the allocations of sums after a few iterations.
func testAllocations(t *testing.T, open func(int) []collective.Group) {
	withTeam(t, open(4), func(m *team) {
		bufs, to := make([]device.Buffer, 4), make([]device.Buffer, 4)
		for i := range bufs {
			to[i] = device.OfU16(device.BF16, make([]uint16, 4000))
			bufs[i] = device.OfU16(device.BF16, make([]uint16, 4000))
		}
		wait := func() {
			for _, r := range m.ranks {
				if err := r.q[0].Wait(); err != nil {
					t.Fatal(err)
				}
			}
		}
		step := func() {
			for i, r := range m.ranks {
				collective.AllReduce(r, r.q[0], bufs[i])
				r.Broadcast(r.q[0], bufs[i])
				r.Reduce(r.q[0], bufs[i])
			}
			wait() // groups of device/cuda that take host memory number these when the queue reaches them, but an exchange at once
			for i, r := range m.ranks {
				r.Exchange(r.q[0], to[i], bufs[i])
			}
			wait()
		}
		for range 10 {
			step()
		}
		if n := testing.AllocsPerRun(100, step); n != 0 {
			t.Errorf("%g allocations per operation of 4 ranks", n)
		}
	})
}
