//go:build cuda

package kernel

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
	cpukernel "zeroth/device/cpu/kernel"
	"zeroth/nn"
	"zeroth/optim"
	"zeroth/tests/nightly"
)

// Each test issues an operation twice on equal operands: on package cpu's queue and on the
// emulated kernels. Operands are in memory of exactly their size, with gaps between rows, at
// aligned and unaligned addresses. Gaps and outputs are initially NaN. The emulator runs once in
// order and then in random orders, which must agree to the bit.

// operations contains the methods that Ops has in common with package cpu's queue.
type operations interface {
	Zero(b device.Buffer)
	Cast(dst, src device.Buffer)
	Decode(dst device.Mat, codes device.Buffer, code device.Code)
	Scale(x device.Buffer, s float32)
	AddTo(y, a, b device.Buffer)
	Mul(y, a, b device.Buffer)
	AddScalar(y, x device.Buffer, s float32)
	Dropout(y, x, add device.Buffer, d device.Dropout)
	Activate(y, x device.Buffer, f device.Activation)
	ActivateGrad(dx, x, dy device.Buffer, f device.Activation)
	Gate(y, gate, up device.Mat, f device.Activation)
	GateGrad(dgate, dup, dy, gate, up device.Mat, f device.Activation)
	Route(experts, weights device.Buffer, logits device.Mat, bias device.Buffer, r device.Router)
	RouteGrad(dlogits, logits device.Mat, experts, weights, dweights device.Buffer, r device.Router)
	Balance(stats, logits device.Mat, target device.Buffer, k int)
	BalanceTotal(sums, loss device.Buffer, k int)
	BalanceGrad(dlogits, logits device.Mat, target, slopes device.Buffer, scale float32)
	Sort(order, at, offsets, experts device.Buffer, first int)
	GatherRows(y, x device.Mat, order device.Buffer)
	SumGroups(y, base, x device.Mat, at device.Buffer)
	MatMulGroups(c, a device.Mat, b device.MatGroup, offsets device.Buffer, add bool)
	WeightGradGroups(dw device.MatGroup, dy, x device.Mat, offsets device.Buffer, add bool)
	GateRows(y, gate, up device.Mat, f device.Activation, weights, order device.Buffer)
	GateRowsGrad(dgate, dup device.Mat, dweights device.Buffer, dy, gate, up device.Mat, f device.Activation, weights, order device.Buffer)
	SumRows(db device.Buffer, dy device.Mat)
	Embed(y, wte, wpe device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer)
	EmbedGrad(dwte, dwpe, dy device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer, add bool)
	LayerNorm(y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32)
	LayerNormGrad(dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool)
	RMSNorm(y device.Mat, rstd device.Buffer, x device.Mat, w device.Buffer, eps float32)
	RMSNormGrad(dx device.Mat, dw device.Buffer, dy, x device.Mat, w, rstd device.Buffer, add bool)
	Rope(x device.Mat, r device.Rope, inverse bool)
	Attention(o device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn)
	AttentionGrad(dq, dk, dv device.Mat, delta device.Buffer, do, o device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn)
	CrossEntropy(loss device.Buffer, logits device.Mat, target device.Buffer, cap float32)
	CrossEntropyGrad(loss device.Buffer, logits device.Mat, target device.Buffer, scale, cap float32)
	CopyBlock(dst, src device.Mat)
	CrossEntropyPart(stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, cap float32)
	CrossEntropyMerge(loss, stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, scale, cap float32, grad bool)
	optim.Ops
	Normalize(x, acc device.Buffer, eps float32)
	Sum(acc, x device.Buffer)
	SumSquares(acc, x device.Buffer)
	SumInto(dst device.Buffer, src []device.Buffer)
	SumPeers(dst device.Buffer, src []device.Buffer)
	AddRow(y device.Mat, v device.Buffer, set bool)
}

// The interfaces below cover everything except products and host functions, which belong to a
// queue.
type (
	queue interface {
		MatMul(c, a, b device.Mat, bias device.Buffer, add bool)
		MatMulOnto(y, x, a, b device.Mat, bias device.Buffer)
		MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation)
		MatMulActivateGrad(dx, a, b, x device.Mat, f device.Activation)
		WeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat)
		Do(f func() error)
	}
	whole struct {
		*Ops
		queue
	}
)

var _ nn.Ops = whole{}

// onCPU adapts package cpu's queue, whose methods have other names.
type onCPU struct{ *cpu.Queue }

func (q onCPU) SumInto(dst device.Buffer, src []device.Buffer) {
	q.SumAll("sum", []device.Buffer{dst}, src)
}

func (q onCPU) SumPeers(dst device.Buffer, src []device.Buffer) { q.SumInto(dst, src) }

func (q onCPU) AddRow(y device.Mat, v device.Buffer, set bool) {
	q.Do(func() error {
		row, sum := make([]float32, y.Cols), make([]float32, y.Cols)
		cpukernel.Load(row, v)
		for i := range y.Rows {
			to := y.Buf.Slice(i*y.Ld, i*y.Ld+y.Cols)
			cpukernel.Load(sum, to)
			for j, x := range row {
				if set {
					sum[j] = 0
				}
				sum[j] += x
			}
			cpukernel.Store(to, sum)
		}
		return nil
	})
}

// operand is a matrix under test.
type operand struct {
	what string
	device.Mat
	before []byte
	guards [2][]byte // the bytes around it
	exact  bool      // bits must be equal
	tol    float64
}

// bench creates operands and keeps a list of them.
type bench struct {
	e   *machine
	rng *rand.Rand
	all []*operand
}

var anyFloat = []device.DType{device.F32, device.BF16, device.F16}

// float returns a random float type.
func (b *bench) float() device.DType { return anyFloat[b.rng.IntN(3)] }

// flip returns true half of the time.
func (b *bench) flip() bool { return b.rng.IntN(2) == 0 }

// make returns a (rows, cols) matrix of NaN, half of the time without gaps.
func (b *bench) make(what string, dt device.DType, rows, cols int) *operand {
	gap, shift := 0, 0
	if b.flip() {
		gap, shift = b.rng.IntN(6), b.rng.IntN(5)
	}
	return b.makeWith(what, dt, rows, cols, gap, shift)
}

func (b *bench) makeWith(what string, dt device.DType, rows, cols, gap, shift int) *operand {
	ld := cols + gap
	buf := b.e.alloc(dt, max(0, (rows-1)*ld+cols), shift)
	for i := range buf.Raw() {
		buf.Raw()[i] = 0xff // NaN of every float type, -1 of integers
	}
	o := &operand{what: what, Mat: device.Mat{Buf: buf, Rows: rows, Cols: cols, Ld: ld}, before: slices.Clone(buf.Raw()), guards: b.e.guards(buf)}
	b.all = append(b.all, o)
	return o
}

// mat returns random normals, vec one row of them.
func (b *bench) mat(what string, dt device.DType, rows, cols int, std float64) *operand {
	return b.make(what, dt, rows, cols).fill(func(int) float64 { return std * b.rng.NormFloat64() })
}

func (b *bench) vec(what string, dt device.DType, n int, std float64) *operand {
	return b.mat(what, dt, 1, n, std)
}

// ints returns n integers from lo to hi-1.
func (b *bench) ints(what string, n, lo, hi int) *operand {
	o := b.make(what, device.I32, 1, n)
	for i := range o.Buf.I32() {
		o.Buf.I32()[i] = int32(lo + b.rng.IntN(hi-lo))
	}
	copy(o.before, o.Buf.Raw())
	return o
}

// starts returns the starts of documents of random lengths, half of the time one per sequence.
func (b *bench) starts(B, T, past int) device.Buffer {
	o := b.make("start", device.I32, 1, B*T)
	most, first := 2+b.rng.IntN(T), 0 // documents of a single position would have no gradients
	for i := range B * T {
		if at := i % T; at == 0 || b.rng.IntN(most) == 0 || b.rng.IntN(20) == 0 {
			first = at
			if at == 0 {
				first = -b.rng.IntN(past + 1)
			}
		}
		o.Buf.I32()[i] = int32(first)
	}
	copy(o.before, o.Buf.Raw())
	if b.flip() {
		return device.Buffer{}
	}
	return o.Buf
}

func (o *operand) fill(f func(i int) float64) *operand {
	row, wide := make([]float32, o.Cols), make([]float64, o.Cols)
	for i := range o.Rows {
		for j := range row {
			wide[j] = f(i*o.Cols + j)
			row[j] = float32(wide[j])
		}
		part := o.Buf.Slice(i*o.Ld, i*o.Ld+o.Cols)
		if part.Type == device.F64 {
			copy(part.F64(), wide)
		} else {
			cpukernel.Store(part, row)
		}
	}
	copy(o.before, o.Buf.Raw())
	return o
}

// bits requires equal bits. near allows a rounding plus tol times the root mean square.
func (o *operand) bits() *operand            { o.exact = true; return o }
func (o *operand) near(tol float64) *operand { o.tol = tol; return o }

func (o *operand) at(i int) float64 {
	at := i/o.Cols*o.Ld + i%o.Cols
	switch o.Buf.Type {
	case device.I32:
		return float64(o.Buf.I32()[at])
	case device.F64:
		return o.Buf.F64()[at]
	}
	var x [1]float32
	cpukernel.Load(x[:], o.Buf.Slice(at, at+1))
	return float64(x[0])
}

// gaps fails if a byte outside the elements has changed.
func (o *operand) gaps(t *testing.T, where string) {
	for _, g := range o.guards {
		if bytes.Count(g, []byte{guard}) != len(g) {
			t.Fatalf("%s: %s (%d, %d): memory around it was changed", where, o.what, o.Rows, o.Cols)
		}
	}
	size := o.Buf.Type.Size()
	for i, x := range o.Buf.Raw() {
		if i/size%o.Ld >= o.Cols && x != o.before[i] {
			t.Fatalf("%s: %s (%d, %d): element %d between rows was changed", where, o.what, o.Rows, o.Cols, i/size)
		}
	}
}

// epsilon returns the relative size of an ulp, since both sides round, possibly in different
// directions.
func epsilon(dt device.DType) float64 {
	switch dt {
	case device.BF16:
		return 0x1p-7
	case device.F16:
		return 0x1p-10
	}
	return 2e-6
}

// compare returns the index of the first element of o that is not close enough to want, or -1.
func (o *operand) compare(t *testing.T, want *operand) int {
	o.gaps(t, machinesAre)
	want.gaps(t, "cpu")
	if want.exact && o.Buf.Type == device.I64 {
		return -1 // exact sums are compared by their test
	}
	var square float64
	n := o.Rows * o.Cols
	for i := range n {
		if x := want.at(i); !math.IsNaN(x) && !math.IsInf(x, 0) {
			square += x * x / float64(n)
		}
	}
	base := want.tol*math.Sqrt(square) + 1e-30
	if o.Buf.Type == device.F16 {
		base += 0x1p-25
	}
	for i := range n {
		g, w := o.at(i), want.at(i)
		ok := math.Abs(g-w) <= base+epsilon(o.Buf.Type)*math.Abs(w)
		if want.exact {
			ok = math.Float64bits(g) == math.Float64bits(w)
		}
		if !ok && g != w && !(math.IsNaN(g) && math.IsNaN(w)) {
			return i
		}
	}
	return -1
}

// differs returns the index of the first element of o whose bits differ from other's, or -1.
func (o *operand) differs(other *operand) int {
	a, b := o.Buf.Raw(), other.Buf.Raw()
	for i := range a {
		if a[i] != b[i] {
			at := i / o.Buf.Type.Size()
			return at/o.Ld*o.Cols + min(at%o.Ld, o.Cols-1)
		}
	}
	return -1
}

// check issues the operation returned by f on equal operands everywhere and compares them all.
func check(t *testing.T, seed uint64, f func(b *bench) func(q operations)) {
	t.Helper()
	on := started(t)
	for _, e := range on {
		e.reset()
	}
	q := cpu.NewHost(2).NewQueue("oracle")
	defer q.Close()
	want := &bench{e: on[0], rng: rand.New(rand.NewPCG(seed, 1))}
	f(want)(onCPU{q})
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	var first *bench
	for _, e := range on {
		b := &bench{e: e, rng: rand.New(rand.NewPCG(seed, 1))}
		f(b)(&Ops{To: e, Weigh: true, Work: b.workSpace()})
		if e.err != nil {
			t.Fatal(e.err)
		}
		if first == nil {
			first = b
		}
		for k, o := range b.all {
			if b == first {
				if i := o.compare(t, want.all[k]); i >= 0 {
					dump(t, seed, b, want, k, i)
					t.Fatalf("%s (%v): element (%d, %d) of (%d, %d) is %.9g, package cpu has %.9g", o.what, o.Buf.Type, i/o.Cols, i%o.Cols, o.Rows, o.Cols, o.at(i), want.all[k].at(i))
				}
			} else if i := o.differs(first.all[k]); i >= 0 {
				dump(t, seed, b, first, k, i)
				t.Fatalf("%s: element (%d, %d) of (%d, %d) has other bits where threads go on in another order", o.what, i/o.Cols, i%o.Cols, o.Rows, o.Cols)
			}
		}
	}
}

// workSpace returns memory full of NaN.
func (b *bench) workSpace() device.Buffer {
	w := b.e.alloc(device.F32, WorkLen, 0)
	for i := range w.F32() {
		w.F32()[i] = float32(math.NaN())
	}
	return w
}

// times returns the number of random draws of a test.
func times(n int) int {
	if !nightly.All() {
		return max(2, n/5)
	}
	return n
}
