//go:build cuda

package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cuda"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/fake"
)

// These tests are rungs of the ladder of tests/gpu: each uses a little more of a GPU than the
// previous one, and prints its findings as rows of the ladder's table.

// row prints a row of the ladder's table immediately if tests are verbose, so that it is visible
// even if the process hangs later.
func row(what, measured, beside string) {
	if testing.Verbose() {
		fmt.Printf("row\t%s\t%s\t%s\n", what, measured, strings.ReplaceAll(beside, "\n", " "))
	}
}

// TestOpens opens a GPU step by step, with the time of each step.
func TestOpens(t *testing.T) {
	fake.Need(t)
	var g *driver.GPU
	var s driver.Stream
	const n = 16 << 20
	step := func(what string, f func() (string, error)) {
		t.Helper()
		begin := time.Now()
		said, err := f()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		row(what, fmt.Sprintf("%.3g ms", float64(time.Since(begin).Microseconds())/1e3), said)
	}
	step("the driver", func() (string, error) {
		err := driver.Available()
		return fmt.Sprintf("%s, supports CUDA up to %d.%d", driver.Path(), driver.Version()/1000, driver.Version()%1000/10), err
	})
	step("what the GPU is", func() (string, error) {
		i, err := driver.Describe(0)
		return fmt.Sprintf("%v, compute capability %d.%d, %d multiprocessors, %d MiB", i, i.Major, i.Minor, i.Processors, i.Memory>>20), err
	})
	step("a context", func() (said string, err error) { g, err = driver.Open(0); return "", err })
	defer g.Close()
	step("a stream", func() (said string, err error) { s, err = g.NewStream(false); return "", err })
	step("free memory", func() (string, error) {
		free, total, err := g.Memory()
		return fmt.Sprintf("%d of %d MiB", free>>20, total>>20), err
	})
	step("copies", func() (string, error) { return copies(g, s, n) })
	step("cuBLAS", func() (string, error) {
		l, err := driver.OpenBLAS()
		return l.Path + ", version " + l.Version, err
	})
}

// copies copies n bytes to the GPU and back, and compares.
func copies(g *driver.GPU, s driver.Stream, n int) (string, error) {
	mem, err := g.Alloc(int64(n))
	if err != nil {
		return "", err
	}
	defer g.Free(mem)
	pinned, err := g.AllocHost(int64(n))
	if err != nil {
		return "", err
	}
	defer g.FreeHost(pinned)
	host := device.Buffer{Type: device.I32, Host: true, N: n / 4, Ptr: pinned}
	for i := range host.I32() {
		host.I32()[i] = int32(i * 7919)
	}
	c, begin := s.Commands(), time.Now()
	c.ToDevice(mem, pinned, n)
	if err := c.Run(); err != nil {
		return "", err
	}
	if err := s.Wait(); err != nil {
		return "", err
	}
	up := time.Since(begin)
	clear(host.I32())
	begin = time.Now()
	c.ToHost(pinned, mem, n)
	if err := c.Run(); err != nil {
		return "", err
	}
	if err := s.Wait(); err != nil {
		return "", err
	}
	rate := func(d time.Duration) float64 { return float64(n) / d.Seconds() / 1e9 }
	for i, x := range host.I32() {
		if x != int32(i*7919) {
			return "", fmt.Errorf("element %d of %d came back as %d, want %d", i, n/4, x, int32(i*7919))
		}
	}
	return fmt.Sprintf("%d MiB, %.3g GB/s to the GPU, %.3g GB/s back", n>>20, rate(up), rate(time.Since(begin))), nil
}

// TestFirstKernels fills, casts and adds with the simplest kernels.
func TestFirstKernels(t *testing.T) {
	b := open(t)
	const n = 100_003 // not a multiple of a block
	x, y, z := b.alloc(device.F32, n), b.alloc(device.BF16, n), b.alloc(device.F32, n)
	want := func(what string, d device.Buffer, f func(i int) float32) {
		t.Helper()
		for i, v := range b.fetch(d).F32() {
			if v != f(i) {
				t.Fatalf("%s: element %d is %v, want %v", what, i, v, f(i))
			}
		}
		row(what, fmt.Sprintf("%d elements", n), "")
	}
	b.q.Copy(x, floats(n, func(i int) float32 { return float32(i) }))
	b.q.Zero(x)
	want("fill", x, func(int) float32 { return 0 })
	whole := func(i int) float32 { return float32(128 + i%128) } // where bf16 has no fractions
	b.q.Copy(x, floats(n, func(i int) float32 { return whole(i) + 1.0/8 }))
	b.q.Cast(y, x)
	b.q.Cast(z, y)
	want("cast to bf16 and back", z, whole)
	b.q.AddTo(x, z, z)
	want("add", x, func(i int) float32 { return 2 * whole(i) })
}

// placed describes the layout of a product's operands: begin is elements after an aligned address,
// gap elements between rows.
type placed struct {
	name       string
	begin, gap int
}

var places = []placed{{"aligned", 0, 0}, {"rows apart by 8 more", 0, 8}, {"rows apart by 1 more", 0, 1}, {"begins at element 1", 1, 0}}

// newTwins returns operands on the first GPU and on the CPU.
func newTwins(t *testing.T) *twins {
	b := open(t)
	w := &twins{bench: b, hq: b.host.NewQueue("host"), rng: rand.New(rand.NewPCG(5, 6))}
	t.Cleanup(w.hq.Close)
	return w
}

// TestProducts multiplies every type to every result type, with every transpose, with operands laid
// out as in jobs and worse.
func TestProducts(t *testing.T) {
	for _, typ := range blasTypes {
		t.Run(typ.String(), func(t *testing.T) {
			w := newTwins(t)
			for _, out := range slices.Compact([]device.DType{typ, device.F32}) {
				for _, p := range places {
					worst := 0.0
					for trans := range 4 {
						worst = max(worst, w.product(typ, out, p, trans&1 != 0, trans&2 != 0))
					}
					row(fmt.Sprintf("%v into %v, %s", typ, out, p.name), fmt.Sprintf("at most %.2g from the CPU", worst), "4 transposes")
				}
			}
		})
	}
}

// product returns the maximum difference of a product from the CPU's.
func (w *twins) product(typ, out device.DType, p placed, ta, tb bool) float64 {
	const M, N, K = 64, 48, 80
	mat := func(rows, cols int, trans bool) int {
		if trans {
			rows, cols = cols, rows
		}
		return w.mat(typ, rows, cols, p.gap, p.begin, true)
	}
	turned := func(m device.Mat, trans bool) device.Mat { m.Trans = trans; return m }
	a, b, c := mat(M, K, ta), mat(K, N, tb), w.mat(out, M, N, p.gap, p.begin, false)
	w.q.MatMul(w.gpu[c], turned(w.gpu[a], ta), turned(w.gpu[b], tb), device.Buffer{}, false)
	w.hq.MatMul(w.here[c], turned(w.here[a], ta), turned(w.here[b], tb), device.Buffer{}, false)
	if err := w.hq.Wait(); err != nil {
		w.t.Fatal(err)
	}
	tol := map[device.DType]float64{device.F32: 1e-5, device.F16: 4e-3, device.BF16: 4e-2}[out] // of results of about 1
	return w.same(fmt.Sprintf("%s, transposed %v and %v", p.name, ta, tb), c, tol)
}

// epilogues are the operations that cuBLASLt may fuse with a product.
var epilogues = []struct {
	name string
	run  func(q products, m func(i int) device.Mat)
	gelu bool
}{
	{"bias", func(q products, m func(int) device.Mat) { q.MatMul(m(outY), m(inX), m(inW), m(inBias).Buf, false) }, false},
	{"residual", func(q products, m func(int) device.Mat) {
		q.MatMulOnto(m(outY), m(inBeside), m(inX), m(inW), device.Buffer{})
	}, false},
	{"residual-bias", func(q products, m func(int) device.Mat) {
		q.MatMulOnto(m(outY), m(inBeside), m(inX), m(inW), m(inBias).Buf)
	}, false},
	{"gelu", func(q products, m func(int) device.Mat) {
		q.MatMulActivate(m(outY), m(outPre), m(inX), m(inW), m(inBias).Buf, device.GeluTanh)
	}, true},
	{"gelu-slope", func(q products, m func(int) device.Mat) {
		q.MatMulActivateGrad(m(outY), m(inX), m(inW), m(inBeside), device.GeluTanh)
	}, true},
	{"bias-gradient", func(q products, m func(int) device.Mat) { q.WeightGrad(m(outDW), m(outDB).Buf, m(inBeside), m(inX)) }, false},
	{"bias-gradient-transposed", func(q products, m func(int) device.Mat) {
		q.WeightGrad(m(outDWT).T(), m(outDB).Buf, m(inBeside), m(inX))
	}, false},
}

// products are the operations of a queue that cuBLASLt may fuse.
type products interface {
	MatMul(c, a, b device.Mat, bias device.Buffer, add bool)
	MatMulOnto(y, x, a, b device.Mat, bias device.Buffer)
	MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation)
	MatMulActivateGrad(dx, a, b, x device.Mat, f device.Activation)
	WeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat)
}

// The operands of epilogues, by number.
const (
	inX      = iota // (rows, in)
	inW             // (in, out)
	inBias          // (1, out)
	inBeside        // (rows, out)
	outY            // (rows, out)
	outPre          // (rows, out)
	outDW           // (out, in) float32
	outDWT          // (in, out) float32
	outDB           // (1, out) float32
	operands
)

// TestEpilogues tests each epilogue for each type with shapes that cuBLASLt is likely and unlikely
// to fuse, and reports the algorithm.
func TestEpilogues(t *testing.T) {
	for _, e := range epilogues {
		t.Run(e.name, func(t *testing.T) {
			for _, typ := range blasTypes {
				for _, out := range []int{128, 100, 33} { // multiples of 8 and of 4, and odd
					w := newTwins(t)
					from := w.epilogueOperands(typ, 64, 96, out)
					e.run(w.q, func(i int) device.Mat { return w.gpu[from+i] })
					e.run(w.hq, func(i int) device.Mat { return w.here[from+i] })
					if err := w.hq.Wait(); err != nil {
						t.Fatal(err)
					}
					worst := w.written(e.name, from, typ, e.gelu)
					row(fmt.Sprintf("%s, %v, %d columns", e.name, typ, out), fmt.Sprintf("at most %.2g from the CPU", worst), w.algorithms(t))
				}
			}
		})
	}
}

// epilogueOperands adds random operands, NaN if they are only written, and returns the number of
// the first.
func (w *twins) epilogueOperands(typ device.DType, rows, in, out int) (from int) {
	from = w.mat(typ, rows, in, 0, 0, true)
	w.mat(typ, in, out, 0, 0, true)
	w.mat(typ, 1, out, 0, 0, true)
	w.mat(typ, rows, out, 0, 0, true)
	w.mat(typ, rows, out, 0, 0, false)
	w.mat(typ, rows, out, 0, 0, false)
	w.mat(device.F32, out, in, 0, 0, false)
	w.mat(device.F32, in, out, 0, 0, false)
	if last := w.mat(device.F32, 1, out, 0, 0, false); last-from != operands-1 {
		w.t.Fatalf("%d operands, want %d", last-from+1, operands)
	}
	return from
}

// written returns the maximum difference of an epilogue's results from the CPU's. Operands that are
// not written are NaN on both sides.
func (w *twins) written(name string, from int, typ device.DType, gelu bool) (worst float64) {
	w.t.Helper()
	for i := outY; i < operands; i++ {
		tol := map[device.DType]float64{device.F32: 1e-5, device.F16: 4e-3, device.BF16: 4e-2}[w.gpu[from+i].Buf.Type]
		if i >= outDW {
			tol *= 4 // these sum over rows instead of columns
		}
		if gelu && i == outY && fake.OnHardware() {
			tol = max(tol, geluTol)
		}
		worst = max(worst, w.same(fmt.Sprintf("%s of %v, operand %d", name, typ, i), from+i, tol))
	}
	return worst
}

// algorithms returns those of the products so far, which have one shape. None of them may add parts
// of a sum in a type other than float32.
func (w *twins) algorithms(t *testing.T) string {
	var all []string
	for g, c := range w.dev.Choices() {
		a := c.Config
		all = append(all, fmt.Sprintf("%v: %s", g, a))
		_, how, known := strings.Cut(a, "reduction ")
		if inFloat32 := how == "0" || how == "2" || how == "1" && g.TypeD == driver.Float32; known && !inFloat32 && how != "-1" {
			t.Errorf("%v: %s: it does not add parts of a sum in float32", g, a)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// TestNCCLOneRank uses a communicator of one rank: NCCL starts, registers memory, moves it and
// ends.
func TestNCCLOneRank(t *testing.T) {
	if !again(t, 1) {
		return
	}
	c := newClique(t, overMemory)
	l, err := driver.OpenNCCL()
	if err != nil {
		t.Fatal(err)
	}
	row("NCCL", "version "+l.Version, l.Path+"; it registers "+driver.NCCLRegisters().String())
	d := c.devs[0]
	if err := d.ReserveKnown(device.Bytes{device.Params: 8000}, 1); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	ends, errs := c.join(1, mustID(t), never)
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	row("a communicator", fmt.Sprintf("%.3g ms", float64(time.Since(begin).Microseconds())/1e3), "")
	if err := ends[0].Register(true, never); err != nil {
		t.Fatal(err)
	}
	row("registered memory", "ok", "")
	oneRank(t, d, ends[0])
	ends[0].Close(3 * time.Second)
	row("the end", "ok", "")
}

// oneRank gathers and reduces on one rank, which copies.
func oneRank(t *testing.T, d *cuda.Device, end collective.Engine) {
	const n = 1000
	from, to := on(t, d, device.F32, n), on(t, d, device.F32, n)
	q := d.NewQueue("comm")
	defer q.Close()
	host := floats(n, func(i int) float32 { return float32(i) })
	for what, f := range map[string]func() error{
		"all-gather":     func() error { return end.AllGather(q, to, from) },
		"reduce-scatter": func() error { return end.ReduceScatter(q, to, from) },
	} {
		got := floats(n, func(int) float32 { return float32(math.NaN()) })
		q.Copy(from, host)
		q.Zero(to)
		if err := f(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		q.Copy(got, to)
		if err := q.Wait(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if !slices.Equal(got.F32(), host.F32()) {
			t.Errorf("%s of one rank is not a copy", what)
		}
		row(what, fmt.Sprintf("%d elements", n), "")
	}
	d.Free(from)
	d.Free(to)
}
