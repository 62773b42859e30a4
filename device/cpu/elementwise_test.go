package cpu

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/tests/nightly"
)

const oddLen = 5*kernel.PieceWork + 357 // elements: enough for five workers, with a short last block

func TestZero(t *testing.T) {
	for _, dt := range []device.DType{device.F32, device.BF16, device.F16, device.F64, device.I32} {
		out := onWorkers(t, func(q *Queue) []*guarded {
			o := newVec(dt, 3*copyGrain/dt.Size()+7).fill(func(int) float64 { return 5 })
			q.Zero(o.Buf)
			return []*guarded{o}
		})
		for i, x := range out[0].values() {
			if x != 0 {
				t.Fatalf("%v: element %d is %g", dt, i, x)
			}
		}
	}
}

func TestAddTo(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		for _, ty := range computeTypes {
			for _, ta := range computeTypes {
				for _, tb := range computeTypes {
					addTo(t, ty, ta, tb)
				}
			}
		}
	})
}

func addTo(t *testing.T, ty, ta, tb device.DType) {
	n := 2*kernel.PieceWork + 77
	var a, b *guarded
	out := onWorkers(t, func(q *Queue) []*guarded {
		rng := rand.New(rand.NewPCG(1, 2))
		y := newVec(ty, n)
		a, b = newVec(ta, n).normal(rng, 0, 1), newVec(tb, n).normal(rng, 0, 1)
		q.AddTo(y.Buf, a.Buf, b.Buf)
		return []*guarded{y}
	})
	x, want := a.values(), b.values()
	for i := range want {
		want[i] = round(ty, float64(float32(x[i]+want[i])))
	}
	for i, got := range out[0].values() {
		if got != want[i] {
			t.Fatalf("%v = %v + %v: element %d is %g, want %g", ty, ta, tb, i, got, want[i])
		}
	}
}

func TestAddToInPlace(t *testing.T) {
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for side := range 2 {
				rng := rand.New(rand.NewPCG(3, 4))
				a, b := newVec(dt, 1500).normal(rng, 0, 1), newVec(dt, 1500).normal(rng, 0, 1)
				want, x := a.values(), b.values()
				for i := range want {
					want[i] += x[i]
				}
				y := [2]*guarded{a, b}[side]
				q := queueOf(t, 2)
				q.AddTo(y.Buf, a.Buf, b.Buf)
				if err := q.Wait(); err != nil {
					t.Fatal(err)
				}
				near(t, "sum", y, want, 0)
			}
		})
	})
}

func TestScale(t *testing.T) {
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			var before []float64
			out := onWorkers(t, func(q *Queue) []*guarded {
				x := newVec(dt, oddLen).normal(rand.New(rand.NewPCG(5, 6)), 0, 1)
				before = x.values()
				q.Scale(x.Buf, 0.3)
				return []*guarded{x}
			})
			for i, got := range out[0].values() {
				if want := round(dt, float64(float32(before[i])*0.3)); got != want {
					t.Fatalf("element %d is %g, want %g", i, got, want)
				}
			}
		})
	})
}

func gelu64(x float64) float64 {
	return x / 2 * (1 + math.Tanh(kernel.GeluU*(x+kernel.GeluX*x*x*x)))
}

func geluSlope64(x float64) float64 {
	th := math.Tanh(kernel.GeluU * (x + kernel.GeluX*x*x*x))
	return (1+th)/2 + x/2*(1-th*th)*kernel.GeluU*(1+3*kernel.GeluX*x*x)
}

func TestGelu(t *testing.T) {
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			var x *guarded
			out := onWorkers(t, func(q *Queue) []*guarded {
				y := newVec(dt, oddLen)
				x = newVec(dt, oddLen).normal(rand.New(rand.NewPCG(7, 8)), 0, 3)
				q.Gelu(y.Buf, x.Buf)
				return []*guarded{y}
			})
			want := x.values()
			for i, v := range want {
				want[i] = gelu64(v)
			}
			near(t, "gelu", out[0], want, 2e-7)
		})
	})
}

func TestGeluGrad(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			var want []float64
			for _, inPlace := range []bool{false, true} {
				out := onWorkers(t, func(q *Queue) []*guarded {
					rng := rand.New(rand.NewPCG(9, 10))
					x, dy := newVec(dt, oddLen).normal(rng, 0, 3), newVec(dt, oddLen).normal(rng, 0, 1)
					want = dy.values()
					for i, v := range x.values() {
						want[i] *= geluSlope64(v)
					}
					dx := newVec(dt, oddLen)
					if inPlace {
						dx = dy
					}
					q.GeluGrad(dx.Buf, x.Buf, dy.Buf)
					return []*guarded{dx}
				})
				near(t, "gelu gradient", out[0], want, 4e-7)
			}
		})
	})
}

func TestGeluFarOut(t *testing.T) {
	for _, x := range []float32{8, 9.4, 9.6, 12, 30, 1e3, 1e10, 1e20, 3e38} {
		if y, d := kernel.Gelu(x), kernel.GeluSlope(x); y != x || d != 1 {
			t.Errorf("gelu(%g) = %g with slope %g, want %g, 1", x, y, d, x)
		}
		if y, d := kernel.Gelu(-x), kernel.GeluSlope(-x); math.Abs(float64(y)) > 2e-14 || math.Abs(float64(d)) > 1e-12 {
			t.Errorf("gelu(%g) = %g with slope %g, want 0, 0", -x, y, d)
		}
	}
	nan := float32(math.NaN())
	if y, d := kernel.Gelu(nan), kernel.GeluSlope(nan); y == y || d == d {
		t.Errorf("gelu(NaN) = %g with slope %g", y, d)
	}
}

// TestVectorGeluFarOut is like TestGeluFarOut, for the queues' kernels.
func TestVectorGeluFarOut(t *testing.T) {
	withVec(t, func(t *testing.T) {
		far := []float64{8, 9.4, 9.6, 12, 30, 1e3, 1e10, 1e20, 3e38}
		n := len(far)
		x := newVec(device.F32, 2*n+1).fill(func(i int) float64 {
			switch {
			case i < n:
				return far[i]
			case i < 2*n:
				return -far[i-n]
			}
			return math.NaN()
		})
		y, dx, one := newVec(device.F32, 2*n+1), newVec(device.F32, 2*n+1), newVec(device.F32, 2*n+1).fill(func(int) float64 { return 1 })
		q := queueOf(t, 1)
		q.Gelu(y.Buf, x.Buf)
		q.GeluGrad(dx.Buf, x.Buf, one.Buf)
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		ys, ds := y.values(), dx.values()
		for i, v := range far {
			if want := float64(float32(v)); ys[i] != want || ds[i] != 1 {
				t.Errorf("gelu(%g) = %g with slope %g, want %g, 1", v, ys[i], ds[i], want)
			}
			if math.Abs(ys[n+i]) > 2e-14 || math.Abs(ds[n+i]) > 1e-12 {
				t.Errorf("gelu(%g) = %g with slope %g, want 0, 0", -v, ys[n+i], ds[n+i])
			}
		}
		if !math.IsNaN(ys[2*n]) || !math.IsNaN(ds[2*n]) {
			t.Errorf("gelu(NaN) = %g with slope %g", ys[2*n], ds[2*n])
		}
	})
}

// TestAddToPastTheCaches adds enough elements for stores that bypass the caches.
func TestAddToPastTheCaches(t *testing.T) {
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			d := NewHost(2)
			defer d.Close()
			q := d.NewQueue("test")
			defer q.Close()
			n := kernel.StreamMin/dt.Size() + 3*kernel.BlockLen + 77
			var o [3]device.Buffer
			for i := range o {
				b, err := d.Alloc(dt, n, device.Stats)
				if err != nil {
					t.Fatal(err)
				}
				defer d.Free(b)
				o[i] = b
			}
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(i % 119)
			}
			kernel.Store(o[1], x)
			kernel.Store(o[2], x)
			q.AddTo(o[0], o[1], o[2])
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
			kernel.Load(x, o[0])
			for i, v := range x {
				if v != float32(2*(i%119)) {
					t.Fatalf("element %d is %g, want %d", i, v, 2*(i%119))
				}
			}
		})
	})
}

// row views a buffer as a matrix.
func row(b device.Buffer) device.Mat { return device.Matrix(b, 1, b.N) }

// curved lists the kernels that compute a function of x. Each sets the n elements of y, and the
// last also those of y2, from x and from ones.
var curved = []struct {
	name string
	run  func(q *Queue, y, y2, x, ones device.Buffer)
	want func(x float64) float64 // of y
}{
	{"gelu", func(q *Queue, y, _, x, _ device.Buffer) { q.Gelu(y, x) }, gelu64},
	{"gelu gradient", func(q *Queue, y, _, x, ones device.Buffer) { q.GeluGrad(y, x, ones) }, geluSlope64},
	{"swiglu", func(q *Queue, y, _, x, ones device.Buffer) { q.Gate(row(y), row(x), row(ones), device.Silu) }, silu64},
	{"swiglu gradient", func(q *Queue, y, y2, x, ones device.Buffer) {
		q.GateGrad(row(y), row(y2), row(ones), row(x), row(ones), device.Silu)
	}, siluSlope64},
}

// TestCurvesOfEveryBF16 checks results within one rounding, and NaN with any payload.
func TestCurvesOfEveryBF16(t *testing.T) {
	const n = 1 << 16
	x, ones := hostBuffer(device.BF16, n), hostBuffer(device.BF16, n)
	for i := range n {
		x.U16()[i], ones.U16()[i] = uint16(i), 0x3f80
	}
	withVec(t, func(t *testing.T) {
		for _, c := range curved {
			q := queueOf(t, 1)
			y, y2 := hostBuffer(device.BF16, n), hostBuffer(device.BF16, n)
			c.run(q, y, y2, x, ones)
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				v, got := value(x, i), value(y, i)
				if v != v {
					if got == got {
						t.Fatalf("%s of the NaN %#x is %g", c.name, i, got)
					}
					continue
				}
				want := c.want(max(-1e3, min(v, 1e3))) // beyond, the oracle's factors overflow
				if v > 1e3 {
					want *= v / 1e3
					if strings.HasSuffix(c.name, "gradient") {
						want = 1
					}
				}
				if d := math.Abs(got - want); d > math.Abs(want)*epsilon(device.BF16)+1e-11 && got != want {
					t.Fatalf("%s of %g is %g, want %g", c.name, v, got, want)
				}
			}
		}
	})
}

// TestCurvesAreTheSameAnywhere moves elements from whole vectors to the padded last ones.
func TestCurvesAreTheSameAnywhere(t *testing.T) {
	const n = 64 + 16 + 16 + 9
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			rng := rand.New(rand.NewPCG(13, 14))
			x, ones := newVec(dt, n).normal(rng, 0, 3), newVec(dt, n).fill(func(int) float64 { return 1 })
			for _, c := range curved {
				q := queueOf(t, 1)
				y, y2 := newVec(dt, n), newVec(dt, n)
				c.run(q, y.Buf, y2.Buf, x.Buf, ones.Buf)
				for _, at := range []int{0, 16, 64, 80, 95} {
					z, z2 := newVec(dt, n-at), newVec(dt, n-at)
					c.run(q, z.Buf, z2.Buf, x.Buf.Slice(at, n), ones.Buf.Slice(at, n))
					if err := q.Wait(); err != nil {
						t.Fatal(err)
					}
					a, b := y.Buf.Slice(at, n).Raw(), y2.Buf.Slice(at, n).Raw()
					if !bytes.Equal(z.Buf.Raw(), a) || c.name == "swiglu gradient" && !bytes.Equal(z2.Buf.Raw(), b) {
						t.Errorf("%s from %d on has other bits than among %d", c.name, at, n)
					}
					z.checkGuards(t)
					z2.checkGuards(t)
				}
			}
		})
	})
}

func TestGeluGradAgainstFiniteDifferences(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	x, dy, dx := newVec(device.F32, 200).normal(rng, 0, 2), newVec(device.F32, 200).normal(rng, 0, 1), newVec(device.F32, 200)
	q := queueOf(t, 1)
	q.GeluGrad(dx.Buf, x.Buf, dy.Buf)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	xs, ds := x.values(), dy.values()
	want := slopes(xs, func() (s float64) {
		for i, v := range xs {
			s += ds[i] * gelu64(v)
		}
		return s
	})
	near(t, "gelu gradient", dx, want, 1e-6)
}

func TestElementwiseRefusesUnequalLengths(t *testing.T) {
	q := queueOf(t, 1)
	a, b, ids := newVec(device.F32, 4).Buf, newVec(device.F32, 5).Buf, newVec(device.I32, 4).Buf
	mustPanic(t, "add of 4 and 5", func() { q.AddTo(a, a, b) })
	mustPanic(t, "add into 5", func() { q.AddTo(b, a, a) })
	mustPanic(t, "gelu of 4 into 5", func() { q.Gelu(b, a) })
	mustPanic(t, "gelu of ids", func() { q.Gelu(a, ids) })
	mustPanic(t, "scale of ids", func() { q.Scale(ids, 2) })
}
