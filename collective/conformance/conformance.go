// Package conformance is the tests that every implementation of
// collective.Group on host memory passes, for the tests of that implementation
// to run.
package conformance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
)

// patience is how long ranks may take before they are called stuck: far more
// than any test needs on a slow and busy machine.
const patience = time.Minute

// Run tests the groups that open gives: the ends of size ranks, in rank order,
// which the tests close. Each rank has goroutines of its own.
func Run(t *testing.T, open func(size int) []collective.Group) {
	tests := []struct {
		name string
		f    func(*testing.T, func(int) []collective.Group)
	}{
		{"Sums", testSums},
		{"Large", testLarge},
		{"Interleaved", testInterleaved},
		{"Broadcast", testBroadcast},
		{"Barrier", testBarrier},
		{"Reuse", testReuse},
		{"AbortBlocked", testAbortBlocked},
		{"AbortAnytime", testAbortAnytime},
		{"CloseWhenDone", testCloseWhenDone},
		{"FailedQueue", testFailedQueue},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			test.f(t, open)
		})
	}
}

// rank is one rank of a team, with two queues of its own.
type rank struct {
	collective.Group
	q [2]*cpu.Queue
}

// team is the ranks of a group.
type team struct {
	t     *testing.T
	ranks []*rank
	devs  []*cpu.Device
}

func newTeam(t *testing.T, groups []collective.Group) *team {
	m := &team{t: t}
	for i, g := range groups {
		if g.Rank() != i || g.Size() != len(groups) {
			t.Fatalf("group %d of %d says rank %d of %d", i, len(groups), g.Rank(), g.Size())
		}
		d := cpu.New(1)
		m.devs = append(m.devs, d)
		m.ranks = append(m.ranks, &rank{g, [2]*cpu.Queue{d.NewQueue("a"), d.NewQueue("b")}})
	}
	return m
}

// end closes everything.
func (m *team) end() {
	for i, r := range m.ranks {
		if err := r.Close(); err != nil {
			m.t.Errorf("close rank %d: %v", i, err)
		}
	}
	for i, r := range m.ranks {
		r.q[0].Close()
		r.q[1].Close()
		m.devs[i].Close()
	}
}

// each runs f on every rank at once and returns the ranks' errors.
func (m *team) each(f func(r *rank) error) []error {
	errs := make([]error, len(m.ranks))
	var all sync.WaitGroup
	for i, r := range m.ranks {
		all.Go(func() { errs[i] = f(r) })
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
		return errs
	case <-time.After(patience):
		stacks := make([]byte, 1<<16)
		panic(fmt.Sprintf("%s: ranks stuck\n%s", m.t.Name(), stacks[:runtime.Stack(stacks, true)]))
	}
}

// must runs f on every rank and fails the test if one fails.
func (m *team) must(f func(r *rank) error) {
	m.t.Helper()
	for i, err := range m.each(f) {
		if err != nil {
			m.t.Fatalf("rank %d of %d: %v", i, len(m.ranks), err)
		}
	}
}

var (
	types = []device.DType{device.F32, device.BF16, device.F16, device.F64, device.I32}
	parts = []int{0, 1, 2, 7, 64, 1001} // elements of a rank's own part
)

func testSums(t *testing.T, open func(int) []collective.Group) {
	rng := rand.New(rand.NewPCG(1, 1))
	for size := 1; size <= 8; size++ {
		m := newTeam(t, open(size))
		for _, typ := range types {
			for _, n := range parts {
				m.compare(rng, typ, n)
			}
		}
		m.end()
	}
}

// testLarge has parts that no block size divides, and enough elements for
// every kind of rounding.
func testLarge(t *testing.T, open func(int) []collective.Group) {
	rng := rand.New(rand.NewPCG(2, 1))
	m := newTeam(t, open(3))
	defer m.end()
	for _, typ := range types {
		m.compare(rng, typ, 20_011)
	}
	if testing.Short() {
		return
	}
	m.operate(rng, device.F32, 1<<20/3+2, true, allReduce, issueAllReduce)
}

func allReduce(bufs []device.Buffer) { reduce(bufs); gather(bufs) }

func issueAllReduce(r *rank, b device.Buffer) device.Buffer {
	collective.AllReduce(r, r.q[0], b)
	return b
}

// compare does every operation there is on parts of n elements and compares
// the results with the oracle's.
func (m *team) compare(rng *rand.Rand, typ device.DType, n int) {
	m.t.Helper()
	m.operate(rng, typ, n, false, gather, func(r *rank, b device.Buffer) device.Buffer {
		r.AllGather(r.q[0], b)
		return b
	})
	if typ == device.I32 {
		return
	}
	m.operate(rng, typ, n, true, reduce, func(r *rank, b device.Buffer) device.Buffer {
		r.ReduceScatter(r.q[0], b)
		return collective.Own(r, b)
	})
	m.operate(rng, typ, n, true, allReduce, issueAllReduce)
}

// operate does one operation on random buffers, on every rank and by the
// oracle; issue returns the part of the buffer that is defined after it.
func (m *team) operate(rng *rand.Rand, typ device.DType, n int, sums bool, oracle func([]device.Buffer), issue func(*rank, device.Buffer) device.Buffer) {
	m.t.Helper()
	mem := make([]guarded, len(m.ranks))
	want := make([]device.Buffer, len(m.ranks))
	for i := range mem {
		mem[i] = newGuarded(typ, n*len(m.ranks))
		fill(mem[i].Buffer, rng, sums)
		want[i] = clone(mem[i].Buffer)
	}
	oracle(want)
	m.must(func(r *rank) error {
		b := mem[r.Rank()]
		defined := issue(r, b.Buffer)
		if err := r.q[0].Wait(); err != nil {
			return err
		}
		same := want[r.Rank()]
		if defined.N < b.N {
			same = collective.Own(r, same)
		}
		return errors.Join(difference(defined, same), b.damage())
	})
}

func testBroadcast(t *testing.T, open func(int) []collective.Group) {
	rng := rand.New(rand.NewPCG(3, 1))
	for size := 1; size <= 4; size++ {
		m := newTeam(t, open(size))
		for i, typ := range types {
			root, n := rng.IntN(size), []int{0, 1, 5, 30, 31}[i]
			bufs := make([]device.Buffer, size)
			for r := range bufs {
				bufs[r] = newGuarded(typ, n).Buffer
				fill(bufs[r], rng, false)
			}
			want := clone(bufs[root])
			m.must(func(r *rank) error {
				b := bufs[r.Rank()]
				collective.Broadcast(r, r.q[0], b, root, newGuarded(typ, 6*size).Buffer)
				return errors.Join(r.q[0].Wait(), difference(b, want))
			})
		}
		m.end()
	}
}

// testBarrier counts the ranks on their way in and looks at the count on the
// way out.
func testBarrier(t *testing.T, open func(int) []collective.Group) {
	const rounds = 50
	m := newTeam(t, open(4))
	defer m.end()
	var mu sync.Mutex
	var in int
	count := func(by int) int {
		mu.Lock()
		defer mu.Unlock()
		in += by
		return in
	}
	m.must(func(r *rank) error {
		scratch := newGuarded(device.F32, 4).Buffer
		for i := range rounds {
			r.q[0].Do(func() error {
				time.Sleep(time.Duration(r.Rank()*i) * time.Microsecond)
				count(1)
				return nil
			})
			collective.Barrier(r, r.q[0], scratch)
			r.q[0].Do(func() error {
				if n := count(0); n < 4*(i+1) {
					return fmt.Errorf("barrier %d: %d ranks came in, want %d", i, n, 4*(i+1))
				}
				return nil
			})
		}
		return r.q[0].Wait()
	})
}

// testReuse issues as fast as it can: what an operation leaves behind in the
// group would show in the next one.
func testReuse(t *testing.T, open func(int) []collective.Group) {
	const rounds = 2000
	for _, size := range []int{1, 2, 5} {
		m := newTeam(t, open(size))
		m.must(func(r *rank) error {
			b := device.OfF32(make([]float32, size))
			for range rounds {
				r.q[0].Do(func() error {
					clear(b.F32())
					b.F32()[(r.Rank()+1)%size] = float32(r.Rank() + 1)
					return nil
				})
				collective.AllReduce(r, r.q[0], b)
				r.q[0].Do(func() error {
					for i, x := range b.F32() {
						if want := float32((i+size-1)%size + 1); x != want {
							return fmt.Errorf("element %d of all-reduce is %g, want %g", i, x, want)
						}
					}
					return nil
				})
			}
			return r.q[0].Wait()
		})
		m.end()
	}
}
