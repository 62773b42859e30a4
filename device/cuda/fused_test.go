//go:build cuda

package cuda_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/cuda/fake"
)

// twins are operands on the GPU and on the CPU.
type twins struct {
	*bench
	hq   *cpu.Queue
	rng  *rand.Rand
	gpu  []device.Mat
	here []device.Mat
}

// mat adds a matrix on both, of random numbers, or NaN if it is only written, which begins shift
// elements after an aligned address and has gaps between rows.
func (w *twins) mat(t device.DType, rows, cols, gap, shift int, read bool) int {
	n := max(0, (rows-1)*(cols+gap)+cols)
	whole := floats(shift+n, func(int) float32 {
		if !read {
			return float32(math.NaN())
		}
		return w.rng.Float32() - .5
	})
	host, err := w.host.Alloc(t, shift+n, device.Params)
	if err != nil {
		w.t.Fatal(err)
	}
	w.hq.Cast(host, whole)
	if err := w.hq.Wait(); err != nil {
		w.t.Fatal(err)
	}
	view := func(b device.Buffer) device.Mat {
		return device.Mat{Buf: b.Slice(shift, shift+n), Rows: rows, Cols: cols, Ld: cols + gap}
	}
	w.gpu, w.here = append(w.gpu, view(w.send(host))), append(w.here, view(host))
	return len(w.gpu) - 1
}

// same compares both sides' matrix, which may differ by tol and a few ulps, and returns the largest
// difference.
func (w *twins) same(what string, i int, tol float64) (worst float64) {
	w.t.Helper()
	got, want := w.fetch(w.gpu[i].Buf), w.here[i].Buf
	f, g := floats(got.N, func(int) float32 { return 0 }), floats(got.N, func(int) float32 { return 0 })
	w.hq.Cast(f, got)
	w.hq.Cast(g, want)
	if err := w.hq.Wait(); err != nil {
		w.t.Fatal(err)
	}
	last := map[device.DType]float64{device.F32: 1e-5, device.F16: 0x1p-9, device.BF16: 0x1p-6}[got.Type]
	ld, cols := w.gpu[i].Ld, w.gpu[i].Cols
	for j, x := range f.F32() {
		y := g.F32()[j]
		if j%ld >= cols {
			if math.Float32bits(x) != math.Float32bits(y) {
				w.t.Errorf("%s: element %d between rows was changed", what, j)
				return worst
			}
			continue
		}
		if x != x && y != y {
			continue
		}
		d := math.Abs(float64(x - y))
		if !(d <= tol+last*math.Abs(float64(y))) {
			w.t.Errorf("%s (%v): element (%d, %d) is %g, the CPU has %g", what, got.Type, j/ld, j%ld, x, y)
			return d
		}
		worst = max(worst, d)
	}
	return worst
}

// geluTol allows for tanh.approx.f32 in cuBLASLt's GELU: its relative error is up to 2^-11, and
// GELU and its slope multiply it by inputs of about 1.
const geluTol = 0x1p-10

// TestFused compares every operation that cuBLASLt may fuse with the CPU's, for shapes that it
// supports and does not support.
func TestFused(t *testing.T) {
	b := open(t)
	w := &twins{bench: b, hq: b.host.NewQueue("host"), rng: rand.New(rand.NewPCG(3, 4))}
	defer w.hq.Close()
	for i := range 60 {
		typ := blasTypes[i%3]
		tol := map[device.DType]float64{device.F32: 1e-5, device.F16: 4e-3, device.BF16: 4e-2}[typ] // of results of about 1
		rows, in, out, shift := 1+w.rng.IntN(40), 1+w.rng.IntN(40), 1+w.rng.IntN(40), w.rng.IntN(2)*w.rng.IntN(3)
		if i%2 == 0 {
			out = 8 * (1 + w.rng.IntN(5))
		}
		f := device.GeluTanh
		if i%7 == 0 {
			f = device.Activation(w.rng.IntN(5))
		}
		x, weight := w.mat(typ, rows, in, w.rng.IntN(3), 0, true), w.mat(typ, in, out, w.rng.IntN(3), shift, true)
		bias := w.mat(typ, 1, out, 0, shift, true)
		dy := w.mat(typ, rows, out, w.rng.IntN(3), 0, true)
		flat := func(read bool) int { return w.mat(typ, rows, out, 0, shift, read) }
		res, onto, pre, act, before, dpre := flat(true), flat(false), flat(false), flat(false), flat(true), flat(false)
		dw, dwt, db := w.mat(device.F32, in, out, w.rng.IntN(3), 0, false), w.mat(device.F32, out, in, 0, 0, false), w.mat(device.F32, 1, out, 0, shift, false)
		dbt, alone := w.mat(device.F32, 1, out, 0, 0, false), w.mat(device.F32, out, in, 0, 0, false)
		back := w.mat(typ, rows, in, 0, 0, true)
		for _, side := range []struct {
			q interface {
				MatMulOnto(y, x, a, b device.Mat, bias device.Buffer)
				MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation)
				MatMulActivateGrad(dx, a, b, x device.Mat, f device.Activation)
				WeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat)
			}
			m []device.Mat
		}{{w.q, w.gpu}, {w.hq, w.here}} {
			m, vec := side.m, m0(side.m[bias], i%5 == 0)
			side.q.MatMulOnto(m[onto], m[res], m[x], m[weight], vec)
			side.q.MatMulActivate(m[act], m[pre], m[x], m[weight], vec, f)
			side.q.MatMulActivateGrad(m[dpre], m[x], m[weight], m[before], f)
			grad := side.q.WeightGrad
			if side.q == w.q {
				grad = w.q.FusedWeightGrad
			}
			grad(m[dw].T(), m[db].Buf, m[dy], m[x])
			grad(m[dwt], m[dbt].Buf, m[dy], m[x])
			side.q.WeightGrad(m[alone], device.Buffer{}, m[dy], m[back])
		}
		if err := w.hq.Wait(); err != nil {
			t.Fatal(err)
		}
		w.same("matmul onto", onto, tol)
		w.same("before the activation", pre, tol)
		if fake.OnHardware() {
			tol = max(tol, geluTol)
		}
		w.same("activation", act, tol)
		w.same("activation gradient", dpre, tol)
		for what, k := range map[string]int{"weight gradient, transposed": dw, "weight gradient": dwt, "weight gradient alone": alone, "bias gradient, transposed": db, "bias gradient": dbt} {
			w.same(what, k, 1e-5)
		}
	}
	lines := w.dev.Unfused()
	if fake.OnHardware() { // what cuBLASLt fuses depends on its version and the GPU
		t.Log(strings.Join(lines, "\n"))
		return
	}
	if want := env("UNFUSED"); want != "" {
		for _, what := range []string{"a bias (", "a bias and GELU", "the slope of GELU", "the gradient of a bias", "another matrix"} {
			if !strings.Contains(strings.Join(lines, "\n"), "with "+what) {
				t.Errorf("%q does not say %q", lines, what)
			}
		}
		return
	}
	if len(lines) != 2 || !strings.Contains(lines[0], "a bias and GELU") || !strings.Contains(lines[1], "the slope of GELU") {
		t.Errorf("%q; want those alone whose rows are no multiples of 8", lines)
	}
}

// m0 returns a vector, or an empty one.
func m0(m device.Mat, none bool) device.Buffer {
	if none {
		return device.Buffer{}
	}
	return m.Buf
}

// TestUnfused compares the same operations if cuBLASLt has no algorithm.
func TestUnfused(t *testing.T) {
	fake.Only(t)
	fake.Again(t, "TestFused", "UNFUSED=1", "FAKECUBLAS_LACKS=1,4,164,192,256,512")
}

// TestFusedInEveryOrder divides sums differently, with parts in the working space.
func TestFusedInEveryOrder(t *testing.T) {
	fake.Only(t)
	for _, seed := range []string{"1", "2", "3"} {
		fake.Again(t, "TestFused", "FAKECUBLAS_SEED="+seed)
	}
}

// TestFusedIsOneTask checks that a fused operation is one task, and that planned operations
// allocate nothing.
func TestFusedIsOneTask(t *testing.T) {
	fake.Only(t)
	b := open(t)
	x, y, wide, out := b.alloc(device.BF16, 16*32), b.alloc(device.BF16, 16*32), b.alloc(device.BF16, 16*32), b.alloc(device.BF16, 32*32)
	dw, db := b.alloc(device.F32, 32*32), b.alloc(device.F32, 32)
	xm, ym, pm, wm, dwm := device.Matrix(x, 16, 32), device.Matrix(y, 16, 32), device.Matrix(wide, 16, 32), device.Matrix(out, 32, 32), device.Matrix(dw, 32, 32)
	issue := func() {
		b.q.MatMul(ym, xm, wm, out.Slice(0, 32), false)
		b.q.MatMulOnto(ym, pm, xm, wm, out.Slice(0, 32))
		b.q.MatMulOnto(ym, pm, xm, wm, device.Buffer{})
		b.q.MatMulActivate(ym, pm, xm, wm, out.Slice(0, 32), device.GeluTanh)
		b.q.MatMulActivateGrad(ym, xm, wm, pm, device.GeluTanh)
		b.q.FusedWeightGrad(dwm, db, ym, xm)
		b.q.FusedWeightGrad(dwm.T(), db, ym, xm)
	}
	var tasks []string
	b.q.Trace(func(s device.Span) { tasks = append(tasks, s.Task) })
	issue()
	if err := b.q.Wait(); err != nil {
		t.Fatal(err)
	}
	b.q.Trace(nil)
	want := "matmul 16×32×32, matmul onto 16×32×32, matmul onto 16×32×32, matmul, activation 16×32×32, matmul, activation gradient 16×32×32, weight gradient 32×16×32, weight gradient 32×16×32"
	if got := strings.Join(tasks, ", "); got != want {
		t.Errorf("tasks %q, want %q", got, want)
	}
	if n := testing.AllocsPerRun(20, issue); n > 0 {
		t.Errorf("%.1f allocations", n)
	}
	if err := b.q.Wait(); err != nil {
		t.Fatal(err)
	}
}
