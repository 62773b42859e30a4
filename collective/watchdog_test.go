package collective_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/device"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

func TestWatchdogConforms(t *testing.T) {
	nightly.Long(t)
	around(t, wrapped(func(g collective.Group) collective.Group { return collective.Watchdog(g, 0) }))
}

// TestFaultyConforms occasionally delays a random rank.
func TestFaultyConforms(t *testing.T) {
	nightly.Long(t)
	around(t, wrapped(func(g collective.Group) collective.Group {
		return collectivetest.Faulty(g, func(n int) (f collectivetest.Fault) {
			if n%101 == 7*g.Rank() {
				f.Delay = 10 * time.Microsecond
			}
			return f
		})
	}))
}

func TestDelays(t *testing.T) {
	const n, most = 1000, time.Second
	plan, again := collectivetest.Delays(1, 2, most), collectivetest.Delays(1, 2, most)
	seed, rank := collectivetest.Delays(2, 2, most), collectivetest.Delays(1, 3, most)
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

// TestDelayed checks that operations take as long as the longest of their ranks' delays, with a
// fake clock.
func TestDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, most = 10, time.Second
		var want time.Duration
		for i := range n {
			want += max(collectivetest.Delays(5, 0, most)(i).Delay, collectivetest.Delays(5, 1, most)(i).Delay)
		}
		e := newEnds(t, wrapped(func(g collective.Group) collective.Group { return collectivetest.Delayed(g, 5, most) })(2))
		start := time.Now()
		e.must(t, func(g collective.Group, q device.Queue) {
			for range n {
				collective.AllGather(g, q, device.OfF32(make([]float32, 2)))
			}
		})
		if took := time.Since(start); took != want {
			t.Errorf("%d operations took %v, want %v", n, took, want)
		}
	})
}

// TestWatchdogLeavesDataAlone checks that diverging ranks do not modify buffers.
func TestWatchdogLeavesDataAlone(t *testing.T) {
	e := newEnds(t, wrapped(func(g collective.Group) collective.Group { return collective.Watchdog(g, 0) })(2))
	bufs := [2][]float32{{1, 2, 3, 4}, {5, 6, 7, 8}}
	e.do(func(g collective.Group, q device.Queue) {
		b := device.OfF32(bufs[g.Rank()])
		if g.Rank() == 0 {
			collective.AllGather(g, q, b)
		} else {
			collective.ReduceScatter(g, q, b)
		}
	})
	if !slices.Equal(bufs[0], []float32{1, 2, 3, 4}) || !slices.Equal(bufs[1], []float32{5, 6, 7, 8}) {
		t.Errorf("buffers %v after ranks diverged", bufs)
	}
}

// TestDeadlineNamesTheMissing keeps ranks 2 and 3 of 4 out of the last of several operations; all
// ranks that wait get the error, and so does a rank that arrives late.
func TestDeadlineNamesTheMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 2 * time.Second
		e := newEnds(t, wrapped(func(g collective.Group) collective.Group { return collective.Watchdog(g, limit) })(4))
		start := time.Now()
		issue := func(g collective.Group, q device.Queue) {
			collective.AllGather(g, q, device.OfF32(make([]float32, 96)))
		}
		errs := e.do(func(g collective.Group, q device.Queue) {
			for range 7 {
				issue(g, q)
			}
			if g.Rank() < 2 {
				issue(g, q)
			}
		})
		if took := time.Since(start); took != limit {
			t.Errorf("deadline of %v took %v", limit, took)
		}
		issue(e.groups[2], e.queues[2])
		want := regexp.MustCompile(`^operation 7 \(all-gather of 96 fp32\): rank [01] waited 2s for ranks 2,3$`)
		for r, err := range []error{errs[0], errs[1], e.queues[2].Wait()} {
			var late collective.ErrLate
			if !errors.Is(err, collective.ErrClosed) || !errors.As(err, &late) || !want.MatchString(err.Error()) {
				t.Errorf("rank %d: error %v\nwant %v", r, err, want)
			}
		}
		if errs[2] != nil || errs[3] != nil {
			t.Errorf("ranks that were done: %v, %v", errs[2], errs[3])
		}
	})
}

// TestDeadlineNamesWorldRanks keeps world rank 3 out of its replica group; rank 0 learns of it from
// rank 1.
func TestDeadlineNamesWorldRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := collective.LocalWorld(shard.Mesh{Shard: 2, Replicate: 2})
		e := newEnds(t, []collective.Group{collective.Watchdog(world[1].Replica, time.Second), world[0].Shard})
		for i, g := range e.groups {
			collective.AllGather(g, e.queues[i], device.OfF32(make([]float32, 2)))
		}
		const want = "operation 0 (all-gather of 2 fp32): rank 1 waited 1s for rank 3"
		if err := e.queues[0].Wait(); err == nil || err.Error() != want {
			t.Errorf("error %v\nwant %s", err, want)
		}
		world[1].Close()
		if err := e.queues[1].Wait(); err == nil || err.Error() != want {
			t.Errorf("error %v of a rank in another group\nwant %s", err, want)
		}
	})
}

// recorded returns recorders for the ranks of a world, which ask each other.
func recorded(n int) []*collective.Recorder {
	recs := make([]*collective.Recorder, n)
	for r := range recs {
		recs[r] = collective.NewRecorder()
	}
	collective.OnLateLocal(recs)
	return recs
}

// TestDeadlineFollowsWhoWaits keeps rank 3 out of its shard group, where rank 2 waits for it, while
// rank 0 waits for rank 2 in their replica group: rank 3 must be named, although rank 0's deadline
// expires first.
func TestDeadlineFollowsWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := collective.LocalWorld(shard.Mesh{Shard: 2, Replicate: 2})
		recs := recorded(4)
		e := newEnds(t, []collective.Group{recs[0].Watchdog(world[0].Replica, time.Second, "replica", false), recs[2].Watchdog(world[2].Shard, time.Minute, "shard", false)})
		recs[3].Watchdog(world[3].World, time.Minute, "world", false)
		collective.AllGather(e.groups[0], e.queues[0], device.OfF32(make([]float32, 2)))
		e.queues[1].Do(func() error { time.Sleep(time.Second / 2); return nil })
		collective.AllGather(e.groups[1], e.queues[1], device.OfF32(make([]float32, 2)))
		const want = "operation 0 (all-gather of 2 fp32): rank 0 waited 1s for rank 2; root cause: rank 3 has not reached operation 0 of shard (all-gather of 2 fp32, step 0), in which rank 2 waits: its last was no operation"
		if err := e.queues[0].Wait(); err == nil || err.Error() != want {
			t.Errorf("error %v\nwant %s", err, want)
		}
	})
}

// TestDeadlineOfRanksThatWaitForEachOther makes rank 1 skip an operation of its shard group and
// start one of the world; the error must name both sides.
func TestDeadlineOfRanksThatWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := collective.LocalWorld(shard.Mesh{Shard: 2, Replicate: 1})
		recs := recorded(2)
		e := newEnds(t, []collective.Group{recs[0].Watchdog(world[0].Shard, time.Second, "shard", false), recs[1].Watchdog(world[1].World, time.Minute, "world", false)})
		errs := e.do(func(g collective.Group, q device.Queue) { collective.AllGather(g, q, device.OfF32(make([]float32, 2))) })
		const want = "operation 0 (all-gather of 2 fp32): rank 0 waited 1s for rank 1; root cause: ranks 0,1 wait for each other: rank 0 in operation 0 of shard (all-gather of 2 fp32, step 0), rank 1 in operation 0 of world (all-gather of 2 fp32, step 0)"
		if errs[0] == nil || errs[0].Error() != want {
			t.Errorf("error %v\nwant %s", errs[0], want)
		}
	})
}

// limited returns pipeline links with deadlines and a queue each; the first rank's deadline expires
// long before the others'.
func limited(t *testing.T, world []collective.Ranks, links ...[2]int) *ends {
	recs := recorded(len(world))
	for r := range world {
		limit := time.Minute
		if r == 0 {
			limit = time.Second
		}
		for role, g := range world[r].All() {
			*g = recs[r].Watchdog(*g, limit, role.String(), false)
		}
	}
	var groups []collective.Group
	for _, at := range links {
		groups = append(groups, world[at[0]].Links[at[1]])
	}
	return newEnds(t, groups)
}

const toNext, fromPrevious, toPrevious, fromNext = int(collective.ToNext), int(collective.FromPrevious), int(collective.ToPrevious), int(collective.FromNext)

// TestDeadlineOnSeveralQueues makes rank 1 of a pipeline wait in two links: for rank 2 and, for
// data needed later, for rank 0, which waits for rank 1. Rank 2 must be named.
func TestDeadlineOnSeveralQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := collective.LocalWorld(shard.Mesh{Pipeline: 3})
		e := limited(t, world, [2]int{1, fromNext}, [2]int{1, fromPrevious}, [2]int{1, toPrevious}, [2]int{0, fromNext}, [2]int{0, toNext})
		e.queues[2].Label("from 1 to 0")
		e.queues[3].Label("from 1 to 0")
		for i, g := range e.groups {
			switch i {
			case 2: // after the data from rank 2
				e.queues[2].After(e.queues[0].Mark())
			case 4: // after the data from rank 1
				e.queues[4].After(e.queues[3].Mark())
			}
			g.Broadcast(e.queues[i], device.OfF32(make([]float32, 2)))
		}
		const want = "from 1 to 0: operation 0 (broadcast of 2 fp32): rank 0 waited 1s for rank 1; root cause: rank 2 has not reached operation 0 of backward link (broadcast of 2 fp32, step 0), in which rank 1 waits: its last was no operation"
		if err := e.queues[3].Wait(); err == nil || err.Error() != want {
			t.Errorf("error %v\nwant %s", err, want)
		}
	})
}

// TestDeadlineOfABusyRank makes rank 1 compute data for rank 0 while another of its queues already
// waits to receive from rank 0: the two do not block each other.
func TestDeadlineOfABusyRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := collective.LocalWorld(shard.Mesh{Pipeline: 2})
		e := limited(t, world, [2]int{1, toPrevious}, [2]int{1, fromPrevious}, [2]int{0, fromNext})
		e.queues[0].Do(func() error { time.Sleep(time.Hour); return nil })
		for i, g := range e.groups {
			g.Broadcast(e.queues[i], device.OfF32(make([]float32, 2)))
		}
		const want = "operation 0 (broadcast of 2 fp32): rank 0 waited 1s for rank 1; root cause: rank 1 has not reached operation 0 of backward link (broadcast of 2 fp32, step 0), in which rank 0 waits: its last was operation 0 of forward link (broadcast of 2 fp32, step 0), started 1s ago"
		if err := e.queues[2].Wait(); err == nil || err.Error() != want {
			t.Errorf("error %v\nwant %s", err, want)
		}
	})
}

// TestDeadlineSparesTheSlow computes for several deadlines between operations, and runs operations
// that each complete just in time.
func TestDeadlineSparesTheSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Second
		e := newEnds(t, wrapped(func(g collective.Group) collective.Group { return collective.Watchdog(g, limit) })(2))
		e.must(t, func(g collective.Group, q device.Queue) {
			b := device.OfF32(make([]float32, 2))
			q.Do(func() error { time.Sleep(3 * limit); return nil })
			collective.AllGather(g, q, b)
			q.Do(func() error { time.Sleep(5 * limit / 2); return nil })
			for range 4 {
				q.Do(func() error { time.Sleep(time.Duration(g.Rank()) * (limit - 1)); return nil })
				collective.AllGather(g, q, b)
			}
		})
	})
}

// TestDeadlineOverWrapper delays a rank inside an operation for several deadlines before it waits
// for a rank that never arrives.
func TestDeadlineOverWrapper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Second
		g := collectivetest.Faulty(openLocal(2)[0], collectivetest.At(0, collectivetest.Fault{Delay: 5 * limit / 2}))
		e := newEnds(t, []collective.Group{collective.Watchdog(collective.Watchdog(g, time.Hour), limit)})
		start := time.Now()
		const want = "operation 0 (reduce-scatter of 4 fp64): rank 0 waited 1s for rank 1"
		errs := e.do(func(g collective.Group, q device.Queue) {
			collective.ReduceScatter(g, q, device.OfF64(make([]float64, 4)))
		})
		if took := time.Since(start); errs[0] == nil || errs[0].Error() != want || took != 3*limit {
			t.Errorf("after %v: error %v\nwant %s", took, errs[0], want)
		}
	})
}

// TestCloseEndsTheWatchdog closes a watchdog but not its group: its deadline must no longer end the
// group.
func TestCloseEndsTheWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := openLocal(2)
		hold := collective.Watchdog(keepOpen{ends[0].(collective.Inspectable)}, time.Second)
		e := newEnds(t, []collective.Group{hold, ends[1]})
		collective.AllGather(hold, e.queues[0], device.OfF32(make([]float32, 2)))
		synctest.Wait()
		hold.Close()
		time.Sleep(time.Minute)
		collective.AllGather(e.groups[1], e.queues[1], device.OfF32(make([]float32, 2)))
		if err := e.queues[1].Wait(); err != nil {
			t.Errorf("a closed watchdog ended the group: %v", err)
		}
		ends[0].Close()
		ends[1].Close()
	})
}

// keepOpen is a group that ignores Close.
type keepOpen struct{ collective.Inspectable }

func (keepOpen) Close() error { return nil }

func TestFaultFails(t *testing.T) {
	broken := errors.New("link down")
	e := newEnds(t, wrapped(func(g collective.Group) collective.Group {
		if g.Rank() == 1 {
			return collectivetest.Faulty(g, collectivetest.At(2, collectivetest.Fault{Err: broken}))
		}
		return g
	})(2))
	b := [2][]float32{{1, 0}, {0, 2}}
	for range 3 {
		collective.AllGather(e.groups[1], e.queues[1], device.OfF32(b[1]))
	}
	for range 3 {
		collective.AllGather(e.groups[0], e.queues[0], device.OfF32(b[0]))
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

// TestFaultDrops drops rank 1's last operation and, in another run, one in the middle.
func TestFaultDrops(t *testing.T) {
	wants := map[int]string{
		2: `^operation 2 \(reduce-scatter of 3 fp32\): rank [02] waited 1s for rank 1$`,
		1: "^operation 1: rank 1 calls reduce-scatter of 3 fp32, ranks 0,2 all-gather of 3 fp32$",
	}
	for drop, want := range wants {
		synctest.Test(t, func(t *testing.T) {
			groups := wrapped(func(g collective.Group) collective.Group { return collective.Watchdog(g, time.Second) })(3)
			groups[1] = collectivetest.Faulty(groups[1], collectivetest.At(drop, collectivetest.Fault{Drop: true}))
			e := newEnds(t, groups)
			errs := e.do(func(g collective.Group, q device.Queue) {
				b := device.OfF32(make([]float32, 3))
				collective.AllGather(g, q, b)
				collective.AllGather(g, q, b)
				collective.ReduceScatter(g, q, b)
			})
			for _, r := range []int{0, 2} {
				if errs[r] == nil || !regexp.MustCompile(want).MatchString(errs[r].Error()) {
					t.Errorf("rank %d: error %v\nwant %s", r, errs[r], want)
				}
			}
		})
	}
}

// TestDivergenceOfUnits drops the gather of a unit on rank 1 of 3, followed by one of equal size:
// this must be detected at once on every rank, naming both units.
func TestDivergenceOfUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, wrapped(func(g collective.Group) collective.Group { return collective.Watchdog(g, time.Second) })(3))
		bufs := [3][]float32{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}
		errs := e.do(func(g collective.Group, q device.Queue) {
			for unit := range 3 {
				if g.Rank() == 1 && unit == 0 {
					continue
				}
				q.Label(fmt.Sprintf("unit h.%d: all-gather", unit))
				collective.AllGather(g, q, device.OfF32(bufs[g.Rank()]))
			}
		})
		const want = "operation 0: rank 1 calls all-gather of 3 fp32 (unit h.1: all-gather), ranks 0,2 all-gather of 3 fp32 (unit h.0: all-gather)"
		for r, err := range errs {
			if err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("rank %d: error %v\nwant %s", r, err, want)
			}
		}
		if bufs[0][1] != 2 || bufs[1][0] != 4 {
			t.Errorf("buffers %v: the operation moved data", bufs)
		}
	})
}

// TestFaultDelays delays a rank's second operation, for the given time or until it closes.
func TestFaultDelays(t *testing.T) {
	for _, closes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const delay = time.Hour
			e := newEnds(t, wrapped(func(g collective.Group) collective.Group {
				return collectivetest.Faulty(g, collectivetest.At(1, collectivetest.Fault{Delay: delay}))
			})(1))
			start, want := time.Now(), delay
			for range 3 {
				collective.AllGather(e.groups[0], e.queues[0], device.OfF32(make([]float32, 1)))
			}
			if closes {
				want = time.Second
				time.Sleep(want)
				e.groups[0].Close()
			}
			err := e.queues[0].Wait()
			if took := time.Since(start); closes != errors.Is(err, collective.ErrClosed) || took != want {
				t.Errorf("closed %v: %v after %v, want %v", closes, err, took, want)
			}
		})
	}
}
