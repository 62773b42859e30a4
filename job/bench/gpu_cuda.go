//go:build cuda

package bench

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/cuda"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/kernel"
	"zeroth/internal/machine"
)

// gpuBench measures a GPU as training uses it, with two queues and pinned host memory.
type gpuBench struct {
	*bench
	gpuSizes
	dev   *cuda.Device
	mem   cuda.Pinned
	host  *cpu.Device
	q, r  *cuda.Queue
	taken []device.Buffer // of the current line
	err   error           // the first allocation that failed
}

// scaleTime is the minimum duration of the square product at a scale below the full one.
const scaleTime = 300 * time.Microsecond

func (b *bench) measureGPU(all []machine.GPU) error {
	g := &gpuBench{bench: b}
	defer g.close()
	if err := g.open(all[0].Ordinal); err != nil {
		return err
	}
	b.report.gpus = len(all)
	var err error
	if b.report.hostMemory, err = b.hostShare(len(all)); err != nil {
		return err
	}
	for scale := 1; ; scale *= 2 {
		g.gpuSizes = gpuSizesAt(scale)
		took, _, err := g.timed(0, g.square(device.BF16))
		if err != nil || scale == fullGPU || took > scaleTime {
			g.release()
			if err != nil {
				return err
			}
			break
		}
		g.release()
	}
	for _, part := range []func() error{g.copies, func() error { return g.peers(all) }, g.launching, g.squares, g.oneRow, g.products, g.fused, g.kernels, g.attending, g.grouping, g.algorithms} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

func (g *gpuBench) open(ordinal int) (err error) {
	if g.dev, err = cuda.Open(ordinal); err != nil {
		return err
	}
	if g.mem, err = cuda.OpenPinned(ordinal); err != nil {
		return err
	}
	g.host = cpu.NewHostFrom(1, g.mem)
	if err = g.dev.ReserveWork(device.Sizes{Rows: 1, Width: 1}); err != nil {
		return err
	}
	g.q, g.r = g.dev.NewQueue("bench"), g.dev.NewQueue("bench, the other way")
	return g.wait()
}

func (g *gpuBench) close() {
	for _, q := range []*cuda.Queue{g.q, g.r} {
		if q != nil {
			q.Close()
		}
	}
	if g.host != nil {
		g.host.Close()
		g.mem.Close()
	}
	if g.dev != nil {
		g.dev.Close()
	}
}

func (g *gpuBench) wait() error {
	if err := g.q.Wait(); err != nil {
		return err
	}
	return g.r.Wait()
}

// alloc allocates n elements on the GPU for the current line.
func (g *gpuBench) alloc(t device.DType, n int) device.Buffer {
	x, err := g.dev.Alloc(t, n, device.Workspace)
	if err != nil && g.err == nil {
		g.err = err
	}
	if err == nil {
		g.taken = append(g.taken, x)
	}
	return x
}

// noisePeriod is the number of elements after which noise repeats.
const noisePeriod = 1 << 20

// noise returns n elements between -1 and 1 on the GPU. Products of zeros would be faster.
func (g *gpuBench) noise(t device.DType, n int) device.Buffer {
	x := g.alloc(t, n)
	if g.err != nil {
		return x
	}
	block := noise(t, min(n, noisePeriod))
	g.q.Copy(x.Slice(0, block.N), block)
	for at := block.N; at < n; at += block.N {
		end := min(n, at+block.N)
		g.q.Copy(x.Slice(at, end), x.Slice(0, end-at))
	}
	return x
}

// noise returns n elements between -1 and 1.
func noise(t device.DType, n int) device.Buffer {
	wide := device.OfF32(make([]float32, n))
	fillNoise(wide.F32())
	if t == device.F32 {
		return wide
	}
	d := cpu.NewHost(1)
	defer d.Close()
	q := d.NewQueue("bench")
	defer q.Close()
	narrow := device.OfU16(t, make([]uint16, n))
	q.Cast(narrow, wide)
	_ = q.Wait() // a cast does not fail
	return narrow
}

// ids returns n numbers below most.
func (g *gpuBench) ids(n, most int) device.Buffer {
	x, host := g.alloc(device.I32, n), make([]int32, n)
	for i := range host {
		host[i] = int32(i * 7919 % most)
	}
	if g.err == nil {
		g.q.Copy(x, device.OfI32(host))
	}
	return x
}

func (g *gpuBench) mat(rows, cols int) device.Mat {
	return device.Matrix(g.noise(device.BF16, rows*cols), rows, cols)
}

// release frees the memory of the current line.
func (g *gpuBench) release() {
	for _, x := range g.taken {
		g.dev.Free(x)
	}
	g.taken = g.taken[:0]
}

// timed returns the median duration of the work that issue issues, starting and ending with idle
// queues. A sample repeats issue while time remains.
func (g *gpuBench) timed(seconds float64, issue func()) (one time.Duration, n int, err error) {
	if g.err != nil {
		return 0, 0, g.err
	}
	reps := 1
	sample := func() (time.Duration, error) {
		start := time.Now()
		for range reps {
			issue()
		}
		err := g.wait()
		return time.Since(start) / time.Duration(reps), err
	}
	for range 2 { // the first run is slower
		if one, err = sample(); err != nil {
			return 0, 0, err
		}
	}
	if seconds == 0 {
		return one, 1, nil
	}
	reps = max(1, int(sampleTime/max(1, one)))
	var all []time.Duration
	for end := time.Now().Add(time.Duration(seconds * float64(time.Second))); len(all) == 0 || len(all) < wantSamples && time.Now().Before(end); {
		if one, err = sample(); err != nil {
			return 0, 0, err
		}
		all = append(all, one)
	}
	slices.Sort(all)
	return all[len(all)/2], len(all), nil
}

// line measures issue, which does work units, and frees its memory.
func (g *gpuBench) line(name string, work float64, unit, of string, issue func()) error {
	defer g.release()
	if g.ctx.Err() != nil {
		return nil
	}
	g.progress("gpu " + name)
	took, n, err := g.timed(g.Seconds, issue)
	if err == nil {
		g.row(gpuGroup, name, work, unit, of, sample{seconds: took.Seconds(), n: n})
	}
	return err
}

// limit makes the last line the reference for later lines.
func (g *gpuBench) limit(name string) {
	if lines := g.report.Lines; len(lines) > 0 { // none if the context has ended
		g.limits[name] = lines[len(lines)-1].Rate
	}
}

func (g *gpuBench) copies() error {
	x, y := g.alloc(device.F32, g.bytes/4), g.alloc(device.F32, g.bytes/4)
	keep := g.taken
	g.taken = nil
	defer func() { g.taken = keep; g.release() }()
	var h [2]device.Buffer
	for i := range h {
		var err error
		if h[i], err = g.host.Alloc(device.F32, g.bytes/4, device.Workspace); err != nil {
			return err
		}
		defer g.host.Free(h[i])
	}
	up, down := func() { g.q.Copy(x, h[0]) }, func() { g.r.Copy(h[1], y) }
	for _, c := range []struct {
		name  string
		times float64
		issue func()
	}{{toDevice, 1, up}, {toHost, 1, down}, {bothWays, 2, func() { up(); down() }}, {onDevice, 2, func() { g.q.Copy(y, x) }}} {
		if err := g.line(c.name, c.times*float64(g.bytes), "B/s", "", c.issue); err != nil {
			return err
		}
	}
	g.limit("copy")
	return nil
}

// peers measures a copy from the second GPU if the first can reach it.
func (g *gpuBench) peers(all []machine.GPU) error {
	if len(all) < 2 {
		return nil
	}
	other, err := cuda.Open(all[1].Ordinal)
	if err != nil {
		return err
	}
	defer other.Close()
	if g.dev.ReachAll([]int{all[0].Ordinal, all[1].Ordinal}) != nil {
		return nil // no link
	}
	from, err := other.Alloc(device.F32, g.bytes/4, device.Workspace)
	if err != nil {
		return err
	}
	defer other.Free(from)
	x := g.alloc(device.F32, g.bytes/4)
	return g.line(betweenGPUs, float64(g.bytes), "B/s", "", func() { g.q.Copy(x, from) })
}

// launching measures work without substance: consecutive launches, a launch that is waited for,
// and loading each family: its cubin, or else its PTX, which the driver compiles and caches on disk.
func (g *gpuBench) launching() error {
	x := g.alloc(device.F32, 1)
	if err := g.line(launches, 1, "launch/s", "", func() { g.q.Zero(x) }); err != nil {
		return err
	}
	x = g.alloc(device.F32, 1)
	if err := g.line("launch and wait", 1, "launch/s", "", func() { g.q.Zero(x); g.q.Mark().Await() }); err != nil {
		return err
	}
	gpu, err := driver.Open(g.dev.Info().Ordinal)
	if err != nil {
		return err
	}
	defer gpu.Close()
	for _, f := range kernel.Families() {
		if !f.RunsOn(gpu.Major, gpu.Minor) {
			continue
		}
		name, images, start := "load the kernels "+f.Name, f.Images(gpu.Major), time.Now()
		m, err := gpu.Load(f.Name, images...)
		if err != nil {
			return err
		}
		if refused := (driver.Error{}); errors.As(m.Refused, &refused) {
			name = fmt.Sprintf("compile the kernels %s (their cubin: %s)", f.Name, refused.Name)
		} else if len(images) == 1 {
			name = "compile the kernels " + f.Name
		}
		g.row(gpuGroup, name, 1, "", "", sample{seconds: time.Since(start).Seconds(), n: 1})
		if err := m.Unload(); err != nil {
			return err
		}
	}
	return nil
}

// counted sums the cost of launches.
type counted struct{ kernel.Cost }

// Launch implements kernel.Launcher.
func (c *counted) Launch(x *kernel.Call) {
	c.Bytes, c.Flops = c.Bytes+x.Cost.Bytes, c.Flops+x.Cost.Flops
}

// costOf returns the cost of operations that pass over each operand once.
func costOf(f func(*kernel.Ops)) kernel.Cost {
	c := &counted{}
	f(&kernel.Ops{To: c, Weigh: true, Work: device.Buffer{Type: device.F32, N: kernel.WorkLen}})
	return c.Cost
}

// gpuPass is an operation bound by memory, on operands that make allocates.
type gpuPass struct {
	name string
	make func() func(*kernel.Ops)
}

// kernels measures the memory-bound kernels of a step, relative to a copy.
func (g *gpuBench) kernels() error {
	for _, k := range append(g.modelPasses(), g.updatePasses()...) {
		f := k.make()
		if g.err != nil {
			return g.err
		}
		if err := g.line(k.name, float64(costOf(f).Bytes), "B/s", "copy", func() { f(&g.q.Ops) }); err != nil {
			return err
		}
	}
	return nil
}

func (g *gpuBench) vec(n int) device.Buffer { return g.noise(device.F32, n) }

func (g *gpuBench) modelPasses() []gpuPass {
	x := func() device.Mat { return g.mat(g.rows, g.width) }
	wide := func() device.Buffer { return g.noise(device.BF16, 4*g.rows*g.width) }
	row := func() device.Buffer { return g.noise(device.BF16, g.width) }
	return []gpuPass{
		{"layer norm", func() func(*kernel.Ops) {
			y, x, mean, rstd, w, b := x(), x(), g.vec(g.rows), g.vec(g.rows), row(), row()
			return func(o *kernel.Ops) { o.LayerNorm(y, mean, rstd, x, w, b, 1e-5) }
		}},
		{"layer norm gradient", func() func(*kernel.Ops) {
			dx, dy, x, mean, rstd, w, dw, db := x(), x(), x(), g.vec(g.rows), g.vec(g.rows), row(), g.vec(g.width), g.vec(g.width)
			return func(o *kernel.Ops) { o.LayerNormGrad(dx, dw, db, dy, x, w, mean, rstd, false) }
		}},
		{"GELU", func() func(*kernel.Ops) {
			y, x := wide(), wide()
			return func(o *kernel.Ops) { o.Activate(y, x, device.GeluTanh) }
		}},
		{"GELU gradient", func() func(*kernel.Ops) {
			dx, x, dy := wide(), wide(), wide()
			return func(o *kernel.Ops) { o.ActivateGrad(dx, x, dy, device.GeluTanh) }
		}},
		{"SwiGLU", func() func(*kernel.Ops) {
			y, both := g.mat(g.rows, 4*g.width), g.mat(g.rows, 8*g.width)
			gate, up := both.Columns(0, y.Cols), both.Columns(y.Cols, both.Cols)
			return func(o *kernel.Ops) { o.Gate(y, gate, up, device.Silu) }
		}},
		{"rotary positions", func() func(*kernel.Ops) {
			x := x()
			return func(o *kernel.Ops) { o.Rope(x, device.Rope{T: g.T, D: 64, Theta: 10000}, false) }
		}},
		{"embedding", func() func(*kernel.Ops) {
			y, wte, wpe, ids := x(), g.mat(g.vocab, g.width), g.mat(g.T, g.width), g.ids(g.rows, g.vocab)
			return func(o *kernel.Ops) { o.Embed(y, wte, wpe, device.Vocab{}, ids, g.T, device.Buffer{}) }
		}},
		{"embedding gradient", func() func(*kernel.Ops) {
			dwte, dwpe := device.Matrix(g.vec(g.vocab*g.width), g.vocab, g.width), device.Matrix(g.vec(g.T*g.width), g.T, g.width)
			dy, ids := x(), g.ids(g.rows, g.vocab)
			return func(o *kernel.Ops) { o.EmbedGrad(dwte, dwpe, dy, device.Vocab{}, ids, g.T, device.Buffer{}, false) }
		}},
		{"cross-entropy and gradient", func() func(*kernel.Ops) {
			loss, logits, target := g.vec(g.rows), g.mat(g.rows, g.vocab), g.ids(g.rows, g.vocab)
			return func(o *kernel.Ops) { o.CrossEntropyGrad(loss, logits, target, 1, 0) }
		}},
	}
}

func (g *gpuBench) updatePasses() []gpuPass {
	return []gpuPass{
		{"AdamW", func() func(*kernel.Ops) {
			w, p, grad, m, v := g.vec(g.params), g.noise(device.BF16, g.params), g.vec(g.params), g.alloc(device.F32, g.params), g.alloc(device.F32, g.params)
			a := device.AdamW{GradScale: 1, Beta1: .9, Beta2: .95, Shrink: 1, Step: 1e-3, RootC2: 1, Eps: 1e-8}
			return func(o *kernel.Ops) { o.AdamW(w, p, grad, m, v, a) }
		}},
		{"sum of squares", func() func(*kernel.Ops) {
			acc, x := g.alloc(device.I64, device.ExactLen), g.vec(g.params)
			return func(o *kernel.Ops) { o.SumSquares(acc, x) }
		}},
		{"cast fp32 to bf16", func() func(*kernel.Ops) {
			y, x := g.alloc(device.BF16, g.params), g.vec(g.params)
			return func(o *kernel.Ops) { o.Cast(y, x) }
		}},
	}
}

// attending measures attention over whole sequences, relative to the square product, by the kernels
// chosen by default and by wgmma where the GPU has it. All use tensor cores.
func (g *gpuBench) attending() error {
	heads := func() device.Mat { return g.mat(g.rows, g.width) }
	a := device.Attn{B: g.rows / g.T, T: g.T, H: g.width / 64, KV: g.width / 64, D: 64, Scale: 0.125}
	stats := a.B * a.H * a.T
	defer func(c kernel.Choice) { g.q.Choice = c }(g.q.Choice)
	for _, by := range []struct {
		kernel.Choice
		name string
		grad bool
	}{{kernel.Auto, attentionOf, false}, {kernel.WGMMA, attentionOf + " by wgmma", false}, {kernel.Auto, attentionGradOf, true}, {kernel.WGMMA, attentionGradOf + " by wgmma", true}} {
		if info := g.dev.Info(); !by.RunsOn(info.Major, info.Minor) {
			continue
		}
		g.q.Choice = by.Choice
		out, lse, delta := heads(), g.alloc(device.F32, stats), g.alloc(device.F32, stats)
		q, k, v := heads(), heads(), heads()
		dq, dk, dv, do := heads(), heads(), heads(), heads()
		if g.err != nil {
			return g.err
		}
		f := func(o *kernel.Ops) { o.Attention(out, lse, q, k, v, a) }
		if by.grad {
			f(&g.q.Ops) // for the log-sum-exp that the gradient reads
			f = func(o *kernel.Ops) { o.AttentionGrad(dq, dk, dv, delta, do, out, lse, q, k, v, a) }
		}
		if err := g.line(by.name, float64(costOf(f).Flops), "FLOP/s", "bf16 product", func() { f(&g.q.Ops) }); err != nil {
			return err
		}
	}
	return nil
}

// grouping measures products of the rows of eight experts, relative to the square product: 1,024 rows
// each at full size. Both use tensor cores.
func (g *gpuBench) grouping() error {
	const experts = 8
	x, y, w := g.mat(g.rows, g.width), g.mat(g.rows, 2*g.width), g.mat(experts*2*g.width, g.width)
	of, order, at, offsets := g.ids(g.rows, experts), g.alloc(device.I32, g.rows), g.alloc(device.I32, g.rows), g.alloc(device.I32, experts+1)
	dw := device.Matrix(g.vec(w.Rows*w.Cols), w.Rows, w.Cols)
	if g.err != nil {
		return g.err
	}
	group := func(m device.Mat) device.MatGroup {
		one := m.RowRange(0, 2*g.width)
		one.Buf = m.Buf
		return device.MatGroup{Mat: one, Stride: one.Rows * one.Cols}
	}
	g.q.Sort(order, at, offsets, of, 0)
	keep := g.taken
	g.taken = nil
	defer func() { g.taken = keep; g.release() }()
	for _, form := range []struct {
		name string
		f    func(*kernel.Ops)
	}{
		{"experts", func(o *kernel.Ops) { o.MatMulGroups(y, x, group(w).T(), offsets, false) }},
		{"experts' gradient of rows", func(o *kernel.Ops) { o.MatMulGroups(x, y, group(w), offsets, false) }},
		{"experts' gradient of weights", func(o *kernel.Ops) { o.WeightGradGroups(group(dw), y, x, offsets, false) }},
	} {
		if err := g.line(form.name, float64(costOf(form.f).Flops), "FLOP/s", "bf16 product", func() { form.f(&g.q.Ops) }); err != nil {
			return err
		}
	}
	return nil
}

// gpuSizes are the benchmark sizes, which grow with the GPU's speed. The full sizes are those of
// GPT-2 124M on 8192 positions.
type gpuSizes struct{ square, bytes, rows, T, width, vocab, params int }

// fullGPU is the scale from which on sizes are full.
const fullGPU = 128

func gpuSizesAt(scale int) gpuSizes {
	s := gpuSizes{square: 64 * scale, bytes: min(256<<20, 64<<10*scale*scale), rows: min(8192, 32*scale*scale),
		width: min(768, 64*scale), vocab: min(50257, 512*scale), params: 4096 * scale * scale}
	s.T = min(1024, s.rows)
	return s
}

// hostShare returns the host memory bandwidth per GPU for updates, in bytes per second: the best of
// several samples.
func (b *bench) hostShare(gpus int) (float64, error) {
	pass, bytes := b.pass("triad")
	took, err := b.alternate(pass)
	if err != nil || len(took[0]) == 0 {
		return 0, err
	}
	return bytes / slices.Min(took[0]) / float64(gpus), nil
}
