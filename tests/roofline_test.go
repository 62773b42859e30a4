package tests

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"zeroth/config"
	"zeroth/device"
	"zeroth/device/cuda/kernel"
	"zeroth/forecast"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/optim"
	"zeroth/tests/generated"
)

// These tests compute how long a training step should take on an H200: its launches, counted as a
// queue of device/cuda issues them, divided by the GPU's rates. docs/lab/kernels.md contains the
// tables, for comparison with the first runs.

// Rates that are not in the preset h200: the peak of ordinary cores, and those that attention reaches
// on tensor cores in a step. The gradient's kernels compute 7 products for the preset's 5.
const (
	fp32Peak      = 67e12
	flashRate     = 235e12
	flashGradRate = 231e12
	groupsRate    = 450e12 // predicted
	wideShare     = 0.9    // predicted: of these rates, with heads wider than 128

	hopperRate, hopperGradRate = 420e12, 490e12 // predicted: by wgmma
)

// pieces sums the launches of one kernel.
type pieces struct {
	launches int
	kernel.Cost
	seconds  float64
	computes int // launches limited by arithmetic
}

// rooflined is a queue that only counts.
type rooflined struct {
	kernel.Ops
	h    *forecast.Hardware
	rows map[string]*pieces
	mem  func(t device.DType, n int) device.Buffer // allocates the step's operands

	model float64 // the model's operations: products, and attention between the positions that see each other
}

const product = "matrix products"

func newRooflined(h *forecast.Hardware) *rooflined {
	r := &rooflined{h: h, rows: map[string]*pieces{}, mem: nothing}
	r.Ops = kernel.Ops{To: r, Weigh: true, Work: nothing(device.F32, kernel.WorkLen)}
	return r
}

// nothing returns a buffer of n elements without memory.
func nothing(t device.DType, n int) device.Buffer { return device.Buffer{Type: t, N: n} }

// Launch counts a call.
func (r *rooflined) Launch(c *kernel.Call) {
	rate := fp32Peak
	switch name := c.Kernel.Name; {
	case strings.HasPrefix(name, "flash_d"):
		rate = flashGradRate
	case strings.HasPrefix(name, "flash"):
		rate = flashRate
	case strings.HasPrefix(name, "wgmma_d"):
		rate = hopperGradRate
	case strings.HasPrefix(name, "wgmma"):
		rate = hopperRate
	case strings.HasPrefix(name, "groups"):
		rate, r.model = groupsRate, r.model+float64(c.Cost.Flops)
	}
	if strings.HasPrefix(c.Kernel.Name, "flash") && strings.HasSuffix(c.Kernel.Name, "_256") {
		rate *= wideShare
	}
	r.add(c.Kernel.Name, c.Cost, r.h.Memory, rate)
}

func (r *rooflined) add(name string, c kernel.Cost, memory, flops float64) {
	if r.rows[name] == nil {
		r.rows[name] = &pieces{}
	}
	row := r.rows[name]
	row.launches++
	row.Bytes += c.Bytes
	row.Flops += c.Flops
	passing, computing := float64(c.Bytes)/memory, float64(c.Flops)/flops
	row.seconds += max(passing, computing, r.h.Launch)
	if computing > passing {
		row.computes++
	}
}

// MatMul counts a product and the operations that cuBLAS fuses into its epilogue.
func (r *rooflined) MatMul(c, a, b device.Mat, bias device.Buffer, add bool) {
	var old device.Mat
	if add {
		old = c
	}
	r.multiplied(c, a, b, old, bias)
}

func (r *rooflined) MatMulOnto(y, x, a, b device.Mat, bias device.Buffer) {
	r.multiplied(y, a, b, x, bias)
}

func (r *rooflined) MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation) {
	if f != device.GeluTanh {
		device.MatMulActivate(r, y, x, a, b, bias, f)
		return
	}
	r.multiplied(y, a, b, x, bias)
}

func (r *rooflined) MatMulActivateGrad(dx, a, b, x device.Mat, f device.Activation) {
	if f != device.GeluTanh {
		device.MatMulActivateGrad(r, dx, a, b, x, f)
		return
	}
	r.multiplied(dx, a, b, x, device.Buffer{})
}

func (r *rooflined) WeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat) {
	device.WeightGrad(r, dw, db, dy, x)
}

func (r *rooflined) Attention(o device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn) {
	r.model += 2 * 2 * float64(a.Pairs()) * float64(a.D)
	r.Ops.Attention(o, lse, q, k, v, a)
}

func (r *rooflined) AttentionGrad(dq, dk, dv device.Mat, delta device.Buffer, do, o device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn) {
	r.model += 2 * 4 * float64(a.Pairs()) * float64(a.D)
	r.Ops.AttentionGrad(dq, dk, dv, delta, do, o, lse, q, k, v, a)
}

// multiplied counts c = a·b with an additional matrix and vector.
func (r *rooflined) multiplied(c, a, b, beside device.Mat, vector device.Buffer) {
	m, k := a.Dims()
	_, n := b.Dims()
	cost := kernel.Cost{Flops: 2 * int64(m) * int64(n) * int64(k), Bytes: int64(vector.Bytes())}
	r.model += float64(cost.Flops)
	for _, x := range []device.Mat{a, b, c, beside} {
		cost.Bytes += int64(x.Rows) * int64(x.Cols) * int64(x.Buf.Type.Size())
	}
	r.add(product, cost, r.h.Memory, r.h.Flops["bf16"])
}

// Do does nothing.
func (r *rooflined) Do(func() error) {}

// step issues a micro-batch and the following update of one rank with bf16 parameters. arena is
// the bytes of its activations.
func (r *rooflined) step(m *nn.Model, B, T, chunk, arena int) {
	rows := B * T
	bt := &nn.Batch{B: B, T: T, Input: r.mem(device.I32, rows), Target: r.mem(device.I32, rows), Loss: r.mem(device.F32, rows),
		Scale: 1, Chunk: chunk, Compute: device.BF16}
	mem := device.NewArena(r.mem(device.BF16, arena/2))
	saved := make([]nn.Saved, len(m.Modules))
	var x []device.Buffer // each module's input and the last one's output
	for range len(m.Modules) + 1 {
		x = append(x, mem.Take(device.BF16, rows*m.Width))
	}
	var w, dw [][]device.Buffer
	for i, mod := range m.Modules {
		var ws, dws []device.Buffer
		for _, p := range mod.Params() {
			ws, dws = append(ws, r.mem(device.BF16, p.Numel())), append(dws, r.mem(device.F32, p.Numel()))
		}
		w, dw = append(w, ws), append(dw, dws)
		mod.Forward(r, mem, ws, bt, x[i], x[i+1], &saved[i])
	}
	d := mem.Take(device.BF16, rows*m.Width)
	for i := len(m.Modules) - 1; i >= 0; i-- {
		m.Modules[i].Backward(r, mem, w[i], dw[i], bt, x[i], d, &saved[i])
	}
	acc := r.mem(device.I64, device.ExactLen)
	r.Sum(acc, bt.Loss)
	rule := optim.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}
	for _, u := range m.Units() {
		n := 0
		for _, p := range u.Params {
			n += p.Numel()
		}
		f32 := func() device.Buffer { return r.mem(device.F32, n) }
		g := f32()
		r.SumSquares(acc, g)
		rule.Step(r, 1, optim.Hyper{LR: 1e-3, Decay: 0.1, GradScale: 1}, optim.Piece{Master: f32(), Param: r.mem(device.BF16, n), Grad: g, State: []device.Buffer{f32(), f32()}})
	}
}

// endless is more memory than any step needs.
const endless = math.MaxInt32 << 7

func (r *rooflined) seconds() (s float64) {
	for _, row := range r.rows {
		s += row.seconds
	}
	return s
}

// table returns a table with a line per kernel, the longest first.
func (r *rooflined) table() string {
	var b strings.Builder
	fmt.Fprintln(&b, "| kernel | launches | GB | GFLOP | bound by | ms | share |\n|---|---:|---:|---:|---|---:|---:|")
	names, all := slices.Collect(maps.Keys(r.rows)), r.seconds()
	slices.SortFunc(names, func(x, y string) int {
		return cmp.Or(cmp.Compare(r.rows[y].seconds, r.rows[x].seconds), cmp.Compare(x, y))
	})
	for _, name := range names {
		p := r.rows[name]
		by := "memory"
		switch {
		case p.seconds <= 1.01*float64(p.launches)*r.h.Launch:
			by = "launches"
		case 2*p.computes > p.launches:
			by = "operations"
		}
		if name != product {
			name = "`" + name + "`"
		}
		fmt.Fprintf(&b, "| %s | %d | %.2f | %.0f | %s | %.2f | %.1f %% |\n", name, p.launches, float64(p.Bytes)/1e9, float64(p.Flops)/1e9, by, 1e3*p.seconds, 100*p.seconds/all)
	}
	return b.String()
}

// rooflineOf returns the section of docs/lab/kernels.md about a model.
func rooflineOf(t *testing.T, c kernel.Choice, name string, m *nn.Model, B, T, chunk int) string {
	t.Helper()
	h, err := forecast.OpenHardware("h200")
	if err != nil {
		t.Fatal(err)
	}
	params := 0
	for _, u := range m.Units() {
		for _, p := range u.Params {
			params += p.Numel()
		}
	}
	r := newRooflined(h)
	r.Choice = c
	r.step(m, B, T, chunk, endless)
	s, tokens := r.seconds(), float64(B*T)
	return fmt.Sprintf("%s, %.0f M parameters, %d sequences of %d: a step takes **%.1f ms, %.0f thousand tokens/s, MFU %.0f %% of %.0f TFLOP/s**.\n\n%s",
		name, float64(params)/1e6, B, T, 1e3*s, tokens/s/1e3, 100*r.model/s/h.Peak["bf16"], h.Peak["bf16"]/1e12, r.table())
}

// issuing is the time in seconds that nn and a queue take to issue an operation, without the
// driver: BenchmarkLaunch/block.
const issuing = 0.22e-6

// launchesOf returns a line of docs/lab/kernels.md: the share of a step that launches alone take,
// and how long the issuing goroutine is busy if the driver needs as long for each launch as the
// GPU's minimum.
func launchesOf(t *testing.T, name string, m *nn.Model, B, T int) string {
	t.Helper()
	h, err := forecast.OpenHardware("h200")
	if err != nil {
		t.Fatal(err)
	}
	var ms [2]float64
	n, each := 0, h.Launch
	for i, launch := range []float64{h.Launch, 0} {
		h.Launch = launch
		r := newRooflined(h)
		r.step(m, B, T, 8192, endless)
		ms[i], n = 1e3*r.seconds(), 0
		for _, row := range r.rows {
			n += row.launches
		}
	}
	return fmt.Sprintf("| %s | %d | %.2f | %.2f | %.0f %% | %.2f |\n", name, n, ms[1], ms[0], 100*(1-ms[1]/ms[0]), 1e3*float64(n)*(each+issuing))
}

// TestReadmeKernels compares docs/lab/kernels.md.
func TestReadmeKernels(t *testing.T) {
	gpt2 := nn.GPT2{Shape: nn.Shape{Layers: 12, Heads: 12, Width: 768, Context: 1024, Vocab: 50257, Eps: 1e-5}}
	llama := nn.Llama{Shape: nn.Shape{Layers: 16, Width: 2048, Heads: 32, Context: 2048, Vocab: 128256, Eps: 1e-5}, KV: 8, FFN: 8192, Theta: 5e5, Tied: true}
	gemma := nn.Llama{Shape: nn.Shape{Layers: 26, Width: 2304, Heads: 8, Context: 8192, Vocab: 256000, Eps: 1e-6}, KV: 4, Head: 256, FFN: 9216, Gemma: true, Gate: nn.GateGeluTanh, Theta: 1e4, Tied: true, CapScores: 50, CapLogits: 30}
	small := nn.GPT2{Shape: nn.Shape{Layers: 4, Heads: 7, Width: 448, Context: 64, Vocab: 257, Eps: 1e-5}}
	launches := "| step of a rank | launches | ms of work | ms, each 4 µs at least | launches | ms of who issues it |\n|---|---:|---:|---:|---:|---:|\n" +
		launchesOf(t, "`examples/quickstart.yaml`, 4 sequences of 64", small.Model(), 4, 64)
	for _, B := range []int{1, 4, 64} {
		launches += launchesOf(t, fmt.Sprintf("GPT-2 124M, %d × 1024", B), gpt2.Model(), B, 1024)
	}
	for _, B := range []int{1, 16} {
		launches += launchesOf(t, fmt.Sprintf("Llama of 1.2 B, %d × 2048", B), llama.Model().Joined(1), B, 2048)
	}
	generated.Compare(t, "../docs/lab/kernels.md", map[string]string{
		"launches": launches,
		"gpt2":     rooflineOf(t, kernel.Auto, "GPT-2 124M", gpt2.Model(), 64, 1024, 8192),
		"gemma":    rooflineOf(t, kernel.Auto, "Gemma 2 of 2.6 B", gemma.Model().Joined(1), 8, 2048, 4096),
		"mma":      rooflineOf(t, kernel.MMA, "Gemma 2 of 2.6 B with `parallel.attention: mma`", gemma.Model().Joined(1), 8, 2048, 4096),
		"wgmma":    rooflineOf(t, kernel.WGMMA, "GPT-2 124M with `parallel.attention: wgmma`", gpt2.Model(), 64, 1024, 8192),
		"llama":    rooflineOf(t, kernel.Auto, "Llama of 1.2 B (the shape of Llama 3.2 1B)", llama.Model().Joined(1), 16, 2048, 8192),
	})
}

// TestPlanIsTheRoofline checks that `plan --machine h200`, which simulates a step with the rates in
// docs/lab/kernels.md, predicts about the times measured there: for GPT-2, and for a Llama with and
// without soft caps and wide heads, which exclude tensor cores from attention unless the job says otherwise.
func TestPlanIsTheRoofline(t *testing.T) {
	h, err := forecast.OpenHardware("h200")
	if err != nil {
		t.Fatal(err)
	}
	seconds := map[string]float64{}
	for _, of := range []struct {
		model, batch string
		cap          float64
		choice       kernel.Choice
	}{
		{"model={layers: 12, heads: 12, width: 768, context: 1024, vocab: 50257}", "64", 0, kernel.Auto},
		{"model={family: llama, layers: 4, heads: 16, kv_heads: 8, width: 2048, ffn: 8192, context: 2048, vocab: 128256}", "4", 0, kernel.Auto},
		{"model={family: llama, layers: 4, heads: 16, kv_heads: 8, width: 2048, ffn: 8192, context: 2048, vocab: 128256}", "4", 30, kernel.Auto},
		{"model={family: llama, layers: 4, heads: 16, kv_heads: 8, width: 2048, ffn: 8192, context: 2048, vocab: 128256}", "4", 30, kernel.MMA},
		{"model={family: llama, layers: 4, heads: 8, kv_heads: 4, width: 2048, ffn: 8192, context: 2048, vocab: 128256}", "4", 0, kernel.Auto},
		{"model={family: llama, layers: 4, heads: 8, kv_heads: 4, width: 2048, ffn: 8192, context: 2048, vocab: 128256}", "4", 30, kernel.MMA},
	} {
		c, err := spec.Draft("", []string{of.model, "train.micro_batch=" + of.batch, "train.loss_chunk=8192", "precision=bf16", "parallel.ranks=1", "zero.stage=0"})
		if err != nil {
			t.Fatal(err)
		}
		c.Model.CapScores, c.Model.CapLogits, c.Parallel.Attention = of.cap, of.cap, config.Attentions[of.choice]
		s, err := forecast.Simulate(setup.Planned(c), h)
		if err != nil {
			t.Fatal(err)
		}
		r := newRooflined(h)
		r.Choice = of.choice
		r.step(c.Model.Network(nn.LoRA{}), c.Train.MicroBatch, c.Model.Context, 8192, endless)
		if want := r.seconds(); math.Abs(s.Seconds-want) > 0.05*want {
			t.Errorf("%s with caps of %v: the plan's step takes %.1f ms, the sum of its kernels %.1f", of.model, of.cap, 1e3*s.Seconds, 1e3*want)
		}
		seconds[fmt.Sprint(c.Model.Head(), of.cap, of.choice)] = s.Seconds
	}
	for _, than := range [][2]string{{"128 30 0", "128 0 0"}, {"128 30 0", "128 30 1"}, {"256 0 0", "256 30 1"}} {
		if slow, fast := seconds[than[0]], seconds[than[1]]; slow < 1.1*fast {
			t.Errorf("a step takes %.1f ms with heads, cap and choice %s, %.1f with %s", 1e3*slow, than[0], 1e3*fast, than[1])
		}
	}
}
