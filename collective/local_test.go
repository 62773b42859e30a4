package collective_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

func openLocal(size int) []collective.Group {
	groups := make([]collective.Group, size)
	for i, l := range collective.NewLocal(size) {
		groups[i] = l
	}
	return groups
}

// wrapped returns an opener of wrapped groups.
func wrapped(by func(collective.Group) collective.Group) func(int) []collective.Group {
	return func(size int) []collective.Group {
		groups := openLocal(size)
		for i, g := range groups {
			groups[i] = by(g)
		}
		return groups
	}
}

func TestLocalConforms(t *testing.T) { collectivetest.Run(t, openLocal) }

// around runs the conformance suite on groups whose calls reach a Local, which TestLocalConforms
// tests with long messages and with late ranks.
func around(t *testing.T, open func(int) []collective.Group) {
	var except []string
	if !nightly.All() {
		except = []string{"Large", "Late"}
	}
	collectivetest.Run(t, open, except...)
}

// TestMeshConforms runs the conformance suite on groups of consecutive ranks of a mesh.
func TestMeshConforms(t *testing.T) {
	nightly.Long(t)
	around(t, func(size int) []collective.Group {
		groups := make([]collective.Group, size)
		for i, r := range collective.LocalWorld(shard.Mesh{Shard: size, Replicate: 2})[:size] {
			groups[i] = r.Shard
		}
		return groups
	})
}

func TestLocalLinksConform(t *testing.T) {
	collectivetest.RunLinks(t, func(m shard.Mesh) ([]collective.Ranks, func()) { return collective.LocalWorld(m), func() {} })
}

// ends holds the ends of a group with a queue for each.
type ends struct {
	groups []collective.Group
	queues []*cpu.Queue
}

func newEnds(t testing.TB, groups []collective.Group) *ends {
	e := &ends{groups: groups}
	for range groups {
		d := cpu.NewHost(1)
		q := d.NewQueue("comm")
		e.queues = append(e.queues, q)
		t.Cleanup(func() { q.Close(); d.Close() })
	}
	t.Cleanup(e.close)
	return e
}

func (e *ends) close() {
	for _, g := range e.groups {
		g.Close()
	}
}

// do issues operations on every rank and returns the errors of the queues.
func (e *ends) do(issue func(g collective.Group, q device.Queue)) []error {
	for i, g := range e.groups {
		issue(g, e.queues[i])
	}
	errs := make([]error, len(e.queues))
	for i, q := range e.queues {
		errs[i] = q.Wait()
	}
	return errs
}

// must is like do, but fails the test on an error.
func (e *ends) must(t *testing.T, issue func(g collective.Group, q device.Queue)) {
	t.Helper()
	for i, err := range e.do(issue) {
		if err != nil {
			t.Fatalf("rank %d: %v", e.groups[i].Rank(), err)
		}
	}
}

// TestMeshNamesTheFirstRankThatClosed makes every rank wait in a group; none of the later ones
// shares a group with the rank that closes first.
func TestMeshNamesTheFirstRankThatClosed(t *testing.T) {
	world := collective.LocalWorld(shard.Mesh{Shard: 2, Replicate: 2}) // shard groups 0,1 and 2,3; replica groups 0,2 and 1,3
	const first = 1
	waits := map[int]collective.Group{0: world[0].Shard, 3: world[3].Replica, 2: world[2].Shard}
	errs := make(chan error)
	for r, g := range waits {
		go func() {
			d := cpu.NewHost(1)
			defer d.Close()
			q := d.NewQueue("comm")
			defer q.Close()
			collective.AllGather(g, q, device.OfF32(make([]float32, 2)))
			err := q.Wait()
			if err := world[r].Close(); err != nil {
				t.Error(err)
			}
			if !errors.Is(err, collective.ErrPeerLost{Rank: first}) {
				errs <- fmt.Errorf("rank %d: %v, want the loss of rank %d", r, err, first)
				return
			}
			errs <- nil
		}()
	}
	time.Sleep(2 * time.Millisecond)
	if err := world[first].Close(); err != nil {
		t.Error(err)
	}
	for range waits {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// TestMeshGroups sums world ranks in each group of each rank.
func TestMeshGroups(t *testing.T) {
	for _, m := range []shard.Mesh{{Shard: 1, Replicate: 1}, {Shard: 3, Replicate: 2}, {Shard: 1, Replicate: 4}, {Shard: 4, Replicate: 1}} {
		world := collective.LocalWorld(m)
		pick := map[string]func(int) (collective.Group, []int){
			"shard":   func(r int) (collective.Group, []int) { return world[r].Shard, m.Group(r, shard.Shard) },
			"replica": func(r int) (collective.Group, []int) { return world[r].Replica, m.Group(r, shard.Replicate) },
			"world": func(r int) (collective.Group, []int) {
				return world[r].World, m.Group(0, shard.Shard)[:0:0]
			},
		}
		for name, of := range pick {
			groups, bufs := make([]collective.Group, m.World()), make([][]float32, m.World())
			for r := range groups {
				groups[r], _ = of(r)
				bufs[r] = slices.Repeat([]float32{float32(r)}, groups[r].Size())
			}
			e := newEnds(t, groups)
			for r, g := range groups {
				collective.AllReduce(g, e.queues[r], device.OfF32(bufs[r]))
			}
			for r := range groups {
				if err := e.queues[r].Wait(); err != nil {
					t.Fatal(err)
				}
				_, members := of(r)
				if name == "world" {
					for i := range m.World() {
						members = append(members, i)
					}
				}
				var want float32
				for _, i := range members {
					want += float32(i)
				}
				if bufs[r][0] != want || members[groups[r].Rank()] != r {
					t.Errorf("%v: %s group of rank %d: sum %g, rank %d in it; want %g over %v", m, name, r, bufs[r][0], groups[r].Rank(), want, members)
				}
			}
		}
	}
}

func TestMisuse(t *testing.T) {
	l := collective.NewLocal(2)[0]
	d := cpu.NewHost(1)
	defer d.Close()
	q := d.NewQueue("comm")
	defer q.Close()
	f32 := device.OfF32(make([]float32, 3))
	tests := map[string]func(){
		"group of 0 ranks":          func() { collective.NewLocal(0) },
		"3 elements for 2 ranks":    func() { collective.AllGather(l, q, f32) },
		"of 2 int32: sums":          func() { collective.ReduceScatter(l, q, device.OfI32(make([]int32, 2))) },
		"which is not a LocalQueue": func() { collective.AllGather(l, struct{ device.Queue }{q}, f32.Slice(0, 2)) },
		"no Missing and Abort":      func() { collective.Watchdog(nobody{}, 0) },
	}
	for want, f := range tests {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("panic %q, want %q in it", got, want)
				}
			}()
			f()
		})
	}
}

// nobody is a group that is not Inspectable.
type nobody struct{ collective.Group }

// TestGroupHoldsNoMemory checks that a group drops the buffers of an operation that completed,
// diverged, or was aborted by a peer.
func TestGroupHoldsNoMemory(t *testing.T) {
	for _, peer := range []string{"agrees", "differs", "closes"} {
		synctest.Test(t, func(t *testing.T) {
			e := newEnds(t, openLocal(2))
			p := func() weak.Pointer[float32] {
				bufs := [2][]float32{make([]float32, 1<<16), make([]float32, 1<<16)}
				collective.ReduceScatter(e.groups[0], e.queues[0], device.OfF32(bufs[0]))
				synctest.Wait()
				switch peer {
				case "agrees":
					collective.ReduceScatter(e.groups[1], e.queues[1], device.OfF32(bufs[1]))
				case "differs":
					collective.AllGather(e.groups[1], e.queues[1], device.OfF32(bufs[1]))
				case "closes":
					e.groups[1].Close()
				}
				if err := e.queues[0].Wait(); (err == nil) != (peer == "agrees") {
					t.Errorf("peer %s: %v", peer, err)
				}
				e.queues[1].Wait()
				return weak.Make(&bufs[0][0])
			}()
			runtime.GC()
			if p.Value() != nil {
				t.Errorf("peer %s: memory of an operation still held", peer)
			}
			runtime.KeepAlive(e)
		})
	}
}

// TestOnlyTheFirstCloseCounts closes two ranks independently.
func TestOnlyTheFirstCloseCounts(t *testing.T) {
	e := newEnds(t, openLocal(3))
	e.groups[1].Close()
	e.groups[0].Close()
	errs := e.do(func(g collective.Group, q device.Queue) { collective.AllGather(g, q, device.OfF32(make([]float32, 3))) })
	if errs[1] != collective.ErrClosed {
		t.Errorf("rank that closed first: %v", errs[1])
	}
	for _, r := range []int{0, 2} {
		if !errors.Is(errs[r], collective.ErrPeerLost{Rank: 1}) {
			t.Errorf("rank %d: %v, want the loss of rank 1", r, errs[r])
		}
	}
}

func TestMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ranks := collective.NewLocal(4)
		e := newEnds(t, []collective.Group{ranks[0], ranks[1], ranks[2], ranks[3]})
		for _, r := range []int{3, 1} {
			collective.AllGather(e.groups[r], e.queues[r], device.Buffer{})
		}
		synctest.Wait()
		for r, want := range [][]int{nil, {0, 2}, nil, {0, 2}} {
			if got := ranks[r].Missing(); !slices.Equal(got, want) {
				t.Errorf("rank %d waits for %v, want %v", r, got, want)
			}
		}
		collective.AllGather(e.groups[0], e.queues[0], device.Buffer{})
		collective.AllGather(e.groups[2], e.queues[2], device.Buffer{})
		for r, q := range e.queues {
			if err := q.Wait(); err != nil || ranks[r].Missing() != nil {
				t.Errorf("rank %d: %v, then waits for %v", r, err, ranks[r].Missing())
			}
		}
		collective.AllGather(e.groups[1], e.queues[1], device.Buffer{})
		synctest.Wait()
		ranks[0].Close()
		if got := ranks[1].Missing(); got != nil {
			t.Errorf("waits for %v in a group that has ended", got)
		}
	})
}

// reading is a queue that notes the sources of a gather in their order.
type reading struct {
	*cpu.Queue
	from []device.Buffer
}

func (q *reading) CopyAll(name string, dst, src []device.Buffer) {
	q.Do(func() error { q.from = slices.Clone(src); return nil })
	q.Queue.CopyAll(name, dst, src)
}

// TestGathersReadDifferentRanks checks that in each turn of an all-gather every rank reads from
// another one, so that they do not share a sender's link.
func TestGathersReadDifferentRanks(t *testing.T) {
	const size = 4
	groups, queues := openLocal(size), [size]*reading{}
	for r := range queues {
		queues[r] = &reading{Queue: cpu.NewHost(1).NewQueue("q")}
		defer queues[r].Close()
		collective.AllGather(groups[r], queues[r], device.OfF32(make([]float32, 2*size)))
	}
	for _, q := range queues {
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	for turn := range size {
		readers := map[any]int{}
		for _, q := range queues {
			readers[q.from[turn].Ptr]++
		}
		if len(readers) != size {
			t.Errorf("turn %d: %d ranks are read by %d", turn, len(readers), size)
		}
	}
}
