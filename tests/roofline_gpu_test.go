//go:build cuda && gpu

package tests

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"zeroth/device"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/kernel"
	"zeroth/forecast"
	"zeroth/nn"
)

// timed runs every launch of a step on a GPU between two events, and skips products.
type timed struct {
	rooflined
	t         *testing.T
	g         *driver.GPU
	s         driver.Stream
	put       *driver.Commands
	functions []driver.Function
	from, to  driver.Event
	ms        map[string]float64 // measured, by kernel
}

func (r *timed) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func newTimed(t *testing.T, h *forecast.Hardware) *timed {
	r := &timed{rooflined: *newRooflined(h), t: t, ms: map[string]float64{}}
	var err error
	r.g, err = driver.Open(0)
	r.must(err)
	most := kernel.Shared()
	for _, family := range kernel.Families() {
		m, err := r.g.Load(family.Name, family.Images(r.g.Major)...)
		r.must(err)
		for _, k := range family.Kernels {
			f, err := m.Function(k.Name, k.Threads, k.Offsets(), int(most[k]))
			r.must(err)
			r.functions = append(r.functions, f)
		}
	}
	r.s, err = r.g.NewStream(false)
	r.must(err)
	r.put = r.s.Commands()
	r.from, err = r.g.NewEvent(true)
	r.must(err)
	r.to, err = r.g.NewEvent(true)
	r.must(err)
	r.mem = r.zeros
	r.Ops = kernel.Ops{To: r, Weigh: true, Work: r.zeros(device.F32, kernel.WorkLen)}
	return r
}

// zeros returns memory of the GPU. int32 elements are ids below 50000.
func (r *timed) zeros(dt device.DType, n int) device.Buffer {
	b := device.Buffer{Type: dt, N: n}
	var err error
	b.Ptr, err = r.g.Alloc(int64(b.Bytes()))
	r.must(err)
	r.put.Zero(b.Ptr, b.Bytes())
	r.must(r.put.Run())
	if dt == device.I32 {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = rand.Int32N(50000)
		}
		r.put.ToDevice(b.Ptr, unsafe.Pointer(&ids[0]), b.Bytes())
		r.must(r.put.Run())
		r.must(r.s.Wait())
	}
	return b
}

// Launch runs a call and measures its time.
func (r *timed) Launch(c *kernel.Call) {
	r.put.Record(r.from)
	r.put.Launch(r.functions[c.Kernel.Index], c.Grid, c.Shared, c.Args())
	r.put.Record(r.to)
	r.must(r.put.Run())
	r.must(r.to.Await(0))
	ms, err := r.to.Since(r.from)
	r.must(err)
	r.ms[c.Kernel.Name] += float64(ms)
	r.rooflined.Launch(c)
}

// TestRooflineOnGPU compares the kernels of a step with the expectations of docs/lab/kernels.md,
// for GPT-2 124M if the GPU has enough memory, else for a small model.
func TestRooflineOnGPU(t *testing.T) {
	h, err := forecast.OpenHardware("h200")
	if err != nil {
		t.Fatal(err)
	}
	m, B, T, chunk, arena := nn.GPT2{Shape: nn.Shape{Layers: 12, Heads: 12, Width: 768, Context: 1024, Vocab: 50257, Eps: 1e-5}}.Model(), 64, 1024, 8192, 40<<30
	r := newTimed(t, h)
	if free, _, err := r.g.Memory(); err != nil || free < 60<<30 {
		m, B, T, chunk, arena = nn.GPT2{Shape: nn.Shape{Layers: 1, Heads: 2, Width: 32, Context: 64, Vocab: 50257, Eps: 1e-5}}.Model(), 1, 64, 64, 64<<20
	}
	r.step(m, B, T, chunk, arena) // warms up clocks and caches
	clear(r.ms)
	clear(r.rows)
	r.step(m, B, T, chunk, arena)
	var b strings.Builder
	fmt.Fprintf(&b, "%v, %d sequences of %d\n%-20s %9s %12s %12s %8s %10s %10s\n", r.g, B, T, "kernel", "launches", "expected ms", "measured ms", "ratio", "GB/s", "GFLOP/s")
	var names []string
	for name := range r.ms {
		names = append(names, name)
	}
	slices.SortFunc(names, func(x, y string) int { return int(1e6 * (r.ms[y] - r.ms[x])) })
	for _, name := range names {
		p, ms := r.rows[name], r.ms[name]
		fmt.Fprintf(&b, "%-20s %9d %12.3f %12.3f %8.2f %10.0f %10.0f\n", name, p.launches, 1e3*p.seconds, ms, ms/(1e3*p.seconds), float64(p.Bytes)/ms/1e6, float64(p.Flops)/ms/1e6)
	}
	t.Log("\n" + b.String())
}
