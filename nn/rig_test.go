package nn

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/tests/nightly"
)

const (
	tinyB       = 2
	tinyT       = 5
	tinyContext = 16
)

var computeTypes = []device.DType{device.F32, device.BF16, device.F16}

// tolerance is the maximum difference of an element computed by one module from the float64 oracle,
// with the same rounded parameters and inputs, relative to the root mean square of its tensor:
// activations are rounded some ten times, each time by up to 2^-24, 2^-9 or 2^-12, and a gradient is
// a sum of terms larger than itself. It is 1.7 to 3 times the largest difference in all cases of all
// instruction sets (6.3e-6, 0.054 and 0.0072). Only fp32 depends on the instruction set.
var tolerance = map[device.DType]float64{device.F32: 2e-5, device.BF16: 0.09, device.F16: 0.012}

// deep is the same for the gradients of the whole model, with the accumulated roundings of four
// modules, forward and backward.
var deep = map[device.DType]float64{device.F32: 4e-5, device.BF16: 0.2, device.F16: 0.045}

// rig runs modules on a CPU queue with poisoned memory, together with the oracle.
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
	held  []device.Buffer   // to be freed
	w, dw [][]device.Buffer // of each module; modules that share a unit share the buffers
}

// newRig returns a rig with random nonzero parameters and random tokens.
func newRig(t *testing.T, c subject, dt device.DType) *rig { return newRigOf(t, c, dt, tinyB, tinyT) }

// newRigOf returns a rig with that number of sequences and positions.
func newRigOf(t *testing.T, c subject, dt device.DType, B, T int) *rig {
	m := c.model()
	r := &rig{oracle: &oracle{layers: len(m.Modules) - 2, width: m.Width, vocab: m.Vocab, B: B, T: T, w: map[string][]float64{}}, t: t, dt: dt, model: m}
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
	floats := 1 << 14
	if T != tinyT {
		floats = 1 << 16
	}
	r.base = r.poisoned(device.F32, floats)
	r.mem = device.NewArena(r.base)
	r.bt = Batch{
		B: r.B, T: r.T, Compute: dt, Chunk: 3, Scale: 0.7,
		Input: device.OfI32(r.input), Target: device.OfI32(r.target), Loss: r.poisoned(device.F32, r.B*r.T), Drops: r.drops,
	}
	return r
}

func (r *rig) close() {
	r.q.Close() // first, since work may still be running
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

// poisoned returns n elements of NaN.
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
	raw := b.Raw()
	for i := range raw {
		raw[i] = 0xff
	}
}

// buffer returns x in the compute type, and rounds x to it.
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

// near fails unless every step-th element of got is within tol times the root mean square of want;
// if want is zero, got must be, too.
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

// level fails unless f leaves the arena at the same height; memory released by f is poisoned, so
// that nothing can depend on it.
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

// last reports whether module i writes the losses.
func (r *rig) last(i int) bool { return i == len(r.model.Modules)-1 }

func (r *rig) eachModule(f func(i int, name string)) {
	for i, m := range r.model.Modules {
		f(i, fmt.Sprintf("%T %d of unit %s", m, i, unitsOf(r.model)[i]))
	}
}

// subject is a model under test with its computation in float64.
type subject struct {
	name  string
	model func() *Model
	trunk func(*oracle) trunk
	full  bool // runs in float32 only: its gradients jump where 16 bits round to the other side
}

func (s subject) inFull() subject { s.full = true; return s }

// gptSubject returns tiny with a modification.
func gptSubject(name string, g GPT2) subject {
	g.Layers, g.Heads, g.Width, g.Context, g.Vocab, g.Eps = tiny.Layers, tiny.Heads, tiny.Width, tinyContext, tiny.Vocab, tiny.Eps
	return subject{name: name, model: g.Model, trunk: func(o *oracle) trunk { return gptTrunk{o, g} }}
}

var subjects = []subject{
	gptSubject("GPT-2", GPT2{}),
	gptSubject("GPT-2 with dropout", GPT2{Shape: Shape{Dropout: Dropout{Embed: 0.25, Residual: 0.4, Attention: 0.3}}}),
	llamaSubject("Gemma 3 with dropout", Llama{Shape: Shape{Dropout: Dropout{Embed: 0.3, Residual: 0.2, Attention: 0.15}}, Tied: true, Gemma: true, Gate: GateGeluTanh, Norms: NormBoth, Head: 8, Padded: true, Pad: 12, Layout: "fw", Window: 3}),
	llamaSubject("Llama with dropout", Llama{Shape: Shape{Dropout: Dropout{Residual: 0.5, Attention: 0.5}}}),
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
	llamaSubject("Gemma 3", Llama{Shape: Shape{Scale: 5}, Tied: true, Gemma: true, Gate: GateGeluTanh, Norms: NormBoth, HeadNorm: EachHead, Head: 8, Layout: "wf", Window: 2, LocalTheta: 7}),
	llamaSubject("Granite", Llama{Shape: Shape{Scale: 20}, Factors: Factors{Embed: 3, Residual: 0.3, Logits: 0.2}, Gate: GateGeluErf}),
	llamaSubject("Granite with dropout", Llama{Shape: Shape{Dropout: Dropout{Residual: 0.4}}, Tied: true, Factors: Factors{Embed: 0.5, Residual: 2, Logits: 1.5}}),
	llamaSubject("Llama with ReLU", Llama{Gate: GateRelu}).inFull(),
	llamaSubject("Llama with adapters", Llama{Shape: Shape{LoRA: LoRA{Rank: 3, Alpha: 6, Targets: []string{AllLinear}}}, BiasQKV: true}),
	llamaSubject("Phi-3 with adapters", Llama{Shape: Shape{LoRA: LoRA{Rank: 2, Alpha: 1, Targets: []string{"qkv_proj", "mlp.gate_up_proj"}}}, Fused: true}),
	gptSubject("GPT-2 with adapters", GPT2{Shape: Shape{LoRA: LoRA{Rank: 2, Alpha: 3, Targets: []string{"c_attn", "mlp.c_proj"}}}}),
	llamaSubject("Llama with adapters and dropout", Llama{Shape: Shape{LoRA: LoRA{Rank: 3, Alpha: 2, Dropout: 0.3, Targets: []string{AllLinear},
		Ranks: []Pattern{pattern("q_proj", 5), pattern(`layers\.0\.mlp\..*`, 1)}, Alphas: []Pattern{pattern("down_proj", 1)}}}}),
	llamaSubject("Phi-3 with adapters and dropout", Llama{Shape: Shape{Dropout: Dropout{Residual: 0.3}, LoRA: LoRA{Rank: 2, Alpha: 1, Dropout: 0.4, Targets: []string{"qkv_proj", "mlp.gate_up_proj"}}}, Fused: true}),
	gptSubject("GPT-2 with adapters and dropout", GPT2{Shape: Shape{LoRA: LoRA{Rank: 2, Alpha: 3, Dropout: 0.25, Targets: []string{AllLinear}, Ranks: []Pattern{pattern("c_fc", 4)}}}}),
	gptSubject("GPT-2 untied", GPT2{Act: device.GeluErf, Inner: 29, Untied: true}),
	gptSubject("GPT-2, SiLU", GPT2{Act: device.Silu}),
	gptSubject("GPT-2, tanh", GPT2{Act: device.Tanh}),
}

// pattern returns a pattern that is well formed.
func pattern(name string, value float64) Pattern {
	p, err := NewPattern(name, value)
	if err != nil {
		panic(err)
	}
	return p
}

func eachType(t *testing.T, f func(r *rig)) {
	for i, c := range subjects {
		for _, dt := range computeTypes {
			if c.full && dt != device.F32 || !nightly.All() && dt != device.F32 && (i > 9 || i > 1 && dt == computeTypes[1+i%2]) {
				continue // by default the first two in every type, eight in one of 16 bits, too
			}
			t.Run(c.name+"/"+dt.String(), func(t *testing.T) { f(newRig(t, c, dt)) })
		}
	}
}

// stride returns a step that visits at most most of n elements. It is coprime to the widths, so
// every column is visited.
func stride(n, most int) int {
	for _, step := range []int{1, 5, 7, 13, 17, 23, 29, 37, 43, 53, 71, 89, 113, 151} {
		if n <= step*most {
			return step
		}
	}
	panic(fmt.Sprintf("nn: %d of %d elements", most, n))
}

func scaled(scale float32, losses []float64) (sum float64) {
	for _, l := range losses {
		sum += float64(scale) * l
	}
	return sum
}

// prepare sets the gradients of module i before its Backward and returns what it adds to: values of
// all kinds for the first user of a shared unit; otherwise poison, and nothing.
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

// backward runs module i forward on x and backward on d, and checks that all memory except Saved is
// released and that neither parameters nor the input are written.
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
	poison(y) // not kept for Backward
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

// train runs the whole model forward and backward, like a schedule, with all gradients poisoned
// before, at a level of recomputation of blocks. It returns how many products were computed again.
func (r *rig) train(level Recompute) int { return r.trainOn(r.q, level) }

func (r *rig) trainOn(ops Ops, level Recompute) (again int) {
	n, q := r.B*r.T*r.width, &counted{Ops: ops}
	x, saved := make([]device.Buffer, len(r.model.Modules)+1), make([]Saved, len(r.model.Modules))
	for _, dw := range r.dw {
		for _, b := range dw {
			if b.N > 0 {
				poison(b)
			}
		}
	}
	poison(r.bt.Loss)
	r.level("a training step", func() {
		floor := r.mem.Mark()
		d := r.mem.Take(r.dt, n)
		for i, m := range r.model.Modules {
			keep := &saved[i]
			_, restores := m.(Restorer)
			if r.bt.Recompute = SaveAll; restores {
				r.bt.Recompute = level
			}
			if restores && level == RecomputeBlock {
				keep = nil
			}
			x[i+1] = r.mem.Take(r.dt, n)
			m.Forward(q, r.mem, r.w[i], &r.bt, x[i], x[i+1], keep)
			r.wait()
			r.poisonAbove()
		}
		for i := len(r.model.Modules) - 1; i >= 0; i-- {
			m, mark, before := r.model.Modules[i], r.mem.Mark(), q.products
			if b, ok := m.(Restorer); ok && level != SaveAll {
				r.bt.Recompute = level
				b.Restore(q, r.mem, r.w[i], &r.bt, x[i], &saved[i])
				again += q.products - before
			}
			r.level("backward", func() { m.Backward(q, r.mem, r.w[i], r.dw[i], &r.bt, x[i], d, &saved[i]) })
			r.mem.Release(mark)
		}
		r.mem.Release(floor)
	})
	r.bt.Recompute = SaveAll
	return again
}

// named returns the losses and all gradients, by parameter.
func (r *rig) named() map[string]device.Buffer {
	all := map[string]device.Buffer{"losses": r.bt.Loss}
	for i, m := range r.model.Modules {
		for j, p := range m.Params() {
			all[p.Name] = r.dw[i][j]
		}
	}
	return all
}
