package nn

import (
	"fmt"
	"math"
	"slices"

	"zeroth/device"
)

// expertAdapter locates the LoRA adapters of one linear layer of every expert: all have one, or none.
type expertAdapter struct {
	down, up matrices // lora_A (rank, in) and lora_B (out, rank) of each expert
	scale    float32
	drop     inputDropout
}

func (a expertAdapter) exist() bool { return a.up.count > 0 }

// attachExperts gives the experts of a block adapters, if any expert of the layer is targeted: their first
// matrices after one another, then their second ones. The place of their dropout is counted over all layers of the
// model. Ranks that divide matrices divide the hidden layer's side of them, and have the other side whole.
func (b *llamaBlock) attachExperts(prefix string, place int) {
	x, c, l, cut := b.l.Experts, b.l.Width, b.l.LoRA, b.l.Cut
	if x.Names.Up == "" || l.Rank == 0 {
		return
	}
	own, parts := x.own(), max(1, cut.Count)
	for i, f := range [3]struct {
		name    string
		in, out int
	}{{x.Names.Gate, c, x.FFN}, {x.Names.Up, c, x.FFN}, {x.Names.Down, x.FFN, c}} {
		layer := func(e int) string { return prefix + fmt.Sprintf(f.name, e) }
		first := 0
		for first < x.Count && !l.Targeted(layer(first)) {
			first++
		}
		if first == x.Count {
			continue
		}
		rank := l.RankOf(layer(first))
		a := &b.mix.adapters[i]
		a.scale, a.drop = float32(l.Scale(layer(first))), inputDropout{p: l.Dropout, place: placeExperts + place + i}
		add := func(suffix string, std float32, whole bool, dim int, shape ...int) matrices {
			at, all := len(b.params), slices.Clone(shape)
			if !whole {
				all[dim] *= parts
			}
			for e := own.Lo; e < own.Hi; e++ {
				p := weight(layer(e)+suffix, std, all...)
				if !whole {
					p = cut.part(p, dim, shape[dim])
				}
				p.Expert = true
				b.params.add(p)
			}
			return matrices{at, shape[0], shape[1], own.Len()}
		}
		down, in := i == 2, f.in
		if down {
			in *= parts
			a.drop.first = cut.Index * f.in
		}
		a.down = add(".lora_A.weight", float32(1/math.Sqrt(3*float64(in))), !down, 1, rank, f.in)
		a.up = add(".lora_B.weight", 0, down, 0, f.out, rank)
	}
}

// low returns scale times the product of x and a matrix of each expert, in new memory.
func (m mixPass) low(a expertAdapter, x device.Mat, by device.MatGroup, offsets device.Buffer) device.Mat {
	rank := a.up.cols
	u := m.take(x.Rows, rank)
	m.q.MatMulGroups(u, x, by, offsets, false)
	m.q.Scale(u.Buf, a.scale)
	return u
}

// kept returns rows x of a source as the adapter reads them: those that its dropout keeps, in new memory, if the pass
// drops some. Every pair has a mask of its own, by its number before the sort, like the rows of a linear layer.
func (m mixPass) kept(a expertAdapter, x device.Mat, o pairOrder) device.Mat {
	if !m.bt.dropping(a.drop.p) {
		return x
	}
	y := m.take(x.Rows, x.Cols)
	defer m.mem.Release(m.mem.Mark())
	pairs := m.take(x.Rows, x.Cols)
	m.q.GatherRows(pairs, x, o.at)
	a.drop.ahead = o.ahead
	a.drop.keep(m.pass, pairs, pairs, device.Buffer{}, m.b.l.Experts.Router.TopK)
	m.q.GatherRows(y, pairs, o.order)
	return y
}

// adapt adds an adapter's output for rows x to y.
func (m mixPass) adapt(a expertAdapter, y, x device.Mat, o pairOrder) {
	if !a.exist() {
		return
	}
	defer m.mem.Release(m.mem.Mark())
	m.q.MatMulGroups(y, m.low(a, m.kept(a, x, o), a.down.of(m.w).T(), o.offsets), a.up.of(m.w).T(), o.offsets, true)
}

// adaptGrad adds an adapter's gradient of the input x to dx, and computes its own gradients or, with add, adds to
// them, given that of the output, dy.
func (m mixPass) adaptGrad(a expertAdapter, dx, dy, x device.Mat, o pairOrder, add bool) {
	if !a.exist() {
		return
	}
	defer m.mem.Release(m.mem.Mark())
	d, drops := m.low(a, dy, a.up.of(m.w), o.offsets), m.bt.dropping(a.drop.p)
	to := dx
	if drops {
		to = m.take(dx.Rows, dx.Cols)
	}
	m.q.MatMulGroups(to, d, a.down.of(m.w), o.offsets, !drops)
	if drops {
		m.q.AddTo(dx.Buf, dx.Buf, m.kept(a, to, o).Buf)
	}
	if m.dw[a.down.param].N > 0 {
		x = m.kept(a, x, o)
		m.q.WeightGradGroups(a.down.of(m.dw), d, x, o.offsets, add)
		m.q.WeightGradGroups(a.up.of(m.dw), dy, m.low(a, x, a.down.of(m.w).T(), o.offsets), o.offsets, add)
	}
}
