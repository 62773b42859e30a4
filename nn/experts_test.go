package nn

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/shard"
)

// dyadic is a layer of experts all of whose numbers are small multiples of powers of two, so that every sum is
// exact. The first columns of a row choose its experts, which have equal weights.
type dyadic struct {
	rows int                  // of all ranks
	x, d []float32            // (rows, dyadicWidth): the input, and the gradient of the output
	w    map[string][]float32 // whole parameters
}

const (
	dyadicWidth   = 16
	dyadicChoices = 8 // columns
	dyadicExperts = 8
	dyadicFFN     = 8
)

// newDyadic draws a layer. With one, all rows choose the first experts.
func newDyadic(rng *rand.Rand, rows int, one bool) dyadic {
	l := dyadic{rows: rows, w: map[string][]float32{}}
	small := func(n, most int) (x []float32) {
		for range n {
			x = append(x, float32(rng.IntN(2*most+1)-most))
		}
		return x
	}
	l.x, l.d = small(rows*dyadicWidth, 2), small(rows*dyadicWidth, 3)
	for i := range rows {
		clear(l.x[i*dyadicWidth:][:dyadicChoices])
		l.x[i*dyadicWidth+rng.IntN(dyadicChoices)] = 1
	}
	b, _ := dyadicBlock(Cut{}, Cut{})
	for _, p := range b.params {
		l.w[p.Name] = small(p.Numel(), 2)
	}
	router := l.w[b.params[b.mix.router.param].Name]
	clear(router)
	for c := range dyadicChoices {
		chosen := rng.Perm(dyadicExperts)[:2]
		for e := range dyadicExperts {
			if one {
				chosen = []int{0, 1}
			}
			if !slices.Contains(chosen, e) {
				router[e*dyadicWidth+c] = -256 // whose exponential is 0
			}
		}
	}
	return l
}

// dyadicBlock returns a rank's part of a block without norms around its experts, and where its parameters begin.
func dyadicBlock(matrices, experts Cut) (b *llamaBlock, begins []int) {
	l := Llama{Shape: Shape{Layers: 1, Heads: 4, Width: dyadicWidth, Vocab: 16, Context: 4, Cut: matrices}, KV: 4, FFN: 8, Gate: GateRelu}
	l.Experts = Experts{Count: dyadicExperts, FFN: dyadicFFN, Router: device.Router{TopK: 2, Normalize: true, Scale: 1}, Own: experts,
		Names: ExpertNames{Router: "gate", Gate: "experts.%d.w1", Up: "experts.%d.w3", Down: "experts.%d.w2"}}
	b = l.part().block(0)
	b.mlp = half{}
	n := 0
	for _, p := range b.params {
		begins = append(begins, n)
		n += p.Numel()
	}
	return b, append(begins, n)
}

// run computes a rank's output, the gradients of its input and of its parameters.
func (l dyadic) run(t *testing.T, at, sources, tensor, tensors int, groups, inner *meeting) map[string][]float32 {
	dev := cpu.NewHost(1)
	q := dev.NewQueue("test")
	defer dev.Close()
	defer q.Close()
	b, begins := dyadicBlock(Cut{tensor, tensors}, Cut{at, sources})
	w, dw := make([]float32, begins[len(b.params)]), make([]float32, begins[len(b.params)])
	p := pass{q: q, mem: device.NewArena(device.OfF32(make([]float32, 1<<20))), bt: &Batch{B: 1, T: l.rows / sources, Compute: device.F32}}
	whole := map[string][]float32{}
	for i, param := range b.params {
		all := l.w[param.Name]
		for tensor, local := range param.Runs(shard.Range{Hi: param.Numel()}) {
			copy(w[begins[i]:][local.Lo:local.Hi], all[tensor.Lo:tensor.Hi])
		}
		own := shard.Range{Lo: begins[i], Hi: begins[i+1]}
		p.w, p.dw = append(p.w, device.OfF32(w).Slice(own.Lo, own.Hi)), append(p.dw, device.OfF32(dw).Slice(own.Lo, own.Hi))
	}
	if tensors > 1 {
		p.bt.Tensor = circle{tensor, q, inner}
	}
	if sources > 1 {
		p.bt.Experts = circle{at*tensors + tensor, q, groups}
	}
	lo, hi := p.bt.Own()
	first := at * p.bt.Rows()
	mine := func(x []float32) device.Buffer {
		return device.OfF32(slices.Clone(x[(first+lo)*dyadicWidth : (first+hi)*dyadicWidth]))
	}
	s, y, d := new(Saved), mine(l.x), mine(l.d)
	s.x2 = mine(l.x)
	b.takeExperts(p, s, saving)
	b.forwardExperts(p, y, s)
	b.backwardExperts(p, d, s)
	if err := q.Wait(); err != nil {
		t.Error(err)
	}
	whole["y"], whole["dx"] = make([]float32, len(l.x)), make([]float32, len(l.x))
	copy(whole["y"][(first+lo)*dyadicWidth:], y.F32())
	copy(whole["dx"][(first+lo)*dyadicWidth:], d.F32())
	for i, param := range b.params {
		if i != b.mix.router.param && !param.Expert {
			continue
		}
		g := make([]float32, len(l.w[param.Name]))
		for tensor, local := range param.Runs(shard.Range{Hi: param.Numel()}) {
			copy(g[tensor.Lo:tensor.Hi], dw[begins[i]:][local.Lo:local.Hi])
		}
		whole[param.Name] = g
	}
	return whole
}

// TestExpertsOfExactSums checks that ranks that divide experts and matrices compute the bits of one rank, if no sum
// is rounded, wherever the router sends rows.
func TestExpertsOfExactSums(t *testing.T) {
	for i := range 6 {
		l := newDyadic(rand.New(rand.NewPCG(31, uint64(i))), 16, i%3 == 0)
		want := l.run(t, 0, 1, 0, 1, nil, nil)
		for _, n := range [][2]int{{2, 1}, {4, 1}, {8, 1}, {1, 2}, {2, 2}, {4, 2}, {2, 4}} {
			sources, tensors := n[0], n[1]
			groups, inner := newMeeting(sources*tensors), make([]*meeting, sources)
			sum := map[string][]float32{}
			var wait sync.WaitGroup
			var turn sync.Mutex
			for at := range sources {
				inner[at] = newMeeting(tensors)
				for tensor := range tensors {
					wait.Go(func() {
						got := l.run(t, at, sources, tensor, tensors, groups, inner[at])
						turn.Lock()
						defer turn.Unlock()
						for name, x := range got {
							if sum[name] == nil {
								sum[name] = make([]float32, len(x))
							}
							for i, v := range x {
								sum[name][i] += v
							}
						}
					})
				}
			}
			wait.Wait()
			for name, w := range want {
				if !slices.Equal(sum[name], w) {
					t.Errorf("%d: experts on %d ranks, matrices on %d: %s differs:\n%v\n%v", i, sources, tensors, name, sum[name], w)
				}
			}
			if slices.Equal(want["y"], l.x) {
				t.Fatal("experts add nothing")
			}
		}
	}
}
