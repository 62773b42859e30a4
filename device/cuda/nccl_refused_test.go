//go:build cuda

package cuda_test

import (
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/fake"
)

// settled waits until what NCCL started is done.
func settled(c *driver.Comm, err error) error {
	for err == driver.ErrInProgress {
		time.Sleep(time.Millisecond)
		err = c.State()
	}
	return err
}

// ncclRank is a rank of a communicator, with 64 bytes of memory.
type ncclRank struct {
	*driver.Comm
	s driver.Stream
	p unsafe.Pointer
}

// ncclRanksOf returns all ranks of a communicator.
func ncclRanksOf(t *testing.T, ranks int) []ncclRank {
	t.Helper()
	all, id := make([]ncclRank, ranks), mustID(t)
	var joined sync.WaitGroup
	for r := range all {
		g, err := driver.Open(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.Close() })
		m := &all[r]
		if m.s, err = g.NewStream(false); err != nil {
			t.Fatal(err)
		}
		if m.p, err = g.Alloc(64); err != nil {
			t.Fatal(err)
		}
		joined.Go(func() {
			if m.Comm, err = g.NewComm(ranks, id, r); err == nil {
				err = settled(m.Comm, m.State())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	joined.Wait()
	return all
}

// TestFakeNCCLRefusesCalls checks calls that NCCL refuses, and some that only a GPU notices, if it
// does.
func TestFakeNCCLRefusesCalls(t *testing.T) {
	fake.Only(t)
	if !again(t, 2) {
		return
	}
	const f32 = driver.NCCLFloat32
	all := ncclRanksOf(t, 2)
	c, s, p := all[0], all[0].s, all[0].p
	at := func(n int) unsafe.Pointer { return unsafe.Add(p, n) }
	for want, call := range map[string]func() error{
		"there is no type 77":                     func() error { return c.AllGather(s, p, p, 1, 77) },
		"on type 4 is not emulated":               func() error { return c.ReduceScatter(s, p, p, 1, driver.NCCLInt64) },
		"an argument is not memory of device 0":   func() error { return c.AllGather(s, nil, p, 1, f32) },
		"is no address of elements of 4 bytes":    func() error { return c.AllGather(s, at(2), at(2), 1, f32) },
		"ncclAllGather: its operands overlap":     func() error { return c.AllGather(s, p, at(4), 1, f32) },
		"ncclReduceScatter: its operands overlap": func() error { return c.ReduceScatter(s, at(4), p, 1, f32) },
		"ncclSend: an argument is not memory":     func() error { return c.Broadcast(s, 0, 2, at(60), 8) },
		"ncclSend: rank 2 of 2":                   func() error { return c.Broadcast(s, 0, 3, p, 8) },
		"is received in memory of another one":    func() error { return c.SendParts(s, driver.Parts{Ranks: 2, Whole: p, Slots: at(12), Stride: 8, N: 8}) },
	} {
		say(t, settled(c.Comm, call()), want)
	}
	say(t, settled(c.Comm, c.AllGather(all[1].s, p, p, 1, f32)), "the stream is not of device 0")
	if err := c.Abort(); err != nil {
		t.Error(err)
	}
	say(t, c.AllGather(s, p, p, 1, f32), "the communicator has been destroyed")
}

// TestFakeNCCLDisagrees checks that different calls of ranks are an error of both.
func TestFakeNCCLDisagrees(t *testing.T) {
	fake.Only(t)
	if !again(t, 2) {
		return
	}
	for what, call := range map[string]func(m ncclRank, far unsafe.Pointer) error{
		"counts": func(m ncclRank, far unsafe.Pointer) error { return m.AllGather(m.s, m.p, far, 2, driver.NCCLFloat32) },
		"types":  func(m ncclRank, far unsafe.Pointer) error { return m.AllGather(m.s, m.p, far, 1, driver.NCCLBFloat16) },
		"operations": func(m ncclRank, far unsafe.Pointer) error {
			return m.ReduceScatter(m.s, far, m.p, 1, driver.NCCLFloat32)
		},
	} {
		all := ncclRanksOf(t, 2)
		gather := func(m ncclRank, far unsafe.Pointer) error { return m.AllGather(m.s, m.p, far, 1, driver.NCCLFloat32) }
		for r, f := range []func(ncclRank, unsafe.Pointer) error{gather, call} {
			_ = settled(all[r].Comm, f(all[r], unsafe.Add(all[r].p, 32))) // rank 1 may have the error already
		}
		for _, m := range all {
			err := m.State()
			for ; err == nil || err == driver.ErrInProgress; err = m.State() {
				time.Sleep(time.Millisecond)
			}
			if !strings.Contains(err.Error(), "ncclInvalidUsage") || !strings.Contains(err.Error(), " calls operation ") {
				t.Errorf("other %s: %v", what, err)
			}
			if err := m.Abort(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestFakeNCCLInProgress checks that a communicator takes no operation before the last one is
// enqueued, and none after it is finalized.
func TestFakeNCCLInProgress(t *testing.T) {
	fake.Only(t)
	if !again(t, 1) {
		return
	}
	c := ncclRanksOf(t, 1)[0]
	gather := func() error { return c.AllGather(c.s, c.p, c.p, 1, driver.NCCLFloat32) }
	busy := false
	for i := 0; i < 1000 && !busy; i++ { // if this thread is late, the first one is enqueued
		if err := gather(); err != driver.ErrInProgress {
			t.Fatalf("%v, want %v", err, driver.ErrInProgress)
		}
		if err := gather(); err != driver.ErrInProgress {
			busy = true
			say(t, err, "the communicator is not ready")
		}
		if err := settled(c.Comm, driver.ErrInProgress); err != nil {
			t.Fatal(err)
		}
	}
	if !busy {
		t.Error("an operation is taken while another is in progress")
	}
	if err := settled(c.Comm, c.Finalize()); err != nil {
		t.Fatal(err)
	}
	say(t, gather(), "ncclInvalidUsage", "the communicator has been finalized")
	say(t, c.Finalize(), "ncclInvalidArgument", "the communicator has been finalized")
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
