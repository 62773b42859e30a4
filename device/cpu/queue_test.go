package cpu_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"zeroth/device"
	"zeroth/device/cpu"
)

// open returns queues for a test, which may run with a fake clock: a queue left open makes such a
// test fail.
func open(t *testing.T, workers int, names ...string) []*cpu.Queue {
	d := cpu.NewHost(workers)
	var queues []*cpu.Queue
	for _, name := range names {
		queues = append(queues, d.NewQueue(name))
	}
	t.Cleanup(func() {
		for _, q := range queues {
			q.Close()
		}
		d.Close()
	})
	return queues
}

var errBroken = errors.New("broken")

func fail() error { return errBroken }

// TestQueueRunsInOrder issues work of all kinds.
func TestQueueRunsInOrder(t *testing.T) {
	q := open(t, 2, "q")[0]
	const n = 3000 // more than a queue holds
	var got []int
	x := device.OfF32(make([]float32, 1))
	for i := range n {
		next := device.OfF32([]float32{float32(i)})
		q.Copy(x, next)
		q.Do(func() error {
			got = append(got, int(x.F32()[0]))
			return nil
		})
		q.After(q.Mark()) // this mark has already fired when its turn comes
	}
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, x := range got {
		if x != i {
			t.Fatalf("work %d of %d saw %d", i, n, x)
		}
	}
	if len(got) != n {
		t.Errorf("%d of %d ran", len(got), n)
	}
}

// TestHostRunsAhead checks that issuing does not wait for the work, but is bounded.
func TestHostRunsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, 1, "q")[0]
		const n = 10000
		gate, issued, ran := make(chan struct{}), 0, 0
		q.Do(func() error { <-gate; return nil })
		var wg sync.WaitGroup
		wg.Go(func() {
			for range n {
				q.Do(func() error { ran++; return nil })
				issued++
			}
		})
		synctest.Wait()
		if issued < 100 || issued == n {
			t.Errorf("%d tasks issued behind one that blocks", issued)
		}
		close(gate)
		wg.Wait()
		if err := q.Wait(); err != nil || ran != n {
			t.Errorf("%d of %d ran: %v", ran, n, err)
		}
	})
}

// TestMarks checks that a mark fires exactly when the work before it is done, for the host and for
// other queues, without waiting for later work.
func TestMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		qs := open(t, 1, "first", "second")
		first, second := qs[0], qs[1]
		gate, more := make(chan struct{}), make(chan struct{})
		var order []string
		note := func(what string) func() error {
			return func() error { order = append(order, what); return nil }
		}
		empty := first.Mark()
		first.Do(func() error { <-gate; return note("before the mark")() })
		mark := first.Mark()
		first.Do(func() error { <-more; return note("after the mark")() })
		second.After(device.Event{}) // has fired
		second.After(empty)
		second.Do(note("free"))
		second.After(mark)
		second.Do(note("ordered"))
		awaited := false
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := mark.On.Await(mark.Seq); err != nil {
				t.Error(err)
			}
			awaited = true
		})
		synctest.Wait()
		if !slices.Equal(order, []string{"free"}) || awaited {
			t.Errorf("%q has run before the mark fires, awaited: %v", order, awaited)
		}
		close(gate)
		if err := second.Wait(); err != nil || !slices.Equal(order, []string{"free", "before the mark", "ordered"}) {
			t.Errorf("%q has run when the mark has fired: %v", order, err)
		}
		wg.Wait()
		close(more)
		if err := first.Wait(); err != nil || order[3] != "after the mark" {
			t.Errorf("%q has run: %v", order, err)
		}
	})
}

// TestMarksAcrossQueues issues a random pattern of marks between queues: every task must see the
// writes of all tasks it is ordered after; the race detector checks that, too.
func TestMarksAcrossQueues(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	qs := open(t, 1, "a", "b", "c")
	const n = 600
	written := make([]int, n) // element i by task i
	before := make([][]int, n)
	last := make([]int, len(qs)) // of each queue
	for i := range last {
		last[i] = -1
	}
	for i := range n {
		q := rng.IntN(len(qs))
		if last[q] >= 0 {
			before[i] = append(before[i], last[q])
		}
		if other := rng.IntN(len(qs)); last[other] >= 0 {
			before[i] = append(before[i], last[other])
			qs[q].After(qs[other].Mark())
		}
		last[q] = i
		qs[q].Do(func() error {
			for _, j := range before[i] {
				if written[j] != j+1 {
					return fmt.Errorf("task %d runs before %d", i, j)
				}
			}
			written[i] = i + 1
			return nil
		})
	}
	for _, q := range qs {
		if err := q.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestErrorSticks checks that no later work of any kind runs after the first error, and that all
// waits return that error.
func TestErrorSticks(t *testing.T) {
	q := open(t, 2, "q")[0]
	q.Do(fail)
	x := []float32{1}
	q.Copy(device.OfF32(x), device.OfF32([]float32{2}))
	q.Do(func() error { x[0] = 3; return errors.New("another") })
	mark := q.Mark()
	for range 1000 { // more than a queue holds
		q.Do(func() error { x[0] = 4; return nil })
	}
	for range 2 {
		if err := q.Wait(); err != errBroken {
			t.Errorf("error %v", err)
		}
	}
	if err := mark.On.Await(mark.Seq); err != errBroken {
		t.Errorf("error %v at a mark", err)
	}
	if x[0] != 1 {
		t.Errorf("work after an error has written %g", x[0])
	}
}

// TestErrorIsAdopted checks that marks of a failed queue fire, and that queues that wait for
// one adopt the error and run no later work, through any number of queues.
func TestErrorIsAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		qs := open(t, 1, "a", "b", "c")
		gate, ran := make(chan struct{}), ""
		qs[0].Label("unit h.1: all-gather")
		qs[0].Do(func() error { <-gate; return errBroken })
		qs[0].Label("unit h.2: all-gather")
		qs[1].Label("unit h.1: forward")
		qs[1].Do(func() error { ran += "b1"; return nil })
		qs[1].After(qs[0].Mark())
		qs[1].Do(func() error { ran += "b2"; return nil })
		qs[2].Label("unit h.1: norm")
		qs[2].After(qs[1].Mark())
		qs[2].Do(func() error { ran += "c"; return nil })
		synctest.Wait()
		close(gate)
		for i, q := range qs {
			if err := q.Wait(); !errors.Is(err, errBroken) || err.Error() != "unit h.1: all-gather: broken" {
				t.Errorf("queue %d: error %v", i, err)
			}
		}
		if ran != "b1" {
			t.Errorf("%q has run", ran)
		}
	})
}

// TestErrorStaysWhereItIs checks that a queue continues if it does not wait for a failed one, or only for what that did
// before.
func TestErrorStaysWhereItIs(t *testing.T) {
	qs := open(t, 1, "a", "b")
	qs[0].Do(func() error { return nil })
	before := qs[0].Mark()
	qs[0].Do(fail)
	_ = qs[0].Wait()
	ran := false
	qs[1].After(before)
	qs[1].Do(func() error { ran = true; return nil })
	if err := qs[1].Wait(); err != nil || !ran {
		t.Errorf("error %v of a queue that waits for nobody", err)
	}
	if err := qs[0].Wait(); err != errBroken {
		t.Errorf("error %v", err)
	}
}

// TestLabels checks that an error has the label of its work.
func TestLabels(t *testing.T) {
	for label, want := range map[string]string{"": "broken", "unit h.3: update": "unit h.3: update: broken"} {
		q := open(t, 1, "q")[0]
		q.Label("before")
		q.Do(func() error { return nil })
		q.Label(label)
		q.Do(fail)
		q.Label("after")
		q.Do(func() error { return nil })
		if err := q.Wait(); !errors.Is(err, errBroken) || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// TestCloseWaits checks that Close waits for the issued work, and that issuing afterwards panics.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := cpu.NewHost(1)
		defer d.Close()
		q := d.NewQueue("q")
		ran := 0
		for range 100 {
			q.Do(func() error { time.Sleep(time.Second); ran++; return nil })
		}
		start := time.Now()
		q.Close()
		if took := time.Since(start); took != 100*time.Second || ran != 100 {
			t.Errorf("closed after %v, when %d of 100 had run", took, ran)
		}
		if err := q.Wait(); err != nil {
			t.Errorf("Wait after Close: %v", err)
		}
		defer func() {
			if r := recover(); !strings.Contains(fmt.Sprint(r), "closed queue") {
				t.Errorf("issuing on a closed queue: %v", r)
			}
		}()
		q.Do(func() error { return nil })
	})
}

// TestCloseAfterError closes a failed queue.
func TestCloseAfterError(t *testing.T) {
	d := cpu.NewHost(2)
	q := d.NewQueue("q")
	q.Do(fail)
	q.Do(func() error { t.Error("ran after an error"); return nil })
	q.Close()
	d.Close()
	if err := q.Wait(); err != errBroken {
		t.Errorf("error %v", err)
	}
}

// TestTrace checks that spans are the executed tasks in order, with their labels and times, without
// skipped ones.
func TestTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, 1, "compute")[0]
		var got []device.Span
		q.Trace(func(s device.Span) { got = append(got, s) })
		start := time.Now()
		q.Label("unit h.0: forward")
		q.Do(func() error { time.Sleep(3 * time.Second); return nil })
		q.Label("unit h.1: forward")
		q.Copy(device.OfF32(make([]float32, 1)), device.OfF32(make([]float32, 1)))
		q.Call("all-gather", func() error { time.Sleep(time.Second); return errBroken })
		q.Do(func() error { return nil })
		if err := q.Wait(); !errors.Is(err, errBroken) {
			t.Error(err)
		}
		at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
		want := []device.Span{
			{Queue: "compute", Label: "unit h.0: forward", Task: "do", Start: at(0), End: at(3)},
			{Queue: "compute", Label: "unit h.1: forward", Task: "copy", Start: at(3), End: at(3)},
			{Queue: "compute", Label: "unit h.1: forward", Task: "all-gather", Start: at(3), End: at(4)},
		}
		if !slices.Equal(got, want) {
			t.Errorf("spans\n%v\nwant\n%v", got, want)
		}
	})
}

// TestCopy copies all lengths and types, with any number of workers.
func TestCopy(t *testing.T) {
	for _, workers := range []int{1, 3} {
		q := open(t, workers, "q")[0]
		for _, n := range []int{0, 1, 63, 64, 1000, 1<<20 + 17} {
			src, dst := make([]uint16, n+2), make([]uint16, n+2)
			for i := range src {
				src[i] = uint16(i*40503>>3) | 1
			}
			q.Copy(device.OfU16(device.BF16, dst).Slice(1, n+1), device.OfU16(device.BF16, src).Slice(1, n+1))
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(dst[1:n+1], src[1:n+1]) || dst[0] != 0 || dst[n+1] != 0 {
				t.Errorf("%d workers, %d elements: a copy differs", workers, n)
			}
		}
	}
	q := open(t, 1, "q")[0]
	for want, bad := range map[string]device.Buffer{
		"cpu: copy of 2 fp32 to 3 fp32":  device.OfF32(make([]float32, 2)),
		"cpu: copy of 3 int32 to 3 fp32": device.OfI32(make([]int32, 3)),
	} {
		func() {
			defer func() {
				if r := recover(); r != want {
					t.Errorf("%v, want %s", r, want)
				}
			}()
			q.Copy(device.OfF32(make([]float32, 3)), bad)
		}()
	}
}
