//go:build cuda

package cuda_test

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/fake"
)

// apart is a goroutine with its own thread, on which no context is current after forget.
type apart struct {
	t *testing.T
	g *driver.GPU
	m *driver.Module
	s driver.Stream
}

func newApart(t *testing.T) *apart {
	t.Helper()
	fake.Only(t)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	a := &apart{t: t}
	a.g, a.m = loaded(t)
	var err error
	a.s, err = a.g.NewStream(false)
	a.must("new stream", err)
	return a
}

func (a *apart) must(what string, err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatalf("%s: %v", what, err)
	}
}

func (a *apart) forget() { a.must("wait", a.s.Wait()) }

// do runs calls of C, each on a thread without a context.
func (a *apart) do(what string, f func() error) {
	a.t.Helper()
	a.forget()
	a.must(what, f())
}

// TestFakesRefuseWithoutContext checks that a thread without a current context is refused, as after
// calls of gorgonia.org/cu alone.
func TestFakesRefuseWithoutContext(t *testing.T) {
	a := newApart(t)
	a.forget()
	_, err := cu.MemAlloc(64)
	say(t, err, "InvalidContext")
}

// TestCallsMakeTheContextCurrent checks that every driver call makes the context it needs current,
// on any thread: with any ENTER omitted in the C files, one of these fails
// (scripts/mutate-context).
func TestCallsMakeTheContextCurrent(t *testing.T) {
	a := newApart(t)
	g, s := a.g, a.s
	a.do("memory", func() error { _, _, err := g.Memory(); return err })
	var dev, pinned unsafe.Pointer
	a.do("alloc", func() (err error) { dev, err = g.Alloc(4096); return err })
	a.do("alloc host", func() (err error) { pinned, err = g.AllocHost(4096); return err })
	var from, to driver.Event
	a.do("new event", func() (err error) { from, err = g.NewEvent(true); return err })
	a.do("new event", func() (err error) { to, err = g.NewEvent(true); return err })
	k := named("fill")
	var f driver.Function
	a.do("function", func() (err error) {
		f, err = a.m.Function(k.Name, k.Threads, k.Offsets(), 64<<10)
		return err
	})
	a.do("uses", func() error { _, _, err := a.m.Uses(f); return err })
	c := s.Commands()
	a.do("commands", func() error {
		c.Record(from)
		c.ToDevice(dev, pinned, 64)
		c.Launch(f, [3]uint32{1, 1, 1}, 0, make([]byte, 64))
		c.Record(to)
		return c.Run()
	})
	a.do("await", func() error { return to.Await(time.Microsecond) })
	a.do("since", func() error { _, err := to.Since(from); return err })
	a.do("close event", from.Close)
	a.do("close event", to.Close)
	a.products(dev)
	a.do("free", func() error { return g.Free(dev) })
	a.do("free host", func() error { return g.FreeHost(pinned) })
	var other driver.Stream
	a.do("new stream", func() (err error) { other, err = g.NewStream(false); return err })
	a.unreached(other)
	a.do("wait", other.Wait)
	a.do("close stream", other.Close)
	var m *driver.Module
	a.do("load", func() (err error) { m, err = g.Load("base", base().PTX()); return err })
	a.do("unload", m.Unload)
}

// unreached polls an event that nobody has waited for. With a failed context it would be "reached".
func (a *apart) unreached(s driver.Stream) {
	e, err := a.g.NewEvent(false)
	a.must("new event", err)
	c := s.Commands()
	c.Record(e)
	a.must("record", c.Run())
	a.do("reached", func() error {
		if env("FAKECUDA_MODE") == "" && e.Reached() { // it may be reached in threads
			a.t.Error("an event is reached before anybody has waited")
		}
		return nil
	})
	a.must("await", e.Await(0))
	a.do("close event", e.Close)
}

// products tests cuBLAS's calls, in a buffer of 4096 bytes.
func (a *apart) products(mem unsafe.Pointer) {
	var b *driver.BLAS
	a.do("new handle", func() (err error) { b, err = driver.NewBLAS(a.s, mem, 1024, nil); return err })
	at := func(i int) unsafe.Pointer { return unsafe.Add(mem, 1024*i) }
	g := driver.Gemm{M: 8, N: 8, K: 8, LdA: 8, LdB: 8, LdC: 8, LdD: 8, Epilogue: driver.Bias, Align: 16}
	c := a.s.Commands()
	a.do("product", func() error {
		b.Product(c, &g, at(1), at(2), at(3))
		return c.Run()
	})
	a.do("plan", func() error {
		done, err := b.Fused(c, &g, driver.Operands{A: at(1), B: at(2), C: at(3), D: at(3), Vector: at(0)})
		if !done {
			a.t.Error("there is no product with a bias")
		}
		return err
	})
	a.do("fused", c.Run)
	a.do("close handle", b.Close)
}

// TestNCCLMakesTheContextCurrent is the same for NCCL's calls, with communicators of one rank, and
// for peers.
func TestNCCLMakesTheContextCurrent(t *testing.T) {
	if env("FAKENCCL_DIR") == "" {
		fake.Only(t)
		fake.Again(t, t.Name(), ncclRanks(t)...)
		return
	}
	a := newApart(t)
	other, err := driver.Open(1)
	a.must("open", err)
	defer other.Close()
	a.do("reach", func() error { return a.g.Reach(other) })
	lost := a.join(mustID(t))
	a.do("abort", lost.Abort)
	c := a.join(mustID(t))
	const n = 2 << 20
	var mem unsafe.Pointer
	a.do("alloc", func() (err error) { mem, err = a.g.AllocNCCL(n); return err })
	var r driver.Registration
	a.do("register", func() (err error) { r, err = c.Register(mem, n); return err })
	a.settled(c)
	a.do("all-gather", func() error { return settled(c, c.AllGather(a.s, mem, mem, 16, driver.NCCLFloat32)) })
	a.do("reduce-scatter", func() error { return settled(c, c.ReduceScatter(a.s, mem, mem, 16, driver.NCCLFloat32)) })
	a.do("reduce", func() error { return settled(c, c.Reduce(a.s, 0, mem, 16, driver.NCCLFloat32)) })
	a.do("send", func() error { // to a nonexistent rank, which is checked second
		say(t, c.SendParts(a.s, driver.Parts{Ranks: 2, Whole: mem, Slots: mem, Stride: 8, Slot: 8, N: 8}), "ncclSend: rank 1 of 1")
		return nil
	})
	a.do("collect", func() error {
		say(t, c.Collect(a.s, driver.Parts{Ranks: 2, Whole: mem, Slots: mem, Slot: 8, N: 8}), "ncclRecv: rank 1 of 1")
		return nil
	})
	a.do("deregister", r.Deregister)
	a.do("free", func() error { return a.g.FreeNCCL(mem) })
	a.do("finalize", func() error { return settled(c, c.Finalize()) })
	a.do("close", c.Close)
}

func (a *apart) join(id []byte) (c *driver.Comm) {
	a.t.Helper()
	a.do("join", func() (err error) { c, err = a.g.NewComm(1, id, 0); return err })
	a.settled(c)
	return c
}

func (a *apart) settled(c *driver.Comm) {
	err := driver.ErrInProgress
	for err == driver.ErrInProgress {
		err = c.State()
	}
	a.must("state", err)
}
