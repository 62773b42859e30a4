package nn

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"zeroth/device"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// The shapes are small and odd: no two of them are equal, and none is a multiple of a vector
// register.
var tiny = GPT2{Shape: Shape{Layers: 2, Heads: 3, Width: 12, Context: 7, Vocab: 11, Eps: 1e-5}}

// TestForward compares every module with the oracle, with and without saving for Backward.
func TestForward(t *testing.T) {
	eachType(t, func(r *rig) {
		n, rng := r.B*r.T*r.width, rand.New(rand.NewPCG(1, 1))
		r.eachModule(func(i int, name string) {
			mod, in := r.model.Modules[i], normal(rng, n, 0.1, 1)
			x, y, again := r.buffer(in), r.poisoned(r.dt, n), r.poisoned(r.dt, n)
			input := bytes.Clone(x.Raw())
			out := y
			if r.last(i) {
				out = r.bt.Loss
			}
			r.level(name+": forward", func() { mod.Forward(r.q, r.mem, r.w[i], &r.bt, x, y, nil) })
			r.near(name+": output", out, 1, r.module(i, in), tolerance[r.dt])

			floor := r.mem.Mark()
			mod.Forward(r.q, r.mem, r.w[i], &r.bt, x, again, new(Saved))
			r.wait()
			r.mem.Release(floor)
			if !r.last(i) && !bytes.Equal(again.Raw(), y.Raw()) {
				t.Errorf("%s: other bits when it saves", name)
			}
			if !bytes.Equal(x.Raw(), input) {
				t.Errorf("%s: changed its input", name)
			}
		})
	})
}

// TestBackward compares every module's gradients with the oracle's slopes in elements of its
// input and its parameters, in all of them if they are few. Outputs are poisoned, except those to
// which a first user of a shared unit adds.
func TestBackward(t *testing.T) {
	nightly.Parallel(t)
	eachType(t, func(r *rig) {
		n, rng := r.B*r.T*r.width, rand.New(rand.NewPCG(2, 2))
		r.eachModule(func(i int, name string) {
			in, out := normal(rng, n, 0.1, 1), normal(rng, n, 0, 1)
			x, d := r.buffer(in), r.buffer(out)
			objective := func() float64 { return dot(out, r.module(i, in)) }
			if r.last(i) {
				poison(d) // the last module does not read it
				objective = func() float64 { return scaled(r.bt.Scale, r.losses(in)) }
			}
			before := r.prepare(i, rng)
			r.backward(i, name, x, d)
			if i > 0 {
				step := stride(n, nightly.Of(20, n))
				r.near(name+": dx", d, step, slopes(in, step, objective), tolerance[r.dt])
			}
			for j, p := range r.model.Modules[i].Params() {
				step := stride(p.Numel(), nightly.Of(10, 90))
				want := slopes(r.oracle.w[p.Name], step, objective)
				for k := range want {
					want[k] += before[j][k*step]
				}
				r.near(name+": gradient of "+p.Name, r.dw[i][j], step, want, tolerance[r.dt])
			}
		})
	})
}

// TestGradientsOfTheModel compares the losses and the gradient of the whole model with the
// oracle's, in some elements of every parameter, for chunks of logits that divide the positions,
// that do not, and that hold all of them.
func TestGradientsOfTheModel(t *testing.T) {
	nightly.Parallel(t)
	eachType(t, func(r *rig) {
		want := map[string][]float64{"losses": r.all()}
		var x []float64 // input of module i
		for i, m := range r.model.Modules {
			for _, p := range m.Params() {
				if w := r.oracle.w[p.Name]; want[p.Name] == nil { // no earlier module uses it
					want[p.Name] = slopes(w, stride(len(w), 14), func() float64 { return scaled(r.bt.Scale, r.from(i, x)) })
				}
			}
			x = r.module(i, x)
		}
		for i, chunk := range []int{1, 3, 10, 1000} {
			for j, recompute := range []Recompute{SaveAll, RecomputeMLP} {
				if !nightly.Every(2, i+j) {
					continue
				}
				r.bt.Chunk = chunk
				r.train(recompute)
				what := fmt.Sprintf("chunk %d, recompute %d: ", chunk, recompute)
				for name, b := range r.named() {
					every := stride(b.N, 14)
					if name == "losses" {
						every = 1
					}
					r.near(what+name, b, every, want[name], deep[r.dt])
				}
			}
		}
	})
}

// TestChunksOfLogits checks that the size of the chunks only changes the order of float32 sums over
// positions in the embedding's gradient.
func TestChunksOfLogits(t *testing.T) {
	nightly.Parallel(t)
	eachType(t, func(r *rig) {
		r.bt.Chunk = r.B * r.T
		r.train(SaveAll)
		want := map[string][]float64{}
		for name, b := range r.named() {
			want[name] = r.values(b)
		}
		for _, chunk := range []int{1, 3, 9} {
			r.bt.Chunk = chunk
			r.train(SaveAll)
			for name, b := range r.named() {
				r.near(fmt.Sprintf("chunk %d: %s", chunk, name), b, 1, want[name], 2e-6)
			}
		}
	})
}

// TestPaddedLogits pads rows of logits to a multiple of 56: losses and gradients equal those without
// padding, up to the order of sums, and no product is of an unpadded length.
func TestPaddedLogits(t *testing.T) {
	nightly.Parallel(t)
	eachType(t, func(r *rig) {
		r.train(SaveAll)
		want := map[string][]float64{}
		for name, b := range r.named() {
			want[name] = r.values(b)
		}
		r.bt.Pad = 56 // no matrix of the models is as wide
		for _, chunk := range []int{3, 1000} {
			r.bt.Chunk = chunk
			products := &widths{Ops: r.q, vocab: r.vocab}
			r.trainOn(products, SaveAll)
			if products.padded != 3*((r.B*r.T+chunk-1)/chunk) || products.odd > 0 { // logits, and the gradients of both operands
				t.Errorf("chunk %d: %d products have padded logits and %d have not", chunk, products.padded, products.odd)
			}
			for name, b := range r.named() {
				r.near(fmt.Sprintf("chunk %d: %s", chunk, name), b, 1, want[name], 2e-6)
			}
		}
	})
}

// widths counts products of matrices as wide as the vocabulary, and as the padded vocabulary.
type widths struct {
	Ops
	vocab, padded, odd int
}

func (w *widths) MatMul(c, a, b device.Mat, bias device.Buffer, add bool) {
	for _, m := range []device.Mat{c, a} {
		switch m.Ld {
		case (w.vocab + 55) / 56 * 56:
			w.padded++
		case w.vocab:
			w.odd++
		}
	}
	w.Ops.MatMul(c, a, b, bias, add)
}

// TestLogitsOfOnePosition compares logits for sampling, of the last rows of two sequences, with the
// oracle's, and with the model's losses there.
func TestLogitsOfOnePosition(t *testing.T) {
	eachType(t, func(r *rig) {
		head, rng := len(r.model.Modules)-1, rand.New(rand.NewPCG(3, 3))
		in := normal(rng, r.B*r.T*r.width, 0, 1)
		x, all, V := r.buffer(in), r.logits(in), r.vocab
		r.model.Modules[head].Forward(r.q, r.mem, r.w[head], &r.bt, x, device.Buffer{}, nil)
		losses := r.values(r.bt.Loss)
		poison(r.bt.Loss)
		rows := r.B * r.T
		for first := range rows - 1 {
			bt := r.bt
			bt.B, bt.T, bt.Logits = 1, rows, r.poisoned(r.dt, 2*V)
			bt.Sequences = []Sequence{{T: first + 1}, {T: rows - first - 1}}
			r.level("logits", func() { r.model.Modules[head].Forward(r.q, r.mem, r.w[head], &bt, x, device.Buffer{}, nil) })
			for i, at := range []int{first, rows - 1} {
				r.near(fmt.Sprintf("logits of row %d", at), bt.Logits.Slice(i*V, (i+1)*V), 1, all[at*V:(at+1)*V], tolerance[r.dt])
				row, sum := r.values(bt.Logits)[i*V:(i+1)*V], 0.0
				for _, v := range row {
					sum += math.Exp(v)
				}
				if loss := math.Log(sum) - row[r.target[at]]; math.Abs(loss-losses[at]) > 1e-6 {
					t.Errorf("row %d: its logits give a loss of %g, but its loss is %g", at, loss, losses[at])
				}
				if !math.IsNaN(float64(r.bt.Loss.F32()[at])) {
					t.Errorf("row %d: asked for logits, it wrote a loss", at)
				}
			}
		}
	})
}

func TestChunkOfNothingPanics(t *testing.T) {
	r := newRig(t, subjects[0], device.F32)
	r.bt.Chunk = 0
	defer func() {
		if got, want := fmt.Sprint(recover()), "nn: logits of 0 positions at a time"; got != want {
			t.Errorf("panicked with %q, want %q", got, want)
		}
	}()
	r.train(SaveAll)
}

// TestParameters pins names, shapes, initial distributions and weight decay of a model of two
// layers. They are those of transformers' GPT2LMHeadModel (modeling_gpt2.py, _init_weights): linear
// and embedding weights normal with standard deviation 0.02, the two that write to the residual
// stream of each layer with 0.02/sqrt(2*layers), norms 1 and 0, biases 0.
func TestParameters(t *testing.T) {
	const mean, std, residual = 1, 0.02, 0.01 // 0.02/sqrt(4)
	want := []shard.Param{
		{Name: "transformer.wte.weight", Shape: []int{11, 12}, Init: shard.Init{Std: std}, Group: shard.Decayed},
		{Name: "transformer.wpe.weight", Shape: []int{7, 12}, Init: shard.Init{Std: std}, Group: shard.Decayed},
		{Name: "transformer.ln_f.weight", Shape: []int{12}, Init: shard.Init{Mean: mean}},
		{Name: "transformer.ln_f.bias", Shape: []int{12}},
	}
	for _, h := range []string{"transformer.h.0.", "transformer.h.1."} {
		want = append(want, []shard.Param{
			{Name: h + "ln_1.weight", Shape: []int{12}, Init: shard.Init{Mean: mean}},
			{Name: h + "ln_1.bias", Shape: []int{12}},
			{Name: h + "attn.c_attn.weight", Shape: []int{12, 36}, Init: shard.Init{Std: std}, Group: shard.Decayed},
			{Name: h + "attn.c_attn.bias", Shape: []int{36}},
			{Name: h + "attn.c_proj.weight", Shape: []int{12, 12}, Init: shard.Init{Std: residual}, Group: shard.Decayed},
			{Name: h + "attn.c_proj.bias", Shape: []int{12}},
			{Name: h + "ln_2.weight", Shape: []int{12}, Init: shard.Init{Mean: mean}},
			{Name: h + "ln_2.bias", Shape: []int{12}},
			{Name: h + "mlp.c_fc.weight", Shape: []int{12, 48}, Init: shard.Init{Std: std}, Group: shard.Decayed},
			{Name: h + "mlp.c_fc.bias", Shape: []int{48}},
			{Name: h + "mlp.c_proj.weight", Shape: []int{48, 12}, Init: shard.Init{Std: residual}, Group: shard.Decayed},
			{Name: h + "mlp.c_proj.bias", Shape: []int{12}},
		}...)
	}
	m := tiny.Model()
	got := unique(m)
	if len(got) != len(want) {
		t.Fatalf("%d parameters, want %d", len(got), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("parameter %d is %+v, want %+v", i, got[i], want[i])
		}
	}
	if want := []string{"root", "h.0", "h.1", "root"}; !reflect.DeepEqual(unitsOf(m), want) {
		t.Errorf("units %v, want %v", unitsOf(m), want)
	}
	if m.Width != 12 || m.Vocab != 11 || m.Context != 7 {
		t.Errorf("width %d, vocabulary %d, context %d; want 12, 11, 7", m.Width, m.Vocab, m.Context)
	}
}

// unique returns the parameters of every unit, once.
func unique(m *Model) (params []shard.Param) {
	for _, u := range m.Units() {
		params = append(params, u.Params...)
	}
	return params
}

// unitsOf returns the unit of each module, which has one.
func unitsOf(m *Model) (names []string) {
	for _, uses := range m.Uses {
		names = append(names, uses[0].Unit)
	}
	return names
}

// TestUnitsOfModules checks that a module's parameters are the concatenation of its units'.
func TestUnitsOfModules(t *testing.T) {
	a, b, c := listed{{Name: "a"}, {Name: "b"}}, listed{{Name: "b"}}, listed{{Name: "c"}, {Name: "b"}}
	m := &Model{Modules: []Module{a, b, c}, Uses: [][]Use{{{Unit: "own", Params: 1}, {Unit: "shared", Params: 1}}, {{Unit: "shared", Params: 1}}, {{Unit: "last", Params: 1}, {Unit: "shared", Params: 1}}}}
	want := []Unit{{"own", []shard.Param(a[:1]), 0, 0}, {"shared", []shard.Param(b), 0, 2}, {"last", []shard.Param(c[:1]), 2, 2}}
	if got := m.Units(); !reflect.DeepEqual(got, want) {
		t.Errorf("units %+v, want %+v", got, want)
	}
}

// listed is a module with parameters only.
type listed []shard.Param

func (l listed) Params() []shard.Param { return l }

func (listed) Forward(Ops, Scratch, []device.Buffer, *Batch, device.Buffer, device.Buffer, *Saved) {}
func (listed) Backward(Ops, Scratch, []device.Buffer, []device.Buffer, *Batch, device.Buffer, device.Buffer, *Saved) {
}

// TestPublishedSizes compares parameter counts of the four models published by OpenAI with
// transformers'.
func TestPublishedSizes(t *testing.T) {
	for _, c := range []struct{ layers, heads, width, want int }{
		{12, 12, 768, 124_439_808},
		{24, 16, 1024, 354_823_168},
		{36, 20, 1280, 774_030_080},
		{48, 25, 1600, 1_557_611_200},
	} {
		n := 0
		for _, p := range unique(GPT2{Shape: Shape{Layers: c.layers, Heads: c.heads, Width: c.width, Context: 1024, Vocab: 50257}}.Model()) {
			n += p.Numel()
		}
		if n != c.want {
			t.Errorf("%d layers of width %d: %d parameters, want %d", c.layers, c.width, n, c.want)
		}
	}
}
