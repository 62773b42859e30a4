//go:build cuda

package cuda_test

import (
	"os"
	"syscall"
	"testing"

	"zeroth/device"
	"zeroth/device/cuda/fake"
	"zeroth/nn"
)

// BenchmarkLaunch measures our cost of an operation: from a call of nn's interface until the driver
// has it, with a driver that does nothing. The driver's own part is 2 to 4 microseconds on
// hardware. "alone" is a call of C with a single launch, "block" an operation of a block of GPT-2,
// forward and backward, with its marks.
//
//	FAKECUDA_MODE=nothing go test -tags cuda ./device/cuda -run '^$' -bench Launch
func BenchmarkLaunch(b *testing.B) {
	fake.Only(b)
	if os.Getenv("FAKECUDA_MODE") != "nothing" {
		b.Skip("the fake driver runs kernels: set FAKECUDA_MODE=nothing")
	}
	on := open(b)
	f32 := func(n int) device.Buffer { return on.alloc(device.F32, n) }
	rows := func() device.Mat { return device.Matrix(on.alloc(device.BF16, 16*64), 16, 64) }
	x, y, m, w, stat, none := f32(4), rows(), rows(), device.Matrix(on.alloc(device.BF16, 64*64), 64, 64), f32(16), device.Buffer{}
	vec := on.alloc(device.BF16, 64)
	a := device.Attn{B: 1, T: 16, H: 1, KV: 1, D: 64, Scale: 1}
	block, inBlock := on.block()
	for _, l := range []struct {
		name string
		f    func()
		ops  int
	}{
		{"alone", alone(b), 1},
		{"scale", func() { on.q.Scale(x, 2) }, 1},
		{"add", func() { on.q.AddTo(x, x, x) }, 1},
		{"norm", func() { on.q.LayerNorm(y, stat, stat, m, vec, vec, 1e-5) }, 1},
		{"attention", func() { on.q.Attention(y, stat, m, m, m, a) }, 1},
		{"product", func() { on.q.MatMul(y, m, w, none, false) }, 1},
		{"product and bias", func() { on.q.MatMul(y, m, w, vec, false) }, 1},
		{"block", block, inBlock},
	} {
		b.Run(l.name, func(b *testing.B) {
			b.ReportAllocs()
			from := processorTime(b)
			for b.Loop() {
				l.f()
			}
			b.ReportMetric(float64(processorTime(b)-from)/float64(b.N*l.ops), "cpu-ns/launch")
			b.ReportMetric(float64(l.ops), "launches")
		})
	}
	if err := on.q.Wait(); err != nil {
		b.Fatal(err)
	}
}

// alone launches scale without a queue.
func alone(b *testing.B) func() {
	g, m := loaded(b)
	k := named("scale")
	f, err := m.Function(k.Name, k.Threads, k.Offsets(), 0)
	if err != nil {
		b.Fatal(err)
	}
	s, err := g.NewStream(false)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	c, params := s.Commands(), make([]byte, 32)
	return func() {
		c.Launch(f, [3]uint32{1, 1, 1}, 0, params)
		_ = c.Run()
	}
}

// block issues a block of GPT-2, forward and backward, like a unit in a schedule, with a label and
// a mark. It also returns the number of operations.
func (b *bench) block() (issue func(), operations int) {
	g := nn.GPT2{Shape: nn.Shape{Layers: 1, Heads: 1, Width: 64, Context: 16, Vocab: 64, Eps: 1e-5}}
	mod, bt := g.Model().Modules[1], &nn.Batch{B: 1, T: 16, Scale: 1, Chunk: 16, Compute: device.BF16}
	arena, saved := device.NewArena(b.alloc(device.BF16, 1<<16)), &nn.Saved{}
	x, y, d := b.alloc(device.BF16, 16*64), b.alloc(device.BF16, 16*64), b.alloc(device.BF16, 16*64)
	var w, dw []device.Buffer
	for _, p := range mod.Params() {
		w, dw = append(w, b.alloc(device.BF16, p.Numel())), append(dw, b.alloc(device.F32, p.Numel()))
	}
	issue = func() {
		at := arena.Mark()
		b.q.Label("forward")
		mod.Forward(b.q, arena, w, bt, x, y, saved)
		b.q.Mark()
		b.q.Label("backward")
		mod.Backward(b.q, arena, w, dw, bt, x, d, saved)
		b.q.Mark()
		arena.Release(at)
	}
	b.q.Trace(func(device.Span) { operations++ })
	issue()
	b.q.Trace(nil)
	return issue, operations
}

// processorTime returns the process's processor time so far, in nanoseconds: on a shared machine,
// elapsed time includes other processes.
func processorTime(b *testing.B) int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}
