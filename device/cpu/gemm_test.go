package cpu

import (
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/tests/nightly"
)

// ends returns the first and the last instruction set, for short tests. The others differ only in
// assembly, which the race detector does not check.
func ends[T any](sets []T) []T {
	if !nightly.All() && len(sets) > 2 {
		return []T{sets[0], sets[len(sets)-1]}
	}
	return sets
}

// withISA runs f with each instruction set of this machine.
func withISA(t *testing.T, f func(t *testing.T)) {
	defer func(old, old16 *kernel.ISA) { kernel.BestISA, kernel.BestBF16 = old, old16 }(kernel.BestISA, kernel.BestBF16)
	for _, s := range ends(kernel.ISAs) {
		kernel.BestISA, kernel.BestBF16 = s, nil
		t.Run(s.Name, f)
	}
	for _, s := range ends(append(kernel.BF16ISAs[1:], emulatedBF16()...)) {
		kernel.BestBF16 = s
		t.Run(s.Name, f)
	}
}

func fillNaN(b device.Buffer) {
	if b.N > 0 {
		setBits(b, 0, 0x7ff8_1234_7ff8_1234)
		repeat(b.Raw(), b.Type.Size())
	}
}

// view is a random matrix (rows, cols) with gap elements between rows and guard elements before and
// after, all NaN.
type view struct {
	device.Mat
	whole device.Buffer
}

const guard = 19

func newView(rng *rand.Rand, t device.DType, rows, cols, gap int) view {
	ld := cols + gap
	b := hostBuffer(t, 2*guard+max(0, rows*ld-gap))
	fillNaN(b)
	m := device.Mat{Buf: b.Slice(guard, b.N-guard), Rows: rows, Cols: cols, Ld: ld}
	row := make([]float32, cols)
	for i := range rows {
		for j := range row {
			row[j] = float32(rng.NormFloat64())
		}
		kernel.Store(m.Buf.Slice(i*ld, i*ld+cols), row)
	}
	return view{m, b}
}

// operand returns a random operand (rows, cols), stored transposed if trans is set.
func operand(rng *rand.Rand, t device.DType, rows, cols, gap int, trans bool) device.Mat {
	if trans {
		return newView(rng, t, cols, rows, gap).T()
	}
	return newView(rng, t, rows, cols, gap).Mat
}

// values returns the elements of an operand, row by row.
func values(m device.Mat) []float64 {
	rows, cols := m.Dims()
	v, of := make([]float64, rows*cols), elements(m.Buf)
	for i := range rows {
		for j := range cols {
			if m.Trans {
				v[i*cols+j] = of(j*m.Ld + i)
			} else {
				v[i*cols+j] = of(i*m.Ld + j)
			}
		}
	}
	return v
}

func (v view) poison() { fillNaN(v.whole) }

// checkGuards fails if anything outside the view's elements was written.
func (v view) checkGuards(t *testing.T) {
	t.Helper()
	of := elements(v.whole)
	for i := range v.whole.N {
		at := i - guard
		if inside := at >= 0 && at < v.Buf.N && at%v.Ld < v.Cols; !inside && !math.IsNaN(of(i)) {
			t.Fatalf("element %d, outside (%d, %d) with rows %d apart, was written", at, v.Rows, v.Cols, v.Ld)
		}
	}
}

var (
	halfUlp = map[device.DType]float64{device.F32: 0x1p-24, device.BF16: 0x1p-8, device.F16: 0x1p-11, device.F64: 0}
	tiny    = map[device.DType]float64{device.F16: 0x1p-24} // spacing of subnormals
)

// product is a product with its float64 result and the error bound: k+3 roundings of float32 sums
// and one to the type of c.
type product struct {
	c       view
	a, b    device.Mat
	bias    device.Buffer
	add     bool
	m, n, k int

	old, av, bt []float64 // c before, a, b transposed
}

func newProduct(rng *rand.Rand, m, n, k int, types [4]device.DType, at, bt, bias, add bool, gap int) product {
	p := product{c: newView(rng, types[0], m, n, gap), add: add, m: m, n: n, k: k,
		a: operand(rng, types[1], m, k, gap, at), b: operand(rng, types[2], k, n, 2*gap, bt)}
	if bias {
		p.bias = newView(rng, types[3], 1, n, 0).Buf
	}
	p.old, p.av, p.bt = values(p.c.Mat), values(p.a), values(p.b.T())
	if !add {
		p.c.poison()
	}
	return p
}

func (p *product) check(t *testing.T, i, j int) {
	t.Helper()
	var sum, size float64
	more := func(x float64) { sum, size = sum+x, size+math.Abs(x) }
	b := p.bt[j*p.k : (j+1)*p.k]
	for x, y := range p.av[i*p.k : (i+1)*p.k] {
		sum, size = sum+y*b[x], size+math.Abs(y*b[x])
	}
	if p.bias.N != 0 {
		more(value(p.bias, j))
	}
	if p.add {
		more(p.old[i*p.n+j])
	}
	ct := p.c.Buf.Type
	bound := float64(p.k+3)*0x1p-24*size + halfUlp[ct]*(math.Abs(sum)+size*0x1p-10) + tiny[ct]
	if got := value(p.c.Buf, i*p.c.Ld+j); !(math.Abs(got-sum) <= bound) {
		t.Fatalf("(%d, %d) of (%d, %d, %d): %g, want %g within %g", i, j, p.m, p.n, p.k, got, sum, bound)
	}
}

func (p *product) run(t *testing.T, q *Queue) {
	t.Helper()
	q.MatMul(p.c.Mat, p.a, p.b, p.bias, p.add)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
}

func (p *product) checkAll(t *testing.T) {
	t.Helper()
	for i := range p.m {
		for j := range p.n {
			p.check(t, i, j)
		}
	}
	p.c.checkGuards(t)
}

func testQueue(t testing.TB, workers int) *Queue {
	d := NewHost(workers)
	q := d.NewQueue("test")
	t.Cleanup(func() { q.Close(); d.Close() })
	return q
}

var allF32 = [4]device.DType{}

func TestMatMulFormsAndSizes(t *testing.T) {
	sizes := [][3]int{{0, 5, 3}, {5, 0, 3}, {4, 5, 0}, {1, 1, 1}, {1, 40, 7}, {40, 1, 7}, {3, 5, 1}, {2, 3, 17}, {13, 31, 15}, {14, 32, 16},
		{15, 33, 8}, {6, 16, 9}, {7, 17, 40}, {28, 64, 33}, {29, 97, 23}, {50, 47, 61},
		{32, 64, 32}, {64, 40, 96}, {32, 33, 0}} // rows that AMX reads in place
	for i := 1; i <= 15; i++ {
		sizes = append(sizes, [3]int{i, 33 - 2*i, 2*i + 1}, [3]int{i, 16 + i, 16})
	}
	withISA(t, func(t *testing.T) {
		q := testQueue(t, 1)
		rng := rand.New(rand.NewPCG(3, 4))
		types := allF32
		if kernel.BestBF16 != nil {
			types = [4]device.DType{device.F32, device.BF16, device.BF16}
		}
		for i, s := range sizes {
			for form := range 16 {
				p := newProduct(rng, s[0], s[1], s[2], types, form&1 != 0, form&2 != 0, form&4 != 0, form&8 != 0, i%3)
				p.run(t, q)
				p.checkAll(t)
			}
		}
	})
}

func TestMatMulEveryTypeOfEveryOperand(t *testing.T) {
	nightly.Long(t)
	withISA(t, func(t *testing.T) {
		q := testQueue(t, 1)
		rng := rand.New(rand.NewPCG(5, 6))
		for i := range 256 {
			types := [4]device.DType{floats[i&3], floats[i>>2&3], floats[i>>4&3], floats[i>>6&3]}
			for _, form := range [2]int{i % 3, 3 - i%3} {
				p := newProduct(rng, 17, 37, 19, types, form&1 != 0, form&2 != 0, i&1 != 0, i&2 == 0, 3)
				p.run(t, q)
				p.checkAll(t)
			}
		}
	})
}

// longK returns a k that needs two blocks, the second one short.
func longK() int {
	if kernel.BestBF16 != nil {
		return kernel.BestBF16.KC + 3
	}
	return kernel.BestISA.KC + 3
}

// TestMatMulManyBlocksOfK breaks the k loop into blocks, between which sums of a 16-bit c are kept
// in an accumulator.
func TestMatMulManyBlocksOfK(t *testing.T) {
	nightly.Long(t)
	withISA(t, func(t *testing.T) {
		q := testQueue(t, 2)
		rng := rand.New(rand.NewPCG(7, 8))
		for i, ct := range floats {
			for form := range 4 {
				types := [4]device.DType{ct, floats[form], floats[i]}
				if kernel.BestBF16 != nil {
					types[1], types[2] = device.BF16, device.BF16
				}
				for j, size := range [][2]int{{34, 3}, {64, 32}} {
					if !nightly.Every(2, i+form+j) {
						continue
					}
					p := newProduct(rng, size[0], 69, longK()-3+size[1], types, form&1 != 0, form&2 != 0, true, form&1 != 0, 1)
					p.run(t, q)
					p.checkAll(t)
				}
			}
		}
	})
}

// TestMatMulManyBlocks uses several blocks of rows, groups of columns, and blocks of columns for
// the accumulator, and checks samples.
func TestMatMulManyBlocks(t *testing.T) {
	q := testQueue(t, 2)
	rng := rand.New(rand.NewPCG(9, 10))
	for _, ct := range []device.DType{device.F32, device.BF16} {
		m, n, k := kernel.AMax/264+40, 2*kernel.GroupMax+5, kernel.KcF32+9
		if ct != device.F32 {
			m, n = kernel.AccMax/kernel.NcMax+40, kernel.NcMax+5
		}
		if kernel.BestISA == &kernel.Portable || !nightly.All() {
			m, n, k = 230, kernel.GroupMax+5, 20
		}
		p := newProduct(rng, m, n, k, [4]device.DType{ct}, false, true, true, true, 1)
		p.run(t, q)
		for range 300 {
			p.check(t, rng.IntN(m), rng.IntN(n))
		}
		for _, i := range []int{0, m - 1, m - 40, m - 41} {
			for _, j := range []int{0, n - 1, n / 2} {
				p.check(t, i, j)
			}
		}
		p.c.checkGuards(t)
	}
}

// TestMatMulBitsDependOnNothingElse checks that the bits do not depend on the number of workers, on
// which rows or columns of a product are computed together, or on whether A is packed: AMX reads
// 128 rows in place, but not 37.
func TestMatMulBitsDependOnNothingElse(t *testing.T) {
	nightly.Long(t)
	withISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(11, 12))
		for i, ct := range []device.DType{device.F32, device.BF16, device.F32, device.BF16} {
			m, n, k, add := 131, 150, longK()+37, i >= 2
			if add {
				k = 200 // in one block
			}
			if i%2 == 1 {
				m, k = 128, k/32*32
			}
			types := [4]device.DType{ct}
			if kernel.BestBF16 != nil {
				types[1], types[2] = device.BF16, device.BF16
			}
			p := newProduct(rng, m, n, k, types, false, true, true, add, 1)
			start := append([]byte(nil), p.c.whole.Raw()...)
			p.run(t, testQueue(t, 1))
			want := append([]byte(nil), p.c.whole.Raw()...)
			for _, workers := range []int{2, 3, 5} {
				copy(p.c.whole.Raw(), start)
				p.run(t, testQueue(t, workers))
				if string(p.c.whole.Raw()) != string(want) {
					t.Fatalf("%v, added %v: %d workers gave other bits", ct, add, workers)
				}
			}
			copy(p.c.whole.Raw(), start)
			q := testQueue(t, 1)
			for i := 0; i < m; i += 37 {
				hi := min(m, i+37)
				q.MatMul(p.c.RowRange(i, hi).Columns(0, 50), p.a.RowRange(i, hi), p.b.T().RowRange(0, 50).T(), p.bias.Slice(0, 50), add)
				q.MatMul(p.c.RowRange(i, hi).Columns(50, n), p.a.RowRange(i, hi), p.b.T().RowRange(50, n).T(), p.bias.Slice(50, n), add)
			}
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
			if string(p.c.whole.Raw()) != string(want) {
				t.Fatalf("%v, added %v: a product in parts has other bits", ct, add)
			}
		}
	})
}

// TestMatMulBitsAreThoseOfMultiplyAddsInOrder checks that all instruction sets except portable
// code compute each block of k with multiply-adds that round once, in order, and then add the
// blocks. So AVX2, AVX-512 and NEON give the same bits.
func TestMatMulBitsAreThoseOfMultiplyAddsInOrder(t *testing.T) {
	defer func(old *kernel.ISA) { kernel.BestISA = old }(kernel.BestISA)
	q := testQueue(t, 1)
	for _, s := range kernel.ISAs[1:] {
		kernel.BestISA = s
		for form := range 4 {
			rng := rand.New(rand.NewPCG(15, 16))
			p := newProduct(rng, 45, 71, kernel.KcF32+33, [4]device.DType{device.F32, device.F32, device.BF16}, form&1 != 0, form&2 != 0, true, false, 1)
			p.run(t, q)
			for i := range p.m {
				for j := range p.n {
					if got, want := float32(value(p.c.Buf, i*p.c.Ld+j)), p.inOrder(i, j); got != want {
						t.Fatalf("%s, form %d: (%d, %d) is %x, want %x", s.Name, form, i, j, got, want)
					}
				}
			}
		}
	}
}

// inOrder returns element (i, j) of a product of float32 with a bias.
func (p *product) inOrder(i, j int) float32 {
	c, kc := float32(value(p.bias, j)), kernel.Cut(p.k, kernel.KcF32, 8)
	for lo := 0; lo < p.k; lo += kc {
		var sum float32
		for x := lo; x < min(p.k, lo+kc); x++ {
			sum = multiplyAdd(p.av[i*p.k+x], p.bt[j*p.k+x], sum)
		}
		c += sum
	}
	return c
}

// multiplyAdd returns a*b + c of float32, rounded once: the product is exact in float64, and the
// sum is truncated to float64 with its last bit set if that was inexact. Rounding that to float32
// equals rounding the exact sum; see roundToOdd.
func multiplyAdd(a, b float64, c float32) float32 {
	x, y := float64(a*b), float64(c)
	s := x + y
	part := s - x
	lost := (x - (s - part)) + (y - part) // exactly the error of s (Knuth)
	if bits := math.Float64bits(s); lost != 0 && bits&1 == 0 {
		if (lost > 0) == (s > 0) {
			bits++
		} else {
			bits--
		}
		s = math.Float64frombits(bits)
	}
	return float32(s)
}

func TestMatMulAllocatesNothing(t *testing.T) {
	for _, workers := range []int{1, 2} {
		q := testQueue(t, workers)
		rng := rand.New(rand.NewPCG(13, 14))
		for _, ct := range []device.DType{device.F32, device.BF16} {
			p := newProduct(rng, 120, 130, kernel.KcF32+100, [4]device.DType{ct, device.BF16, device.F16}, true, true, true, true, 0)
			p.run(t, q)
			if got := testing.AllocsPerRun(5, func() { p.run(t, q) }); got != 0 {
				t.Errorf("%d workers, %v: %v allocations a product", workers, ct, got)
			}
		}
	}
}

func TestMatMulRefuses(t *testing.T) {
	q := testQueue(t, 1)
	mat := func(rows, cols int) device.Mat { return device.Matrix(hostBuffer(device.F32, rows*cols), rows, cols) }
	short := mat(3, 4)
	short.Ld = 5
	ids := device.Matrix(hostBuffer(device.I32, 12), 3, 4)
	for name, f := range map[string]func(){
		"inner":      func() { q.MatMul(mat(2, 4), mat(2, 3), mat(4, 4), device.Buffer{}, false) },
		"outer":      func() { q.MatMul(mat(2, 4), mat(3, 3), mat(3, 4), device.Buffer{}, false) },
		"transposed": func() { q.MatMul(mat(4, 2).T(), mat(2, 3), mat(3, 4), device.Buffer{}, false) },
		"bias":       func() { q.MatMul(mat(2, 4), mat(2, 3), mat(3, 4), hostBuffer(device.F32, 3), false) },
		"short":      func() { q.MatMul(mat(2, 4), mat(2, 3), short, device.Buffer{}, false) },
		"int32":      func() { q.MatMul(mat(2, 4), mat(2, 3), ids, device.Buffer{}, false) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// TestMatMulKeepsItsBitsUnderCollection checks that signals, thread switches and garbage collection
// preserve all registers: many queues multiply on few threads while garbage is created and
// collected.
func TestMatMulKeepsItsBitsUnderCollection(t *testing.T) {
	nightly.Long(t)
	withISA(t, func(t *testing.T) {
		products := 150
		if !nightly.All() || kernel.BestISA == &kernel.Portable {
			products = 15
		}
		if kernel.BestBF16 != nil && strings.HasSuffix(kernel.BestBF16.Name, "emulated") {
			products = 2
		}
		types := allF32
		if kernel.BestBF16 != nil {
			types = [4]device.DType{device.BF16, device.BF16, device.BF16}
		}
		stop, collected := make(chan struct{}), make(chan int)
		go func() {
			n := 0
			for ; ; n++ {
				select {
				case <-stop:
					collected <- n
					return
				default:
					garbage = make([]byte, 1<<16)
					runtime.GC()
				}
			}
		}()
		var all sync.WaitGroup
		for g := range 6 {
			q := testQueue(t, 1)
			all.Go(func() {
				p := newProduct(rand.New(rand.NewPCG(17, uint64(g))), 70+g, 140, 300, types, false, g%2 == 0, true, false, 0)
				var want string
				for range products {
					q.MatMul(p.c.Mat, p.a, p.b, p.bias, false)
					if err := q.Wait(); err != nil {
						t.Error(err)
						return
					}
					if got := string(p.c.Buf.Raw()); want == "" {
						want = got
					} else if got != want {
						t.Error("a product repeated has other bits")
						return
					}
				}
			})
		}
		all.Wait()
		close(stop)
		if n := <-collected; n == 0 {
			t.Error("nothing was collected meanwhile")
		}
	})
}

var garbage []byte
