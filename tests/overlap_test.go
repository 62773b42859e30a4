package tests

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
	"zeroth/zero"

	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// slow is a group whose operations take time on a clock, usually the fake one of a synctest. It
// also overwrites what an operation leaves undefined: the parts that a gather will fill while it
// runs, and the parts of a reduction that belong to other ranks afterwards. So a test fails if
// they are read.
type slow struct {
	collective.Group
	gather, reduce time.Duration
}

func (s slow) AllGather(q device.Queue, whole, own device.Buffer) {
	s.spoil(q, whole, own)
	q.Do(func() error { time.Sleep(s.gather); return nil })
	s.Group.AllGather(q, whole, own)
}

func (s slow) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	q.Do(func() error { time.Sleep(s.reduce); return nil })
	s.Group.ReduceScatter(q, own, whole)
	s.spoil(q, whole, own)
}

// spoil sets all bits outside the rank's own part, which gives NaN in every float type.
func (s slow) spoil(q device.Queue, whole, own device.Buffer) {
	for r := range s.Size() {
		part := collective.Part(s, whole, r)
		if part.Ptr == own.Ptr || part.N == 0 {
			continue
		}
		ones := slices.Repeat([]byte{0xff}, part.Bytes())
		q.Copy(part, device.Buffer{Type: part.Type, Host: true, N: part.N, Ptr: unsafe.Pointer(&ones[0])})
	}
}

// lagging delays every task of a rank's queues at random, so that work not ordered by a mark runs
// in another order.
func lagging(r *setup.Rank) {
	for i, q := range r.Queues.All() {
		rng := rand.New(rand.NewPCG(uint64(r.Rank), uint64(i)))
		q.Trace(func(device.Span) { time.Sleep(time.Duration(rng.ExpFloat64() * 1e3)) })
	}
}

// TestDelaysDoNotChangeBits checks that losses, norms and parameters have the same bits for any
// prefetch and for any duration of gathers, reductions and other work on each rank.
func TestDelaysDoNotChangeBits(t *testing.T) {
	nightly.Parallel(t)
	type wrapper = func(int, collective.Ranks) collective.Ranks
	random := func(seed uint64) wrapper {
		return func(rank int, g collective.Ranks) collective.Ranks {
			if seed>>rank&1 > 0 { // only for some ranks
				g.World = collectivetest.Delayed(g.World, seed, time.Second)
				g.Shard = collectivetest.Delayed(g.Shard, seed+10, time.Second)
				g.Replica = collectivetest.Delayed(g.Replica, seed+20, time.Second)
			}
			return g
		}
	}
	fixed := func(gather, reduce time.Duration) wrapper {
		return func(_ int, g collective.Ranks) collective.Ranks {
			g.Shard, g.Replica = slow{g.Shard, gather, reduce}, slow{g.Replica, gather, reduce}
			return g
		}
	}
	ways := map[string]wrapper{
		"slow gathers": fixed(time.Second, 0), "slow reductions": fixed(0, time.Second), "both slow": fixed(time.Second, time.Second),
		"all ranks": random(15), "ranks 0 and 2": random(5), "rank 3": random(8),
	}
	for i, sets := range [][]string{
		{"zero.stage=0", "train.accumulate=2"},
		{"zero.stage=1", "train.accumulate=2"},
		{"zero.stage=2", "train.accumulate=2"},
		{"zero.stage=3", "train.accumulate=2"},
		{"zero.stage=3", "parallel.shard=2", "parallel.replicate=2", "zero.recompute=block"},
		{"model.family=llama", "model.layers=4", "zero.stage=3", "train.accumulate=2"},
	} {
		t.Run(strings.Join(sets, " "), func(t *testing.T) {
			t.Parallel()
			var want zerotest.Outcome
			for prefetch := range 3 {
				c := cfg(t, append(sets, "parallel.ranks=4", "train.steps=2", fmt.Sprintf("zero.prefetch=%d", prefetch))...)
				if prefetch == 0 {
					want = zerotest.Train(t, c, nil)
				}
				if !nightly.Every(3, i+prefetch) {
					continue
				}
				for name, wrap := range ways {
					synctest.Test(t, func(t *testing.T) {
						zerotest.SameBits(t, fmt.Sprintf("prefetch %d, %s", prefetch, name), zerotest.Train(t, c, wrap), want)
					})
				}
				synctest.Test(t, func(t *testing.T) {
					zerotest.SameBits(t, fmt.Sprintf("prefetch %d, all work late", prefetch), zerotest.TrainAs(t, c, nil, lagging), want)
				})
			}
		})
	}
}

// pace contains the durations of a step's work: the forward and backward pass of a module, the
// gather and the reduction of a unit.
type pace struct{ forward, backward, gather, reduce time.Duration }

// stepTime returns the duration of a step whose work takes as long as p specifies, on a clock
// that advances only when everybody waits.
func stepTime(t *testing.T, c *spec.Job, p pace, replicas bool) (took time.Duration) {
	t.Helper()
	wrap := func(_ int, g collective.Ranks) collective.Ranks {
		if replicas {
			g.Replica = slow{g.Replica, p.gather, p.reduce}
		} else {
			g.Shard = slow{g.Shard, p.gather, p.reduce}
		}
		return g
	}
	_, err := running(t, c, wrap, func(r *setup.Rank) error {
		r.Queues[setup.Compute].Trace(atPace(p))
		for step := range 3 {
			start := time.Now()
			if _, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: 1e-3}); err != nil {
				return err
			}
			if r.Rank > 0 {
				continue
			}
			if now := time.Since(start); step > 0 && now != took {
				return fmt.Errorf("step %d took %v, the one before %v", step+1, now, took)
			}
			took = time.Since(start)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return took
}

// atPace delays a module's pass: its first task that does not wait for other queues sleeps.
func atPace(p pace) func(device.Span) {
	at := ""
	return func(s device.Span) {
		if s.Task == "wait" || s.Label == at || s.Label == "" { // without unit: token ids
			return
		}
		at = s.Label
		switch {
		case strings.HasSuffix(at, ": forward"):
			time.Sleep(p.forward)
		case strings.HasSuffix(at, ": backward"):
			time.Sleep(p.backward)
		default:
			panic("work without a pass: " + at)
		}
	}
}

// TestCommunicationIsHidden checks that all communication except the first gather and the last
// reduction is hidden if a gather takes no longer than a forward pass, and a gather plus a
// reduction no longer than a backward pass. Without prefetch, and with slower communication, a
// step must take as long as shown by the schedules in the comments.
func TestCommunicationIsHidden(t *testing.T) {
	const n = 5 // blocks, so n+2 modules: the first and the last use the root unit
	fast := pace{forward: 30, backward: 70, gather: 29, reduce: 41}
	comm := pace{forward: 30, backward: 70, gather: 50, reduce: 80}
	f, b, g, r := fast.forward, fast.backward, fast.gather, fast.reduce
	F, B, G, R := comm.forward, comm.backward, comm.gather, comm.reduce
	hidden := g + (n+2)*(f+b) + r
	for _, test := range []struct {
		sets     string
		pace     pace
		replicas bool
		want     time.Duration
	}{
		{"zero.stage=3 zero.prefetch=1", fast, false, hidden},
		{"zero.stage=3 zero.prefetch=2", fast, false, hidden},
		{"zero.stage=3 zero.prefetch=1 train.accumulate=3", fast, false, g + 3*(n+2)*(f+b) + r},
		{"zero.stage=3 zero.prefetch=1 zero.recompute=block", fast, false, hidden},
		{"zero.stage=2 zero.prefetch=1", fast, false, hidden},
		{"zero.stage=1 zero.prefetch=1", fast, false, hidden},

		// Whole gradients are reduced one by one. The replicas' all-reduce is a reduction and a
		// gather.
		{"zero.stage=0 zero.prefetch=1", fast, true, (n+2)*(f+b) + r + g},
		// If parameters have their own slots, nothing delays a gather.
		{"zero.stage=1 zero.prefetch=0", fast, false, hidden},
		// With one slot for gradients, a block waits until the next one's gradient is reduced.
		{"zero.stage=2 zero.prefetch=0", fast, false, g + (n+2)*f + 2*b + (n-1)*(r+b) + max(r, b) + r},

		// gather  root h.0       h.1       h.2 …                     One slot for blocks:
		// compute      embed h.0     h.1       h.2 … h.n-1 head      each waits in turn.
		//
		// reduce                  h.n-1              h.n-2           h.0   root
		// gather                        h.n-2              h.n-3
		// compute      head h.n-1             h.n-2            …  h.0 embed
		{"zero.stage=3 zero.prefetch=0", fast, false,
			g + max(g, f) + f + (n-1)*(g+f) + f + 2*b + (n-1)*(r+g+b) + max(r, b) + r},
		{"zero.stage=3 zero.prefetch=0", comm, false,
			G + max(G, F) + F + (n-1)*(G+F) + F + 2*B + (n-1)*(R+G+B) + max(R, B) + R},

		// Bound by communication. Its queue is always busy except around the head, where the last two
		// blocks are still in their slots:
		//
		// comm    gather root, h.0 … h.n-1                  reduce h.n-1, gather h.n-3 … gather h.0, reduce h.1, h.0, root
		// compute                   … h.n-1 head head h.n-1
		{"zero.stage=3 zero.prefetch=1", comm, false, (n+1)*G + 2*F + 2*B + (n-2)*(R+G) + 3*R},
	} {
		sets := append(strings.Fields(test.sets), fmt.Sprintf("model.layers=%d", n), "model.width=4", "model.context=3", "parallel.ranks=3", "device=cpu") // its queues follow the clock
		if got := stepTime(t, cfg(t, sets...), test.pace, test.replicas); got != test.want {
			t.Errorf("%s, %+v: a step takes %d, want %d", test.sets, test.pace, got, test.want)
		}
	}
}
