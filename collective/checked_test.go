package collective_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/collective"
	"zeroth/collective/conformance"
	"zeroth/device"
	"zeroth/shard"
)

func TestCheckedConforms(t *testing.T) {
	conformance.Run(t, wrapped(func(g collective.Group) collective.Group { return collective.Checked(g, 0) }))
}

// TestFaultyConforms delays a random rank now and then.
func TestFaultyConforms(t *testing.T) {
	conformance.Run(t, wrapped(func(g collective.Group) collective.Group {
		return collective.Faulty(g, func(n int) (f collective.Fault) {
			if n%67 == 7*g.Rank() {
				f.Delay = 10 * time.Microsecond
			}
			return f
		})
	}))
}

func TestDelays(t *testing.T) {
	const n, most = 1000, time.Second
	plan, again := collective.Delays(1, 2, most), collective.Delays(1, 2, most)
	seed, rank := collective.Delays(2, 2, most), collective.Delays(1, 3, most)
	var sum time.Duration
	for i := range n {
		d := plan(i).Delay
		if d < 0 || d >= most || d != again(i).Delay {
			t.Fatalf("delay of operation %d is %v, then %v", i, d, again(i).Delay)
		}
		if d == seed(i).Delay || d == rank(i).Delay {
			t.Fatalf("delay of operation %d does not depend on seed and rank", i)
		}
		sum += d
	}
	if mean := sum / n; mean < most*9/20 || mean > most*11/20 {
		t.Errorf("mean delay %v of delays up to %v", mean, most)
	}
}

// TestDelayed runs a few operations, which cannot be faster than their delays.
func TestDelayed(t *testing.T) {
	const n, most = 10, 4 * time.Millisecond
	var least time.Duration
	for i := range n {
		least += collective.Delays(5, 0, most)(i).Delay
	}
	e := newEnds(t, wrapped(func(g collective.Group) collective.Group { return collective.Delayed(g, 5, most) })(2))
	start := time.Now()
	for r, err := range e.do(func(g collective.Group, q device.Queue) {
		for range n {
			g.AllGather(q, device.OfF32(make([]float32, 2)))
		}
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if took := time.Since(start); took < least {
		t.Errorf("%d operations took %v, their delays alone are %v", n, took, least)
	}
}

// TestCheckedLeavesDataAlone has diverging ranks, whose buffers stay as they are.
func TestCheckedLeavesDataAlone(t *testing.T) {
	e := newEnds(t, wrapped(func(g collective.Group) collective.Group { return collective.Checked(g, 0) })(2))
	bufs := [2][]float32{{1, 2, 3, 4}, {5, 6, 7, 8}}
	e.do(func(g collective.Group, q device.Queue) {
		b := device.OfF32(bufs[g.Rank()])
		if g.Rank() == 0 {
			g.AllGather(q, b)
		} else {
			g.ReduceScatter(q, b)
		}
	})
	if !slices.Equal(bufs[0], []float32{1, 2, 3, 4}) || !slices.Equal(bufs[1], []float32{5, 6, 7, 8}) {
		t.Errorf("buffers %v after ranks diverged", bufs)
	}
}

// TestDeadlineNamesTheMissing has ranks 2 and 3 of 4 stay away from the last
// of a few operations; everybody who waits is told, and so is who comes late.
func TestDeadlineNamesTheMissing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	const limit = 50 * time.Millisecond
	groups := wrapped(func(g collective.Group) collective.Group { return collective.Checked(g, limit) })(4)
	t.Run("4 ranks", func(t *testing.T) {
		e := newEnds(t, groups)
		b := make([]float32, 96*4)
		start := time.Now()
		errs := e.do(func(g collective.Group, q device.Queue) {
			own := device.OfF32(b[96*g.Rank():][:96])
			for range 7 {
				g.AllGather(q, own)
			}
			if g.Rank() < 2 {
				g.AllGather(q, own)
			}
		})
		if took := time.Since(start); took < limit || took > time.Minute {
			t.Errorf("deadline of %v took %v", limit, took)
		}
		late := e.do(func(g collective.Group, q device.Queue) {
			if g.Rank() == 2 {
				g.AllGather(q, device.OfF32(make([]float32, 96)))
			}
		})
		const want = "operation 7 (all-gather of 96 fp32): ranks 2,3 did not arrive within 50ms"
		for r, err := range []error{errs[0], errs[1], late[2]} {
			if err == nil || err.Error() != want || !errors.Is(err, collective.ErrClosed) {
				t.Errorf("rank %d: error %v\nwant %s", []int{0, 1, 2}[r], err, want)
			}
		}
		if errs[2] != nil || errs[3] != nil {
			t.Errorf("ranks that were done: %v, %v", errs[2], errs[3])
		}
	})
}

// TestDeadlineNamesWorldRanks has world rank 3 stay away from its replica
// group, which its shard group then hears of from rank 1.
func TestDeadlineNamesWorldRanks(t *testing.T) {
	world := collective.LocalWorld(shard.Mesh{Shard: 2, Replicate: 2})
	e := newEnds(t, []collective.Group{collective.Checked(world[1].Replica, 20*time.Millisecond), world[0].Shard})
	b := device.OfF32(make([]float32, 2))
	e.groups[0].AllGather(e.queues[0], b)
	e.groups[1].AllGather(e.queues[1], device.OfF32(make([]float32, 2)))
	const want = "operation 0 (all-gather of 2 fp32): rank 3 did not arrive within 20ms"
	if err := e.queues[0].Wait(); err == nil || err.Error() != want {
		t.Errorf("error %v\nwant %s", err, want)
	}
	world[1].Close()
	if err := e.queues[1].Wait(); err == nil || err.Error() != want {
		t.Errorf("error %v of a rank in another group\nwant %s", err, want)
	}
}

// TestDeadlineSparesTheSlow has ranks that work for several deadlines between
// operations, and one whose operations each end just in time.
func TestDeadlineSparesTheSlow(t *testing.T) {
	const limit = 200 * time.Millisecond
	e := newEnds(t, wrapped(func(g collective.Group) collective.Group { return collective.Checked(g, limit) })(2))
	errs := e.do(func(g collective.Group, q device.Queue) {
		b := device.OfF32(make([]float32, 2))
		g.AllGather(q, b)
		q.Do(func() error { time.Sleep(limit + limit/4); return nil }) // nobody waits
		for range 4 {
			q.Do(func() error { time.Sleep(time.Duration(g.Rank()) * limit / 3); return nil })
			g.AllGather(q, b)
		}
	})
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestFaultFails(t *testing.T) {
	broken := errors.New("link down")
	e := newEnds(t, wrapped(func(g collective.Group) collective.Group {
		if g.Rank() == 1 {
			return collective.Faulty(g, collective.At(2, collective.Fault{Err: broken}))
		}
		return g
	})(2))
	b := [2][]float32{{1, 0}, {0, 2}}
	for range 3 {
		e.groups[1].AllGather(e.queues[1], device.OfF32(b[1]))
	}
	for range 3 {
		e.groups[0].AllGather(e.queues[0], device.OfF32(b[0]))
	}
	if err := e.queues[1].Wait(); err != broken {
		t.Errorf("error %v of a rank whose operation fails with %v", err, broken)
	}
	e.groups[1].Close()
	if err := e.queues[0].Wait(); !errors.Is(err, collective.ErrPeerLost{Rank: 1}) {
		t.Errorf("error %v of its peer", err)
	}
	if b[0][1] != 2 || b[1][0] != 1 {
		t.Errorf("buffers %v: the operations before the fault did not run", b)
	}
}

// TestFaultDrops has rank 1 of 3 forget its last operation and then, in
// another run, one in the middle.
func TestFaultDrops(t *testing.T) {
	wants := map[int]string{
		2: "operation 2 (reduce-scatter of 3 fp32): rank 1 did not arrive within 50ms",
		1: "operation 1: rank 1 calls reduce-scatter of 3 fp32, ranks 0,2 all-gather of 3 fp32",
	}
	for drop, want := range wants {
		e := newEnds(t, wrapped(func(g collective.Group) collective.Group {
			g = collective.Checked(g, 50*time.Millisecond)
			if g.Rank() == 1 {
				return collective.Faulty(g, collective.At(drop, collective.Fault{Drop: true}))
			}
			return g
		})(3))
		errs := e.do(func(g collective.Group, q device.Queue) {
			b := device.OfF32(make([]float32, 3))
			g.AllGather(q, b)
			g.AllGather(q, b)
			g.ReduceScatter(q, b)
		})
		for _, r := range []int{0, 2} {
			if errs[r] == nil || errs[r].Error() != want {
				t.Errorf("rank %d: error %v\nwant %s", r, errs[r], want)
			}
		}
	}
}

// TestFaultDelays has a rank sleep before its operation: for its time, or
// until it closes.
func TestFaultDelays(t *testing.T) {
	for _, delay := range []time.Duration{30 * time.Millisecond, time.Hour} {
		e := newEnds(t, wrapped(func(g collective.Group) collective.Group {
			return collective.Faulty(g, collective.At(g.Rank(), collective.Fault{Delay: delay}))
		})(1))
		start := time.Now()
		e.groups[0].AllGather(e.queues[0], device.OfF32(make([]float32, 1)))
		if delay == time.Hour {
			e.groups[0].Close()
		}
		err := e.queues[0].Wait()
		if took := time.Since(start); (delay == time.Hour) != errors.Is(err, collective.ErrClosed) || took > time.Minute || took < delay && delay < time.Hour {
			t.Errorf("delay of %v: %v after %v", delay, err, took)
		}
	}
}
