package nn

import (
	"fmt"
	"sync"
	"testing"

	"zeroth/device"
	"zeroth/tests/nightly"
)

// circle is a group of goroutines.
type circle struct {
	rank int
	q    Ops
	all  *meeting
}

// meeting is where ranks exchange buffers, in rounds.
type meeting struct {
	mu    sync.Mutex
	came  *sync.Cond
	n     int // ranks
	count int // arrivals in total
	shown []device.Buffer
}

func newMeeting(n int) *meeting {
	m := &meeting{n: n, shown: make([]device.Buffer, n)}
	m.came = sync.NewCond(&m.mu)
	return m
}

// wait returns when all ranks have arrived as often as this one.
func (m *meeting) wait() {
	m.count++
	for all := (m.count + m.n - 1) / m.n * m.n; m.count < all; {
		m.came.Wait()
	}
	m.came.Broadcast()
}

// meet calls f when all ranks have passed a buffer.
func (c circle) meet(b device.Buffer, f func(all []device.Buffer)) {
	c.q.Do(func() error {
		m := c.all
		m.mu.Lock()
		defer m.mu.Unlock()
		m.shown[c.rank] = b
		m.wait()
		f(m.shown)
		m.wait()
		return nil
	})
}

func (c circle) Rank() int { return c.rank }
func (c circle) Size() int { return c.all.n }

func (c circle) Gather(whole, own device.Buffer) {
	c.meet(own, func(all []device.Buffer) {
		for i, b := range all {
			copy(whole.Slice(i*own.N, (i+1)*own.N).Raw(), b.Raw())
		}
	})
}

func (c circle) Reduce(own, whole device.Buffer) {
	sum := make([]float32, own.N)
	c.meet(whole, func(all []device.Buffer) {
		for _, b := range all {
			for i, x := range b.F32()[c.rank*own.N:][:own.N] {
				sum[i] += x
			}
		}
	})
	c.q.Do(func() error { copy(own.F32(), sum); return nil })
}

// TestContextIsWhole divides the positions of sequences over ranks: losses must equal those of
// whole sequences, and gradients must add up to theirs, except for the order of sums, with one
// document per sequence or several.
func TestContextIsWhole(t *testing.T) {
	nightly.Parallel(t)
	starts := []int32{0, 0, 0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 13, 13, 13 /**/, 0, 1, 1, 1, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12}
	for i, c := range subjects {
		t.Run(c.name, func(t *testing.T) {
			for n, packed := range map[int]bool{4: false, 2: true} {
				if !nightly.Every(2, i+n/2) {
					continue
				}
				whole := newRigOf(t, c, device.F32, tinyB, tinyContext)
				start := make([]int32, len(starts))
				if packed {
					copy(start, starts)
					whole.bt.Start = device.OfI32(start)
				}
				whole.train(SaveAll)
				contextIsWhole(t, c, whole, start, n)
			}
		})
	}
}

func contextIsWhole(t *testing.T, c subject, whole *rig, start []int32, n int) {
	t.Helper()
	var ranks []*rig
	all, sums := newMeeting(n), map[string][]float64{}
	losses := make([]float64, len(start))
	for i := range n {
		r := newRigOf(t, c, device.F32, 2*tinyB, tinyContext/(2*n))
		r.bt.Context = circle{i, r.q, all}
		r.bt.Start = device.OfI32(make([]int32, r.B*r.T))
		for row, from := range places(i, n) {
			r.bt.Input.I32()[row], r.bt.Target.I32()[row] = whole.input[from], whole.target[from]
			r.bt.Start.I32()[row] = start[from] - int32(from%tinyContext/r.T*r.T)
		}
		for i, w := range r.w {
			for j, b := range w {
				copy(b.Raw(), whole.w[i][j].Raw())
			}
		}
		ranks = append(ranks, r)
	}
	var wait sync.WaitGroup
	for _, r := range ranks {
		wait.Go(func() { r.train([]Recompute{RecomputeLinear, RecomputeBlock}[n%2]) })
	}
	wait.Wait()
	for i, r := range ranks {
		for name, b := range r.named() {
			if name != "losses" {
				sums[name] = add64(sums[name], r.values(b), false)
			}
		}
		for row, from := range places(i, n) {
			losses[from] = r.values(r.bt.Loss)[row]
		}
	}
	for name, b := range whole.named() {
		want := sums[name]
		if name == "losses" {
			want = losses
		}
		whole.near(fmt.Sprintf("%d ranks: %s", n, name), b, 1, want, 8e-6)
	}
}

// places returns the positions of a rank's rows, of n ranks.
func places(rank, n int) (at []int) {
	each := tinyContext / (2 * n)
	for s := range tinyB {
		for _, chunk := range Chunks(rank, n) {
			for i := range each {
				at = append(at, s*tinyContext+chunk*each+i)
			}
		}
	}
	return at
}

// TestContextIsEven checks that every rank computes the same number of scores, forward and
// backward.
func TestContextIsEven(t *testing.T) {
	const positions = 64
	for _, n := range []int{1, 2, 4, 8} {
		sum := int64(0)
		for rank := range n {
			own, bt := int64(0), Batch{B: 4, T: positions / (2 * n), Context: circle{rank, nil, newMeeting(n)}, Start: device.OfI32(make([]int32, 4*positions/(2*n)))}
			for i := range bt.parts() {
				a := bt.piece(device.Attn{B: bt.B, T: bt.T, H: 3, KV: 1, D: 8}, i)
				own += a.Pairs()
			}
			if sum += own; sum != int64(rank+1)*own {
				t.Errorf("%d ranks: rank %d has %d scores of %d so far", n, rank, own, sum)
			}
		}
		if want := (device.Attn{B: 2, T: positions, H: 3}).Pairs(); sum != want {
			t.Errorf("%d ranks have %d scores, want %d", n, sum, want)
		}
	}
}
