package cpu

import (
	"fmt"
	"math"
	"testing"

	"zeroth/device"
	"zeroth/tests/nightly"
)

// kept returns the factor of a probability: device.Attn's definition of Drop.
func (a *attn64) kept(b, h, t, s int) float64 {
	if a.Drop.Drop == 0 {
		return 1
	}
	row := a.Drop.Row + uint64(b*a.T+t) + uint64(h)<<44
	r := device.Philox([4]uint32{uint32(s / 8), a.Drop.Site, uint32(row), uint32(row >> 32)}, a.Drop.Key())
	if r[s%8/2]>>(16*(s%2))&0xffff < a.Drop.Drop {
		return 0
	}
	return 65536 / (65536 - float64(a.Drop.Drop))
}

// dropping returns the shape with dropout whose scale is exact, since a single weight has no
// gradient.
func dropping(a device.Attn) device.Attn {
	a.Drop = device.Dropout{Seed: 1<<40 + 9, Site: 1<<31 | 2, Drop: device.DropOf(0.75), Row: 1<<33 - 20}
	return a
}

// variants returns the shape alone, with documents, with dropout and with both. In short mode it
// adds dropout only for short sequences.
func variants(a device.Attn) []device.Attn {
	if !nightly.All() && a.T > 100 {
		return []device.Attn{a, packed(a)}
	}
	return []device.Attn{a, packed(a), dropping(a), dropping(packed(a))}
}

// TestAttentionDropsItsWeights uses equal scores for all keys and unit vectors for values, so that
// outputs are probabilities: the number of dropped ones must match the probability within five
// standard deviations, and another seed, layer, head, sequence or row must drop others.
func TestAttentionDropsItsWeights(t *testing.T) {
	a := dropping(device.Attn{B: 2, T: 150, H: 3, KV: 1, D: 150, Scale: 1})
	p := float64(a.Drop.Drop) / 65536
	first := droppedWeights(t, a)
	pairs := len(first)
	within := func(what string, n, hits int, p float64) {
		t.Helper()
		if sigma := math.Sqrt(float64(n) * p * (1 - p)); math.Abs(float64(hits)-float64(n)*p) > 5*sigma {
			t.Errorf("%s: %d of %d, want %v ± %v", what, hits, n, float64(n)*p, 5*sigma)
		}
	}
	both := func(x, y []bool) (n int) {
		for i := range x {
			if x[i] && y[i] {
				n++
			}
		}
		return n
	}
	within("dropped", pairs, both(first, first), p)
	head := pairs / (a.B * a.H)
	for h := 1; h < a.B*a.H; h++ { // two heads of one sequence, or of two sequences
		within(fmt.Sprintf("dropped in head %d too", h), head, both(first[:head], first[h*head:(h+1)*head]), p*p)
	}
	for what, change := range map[string]func(d *device.Dropout){
		"seed": func(d *device.Dropout) { d.Seed++ }, "layer": func(d *device.Dropout) { d.Site++ }, "row": func(d *device.Dropout) { d.Row += 1 << 34 },
	} {
		other := a
		change(&other.Drop)
		within("dropped by another "+what+" too", pairs, both(first, droppedWeights(t, other)), p*p)
	}
}

// droppedWeights returns which weights are dropped, for each sequence, head, query and visible key.
func droppedWeights(t *testing.T, a device.Attn) (dropped []bool) {
	t.Helper()
	c := newAttnBench(device.F32, a)
	c.q.fill(func(int) float64 { return 0 })
	c.v.fill(func(i int) float64 {
		if i%a.D == i/a.D%a.T {
			return 1
		}
		return 0
	})
	q := queueOf(t, 2)
	c.forward(q)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	o, oracle := c.o.values(), attn64{Attn: a}
	for i := range a.B * a.H * a.T {
		b, h, row := i/a.T/a.H, i/a.T%a.H, i%a.T
		for s := range row + 1 {
			dropped = append(dropped, o[oracle.at(b, row, h, a.H)+s] == 0)
		}
	}
	return dropped
}

// TestAttentionDropsBySample checks that a sequence has the same bits alone as among others, given
// its first row, so that micro-batches and ranks do not matter.
func TestAttentionDropsBySample(t *testing.T) {
	for _, with := range []func(*testing.T, func(*testing.T)){withVec, withTiles} {
		with(t, func(t *testing.T) {
			eachType(t, func(t *testing.T, dt device.DType) {
				a := dropping(device.Attn{B: 3, T: 140, H: 4, KV: 2, D: 24, Scale: 0.3, Window: 100})
				q, all := queueOf(t, 2), newAttnBench(dt, a)
				all.forward(q)
				all.backward(q)
				one := a
				one.B, one.Drop.Row = 1, a.Drop.Row+uint64(2*a.T)
				c := newAttnBench(dt, one)
				for i, m := range []*guarded{c.q, c.k, c.v, c.do} {
					from := []*guarded{all.q, all.k, all.v, all.do}[i].values()[2*a.T*m.Cols:]
					m.fill(func(i int) float64 { return from[i] })
				}
				c.forward(q)
				c.backward(q)
				if err := q.Wait(); err != nil {
					t.Fatal(err)
				}
				for i, m := range []*guarded{c.o, c.dq, c.dk, c.dv} {
					near(t, []string{"o", "dq", "dk", "dv"}[i], m, []*guarded{all.o, all.dq, all.dk, all.dv}[i].values()[2*a.T*m.Cols:], 0)
				}
			})
		})
	}
}
