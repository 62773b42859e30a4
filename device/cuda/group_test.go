//go:build cuda

package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/cuda"
	"zeroth/device/cuda/fake"
)

// member is a rank on a GPU, and the same rank on the CPU as the oracle.
type member struct {
	*bench
	g, oracle collective.Group
	hq        *cpu.Queue
}

// together runs f on ranks of a group that share GPUs, assigned round-robin from ordinals.
func together(t *testing.T, ranks int, ordinals []int, f func(m member) error) []error {
	t.Helper()
	fake.Need(t)
	gs, oracles := collective.NewLocal(ranks), collective.NewLocal(ranks)
	errs := make([]error, ranks)
	var wg sync.WaitGroup
	var all []member
	for r := range ranks {
		b := &bench{t: t, host: cpu.NewHost(1)}
		var err error
		if b.dev, err = cuda.Open(ordinals[r%len(ordinals)]); err != nil {
			t.Fatal(err)
		}
		if err := b.dev.ReachAll(ordinals); err != nil {
			t.Fatal(err)
		}
		b.q, b.r = b.dev.NewQueue(fmt.Sprintf("q%d", r)), b.dev.NewQueue(fmt.Sprintf("r%d", r))
		all = append(all, member{b, gs[r], oracles[r], b.host.NewQueue("oracle")})
	}
	for r, m := range all {
		wg.Go(func() {
			if errs[r] = f(m); errs[r] != nil {
				_, _ = m.g.Close(), m.oracle.Close()
			}
		})
	}
	wg.Wait()
	for _, m := range all {
		m.q.Close()
		m.r.Close()
		m.hq.Close()
	}
	for _, m := range all {
		m.dev.Close()
		m.host.Close()
	}
	return errs
}

// sums performs operations of random lengths, types and placements, on each rank's GPU and on the
// CPU.
func sums(m member) error {
	rng := rand.New(rand.NewPCG(3, 4)) // the same on all ranks
	mine := rand.New(rand.NewPCG(5, uint64(m.g.Rank())))
	size := m.g.Size()
	for i := range 30 {
		typ := []device.DType{device.F32, device.BF16, device.F16, device.F64}[i%4]
		n := 1 + rng.IntN(200)
		gather, inPlace := rng.IntN(2) == 0, rng.IntN(2) == 0
		from := floats(n*size, func(int) float32 { return mine.Float32() - .5 })
		h, err := m.host.Alloc(typ, n*size, device.Params)
		if err != nil {
			return err
		}
		m.hq.Cast(h, from)
		if err := m.hq.Wait(); err != nil {
			return err
		}
		d, own, hown := m.send(h), m.alloc(typ, n), device.Buffer{}
		if hown, err = m.host.Alloc(typ, n, device.Params); err != nil {
			return err
		}
		m.q.Copy(own, collective.Own(m.g, d))
		m.hq.Copy(hown, collective.Own(m.g, h))
		if inPlace {
			own, hown = collective.Own(m.g, d), collective.Own(m.g, h)
		}
		label := fmt.Sprintf("operation %d", i)
		m.q.Label(label)
		m.hq.Label(label)
		if gather {
			m.g.AllGather(m.q, d, own)
			m.oracle.AllGather(m.hq, h, hown)
			own, hown = d, h
		} else {
			m.g.ReduceScatter(m.q, own, d)
			m.oracle.ReduceScatter(m.hq, hown, h)
		}
		m.q.Zero(m.alloc(typ, 3)) // another kernel after it
		if err := m.hq.Wait(); err != nil {
			return err
		}
		if got := m.fetch(own); !slices.Equal(got.Raw(), hown.Raw()) {
			return fmt.Errorf("operation %d (gather %v, in place %v, %d %v): other bits than on the CPU", i, gather, inPlace, n, typ)
		}
	}
	return nil
}

// sumsBy returns sums with a check that a kernel adds, and the other one does not.
func sumsBy(kernel, other string) func(m member) error {
	return func(m member) error {
		var tasks []string
		m.q.Trace(func(s device.Span) { tasks = append(tasks, s.Task) })
		err := sums(m)
		m.q.Trace(nil)
		if !slices.Contains(tasks, kernel) || slices.Contains(tasks, other) {
			err = errors.Join(err, fmt.Errorf("%q, want %s and no %s", tasks, kernel, other))
		}
		return err
	}
}

func TestGroupsMatchCPU(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 5} {
		if err := errors.Join(together(t, ranks, []int{0}, sumsBy("sum_many", "sum_peers"))...); err != nil {
			t.Fatalf("%d ranks: %v", ranks, err)
		}
	}
}

// TestGroupOfOneMarksNothing checks that an operation of a rank without peers records no events.
func TestGroupOfOneMarksNothing(t *testing.T) {
	err := errors.Join(together(t, 1, []int{0}, func(m member) error {
		x := m.alloc(device.F32, 64)
		before := m.q.Mark().Seq
		collective.AllReduce(m.g, m.q, x)
		m.g.AllGather(m.q, m.alloc(device.F32, 64), x)
		if marks := m.q.Mark().Seq - before - 1; marks > 0 {
			return fmt.Errorf("%d marks", marks)
		}
		return nil
	})...)
	if err != nil {
		t.Fatal(err)
	}
}

func TestGroupsOnSeveralGPUs(t *testing.T) {
	if env("FAKECUDA_DEVICES") == "" {
		fake.Only(t)
		fake.Again(t, "TestGroupsOnSeveralGPUs", "FAKECUDA_DEVICES=3", "FAKECUDA_MODE=threads:50")
		fake.Again(t, "TestUnreachablePeers", "FAKECUDA_DEVICES=2", "FAKECUDA_NO_PEERS=1")
		return
	}
	if err := errors.Join(together(t, 4, []int{0, 2}, sumsBy("sum_peers", "sum_many"))...); err != nil {
		t.Fatal(err)
	}
}

// TestGroupsOnEveryGPU makes a group of the first and the last of several GPUs.
func TestGroupsOnEveryGPU(t *testing.T) {
	fake.Need(t)
	n := gpus(t)
	if n < 2 {
		t.Skipf("it needs 2 GPUs; this machine has %d", n)
	}
	if err := errors.Join(together(t, 4, []int{0, n - 1}, sums)...); err != nil {
		t.Fatal(err)
	}
}

func TestUnreachablePeers(t *testing.T) {
	if env("FAKECUDA_NO_PEERS") == "" {
		t.Skip("run by TestGroupsOnSeveralGPUs")
	}
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	say(t, d.ReachAll([]int{0, 1}), "GPU 0 (Emulated GPU) cannot address the memory of GPU 1")
}

func TestGroupsInEveryOrder(t *testing.T) {
	fake.Only(t)
	for _, mode := range seeds(5) {
		fake.Again(t, "TestGroupsMatchCPU", mode)
	}
}

// TestLostPeer fails a rank between others' operations, which must end, too.
func TestLostPeer(t *testing.T) {
	broken := errors.New("broken")
	errs := together(t, 3, []int{0}, func(m member) error {
		x := m.alloc(device.F32, 3)
		for i := range 10 {
			if i == 5 && m.g.Rank() == 1 {
				m.q.Do(func() error { return broken })
			}
			collective.AllReduce(m.g, m.q, x)
			if err := m.q.Wait(); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.Is(errs[1], broken) {
		t.Errorf("rank 1: %v", errs[1])
	}
	for _, r := range []int{0, 2} {
		var lost collective.ErrPeerLost
		if !errors.As(errs[r], &lost) || lost.Rank != 1 {
			t.Errorf("rank %d: %v, want peer 1 lost", r, errs[r])
		}
	}
}

// TestDivergenceAndDeadline checks that ranks that issue different operations get an error, and
// that a late rank is named.
func TestDivergenceAndDeadline(t *testing.T) {
	errs := together(t, 2, []int{0}, func(m member) error {
		collective.AllGather(m.g, m.q, m.alloc(device.F32, 4+2*m.g.Rank()))
		return m.q.Wait()
	})
	for r, err := range errs {
		say(t, err, "rank 0", "all-gather of 4 fp32", "all-gather of 6 fp32")
		_ = r
	}
	errs = together(t, 2, []int{0}, func(m member) error {
		g := collective.Watchdog(m.g, 50*time.Millisecond)
		defer g.Close()
		if m.g.Rank() == 0 {
			time.Sleep(400 * time.Millisecond)
		}
		collective.AllGather(g, m.q, m.alloc(device.F32, 4))
		return m.q.Wait()
	})
	say(t, errs[1], "rank 1 waited 50ms for rank 0")
}
