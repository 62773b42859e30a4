//go:build cuda

package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"zeroth/collective"
	"zeroth/collective/socket"
	"zeroth/device"
	"zeroth/device/cuda"
	"zeroth/device/cuda/fake"
)

// wiredOnGPU runs f on ranks of a group over wires, on a GPU, with that size of stage.
func wiredOnGPU(t *testing.T, ranks, stage int, f func(m member, tr *cuda.Transfer) error) (errs []error) {
	t.Helper()
	fake.Need(t)
	all := make([]int, ranks)
	for r := range all {
		all[r] = r
	}
	net := socket.New(socket.Config{Processes: 1, PerProcess: ranks, Groups: [][]int{all}})
	defer net.Close()
	oracles := collective.NewLocal(ranks)
	errs = make([]error, ranks)
	var wg sync.WaitGroup
	for r := range ranks {
		b := open(t)
		mem, err := b.host.Alloc(device.F32, stage/4, device.Wires)
		if err != nil {
			t.Fatal(err)
		}
		m := member{b, collective.Staged(collective.NewWired(net.Wire(0, r)), mem), oracles[r], b.host.NewQueue("oracle")}
		tr := b.dev.NewTransfer("comm")
		wg.Go(func() {
			defer m.hq.Close()
			defer tr.Close()
			if errs[r] = f(m, tr); errs[r] != nil {
				_, _ = m.g.Close(), m.oracle.Close()
			}
		})
	}
	wg.Wait()
	return errs
}

// TestStagedMatchesCPU checks that operations in pieces have the bits of whole ones between
// ranks of a process.
func TestStagedMatchesCPU(t *testing.T) {
	for _, c := range []struct{ ranks, stage int }{{1, 8}, {2, 1 << 10}, {3, 24}, {4, 1 << 20}} {
		errs := wiredOnGPU(t, c.ranks, c.stage, func(m member, tr *cuda.Transfer) error {
			rng := rand.New(rand.NewPCG(3, 4)) // the same on all ranks
			mine := rand.New(rand.NewPCG(5, uint64(m.g.Rank())))
			for i := range 24 {
				if err := stagedCase(m, tr, i, rng, mine); err != nil {
					return err
				}
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%d ranks, stages of %d bytes: %v", c.ranks, c.stage, err)
		}
	}
}

// stagedCase performs one operation of random length, type and placement on the GPU and on the CPU,
// with work of the comm queue and of another queue around it.
func stagedCase(m member, tr *cuda.Transfer, i int, rng, mine *rand.Rand) error {
	typ, n, size := []device.DType{device.F32, device.BF16, device.F16, device.F64}[i%4], rng.IntN(300), m.g.Size()
	gather, inPlace := rng.IntN(2) == 0, rng.IntN(2) == 0
	h, err := m.host.Alloc(typ, n*size, device.Params)
	if err != nil {
		return err
	}
	m.hq.Cast(h, floats(n*size, func(int) float32 { return mine.Float32() - .5 }))
	if err := m.hq.Wait(); err != nil {
		return err
	}
	d, own, hown := m.send(h), m.alloc(typ, n), device.OfF64(make([]float64, n+1))
	hown.Type, hown.N = typ, n
	m.q.Copy(own, collective.Own(m.g, d))
	m.hq.Copy(hown, collective.Own(m.oracle, h))
	if inPlace {
		own, hown = collective.Own(m.g, d), collective.Own(m.oracle, h)
	}
	tr.After(m.q.Mark())
	if gather {
		m.g.AllGather(tr, d, own)
		m.oracle.AllGather(m.hq, h, hown)
		own, hown = d, h
	} else {
		m.g.ReduceScatter(tr, own, d)
		m.oracle.ReduceScatter(m.hq, hown, h)
	}
	if typ == device.F32 {
		tr.AddTo(own, own, own)
		m.hq.AddTo(hown, hown, hown)
	}
	m.q.After(tr.Mark())
	if err := m.hq.Wait(); err != nil {
		return err
	}
	if got := m.fetch(own); !slices.Equal(got.Raw(), hown.Raw()) {
		return fmt.Errorf("operation %d (gather %v, in place %v, %d %v): other bits than on the CPU", i, gather, inPlace, n, typ)
	}
	return errors.Join(m.q.Wait(), tr.Wait())
}

func TestStagedInEveryOrder(t *testing.T) {
	fake.Need(t)
	for _, mode := range seeds(2) {
		fake.Again(t, "TestStagedMatchesCPU", mode)
	}
}

// TestStagedLostPeer checks that a rank that fails ends the others' operations, and that waiting
// for their marks returns the error.
func TestStagedLostPeer(t *testing.T) {
	broken := errors.New("broken")
	errs := wiredOnGPU(t, 3, 1<<10, func(m member, tr *cuda.Transfer) error {
		x := m.alloc(device.F32, 3)
		for i := range 6 {
			if i == 4 && m.g.Rank() == 1 {
				tr.Do(func() error { return broken })
			}
			tr.Label(fmt.Sprintf("operation %d", i))
			collective.AllReduce(m.g, tr, x)
			m.q.After(tr.Mark())
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
		say(t, errs[r], "operation 4: ")
	}
}

// TestHostMemoryIsNotStaged checks that host memory is not staged.
func TestHostMemoryIsNotStaged(t *testing.T) {
	errs := wiredOnGPU(t, 2, 1<<10, func(m member, tr *cuda.Transfer) error {
		x := floats(2, func(int) float32 { return float32(1 + m.g.Rank()) })
		collective.AllReduce(m.g, tr, x)
		if err := tr.Wait(); err != nil || x.F32()[0] != 3 || x.F32()[1] != 3 {
			return fmt.Errorf("%v, %v", x.F32(), err)
		}
		all, err := collective.GatherBytes(m.g, tr, []byte{byte('a' + m.g.Rank())})
		if err != nil || string(all[0]) != "a" || string(all[1]) != "b" {
			return fmt.Errorf("%q, %v", all, err)
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

var _ collective.WireQueue = (*cuda.Transfer)(nil)
