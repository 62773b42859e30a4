package nn

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/shard"
)

// The shapes are small and odd: no two of them are equal, and none is a
// multiple of a vector register.
var tiny = GPT2{Layers: 2, Heads: 3, Width: 12, Context: 7, Vocab: 11, Eps: 1e-5}

const (
	tinyB = 2
	tinyT = 5
)

var computeTypes = []device.DType{device.F32, device.BF16, device.F16}

// tolerance is how far an element that one module computes may be from the
// float64 oracle, which has the same rounded parameters and inputs, as a part
// of the root mean square of its tensor: activations are rounded some ten
// times on the way, each time by up to 2^-24, 2^-9 or 2^-12 of themselves.
// Three times the largest difference that was measured.
var tolerance = map[device.DType]float64{device.F32: 4e-6, device.BF16: 0.09, device.F16: 0.012}

// deep is the same for the gradients of the whole model, in which the roundings
// of four modules, forward and backward, have grown.
var deep = map[device.DType]float64{device.F32: 1.2e-5, device.BF16: 0.2, device.F16: 0.045}

// rig runs modules on a CPU queue over poisoned memory, next to the oracle.
type rig struct {
	*oracle
	t     *testing.T
	dev   *cpu.Device
	q     *cpu.Queue
	dt    device.DType
	model *Model
	bt    Batch
	mem   *device.Arena
	base  device.Buffer     // mem's
	held  []device.Buffer   // to free
	w, dw [][]device.Buffer // of each module; modules that share a unit share the buffers
}

// newRig has random parameters, none of which is zero, and random tokens.
func newRig(t *testing.T, c subject, dt device.DType) *rig {
	m := c.model()
	r := &rig{oracle: &oracle{layers: len(m.Modules) - 2, width: m.Width, vocab: m.Vocab, B: tinyB, T: tinyT, w: map[string][]float64{}}, t: t, dt: dt, model: m}
	r.drops = Drops{Train: true, Seed: 1 << 35, Row: 1<<33 + 4}
	r.trunk = c.trunk(r.oracle)
	r.dev = cpu.NewHost(2)
	r.q = r.dev.NewQueue("test")
	t.Cleanup(r.close)
	rng := rand.New(rand.NewPCG(7, 0))
	for range r.B * r.T {
		r.input, r.target = append(r.input, rng.Int32N(int32(m.Vocab))), append(r.target, rng.Int32N(int32(m.Vocab)))
	}
	units := map[string]int{}
	for i, m := range r.model.Modules {
		first, shared := units[unitsOf(r.model)[i]]
		if shared {
			r.w, r.dw = append(r.w, r.w[first]), append(r.dw, r.dw[first])
			continue
		}
		units[unitsOf(r.model)[i]] = i
		var w, dw []device.Buffer
		for _, p := range m.Params() {
			r.oracle.w[p.Name] = normal(rng, p.Numel(), float64(p.Init.Mean), 1/math.Sqrt(float64(r.width)))
			w, dw = append(w, r.buffer(r.oracle.w[p.Name])), append(dw, r.poisoned(device.F32, p.Numel()))
		}
		r.w, r.dw = append(r.w, w), append(r.dw, dw)
	}
	r.constant = map[string][]float64{}
	for name, w := range r.oracle.w {
		r.constant[name] = slices.Clone(w)
	}
	r.base = r.poisoned(device.F32, 1<<14)
	r.mem = device.NewArena(r.base)
	r.bt = Batch{
		B: r.B, T: r.T, Compute: dt, Chunk: 3, Scale: 0.7,
		Input: device.OfI32(r.input), Target: device.OfI32(r.target), Loss: r.poisoned(device.F32, r.B*r.T), Drops: r.drops,
	}
	return r
}

func (r *rig) close() {
	r.q.Close() // first: work may still be under way
	for _, b := range r.held {
		r.dev.Free(b)
	}
	r.dev.Close()
}

func normal(rng *rand.Rand, n int, mean, std float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = mean + std*rng.NormFloat64()
	}
	return x
}

// poisoned is n elements of NaN.
func (r *rig) poisoned(dt device.DType, n int) device.Buffer {
	b, err := r.dev.Alloc(dt, n, device.Activations)
	if err != nil {
		r.t.Fatal(err)
	}
	r.held = append(r.held, b)
	poison(b)
	return b
}

// poison sets every bit, which is NaN in all float types.
func poison(b device.Buffer) {
	for i := range b.Raw() {
		b.Raw()[i] = 0xff
	}
}

// buffer is x in the compute type, and rounds x to it.
func (r *rig) buffer(x []float64) device.Buffer {
	b, f := r.poisoned(r.dt, len(x)), make([]float32, len(x))
	for i := range x {
		f[i] = float32(x[i])
	}
	r.q.Cast(b, device.OfF32(f))
	copy(x, r.values(b))
	return b
}

func (r *rig) values(b device.Buffer) []float64 {
	f, x := make([]float32, b.N), make([]float64, b.N)
	r.q.Cast(device.OfF32(f), b)
	r.wait()
	for i := range f {
		x[i] = float64(f[i])
	}
	return x
}

func (r *rig) wait() {
	r.t.Helper()
	if err := r.q.Wait(); err != nil {
		r.t.Fatal(err)
	}
}

// near fails unless every step-th element of got is within tol times the root
// mean square of want; where want is zeros, it is zero.
func (r *rig) near(what string, got device.Buffer, step int, want []float64, tol float64) {
	r.t.Helper()
	limit := tol * math.Sqrt(dot(want, want)/float64(len(want)))
	x := r.values(got)
	if len(want) != (len(x)+step-1)/step {
		r.t.Fatalf("%s: %d elements, want every %d-th to be one of %d", what, len(x), step, len(want))
	}
	for i, w := range want {
		if d := math.Abs(x[i*step] - w); !(d <= limit) {
			r.t.Errorf("%s[%d] = %.9g, want %.9g: off by %.2g, allowed %.2g", what, i*step, x[i*step], w, d, limit)
			return
		}
	}
}

// level fails unless the arena is as high after f as before; what f took and
// gave back is poisoned, so that nothing can depend on it.
func (r *rig) level(what string, f func()) {
	r.t.Helper()
	before := r.mem.Mark()
	f()
	r.wait()
	if after := r.mem.Mark(); after != before {
		r.t.Errorf("%s: the arena is %d bytes high, before %d", what, after, before)
	}
	r.poisonAbove()
}

func (r *rig) poisonAbove() { poison(r.base.Slice(r.mem.Mark()/4, r.base.N)) }

// last says whether module i is the one that writes the losses.
func (r *rig) last(i int) bool { return i == len(r.model.Modules)-1 }

func (r *rig) eachModule(f func(i int, name string)) {
	for i, m := range r.model.Modules {
		f(i, fmt.Sprintf("%T %d of unit %s", m, i, unitsOf(r.model)[i]))
	}
}

// subject is a model under test and what computes the same in float64.
type subject struct {
	name  string
	model func() *Model
	trunk func(*oracle) trunk
}

// gptSubject is tiny with something else about it.
func gptSubject(name string, g GPT2) subject {
	g.Layers, g.Heads, g.Width, g.Context, g.Vocab, g.Eps = tiny.Layers, tiny.Heads, tiny.Width, tiny.Context, tiny.Vocab, tiny.Eps
	return subject{name, g.Model, func(o *oracle) trunk { return gptTrunk{o, g} }}
}

var subjects = []subject{
	gptSubject("GPT-2", GPT2{}),
	gptSubject("GPT-2 with dropout", GPT2{Dropout: Dropout{Embed: 0.25, Residual: 0.4, Attention: 0.3}}),
	llamaSubject("Gemma 3 with dropout", Llama{Tied: true, Gemma: true, Norms: NormBoth, Head: 8, Padded: true, Pad: 12, Layout: "fw", Window: 3, Dropout: Dropout{Embed: 0.3, Residual: 0.2, Attention: 0.15}}),
	llamaSubject("Llama with dropout", Llama{Dropout: Dropout{Residual: 0.5, Attention: 0.5}}),
	llamaSubject("Llama tied", Llama{Tied: true}),
	llamaSubject("Llama scaled", Llama{Scaling: device.RopeScaling{Kind: device.RopeLlama3, Factor: 3, Low: 1, High: 4, Context: 40}}),
	llamaSubject("Qwen2", Llama{BiasQKV: true}),
	llamaSubject("Llama padded", Llama{Padded: true, Pad: 12}),
	llamaSubject("Llama tied, padded", Llama{Tied: true, Padded: true, Pad: 12}),
	llamaSubject("Llama with all biases", Llama{BiasQKV: true, BiasOut: true, BiasMLP: true, Head: 10, Scaling: device.RopeScaling{Kind: device.RopeLinear, Factor: 2}}),
	llamaSubject("Mistral", Llama{Head: 4, Layout: "ww", Window: 3}),
	llamaSubject("Qwen3", Llama{Head: 8, HeadNorm: EachHead, Layout: "fu", Scaling: device.RopeScaling{Kind: device.RopeYaRN, Factor: 4, Low: 0.5, High: 2.5, Amplitude: 1.1}}),
	llamaSubject("OLMo 2", Llama{HeadNorm: AllHeads, Norms: NormAfter}),
	llamaSubject("Phi-3", Llama{Fused: true}),
	llamaSubject("Gemma 3", Llama{Tied: true, Gemma: true, Norms: NormBoth, HeadNorm: EachHead, Head: 8, Scale: 5, Layout: "wf", Window: 2, LocalTheta: 7}),
	llamaSubject("Llama with adapters", Llama{BiasQKV: true, LoRA: LoRA{Rank: 3, Alpha: 6, Targets: []string{AllLinear}}}),
	llamaSubject("Phi-3 with adapters", Llama{Fused: true, LoRA: LoRA{Rank: 2, Alpha: 1, Targets: []string{"qkv_proj", "mlp.gate_up_proj"}}}),
	gptSubject("GPT-2 with adapters", GPT2{LoRA: LoRA{Rank: 2, Alpha: 3, Targets: []string{"c_attn", "mlp.c_proj"}}}),
	gptSubject("GPT-2 untied", GPT2{Act: device.GeluErf, Inner: 29, Untied: true}),
	gptSubject("GPT-2, SiLU", GPT2{Act: device.Silu}),
	gptSubject("GPT-2, tanh", GPT2{Act: device.Tanh}),
}

func eachType(t *testing.T, f func(r *rig)) {
	for i, c := range subjects {
		for _, dt := range computeTypes {
			if testing.Short() && i > 9 && dt != device.F32 {
				continue
			}
			t.Run(c.name+"/"+dt.String(), func(t *testing.T) { f(newRig(t, c, dt)) })
		}
	}
}

// TestForward compares every module with the oracle, with and without keeping
// what Backward needs.
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

// stride is a step through n elements that takes at most most of them, and has
// no factor in common with the widths, so that every column has its turn.
func stride(n, most int) int {
	for _, step := range []int{1, 5, 7, 13, 17, 23, 29, 37, 43, 53, 71, 89} {
		if n <= step*most {
			return step
		}
	}
	panic(fmt.Sprintf("nn: %d of %d elements", most, n))
}

// TestBackward compares every module's gradients with the oracle's slopes in
// the elements of its input and its parameters, in all of them where they are
// few. Outputs are poisoned but for those that a first user of a shared unit
// adds to.
func TestBackward(t *testing.T) {
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
				r.near(name+": dx", d, 1, slopes(in, 1, objective), tolerance[r.dt])
			}
			for j, p := range r.model.Modules[i].Params() {
				step := stride(p.Numel(), 90)
				want := slopes(r.oracle.w[p.Name], step, objective)
				for k := range want {
					want[k] += before[j][k*step]
				}
				r.near(name+": gradient of "+p.Name, r.dw[i][j], step, want, tolerance[r.dt])
			}
		})
	})
}

func scaled(scale float32, losses []float64) (sum float64) {
	for _, l := range losses {
		sum += float64(scale) * l
	}
	return sum
}

// prepare sets the gradients of module i before its Backward and returns what
// it adds to: something of every kind for the first user of a shared unit;
// else poison, and nothing.
func (r *rig) prepare(i int, rng *rand.Rand) (before [][]float64) {
	for _, dw := range r.dw[i] {
		old := make([]float64, dw.N)
		poison(dw)
		if i == 0 && unitsOf(r.model)[0] == unitsOf(r.model)[len(r.model.Uses)-1] {
			copy(old, normal(rng, dw.N, 0, 1))
			for j := range old {
				dw.F32()[j] = float32(old[j])
			}
		}
		before = append(before, old)
	}
	return before
}

// backward runs module i forward over x and back over d, and checks that all
// memory but what Forward saved is given back and that nothing is written to
// the parameters or the input.
func (r *rig) backward(i int, name string, x, d device.Buffer) {
	mod, saved, y := r.model.Modules[i], new(Saved), r.poisoned(r.dt, d.N)
	floor := r.mem.Mark()
	mod.Forward(r.q, r.mem, r.w[i], &r.bt, x, y, saved)
	r.wait()
	input := bytes.Clone(x.Raw())
	var params [][]byte
	for _, w := range r.w[i] {
		params = append(params, bytes.Clone(w.Raw()))
	}
	poison(y) // is not kept for Backward
	r.poisonAbove()
	r.level(name+": backward", func() { mod.Backward(r.q, r.mem, r.w[i], r.dw[i], &r.bt, x, d, saved) })
	r.mem.Release(floor)
	r.poisonAbove()
	for j, w := range r.w[i] {
		if !bytes.Equal(w.Raw(), params[j]) {
			r.t.Errorf("%s: Backward changed parameter %d", name, j)
		}
	}
	if !bytes.Equal(x.Raw(), input) {
		r.t.Errorf("%s: Backward changed its input", name)
	}
}

// train runs the whole model forward and backward, as a schedule does, with
// every gradient poisoned before. With recompute, blocks save nothing and run
// Forward again.
func (r *rig) train(recompute bool) {
	n := r.B * r.T * r.width
	x, saved := make([]device.Buffer, len(r.model.Modules)+1), make([]Saved, len(r.model.Modules))
	for _, dw := range r.dw {
		for _, b := range dw {
			if b.N > 0 {
				poison(b)
			}
		}
	}
	poison(r.bt.Loss)
	again := func(i int) bool { return recompute && i > 0 && !r.last(i) }
	r.level("a training step", func() {
		floor := r.mem.Mark()
		d := r.mem.Take(r.dt, n)
		for i, m := range r.model.Modules {
			keep := &saved[i]
			if again(i) {
				keep = nil
			}
			x[i+1] = r.mem.Take(r.dt, n)
			m.Forward(r.q, r.mem, r.w[i], &r.bt, x[i], x[i+1], keep)
		}
		for i := len(r.model.Modules) - 1; i >= 0; i-- {
			m, mark := r.model.Modules[i], r.mem.Mark()
			if again(i) {
				m.Forward(r.q, r.mem, r.w[i], &r.bt, x[i], x[i+1], &saved[i])
			}
			r.level("backward", func() { m.Backward(r.q, r.mem, r.w[i], r.dw[i], &r.bt, x[i], d, &saved[i]) })
			r.mem.Release(mark)
		}
		r.mem.Release(floor)
	})
}

// TestGradientsOfTheModel compares the losses and the gradient of the whole
// model with the oracle's, in some elements of every parameter, for chunks of
// logits that divide the positions, that do not, and that hold all of them.
func TestGradientsOfTheModel(t *testing.T) {
	eachType(t, func(r *rig) {
		want := map[string][]float64{"losses": r.all()}
		for name, w := range r.oracle.w {
			want[name] = slopes(w, stride(len(w), 14), func() float64 { return scaled(r.bt.Scale, r.all()) })
		}
		for _, chunk := range []int{1, 3, 10, 1000} {
			for _, recompute := range []bool{false, true} {
				r.bt.Chunk = chunk
				r.train(recompute)
				what := fmt.Sprintf("chunk %d, recompute %t: ", chunk, recompute)
				for name, b := range r.named() {
					r.near(what+name, b, stride(b.N, 14), want[name], deep[r.dt])
				}
			}
		}
	})
}

// TestChunksOfLogits bounds what the size of the chunks changes: nothing but
// the order of float32 sums over positions in the embedding's gradient.
func TestChunksOfLogits(t *testing.T) {
	eachType(t, func(r *rig) {
		r.bt.Chunk = r.B * r.T
		r.train(false)
		want := map[string][]float64{}
		for name, b := range r.named() {
			want[name] = r.values(b)
		}
		for _, chunk := range []int{1, 3, 9} {
			r.bt.Chunk = chunk
			r.train(false)
			for name, b := range r.named() {
				r.near(fmt.Sprintf("chunk %d: %s", chunk, name), b, 1, want[name], 2e-6)
			}
		}
	})
}

// named is the losses and all gradients, by parameter.
func (r *rig) named() map[string]device.Buffer {
	all := map[string]device.Buffer{"losses": r.bt.Loss}
	for i, m := range r.model.Modules {
		for j, p := range m.Params() {
			all[p.Name] = r.dw[i][j]
		}
	}
	return all
}

// TestLogitsOfOnePosition compares the logits that sampling asks for, of the last
// rows of two sequences, with the oracle's rows, and with the losses the model has there.
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
	r.train(false)
}

// TestParameters pins names, shapes, initial distributions and weight decay of
// a model of two layers. They are those of transformers' GPT2LMHeadModel
// (modeling_gpt2.py, _init_weights): linear and embedding weights normal with
// standard deviation 0.02, the two that write to the residual stream of each
// layer with 0.02/sqrt(2*layers), norms 1 and 0, biases 0.
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

// unique is the parameters of every unit, once.
func unique(m *Model) (params []shard.Param) {
	for _, u := range m.Units() {
		params = append(params, u.Params...)
	}
	return params
}

// unitsOf is the unit of each module, which has one.
func unitsOf(m *Model) (names []string) {
	for _, uses := range m.Uses {
		names = append(names, uses[0].Unit)
	}
	return names
}

// A module's parameters are its units', one after the other; what is of no unit,
// or not the same everywhere, is refused.
func TestUnitsOfModules(t *testing.T) {
	a, b, c := listed{{Name: "a"}, {Name: "b"}}, listed{{Name: "b"}}, listed{{Name: "c"}, {Name: "b"}}
	m := &Model{Modules: []Module{a, b, c}, Uses: [][]Use{{{Unit: "own", Params: 1}, {Unit: "shared", Params: 1}}, {{Unit: "shared", Params: 1}}, {{Unit: "last", Params: 1}, {Unit: "shared", Params: 1}}}}
	want := []Unit{{"own", []shard.Param(a[:1]), 0, 0}, {"shared", []shard.Param(b), 0, 2}, {"last", []shard.Param(c[:1]), 2, 2}}
	if got := m.Units(); !reflect.DeepEqual(got, want) {
		t.Errorf("units %+v, want %+v", got, want)
	}
	for want, uses := range map[string][]Use{
		"2 parameters of module 2, from c on, are of no unit":        {},
		"unit shared has 1 parameters in module 0 and 2 in module 2": {{Unit: "shared", Params: 2}},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); got != "nn: "+want {
					t.Errorf("panic %q, want %q", got, want)
				}
			}()
			m.Uses[2] = uses
			m.Units()
		}()
	}
}

// listed is a module of which only the parameters count.
type listed []shard.Param

func (l listed) Params() []shard.Param { return l }

func (listed) Forward(Ops, Scratch, []device.Buffer, *Batch, device.Buffer, device.Buffer, *Saved) {}
func (listed) Backward(Ops, Scratch, []device.Buffer, []device.Buffer, *Batch, device.Buffer, device.Buffer, *Saved) {
}

// TestPublishedSizes has the numbers of parameters of the four models OpenAI
// published, as transformers counts them.
func TestPublishedSizes(t *testing.T) {
	for _, c := range []struct{ layers, heads, width, want int }{
		{12, 12, 768, 124_439_808},
		{24, 16, 1024, 354_823_168},
		{36, 20, 1280, 774_030_080},
		{48, 25, 1600, 1_557_611_200},
	} {
		n := 0
		for _, p := range unique(GPT2{Layers: c.layers, Heads: c.heads, Width: c.width, Context: 1024, Vocab: 50257}.Model()) {
			n += p.Numel()
		}
		if n != c.want {
			t.Errorf("%d layers of width %d: %d parameters, want %d", c.layers, c.width, n, c.want)
		}
	}
}
