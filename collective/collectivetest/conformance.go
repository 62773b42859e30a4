// Package collectivetest provides tests for groups and their users. Run is the conformance suite
// for every implementation of collective.Group on host memory. Faulty wraps a group to delay, fail
// or drop operations.
package collectivetest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/tests/nightly"
)

// patience is how long ranks may take before they are considered stuck: far longer than any test
// needs on a slow and busy machine.
const patience = 5 * time.Minute

// Run tests the groups returned by open: the ends of size ranks, in rank order, which the tests
// close. Each rank has its own goroutines. Ranks in another process, which runs the same tests, are
// nil. Tests named in except are skipped.
func Run(t *testing.T, open func(size int) []collective.Group, except ...string) {
	tests := []struct {
		name string
		f    func(*testing.T, func(int) []collective.Group)
	}{
		{"Sums", testSums},
		{"Large", testLarge},
		{"NonFinite", testNonFinite},
		{"Interleaved", testInterleaved},
		{"Barrier", testBarrier},
		{"Reuse", testReuse},
		{"AbortBlocked", testAbortBlocked},
		{"AbortAnytime", testAbortAnytime},
		{"CloseWhenDone", testCloseWhenDone},
		{"FailedQueue", testFailedQueue},
		{"Divergence", testDivergence},
		{"DivergenceOfSeveral", testDivergenceOfSeveral},
		{"Late", testLate},
		{"Allocations", testAllocations},
	}
	for _, test := range tests {
		if slices.Contains(except, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			defer noneLeft(t, goleak.IgnoreCurrent())
			test.f(t, open)
		})
	}
}

// noneLeft fails a test that leaks goroutines. It retries, because a transport's goroutines may end
// some time after the test closes it.
func noneLeft(t *testing.T, but goleak.Option) {
	end := time.Now().Add(time.Minute)
	err := goleak.Find(but)
	for err != nil && time.Now().Before(end) {
		err = goleak.Find(but)
	}
	if err != nil {
		t.Error(err)
	}
}

// rank is a rank of a team with two queues.
type rank struct {
	collective.Group
	q [2]*cpu.Queue
}

// team is a group of ranks.
type team struct {
	t     *testing.T
	size  int
	ranks []*rank // in this process
	devs  []*cpu.Device
}

// withTeam runs f with the groups' ranks and closes everything afterwards.
func withTeam(t *testing.T, groups []collective.Group, f func(m *team)) {
	m := &team{t: t, size: len(groups)}
	defer m.end()
	for i, g := range groups {
		if g == nil {
			continue
		}
		if g.Rank() != i || g.Size() != len(groups) {
			t.Fatalf("group %d of %d says rank %d of %d", i, len(groups), g.Rank(), g.Size())
		}
		d := cpu.NewHost(1)
		m.devs = append(m.devs, d)
		m.ranks = append(m.ranks, &rank{g, [2]*cpu.Queue{d.NewQueue("a"), d.NewQueue("b")}})
	}
	f(m)
}

func (m *team) end() {
	for _, r := range m.ranks {
		if err := r.Close(); err != nil {
			m.t.Errorf("close rank %d: %v", r.Rank(), err)
		}
	}
	for i, r := range m.ranks {
		r.q[0].Close()
		r.q[1].Close()
		m.devs[i].Close()
	}
}

// must runs f on every rank concurrently. A rank that fails closes its group and fails the test.
func (m *team) must(f func(r *rank) error) {
	m.t.Helper()
	errs := atOnce(m.t, len(m.ranks), func(i int) error {
		err := f(m.ranks[i])
		if err != nil {
			m.ranks[i].Close()
		}
		return err
	})
	for i, err := range errs {
		if err != nil {
			m.t.Errorf("rank %d of %d: %v", m.ranks[i].Rank(), m.size, err)
		}
	}
	if m.t.Failed() {
		m.t.FailNow()
	}
}

// atOnce runs f for 0 to n-1, each on its own goroutine. If some are stuck, it ends the process.
func atOnce(t *testing.T, n int, f func(i int) error) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = f(i) })
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		stacks := make([]byte, 1<<16)
		why := fmt.Sprintf("%s: ranks stuck\n%s", t.Name(), stacks[:runtime.Stack(stacks, true)])
		go panic(why) // a panic here would first close the queues, on which ranks still issue operations
		select {}
	}
	return errs
}

var (
	types = []device.DType{device.F32, device.BF16, device.F16, device.F64, device.I32, device.I64}
	parts = []int{0, 1, 2, 7, 64, 1001} // elements of a rank's own part
)

func testSums(t *testing.T, open func(int) []collective.Group) {
	rng := rand.New(rand.NewPCG(1, 1))
	for size := 1; size <= 8; size++ {
		if !nightly.All() && (size == 4 || size > 5 && size < 8) {
			continue
		}
		withTeam(t, open(size), func(m *team) {
			for _, typ := range types {
				for _, n := range parts {
					m.compare(rng, typ, n)
				}
			}
		})
	}
}

// testLarge uses parts that no block size divides, large enough for every kind of rounding.
func testLarge(t *testing.T, open func(int) []collective.Group) {
	rng := rand.New(rand.NewPCG(2, 1))
	withTeam(t, open(3), func(m *team) {
		for _, typ := range types {
			m.compare(rng, typ, 20_011)
		}
		if nightly.All() {
			m.operate(rng, device.F32, 1<<20/3+2, true, allReduce, issueAllReduce)
		}
	})
}

// testNonFinite sums values that overflow, are infinite, or NaN.
func testNonFinite(t *testing.T, open func(int) []collective.Group) {
	inf, nan := math.Inf(1), math.NaN()
	tests := [][4]float64{{inf, 1, 2, inf}, {1, -inf, -1, -inf}, {inf, 1, -inf, nan}, {nan, 1, 1, nan}, {0, 1, nan, nan}}
	withTeam(t, open(3), func(m *team) {
		for _, typ := range types[:4] { // float types
			most := largest(typ)
			for _, x := range append(tests, [4]float64{most, most, 0, inf}, [4]float64{-most, 0, -most, -inf}) {
				m.must(func(r *rank) error { return sumOf3(r, typ, x) })
			}
		}
	})
}

// sumOf3 sums x[0] to x[2], one per rank, and expects x[3].
func sumOf3(r *rank, typ device.DType, x [4]float64) error {
	b := newGuarded(typ, 3).Buffer
	for i := range b.N {
		viewOf(b).set(i, bitsOf(typ, x[r.Rank()]))
	}
	collective.AllReduce(r, r.q[0], b)
	if err := r.q[0].Wait(); err != nil {
		return err
	}
	for i := range b.N {
		if got, want := valueOf(typ, viewOf(b).at(i)), x[3]; got != want && (got == got || want == want) {
			return fmt.Errorf("sum of the %v numbers %v is %g, want %g", typ, x[:3], got, want)
		}
	}
	return nil
}

func allReduce(bufs []device.Buffer) { reduce(bufs); gather(bufs) }

func issueAllReduce(r *rank, b device.Buffer) device.Buffer {
	collective.AllReduce(r, r.q[0], b)
	return b
}

// compare performs every operation on parts of n elements and compares the results with the
// oracle's.
func (m *team) compare(rng *rand.Rand, typ device.DType, n int) {
	m.t.Helper()
	m.operate(rng, typ, n, false, gather, func(r *rank, b device.Buffer) device.Buffer {
		collective.AllGather(r, r.q[0], b)
		return b
	})
	m.operate(rng, typ, n, false, gather, gatherApart)
	m.operate(rng, typ, n, false, broadcast, func(r *rank, b device.Buffer) device.Buffer {
		r.Broadcast(r.q[0], b)
		return b
	})
	m.operate(rng, typ, n, false, exchange, func(r *rank, b device.Buffer) device.Buffer {
		before, to := clone(b), newGuarded(typ, b.N)
		r.Exchange(r.q[0], to.Buffer, b)
		r.q[0].Do(func() error {
			err := errors.Join(to.damage(), difference(b, before))
			copy(b.Raw(), to.Raw())
			return err
		})
		return b
	})
	if typ.Integer() {
		return
	}
	m.operate(rng, typ, n, true, reduce, func(r *rank, b device.Buffer) device.Buffer {
		collective.ReduceScatter(r, r.q[0], b)
		return collective.Own(r, b)
	})
	m.operate(rng, typ, n, true, reduce, func(r *rank, b device.Buffer) device.Buffer {
		own := newGuarded(typ, n)
		r.ReduceScatter(r.q[0], own.Buffer, b)
		r.q[0].Do(own.damage)
		return own.Buffer
	})
	m.operate(rng, typ, n, true, allReduce, issueAllReduce)
	m.operate(rng, typ, n, true, collect, func(r *rank, b device.Buffer) device.Buffer {
		r.Reduce(r.q[0], b)
		return b
	})
}

// gatherApart gathers from buffers outside of b.
func gatherApart(r *rank, b device.Buffer) device.Buffer {
	own := clone(collective.Own(r, b))
	before := clone(own)
	mine := collective.Own(r, b).Raw()
	for i := range mine {
		mine[i] ^= 0xff
	}
	r.AllGather(r.q[0], b, own)
	r.q[0].Do(func() error { return difference(own, before) })
	return b
}

// operate performs an operation on random buffers on every rank and with the oracle. issue returns
// the part of the buffer that is defined afterwards.
func (m *team) operate(rng *rand.Rand, typ device.DType, n int, sums bool, oracle func([]device.Buffer), issue func(*rank, device.Buffer) device.Buffer) {
	m.t.Helper()
	mem := make([]guarded, m.size)
	want := make([]device.Buffer, m.size)
	for i := range mem {
		mem[i] = newGuarded(typ, n*m.size)
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

// testBarrier checks that a gather is a barrier: it counts this process's ranks as they issue one
// and compares the count when it completes.
func testBarrier(t *testing.T, open func(int) []collective.Group) {
	const rounds = 50
	withTeam(t, open(4), func(m *team) {
		var in atomic.Int64
		m.must(func(r *rank) error {
			scratch := newGuarded(device.F32, 4).Buffer
			for i := range rounds {
				r.q[0].Do(func() error {
					time.Sleep(time.Duration(r.Rank()*i) * time.Microsecond)
					in.Add(1)
					return nil
				})
				collective.AllGather(r, r.q[0], scratch)
				r.q[0].Do(func() error {
					if n, want := in.Load(), len(m.ranks)*(i+1); n < int64(want) {
						return fmt.Errorf("barrier %d: %d ranks came in, want %d", i, n, want)
					}
					return nil
				})
			}
			return r.q[0].Wait()
		})
	})
}

// testReuse issues operations as fast as possible, to detect state that affects later operations.
func testReuse(t *testing.T, open func(int) []collective.Group) {
	const rounds = 2000
	for _, size := range []int{1, 2, 5} {
		withTeam(t, open(size), func(m *team) {
			m.must(func(r *rank) error {
				b := newGuarded(device.F32, size).Buffer
				for range rounds {
					r.q[0].Do(func() error { spread(r, b.F32()); return nil })
					collective.AllReduce(r, r.q[0], b)
					r.q[0].Do(func() error { return wasSpread(b.F32()) })
				}
				return r.q[0].Wait()
			})
		})
	}
}

// spread makes each rank contribute to a single element of x, the next rank's.
func spread(r *rank, x []float32) {
	clear(x)
	x[(r.Rank()+1)%len(x)] = float32(r.Rank() + 1)
}

// wasSpread checks the sum of all ranks' spread.
func wasSpread(x []float32) error {
	for i, got := range x {
		if want := float32((i+len(x)-1)%len(x) + 1); got != want {
			return fmt.Errorf("element %d of all-reduce is %g, want %g", i, got, want)
		}
	}
	return nil
}
