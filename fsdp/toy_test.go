package fsdp_test

import (
	"fmt"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/nn"
	"zeroth/shard"
)

// The toy model has the shape of a language model with simple arithmetic: with x, y (rows, width)
// float32,
//
//	embed   y[i] = E[input[i]]
//	layer   y[i] = x[i]∘a + b          and a parameter u that is not used, with gradient 1, 2, 3, …
//	head    loss[i] = x[i]·E[target[i]]
//
// E is the parameter of unit "root", which embed and head share; layer k is unit "h.k", or has its
// a and b in another unit, depending on its form. All numbers are small integers, so that float32
// is exact and the order of sums does not matter.
const (
	width = 4
	vocab = 5
	rows  = 6 // of a micro-batch: 2 sequences of 3
)

// unused returns the number of elements of layer k's u: no two units have the same length, on any
// of the tests' meshes.
func unused(k int) int { return 301 + 260*k }

func param(name string, n int) shard.Param { return shard.Param{Name: name, Shape: []int{n}} }

// form selects the units of a layer.
type form int

const (
	plain form = iota // h.k: a, b, u
	pairs             // h.k: u, and g.k: a, b
	norms             // h.k: u, and norms, shared by all layers: a and b of every layer
	forms
)

func toy(layers int) *nn.Model { return toyOf(layers, plain) }

func toyOf(layers int, f form) *nn.Model {
	m := &nn.Model{Width: width, Vocab: vocab, Context: 3}
	add := func(mod nn.Module, uses ...nn.Use) {
		m.Uses, m.Modules = append(m.Uses, uses), append(m.Modules, mod)
	}
	add(embed{}, nn.Use{Unit: "root", Params: 1})
	for k := range layers {
		own, mod := fmt.Sprint("h.", k), layer{k, layers, f}
		switch f {
		case plain:
			add(mod, nn.Use{Unit: own, Params: 3})
		case pairs:
			add(mod, nn.Use{Unit: own, Params: 1}, nn.Use{Unit: fmt.Sprint("g.", k), Params: 2})
		case norms:
			add(mod, nn.Use{Unit: own, Params: 1}, nn.Use{Unit: "norms", Params: 2 * layers})
		}
	}
	add(head{}, nn.Use{Unit: "root", Params: 1})
	return m
}

type root struct{}

func (root) Params() []shard.Param { return []shard.Param{param("E", vocab*width)} }

type embed struct{ root }

func (embed) Forward(q nn.Ops, _ nn.Scratch, w []device.Buffer, bt *nn.Batch, _, y device.Buffer, _ *nn.Saved) {
	on(q, func() {
		for i, id := range bt.Input.I32() {
			copy(row(y, i), row(w[0], int(id)))
		}
	})
}

func (embed) Backward(q nn.Ops, _ nn.Scratch, _, dw []device.Buffer, bt *nn.Batch, _, d device.Buffer, _ *nn.Saved) {
	on(q, func() {
		for i, id := range bt.Input.I32() {
			addTo(row(dw[0], int(id)), row(d, i), 1)
		}
	})
}

type layer struct {
	k, layers int
	form
}

func (l layer) Params() []shard.Param {
	pair := func(k int) []shard.Param {
		return []shard.Param{param(fmt.Sprintf("h.%d.a", k), width), param(fmt.Sprintf("h.%d.b", k), width)}
	}
	u := param(fmt.Sprintf("h.%d.u", l.k), unused(l.k))
	if l.form == plain {
		return append(pair(l.k), u)
	}
	all := []shard.Param{u}
	for k := range l.layers {
		if l.form == norms || k == l.k {
			all = append(all, pair(k)...)
		}
	}
	return all
}

// of returns a, b and u among the module's parameters.
func (l layer) of(w []device.Buffer) (a, b, u device.Buffer) {
	switch l.form {
	case plain:
		return w[0], w[1], w[2]
	case pairs:
		return w[1], w[2], w[0]
	}
	return w[1+2*l.k], w[2+2*l.k], w[0]
}

// Forward saves a copy of x, to test saved memory.
func (l layer) Forward(q nn.Ops, mem nn.Scratch, w []device.Buffer, _ *nn.Batch, x, y device.Buffer, s *nn.Saved) {
	floor := mem.Mark()
	mine := mem.Take(device.F32, x.N)
	a, b, _ := l.of(w)
	q.(device.Queue).Copy(mine, x)
	on(q, func() {
		for i := range rows {
			for j, a := range a.F32() {
				row(y, i)[j] = row(mine, i)[j]*a + b.F32()[j]
			}
		}
	})
	if s == nil {
		mem.Release(floor)
		return
	}
	s.Own[0] = mine
}

func (l layer) Backward(q nn.Ops, mem nn.Scratch, w, dw []device.Buffer, _ *nn.Batch, _, d device.Buffer, s *nn.Saved) {
	x := s.Own[0]
	a, _, _ := l.of(w)
	da, db, du := l.of(dw)
	others := []device.Buffer{da, db}
	if l.form == norms && l.k == l.layers-1 {
		others = dw[1:] // of layers later in this pass
	}
	on(q, func() {
		for _, g := range others {
			clear(g.F32())
		}
		for i := range rows {
			for j, a := range a.F32() {
				da.F32()[j] += row(d, i)[j] * row(x, i)[j]
				db.F32()[j] += row(d, i)[j]
				row(d, i)[j] *= a
			}
		}
		for j := range du.N { // none if u is frozen
			du.F32()[j] = float32(j + 1)
		}
	})
}

type head struct{ root }

func (head) Forward(q nn.Ops, _ nn.Scratch, w []device.Buffer, bt *nn.Batch, x, _ device.Buffer, s *nn.Saved) {
	if s == nil {
		on(q, func() { losses(bt, w[0], x) })
	}
}

func (head) Backward(q nn.Ops, _ nn.Scratch, w, dw []device.Buffer, bt *nn.Batch, x, d device.Buffer, _ *nn.Saved) {
	on(q, func() {
		losses(bt, w[0], x)
		clear(dw[0].F32())
		for i, id := range bt.Target.I32() {
			addTo(row(dw[0], int(id)), row(x, i), bt.Scale)
			clear(row(d, i))
			addTo(row(d, i), row(w[0], int(id)), bt.Scale)
		}
	})
}

func losses(bt *nn.Batch, e, x device.Buffer) {
	for i, id := range bt.Target.I32() {
		bt.Loss.F32()[i] = dot(row(x, i), row(e, int(id)))
	}
}

// on runs f on the queue on which kernels are issued.
func on(q nn.Ops, f func()) { q.(*cpu.Queue).Do(func() error { f(); return nil }) }

func row(b device.Buffer, i int) []float32 { return b.F32()[i*width : (i+1)*width] }

func addTo(y, x []float32, scale float32) {
	for j := range y {
		y[j] += scale * x[j]
	}
}

func dot(x, y []float32) (sum float32) {
	for j := range x {
		sum += x[j] * y[j]
	}
	return sum
}

// tokens returns a rank's ids of a micro-batch of a step, different for each.
func tokens(step, rank, micro int, input, target []int32) {
	for i := range input {
		input[i] = int32((i + step + 2*rank + 3*micro) % vocab)
		target[i] = int32((i*i + step + rank + micro) % vocab)
	}
}

// oracle is the model without schedule, shards or ranks.
type oracle struct {
	layers int
	p      map[string][]float32 // by parameter
}

func newOracle(layers int) *oracle {
	o := &oracle{layers, map[string][]float32{}}
	for _, mod := range toy(layers).Modules {
		for _, p := range mod.Params() {
			v := make([]float32, p.Numel())
			for i := range v {
				v[i] = float32((i+len(o.p))%4 - 1)
			}
			if o.p[p.Name] == nil {
				o.p[p.Name] = v
			}
		}
	}
	return o
}

func (o *oracle) e(id int32) []float32 { return o.p["E"][int(id)*width : int(id+1)*width] }

func (o *oracle) layer(k int) (a, b []float32) {
	return o.p[fmt.Sprintf("h.%d.a", k)], o.p[fmt.Sprintf("h.%d.b", k)]
}

// pass returns the losses of a micro-batch and adds its gradients to grad.
func (o *oracle) pass(input, target []int32, grad map[string][]float32) (loss []float32) {
	for i := range input {
		xs := [][]float32{o.e(input[i])}
		for k := range o.layers {
			a, b := o.layer(k)
			y := make([]float32, width)
			for j, x := range xs[k] {
				y[j] = x*a[j] + b[j]
			}
			xs = append(xs, y)
		}
		last := xs[o.layers]
		loss = append(loss, dot(last, o.e(target[i])))
		dE := grad["E"]
		addTo(dE[int(target[i])*width:][:width], last, 1)
		d := append([]float32(nil), o.e(target[i])...)
		for k := o.layers - 1; k >= 0; k-- {
			a, _ := o.layer(k)
			for j := range d {
				grad[fmt.Sprintf("h.%d.a", k)][j] += d[j] * xs[k][j]
				grad[fmt.Sprintf("h.%d.b", k)][j] += d[j]
				d[j] *= a[j]
			}
		}
		addTo(dE[int(input[i])*width:][:width], d, 1)
	}
	for k := range o.layers {
		u := grad[fmt.Sprintf("h.%d.u", k)]
		for j := range u {
			u[j] += float32(j + 1)
		}
	}
	return loss
}

// step returns every rank's losses of its micro-batches, concatenated, and the gradients summed
// over both.
func (o *oracle) step(step, ranks, micros int) (loss [][]float32, grad map[string][]float32) {
	grad = map[string][]float32{}
	for name, v := range o.p {
		grad[name] = make([]float32, len(v))
	}
	loss = make([][]float32, ranks)
	input, target := make([]int32, rows), make([]int32, rows)
	for r := range ranks {
		for m := range micros {
			tokens(step, r, m, input, target)
			loss[r] = append(loss[r], o.pass(input, target, grad)...)
		}
	}
	return loss, grad
}

// descend performs the update: it moves every element by one against its gradient.
func descend(w, g []float32) {
	for i := range w {
		switch {
		case g[i] > 0:
			w[i]--
		case g[i] < 0:
			w[i]++
		}
	}
}
