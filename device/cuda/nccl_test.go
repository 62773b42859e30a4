//go:build cuda

package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/collective/socket"
	"zeroth/device"
	"zeroth/device/cuda"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/fake"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// ncclRanks returns the environment that the fake NCCL needs: operations that block, and a GPU for
// each rank.
func ncclRanks(t *testing.T) []string {
	return []string{"FAKECUDA_MODE=threads", "FAKECUDA_DEVICES=8", "FAKENCCL_DIR=" + t.TempDir()}
}

// clique opens groups whose ranks have a GPU each, until close.
type clique struct {
	t    *testing.T
	devs []*cuda.Device
	over func(size int) (groups []collective.Group, close func())
	ends []func()
	late *time.Timer // see hangs
}

// hangs is how long a test may use the groups that it has opened, hundreds of times what they need
// on an idle machine: without an abort or a deadline, NCCL blocks a thread in C forever.
const hangs = 6 * time.Minute

// hung ends the process, a child of the test, with the stacks of all goroutines.
func hung() {
	debug.SetTraceback("all")
	panic(fmt.Sprintf("it hangs: its groups have not ended within %v", hangs))
}

func newClique(t *testing.T, over func(int) ([]collective.Group, func())) *clique {
	t.Helper()
	c := &clique{t: t, over: over, late: time.AfterFunc(hangs, hung)}
	for i := range min(8, gpus(t)) {
		d, err := cuda.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		c.devs = append(c.devs, d)
	}
	t.Cleanup(c.close)
	return c
}

// gpus returns the driver's number of GPUs.
func gpus(t *testing.T) int {
	t.Helper()
	n, err := driver.Count()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (c *clique) close() {
	for _, end := range c.ends {
		end()
	}
	for _, d := range c.devs {
		d.Close()
	}
	c.late.Stop()
}

// overMemory and overWires open groups for ranks of one process.
func overMemory(size int) (groups []collective.Group, close func()) {
	for _, l := range collective.NewLocal(size) {
		groups = append(groups, l)
	}
	return groups, func() {}
}

func overWires(size int) (groups []collective.Group, close func()) {
	all := make([]int, size)
	for r := range all {
		all[r] = r
	}
	net := socket.New(socket.Config{Processes: 1, PerProcess: size, Groups: [][]int{all}})
	for r := range size {
		groups = append(groups, collective.NewWired(net.Wire(0, r)))
	}
	return groups, net.Close
}

// join returns the ranks' ends of a communicator, and their errors.
func (c *clique) join(size int, id []byte, stop func() error) (ends []*cuda.Communicator, errs []error) {
	ends, errs = make([]*cuda.Communicator, size), make([]error, size)
	var all sync.WaitGroup
	for r := range size {
		all.Go(func() { ends[r], errs[r] = c.devs[r].Join(id, size, r, stop) })
	}
	all.Wait()
	return ends, errs
}

func never() error { return nil }

// open returns a group of ranks on GPUs, with which tests of host memory can run.
func (c *clique) open(size int) []collective.Group {
	c.t.Helper()
	under, end := c.over(size)
	groups := c.onGPUs(under)
	c.ends = append(c.ends, end)
	return groups
}

// onGPUs makes communicators work for groups, in rank order.
func (c *clique) onGPUs(under []collective.Group) []collective.Group {
	c.t.Helper()
	c.late.Reset(hangs)
	id, err := cuda.NewCommunicatorID()
	if err != nil {
		c.t.Fatal(err)
	}
	size := len(under)
	ends, errs := c.join(size, id, never)
	if err := errors.Join(errs...); err != nil {
		c.t.Fatal(err)
	}
	groups := make([]collective.Group, size)
	for r := range size {
		h := &hosted{Engined: collective.NewEngined(under[r], ends[r]), dev: c.devs[r], q: c.devs[r].NewQueue("comm")}
		if os.Getenv("EXACT") != "" {
			h.addExactly(c.t, ends[r], size)
		}
		groups[r] = h
		c.ends = append(c.ends, h.end)
	}
	return groups
}

// openLinks returns the ranks of a mesh with links on GPUs.
func (c *clique) openLinks(m shard.Mesh) (ranks []collective.Ranks, end func()) {
	ranks = collective.LocalWorld(m)
	for r := range ranks {
		next := &ranks[(r+1)%len(ranks)]
		for _, link := range [][2]*collective.Group{{&ranks[r].Links[collective.ToNext], &next.Links[collective.FromPrevious]},
			{&next.Links[collective.ToPrevious], &ranks[r].Links[collective.FromNext]}} {
			ends := c.onGPUs([]collective.Group{*link[0], *link[1]})
			*link[0], *link[1] = ends[0], ends[1]
		}
	}
	return ranks, func() {}
}

// hosted is a group on a GPU that accepts operations on host memory.
type hosted struct {
	*collective.Engined
	dev        *cuda.Device
	q          *cuda.Queue
	whole, own device.Buffer // GPU memory, as much as operations have needed
	bounce     device.Buffer // GPU memory, as much as operations have needed

	mu    sync.Mutex
	spare []*hostedCall
}

type hostedCall struct {
	g          *hosted
	op         string
	label      string
	whole, own device.Buffer
	run        func() error
}

func (h *hosted) Unwrap() collective.Group { return h.Engined }

func (h *hosted) AllGather(q device.Queue, whole, own device.Buffer) {
	h.issue(q, "gather", whole, own)
}

func (h *hosted) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	h.issue(q, "reduce", whole, own)
}

func (h *hosted) Broadcast(q device.Queue, b device.Buffer) { h.issue(q, "broadcast", b, b) }

func (h *hosted) Reduce(q device.Queue, b device.Buffer) { h.issue(q, "collect", b, b) }

func (h *hosted) issue(q device.Queue, op string, whole, own device.Buffer) {
	c := h.take()
	c.op, c.label, c.whole, c.own = op, q.Labelled(), whole, own
	q.Do(c.run)
}

func (h *hosted) take() (c *hostedCall) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.spare); n > 0 {
		c, h.spare = h.spare[n-1], h.spare[:n-1]
		return c
	}
	c = &hostedCall{g: h}
	c.run = c.do
	return c
}

// do performs the operation by way of the GPU.
func (c *hostedCall) do() error {
	h := c.g
	whole, err := h.memory(&h.whole, c.whole)
	if err != nil {
		return err
	}
	own, err := h.memory(&h.own, c.own)
	if err != nil {
		return err
	}
	if c.op == "broadcast" || c.op == "collect" {
		own = whole
	} else if at := collective.Own(h, c.whole); at.Ptr == c.own.Ptr { // in place
		own = collective.Own(h, whole)
	}
	h.q.Label(c.label)
	h.q.Copy(own, c.own)
	switch c.op {
	case "gather":
		h.Engined.AllGather(h.q, whole, own)
		h.q.Copy(c.whole, whole)
	case "broadcast":
		h.Engined.Broadcast(h.q, whole)
		h.q.Copy(c.whole, whole)
	case "collect":
		h.Engined.Reduce(h.q, whole)
		h.q.Copy(c.whole, whole)
	case "reduce":
		h.q.Copy(whole, c.whole)
		h.Engined.ReduceScatter(h.q, own, whole)
		h.q.Copy(c.own, own)
	}
	err = h.q.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spare = append(h.spare, c)
	return err
}

// memory returns GPU memory for host data.
func (h *hosted) memory(mem *device.Buffer, like device.Buffer) (device.Buffer, error) {
	if mem.Bytes() < like.Bytes() {
		h.dev.Free(*mem)
		var err error
		if *mem, err = h.dev.Alloc(device.F64, like.Bytes()/8+1, device.Params); err != nil {
			return device.Buffer{}, err
		}
	}
	return device.Buffer{Type: like.Type, Use: device.Params, N: like.N, Ptr: mem.Ptr}, nil
}

// Close waits for the goroutine, so that tests can count them.
func (h *hosted) Close() error {
	err := h.Engined.Close()
	h.Wait(time.Minute)
	return err
}

func (h *hosted) end() {
	_ = h.Close()
	h.q.Close()
	h.dev.Free(h.whole)
	h.dev.Free(h.own)
	h.dev.Free(h.bounce)
}

// addExactly makes the ranks add in order, in chunks of 1 KiB.
func (h *hosted) addExactly(t *testing.T, end *cuda.Communicator, size int) {
	var err error
	if h.bounce, err = h.dev.Alloc(device.F32, cuda.ExactBounce(size, 1<<10)/4, device.Bounce); err != nil {
		t.Fatal(err)
	}
	end.AddExactly(h.bounce)
}

func TestNCCLConforms(t *testing.T) {
	if fake.OnHardware() {
		again(t, 8)
	} else if env("FAKENCCL_DIR") == "" {
		fake.Need(t)
		fake.Again(t, "TestNCCLConforms", append(ncclRanks(t), "OVER=wires")...)
		if nightly.All() {
			fake.Again(t, "TestNCCLConforms", append(ncclRanks(t), "OVER=memory")...)
			fake.Again(t, "TestNCCLConforms", append(ncclRanks(t), "OVER=wires", "EXACT=1", "FAKENCCL_RING=1")...)
		}
		return
	}
	// A host queue skips hosted's operations, so the engine does not count them: TestNCCLCounts
	// checks that. Reuse is slow, and Interleaved finds the same.
	over, except := overWires, []string{"DivergenceOfSeveral", "Reuse"}
	if os.Getenv("EXACT") != "" {
		except = append(except, "CloseWhenDone", "Allocations") // as with NCCL's sums
	}
	if os.Getenv("OVER") == "memory" {
		over, except = overMemory, append(except, "Interleaved", "CloseWhenDone", "Allocations")
	}
	collectivetest.Run(t, newClique(t, over).open, except...)
	if dir := env("FAKENCCL_DIR"); dir == "" {
		return
	} else if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("communicators have left %v (%v)", left, err)
	}
}

func TestNCCLLinksConform(t *testing.T) {
	if again(t, 4) {
		collectivetest.RunLinks(t, newClique(t, overMemory).openLinks)
	}
}

// again runs the test in a process with the environment of ncclRanks, and reports whether this is
// that process. On hardware it always is; a test that needs more GPUs is skipped.
func again(t *testing.T, needs int, more ...string) bool {
	t.Helper()
	if fake.OnHardware() {
		if have := gpus(t); have < needs {
			t.Skipf("it needs %d GPUs, one for each rank; this machine has %d", needs, have)
		}
		return true
	}
	if env("FAKENCCL_DIR") != "" {
		return true
	}
	fake.Need(t)
	fake.Again(t, t.Name(), append(ncclRanks(t), more...)...)
	return false
}

// TestNCCLBegins checks errors during setup: an invalid or unknown id; ranks that share a GPU or a
// number; a rank that does not join.
func TestNCCLBegins(t *testing.T) {
	fake.Only(t) // NCCL words its refusals differently, and waits longer
	if !again(t, 2) {
		return
	}
	c := newClique(t, overMemory)
	fresh := func() []byte {
		id, err := cuda.NewCommunicatorID()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	_, err := c.devs[0].Join([]byte("short"), 2, 0, never)
	say(t, err, "the id of a communicator has 5 bytes, want 128")
	_, err = c.devs[0].Join(make([]byte, 128), 2, 0, never)
	say(t, err, "join 2 ranks as number 0 on GPU 0 (Emulated GPU): ncclInvalidArgument")
	wrong := fresh()
	wrong[20] ^= 1
	_, unknown := c.devs[0].Join(wrong, 2, 0, never)
	say(t, unknown, "ncclSystemError", "no root answers for this id")

	id, other := fresh(), errors.New("rank 1 is lost")
	begin := time.Now()
	_, err = c.devs[0].Join(id, 2, 0, func() error {
		if time.Since(begin) > 50*time.Millisecond {
			return other
		}
		return nil
	})
	if !errors.Is(err, other) {
		t.Errorf("%v, want that rank 1 is lost", err)
	}

	id = fresh()
	c.devs[1].Close()
	if c.devs[1], err = cuda.Open(0); err != nil {
		t.Fatal(err)
	}
	_, errs := c.join(2, id, never)
	for _, err := range append(errs, unknown) {
		if strings.Contains(err.Error(), string(id[:9])) || strings.Contains(err.Error(), fmt.Sprintf("%x", id[:9])) {
			t.Errorf("%v: it tells the id", err)
		}
	}
	for _, err := range errs {
		say(t, err, "ncclInvalidUsage", "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0")
	}
}

// TestNCCLRefuses checks that an operation refused by NCCL fails on all ranks, and that the others
// name the culprit.
func TestNCCLRefuses(t *testing.T) {
	fake.Only(t) // NCCL words its refusals differently
	if !again(t, 3) {
		return
	}
	c := newClique(t, overWires)
	groups := c.open(3)
	errs := make([]error, 3)
	var all sync.WaitGroup
	for r, g := range groups {
		h := g.(*hosted)
		x, err := h.dev.Alloc(device.F32, 3, device.Params)
		if err != nil {
			t.Fatal(err)
		}
		defer h.dev.Free(x)
		if r == 1 {
			x.Ptr = floats(3, func(int) float32 { return 0 }).Ptr // not memory of its GPU
		}
		all.Go(func() {
			h.q.Label("unit h.0: all-gather")
			collective.AllGather(h.Engined, h.q, x)
			if errs[r] = h.q.Wait(); errs[r] != nil {
				h.Engined.Close()
			}
		})
	}
	all.Wait()
	say(t, errs[1], "unit h.0: all-gather: NCCL: all-gather of 1 elements a rank: ncclInvalidArgument (invalid argument; ncclAllGather: an argument is not memory of device 1)")
	for _, r := range []int{0, 2} {
		var lost collective.ErrPeerLost
		if !errors.As(errs[r], &lost) || lost.Rank != 1 {
			t.Errorf("rank %d: %v, want peer 1 lost", r, errs[r])
		}
	}
	if _, err := c.devs[0].Join(nil, 1, 0, never); err == nil {
		t.Error("an empty id is taken")
	}
	end, err := c.devs[0].Join(mustID(t), 1, 0, never)
	if err != nil {
		t.Fatal(err)
	}
	end.Abort()
	end.Abort()
	x, _ := c.devs[0].Alloc(device.F32, 3, device.Params)
	q := c.devs[0].NewQueue("late")
	defer q.Close()
	say(t, end.AllGather(q, x, x), "the communicator has ended")
	if end.Pending() || end.Err() != nil {
		t.Error("an ended communicator has something to say")
	}
	c.devs[0].Free(x)
}

func mustID(t *testing.T) []byte {
	id, err := cuda.NewCommunicatorID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestNCCLCounts checks that a rank that skips an operation, because its queue has failed, is
// named.
func TestNCCLCounts(t *testing.T) {
	if !again(t, 3) {
		return
	}
	groups := newClique(t, overWires).open(3)
	errs := make([]error, 3)
	var all sync.WaitGroup
	for r, g := range groups {
		h := g.(*hosted)
		x, err := h.dev.Alloc(device.F32, 3, device.Params)
		if err != nil {
			t.Fatal(err)
		}
		defer h.dev.Free(x)
		all.Go(func() {
			if r == 2 {
				q := h.dev.NewQueue("failed")
				defer q.Close()
				q.Fail(errors.New("broken"))
				collective.AllGather(h.Engined, q, x)
			}
			collective.AllGather(h.Engined, h.q, x)
			errs[r] = h.q.Wait()
		})
	}
	all.Wait()
	for _, err := range errs {
		say(t, err, "operation 0: rank 2 calls all-gather of 3 fp32 as operation 1, ranks 0,1 all-gather of 3 fp32")
	}
}

// idle is an engine whose rank arrives and does nothing.
type idle struct{ *cuda.Communicator }

func (idle) AllGather(_ device.Queue, _, _ device.Buffer) error { return nil }

// TestNCCLStuck checks that an operation in which a rank is stuck, though all have arrived, is
// late, and that waiting for its stream fails within the deadline.
func TestNCCLStuck(t *testing.T) {
	if !again(t, 2) {
		return
	}
	c := newClique(t, overWires)
	ends, errs := c.join(2, mustID(t), never)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	under, end := overWires(2)
	defer end()
	limit := 300 * time.Millisecond
	stuck := collective.NewEngined(under[1], idle{ends[1]})
	late := collective.NewEngined(under[0], ends[0])
	x, q := make([]device.Buffer, 2), make([]*cuda.Queue, 2)
	for r, d := range c.devs[:2] {
		x[r], _ = d.Alloc(device.F32, 2, device.Params)
		q[r] = d.NewQueue("comm")
	}
	var all sync.WaitGroup
	all.Go(func() {
		q[1].Label("unit h.0: all-gather")
		collective.AllGather(stuck, q[1], x[1])
		errs[1] = q[1].Wait() // it has nothing to wait for
	})
	all.Go(func() {
		g := collective.Watchdog(late, limit)
		q[0].Label("unit h.0: all-gather")
		collective.AllGather(g, q[0], x[0])
		errs[0] = q[0].Wait()
		g.Close()
	})
	all.Wait()
	var why collective.ErrLate
	if !errors.As(errs[0], &why) || errs[1] != nil {
		t.Errorf("%v, %v", errs[0], errs[1])
	}
	say(t, errs[0], "operation 0 (all-gather of 2 fp32): rank 0 waited 300ms for rank 1")
	collective.AllGather(stuck, q[1], x[1])
	say(t, q[1].Wait(), "rank 0 waited 300ms for rank 1")
	stuck.Close()
	stuck.Wait(time.Minute)
	late.Wait(time.Minute)
	for r, d := range c.devs[:2] {
		q[r].Close()
		d.Free(x[r])
	}
}

// TestFindNCCL checks that the error for missing or outdated libraries lists all places.
func TestFindNCCL(t *testing.T) {
	fake.Only(t)
	if at := env("NCCL_TEST"); at != "" {
		_, err := cuda.NewCommunicatorID()
		fmt.Println("said:", err)
		return
	}
	for set, want := range map[string][]string{
		"ZEROTH_NCCL_PATH=/nowhere/libnccl.so.2":              {"NCCL, version 2.10 or newer, was not found", "pip install nvidia-nccl-cu12", "/nowhere/libnccl.so.2: "},
		"FAKENCCL_VERSION=20907":                              {"it is version 2.9.7"},
		"ZEROTH_NCCL_PATH=" + os.Getenv("ZEROTH_CUBLAS_PATH"): {"it has no ncclGetVersion"},
	} {
		out, err := fake.Output("TestFindNCCL", "NCCL_TEST=1", set)
		for _, w := range want {
			if err != nil || !strings.Contains(out, w) {
				t.Errorf("%s: %v\n%s\nwant %q", set, err, out, w)
			}
		}
	}
}
