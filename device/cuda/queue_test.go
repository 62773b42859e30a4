//go:build cuda

package cuda_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/cuda"
	"zeroth/device/cuda/fake"
)

func env(name string) string { return os.Getenv(name) }

func floats(n int, f func(i int) float32) device.Buffer {
	x := make([]float32, n)
	for i := range x {
		x[i] = f(i)
	}
	return device.OfF32(x)
}

func TestCopiesGoEverywhere(t *testing.T) {
	b := open(t)
	from := floats(1001, func(i int) float32 { return float32(i) })
	x := b.send(from)
	y := b.alloc(device.F32, 1001)
	b.q.Copy(y.Slice(1, 1001), x.Slice(0, 1000))
	b.q.Zero(y.Slice(10, 12))
	got := b.fetch(y).F32()
	want := make([]float32, 1001)
	copy(want[1:], from.F32())
	want[10], want[11] = 0, 0
	if !slices.Equal(got, want) {
		t.Error("the copy differs")
	}
	h := floats(1001, func(int) float32 { return 7 })
	b.q.Copy(h, from)
	if b.q.Wait() != nil || !slices.Equal(h.F32(), from.F32()) {
		t.Error("the host's copy differs")
	}
}

// TestOrder checks that pairs of queues are unordered except for marks. With pinned memory, copies
// are really asynchronous.
func TestOrder(t *testing.T) {
	b := open(t)
	p, err := cuda.OpenPinned(0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	host := cpu.NewHostFrom(1, p)
	defer host.Close()
	const n = 512
	h, err := host.Alloc(device.F32, n, device.Params)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Free(h)
	x, y, sum := b.alloc(device.F32, n), b.alloc(device.F32, n), b.alloc(device.F32, n)
	for i := range 40 {
		for j := range h.F32() {
			h.F32()[j] = float32(i)
		}
		b.q.Copy(x, h)
		b.q.AddTo(y, x, x) // 2i
		if env("NO_MARK") == "" {
			b.r.After(b.q.Mark())
		}
		b.r.AddTo(sum, x, y) // 3i
		b.r.Copy(h, sum)
		if err := b.r.Wait(); err != nil {
			t.Fatal(err)
		}
		if got := h.F32()[n-1]; got != float32(3*i) {
			t.Fatalf("round %d: %g, want %d", i, got, 3*i)
		}
		if err := b.q.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestQueuesInEveryOrder(t *testing.T) {
	fake.Only(t)
	for _, mode := range seeds(5) {
		fake.Again(t, "TestOrder", mode)
	}
	unseen := 0
	for _, mode := range seeds(3)[:3] { // the fakes detect it
		if out, err := fake.Output("TestOrder", mode, "NO_MARK=1"); err == nil {
			t.Logf("%s\n%s", mode, out)
			unseen++
		}
	}
	if unseen > 0 {
		t.Errorf("without the mark %d of 3 orders were right", unseen)
	}
}

func TestDo(t *testing.T) {
	b := open(t)
	x := b.send(floats(100, func(i int) float32 { return 1 }))
	h := floats(100, func(int) float32 { return 0 })
	b.q.AddTo(x, x, x)
	b.q.Copy(h, x)
	b.q.Label("unit h.3: forward")
	lost := errors.New("lost")
	b.q.Do(func() error {
		if h.F32()[99] != 2 {
			t.Error("Do ran before what was issued before it")
		}
		return lost
	})
	ran := false
	b.q.Do(func() error { ran = true; return nil })
	b.q.AddTo(x, x, x) // skipped
	if err := b.q.Wait(); !errors.Is(err, lost) || ran {
		t.Errorf("%v, later work ran: %v", err, ran)
	}
	say(t, b.q.Wait(), "unit h.3: forward: lost")
	b.r.After(b.q.Mark())
	if err := b.r.Wait(); !errors.Is(err, lost) {
		t.Errorf("a queue that waited for the failed one: %v", err)
	}
	if err := b.q.Mark().Await(); !errors.Is(err, lost) {
		t.Errorf("a mark of the failed queue: %v", err)
	}
}

// TestDoSleeps checks that the host sleeps while Do and a mark's Await wait for long, and not while Wait does.
func TestDoSleeps(t *testing.T) {
	fake.Only(t)
	if env("FAKECUDA_MODE") == "" {
		fake.Again(t, "TestDoSleeps", "FAKECUDA_MODE=threads:2000")
		return
	}
	b, file := open(t), filepath.Join(t.TempDir(), "spins")
	x := b.alloc(device.F32, 64)
	t.Setenv("FAKECUDA_SPINS", file)
	slow := func() {
		for range 100 {
			b.q.AddTo(x, x, x)
		}
	}
	slow()
	b.q.Do(func() error { return nil })
	slow()
	if err := b.q.Mark().Await(); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(file); err == nil {
		t.Errorf("Do and Await spin: %q", raw)
	}
	for n := 0; n == 0; { // the stream may be done before the host waits
		slow()
		if err := b.q.Wait(); err != nil {
			t.Fatal(err)
		}
		raw, _ := os.ReadFile(file)
		n = len(raw)
	}
}

// TestErrorLeavesEarlierMarks checks that what waits for a mark goes on if the queue failed after it by itself or adopted an error,
// but not if work that was issued before it may have failed.
func TestErrorLeavesEarlierMarks(t *testing.T) {
	b := open(t)
	hq, lost := b.host.NewQueue("host"), errors.New("lost")
	defer hq.Close()
	move := b.dev.NewTransfer("move")
	defer move.Close()
	early, moved := b.q.Mark(), move.Mark()
	b.q.Do(func() error { return lost })
	late := b.q.Mark()
	move.After(late)
	if err := move.Wait(); !errors.Is(err, lost) {
		t.Fatalf("a queue that waited for the failed one: %v", err)
	}
	for _, e := range []device.Event{early, moved} {
		b.r.After(e)
		hq.After(e)
		if a, r, h := e.Await(), b.r.Wait(), hq.Wait(); a != nil || r != nil || h != nil {
			t.Errorf("a mark before the failure: %v; those that wait for it: %v, %v", a, r, h)
		}
	}
	b.q.Fail(errors.New("aborted"))
	for _, e := range []device.Event{early, late, move.Mark()} {
		if err := e.Await(); !errors.Is(err, lost) {
			t.Errorf("%v, want %v", err, lost)
		}
	}
	move.Clear()
	if err := move.Mark().Await(); err != nil {
		t.Errorf("after Clear: %v", err)
	}
}

// TestDriverErrors checks that a driver error, reported on the next call, is the
// context's, and so every queue's.
func TestDriverErrors(t *testing.T) {
	fake.Only(t)
	fake.Again(t, "TestIllegalAddress", "ALONE=1")
}

func TestIllegalAddress(t *testing.T) {
	if env("ALONE") == "" {
		t.Skip("it ends the context of its process")
	}
	b := open(t)
	x, y := b.alloc(device.F32, 100), b.alloc(device.F32, 100)
	b.dev.Free(x)
	b.q.Label("unit wte: update")
	b.q.AddTo(y, x, x)
	err := b.q.Wait()
	say(t, err, "unit wte: update", "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)", "GPU 0 (Emulated GPU)")
	b.r.Zero(y)
	say(t, b.r.Wait(), "CUDA_ERROR_ILLEGAL_ADDRESS")
}

// TestHostAndGPUQueues makes a host queue and a GPU queue wait for each other.
func TestHostAndGPUQueues(t *testing.T) {
	b := open(t)
	hq := b.host.NewQueue("host")
	defer hq.Close()
	h := floats(64, func(int) float32 { return 0 })
	hq.Do(func() error { time.Sleep(5 * time.Millisecond); h.F32()[0] = 5; return nil })
	b.q.After(hq.Mark())
	x := b.alloc(device.F32, 64)
	b.q.Copy(x, h)
	b.q.AddTo(x, x, x)
	b.q.Copy(h, x)
	hq.After(b.q.Mark())
	var got float32
	hq.Do(func() error { got = h.F32()[0]; return nil })
	if err := hq.Wait(); err != nil || got != 10 {
		t.Errorf("%g, %v; want 10", got, err)
	}
}

func TestIssuingAllocatesNothing(t *testing.T) {
	b := open(t)
	x, y := b.send(floats(4096, func(int) float32 { return 0 })), b.alloc(device.BF16, 4096)
	m := device.Matrix(x, 64, 64)
	none := device.Buffer{}
	c := b.alloc(device.F32, 4096)
	b.q.MatMul(device.Matrix(c, 64, 64), m, m, c.Slice(0, 64), false)
	if got := testing.AllocsPerRun(50, func() {
		b.q.AddTo(x, x, x)
		b.q.Cast(y, x)
		b.q.MatMul(device.Matrix(c, 64, 64), m, m, none, true)
		b.q.MatMul(device.Matrix(c, 64, 64), m, m, x.Slice(0, 64), false) // planned above
		b.q.Copy(c, x)
		b.r.After(b.q.Mark())
	}); got > 0 {
		t.Errorf("%.1f allocations", got)
	}
	if err := b.q.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestTrace(t *testing.T) {
	b := open(t)
	var spans []device.Span
	begin := time.Now()
	b.q.Trace(func(s device.Span) { spans = append(spans, s) })
	late := time.Since(begin) // no time of a span is off by more than Trace took to compare clocks
	x := b.alloc(device.F32, 64)
	b.q.Label("unit a")
	b.q.AddTo(x, x, x)
	b.q.Label("unit b")
	b.q.Zero(x)
	b.q.Do(func() error { return nil })
	b.q.Trace(nil)
	b.q.Zero(x)
	if err := b.q.Wait(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range spans {
		got = append(got, s.Queue+" "+s.Label+" "+s.Task)
		if s.End.Before(s.Start) || s.Start.Before(begin) || s.End.After(time.Now().Add(late)) {
			t.Errorf("%v to %v, where the test began at %v and compared clocks within %v", s.Start, s.End, begin, late)
		}
	}
	if want := []string{"q unit a add", "q unit b zero", "q unit b do"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestTraceWithoutWaits checks that tasks are reported, and their events reused, though the host
// only waits for marks.
func TestTraceWithoutWaits(t *testing.T) {
	b := open(t)
	told := 0
	b.q.Trace(func(device.Span) { told++ })
	x := b.alloc(device.F32, 64)
	const rounds, tasks = 20, 50
	for range rounds {
		for range tasks {
			b.q.Zero(x)
		}
		if err := b.q.Mark().Await(); err != nil {
			t.Fatal(err)
		}
	}
	if told < (rounds-2)*tasks {
		t.Errorf("%d of %d tasks are reported", told, rounds*tasks)
	}
	b.q.Trace(nil)
	if told != rounds*tasks {
		t.Errorf("%d of %d tasks are reported at the end", told, rounds*tasks)
	}
}

var blasTypes = []device.DType{device.F32, device.BF16, device.F16}

// TestWorkspacePerQueue checks that a device reserves working space for products of two queues if
// updates of whole matrices, which multiply in parallel with modules, are planned, otherwise for
// one, and no more.
func TestWorkspacePerQueue(t *testing.T) {
	fake.Need(t)
	for _, whole := range []bool{false, true} {
		s := device.Sizes{Rows: 8, Width: 8, Whole: whole}
		d, err := cuda.Open(0)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if err := d.ReserveWork(s); err != nil || d.Usage().Live[device.Workspace] != cuda.Workspace(s) {
			t.Errorf("whole %v: %d bytes of work space, planned %d (%v)", whole, d.Usage().Live[device.Workspace], cuda.Workspace(s), err)
		}
		x, err := d.Alloc(device.BF16, 64, device.Params)
		if err != nil {
			t.Fatal(err)
		}
		multiplied := 0
		for range 3 {
			q := d.NewQueue("q")
			func() {
				defer func() {
					if recover() == nil {
						multiplied++
					}
				}()
				q.MatMul(device.Matrix(x.Slice(0, 16), 4, 4), device.Matrix(x.Slice(16, 32), 4, 4), device.Matrix(x.Slice(32, 48), 4, 4), device.Buffer{}, false)
			}()
			defer q.Close()
		}
		if want := map[bool]int{false: 1, true: 2}[whole]; multiplied != want {
			t.Errorf("whole %v: %d queues multiply, want %d", whole, multiplied, want)
		}
	}
}

// TestMatMul compares products with the CPU's, whose sums have another order: float32 sums may
// differ, and 16-bit results by an ulp.
func TestMatMul(t *testing.T) {
	b := open(t)
	hq := b.host.NewQueue("host")
	defer hq.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(typ device.DType, n int) device.Buffer {
		x := floats(n, func(int) float32 { return rng.Float32() - .5 })
		y, _ := b.host.Alloc(typ, n, device.Params)
		hq.Cast(y, x)
		return y
	}
	for i := range 60 {
		typ := blasTypes[i%3]
		out := typ
		if i%2 == 1 {
			out = device.F32
		}
		M, N, K, add, gap := 1+rng.IntN(40), 1+rng.IntN(40), 1+rng.IntN(70), rng.IntN(2) == 0, rng.IntN(3)
		mat := func(typ device.DType, rows, cols int, trans bool) device.Mat {
			if trans {
				rows, cols = cols, rows
			}
			ld := cols + gap
			m := device.Mat{Buf: random(typ, rows*ld), Rows: rows, Cols: cols, Ld: ld}
			m.Trans = trans
			return m
		}
		a, bm, c := mat(typ, M, K, rng.IntN(2) == 0), mat(typ, K, N, rng.IntN(2) == 0), mat(out, M, N, false)
		var bias device.Buffer
		if rng.IntN(2) == 0 {
			bias = random(out, N)
		}
		if err := hq.Wait(); err != nil {
			t.Fatal(err)
		}
		on := func(m device.Mat) device.Mat { m.Buf = b.send(m.Buf); return m }
		dc, dbias := on(c), device.Buffer{}
		if bias.N > 0 {
			dbias = b.send(bias)
		}
		b.q.MatMul(dc, on(a), on(bm), dbias, add)
		hq.MatMul(c, a, bm, bias, add)
		if err := hq.Wait(); err != nil {
			t.Fatal(err)
		}
		got, want := b.fetch(dc.Buf), c.Buf
		f, g := floats(got.N, func(int) float32 { return 0 }), floats(got.N, func(int) float32 { return 0 })
		hq.Cast(f, got)
		hq.Cast(g, want)
		if err := hq.Wait(); err != nil {
			t.Fatal(err)
		}
		tol := map[device.DType]float32{device.F32: 1e-5, device.F16: 1e-2, device.BF16: 6e-2}[out]
		for j, x := range f.F32() {
			if d := x - g.F32()[j]; !(d < tol && d > -tol) {
				t.Fatalf("case %d: (%d,%d,%d) %v into %v, bias %v, add %v: element %d is %g, want %g", i, M, N, K, typ, out, bias.N > 0, add, j, x, g.F32()[j])
			}
		}
	}
}

// TestTransfersWaitForHost checks that issuing copies that wait for the host does not
// block, and that waiting for them does.
func TestTransfersWaitForHost(t *testing.T) {
	b := open(t)
	hq, tr := b.host.NewQueue("host"), b.dev.NewTransfer("to device")
	defer hq.Close()
	defer tr.Close()
	h := floats(64, func(int) float32 { return 0 })
	gate := make(chan struct{})
	hq.Do(func() error { <-gate; h.F32()[0] = 5; return nil })
	x := b.alloc(device.F32, 64)
	tr.Label("unit h.1: to the device")
	tr.After(hq.Mark())
	tr.Copy(x, h) // issued immediately
	copied := tr.Mark()
	hq.After(copied)
	hq.Do(func() error { h.F32()[0] = 7; return nil })
	close(gate)
	b.q.After(copied)
	b.q.AddTo(x, x, x)
	if got := b.fetch(x).F32()[0]; got != 10 {
		t.Errorf("%g, want 10", got)
	}
	if err := hq.Wait(); err != nil || h.F32()[0] != 7 {
		t.Errorf("%v, %g", err, h.F32()[0])
	}
	lost := errors.New("lost")
	tr.Do(func() error { return lost })
	if err := tr.Wait(); !errors.Is(err, lost) {
		t.Errorf("%v", err)
	}
	say(t, tr.Wait(), "unit h.1: to the device: lost")
	b.q.After(tr.Mark())
	if err := b.q.Wait(); !errors.Is(err, lost) {
		t.Errorf("a queue that waited: %v", err)
	}
}
