package bench

import (
	"fmt"
	"math"

	"zeroth/device"
	"zeroth/device/cpu"
)

// shape is a model that kernels are measured in the sizes of: rows are the
// positions of a micro-batch, T of them a sequence, chunk those whose logits
// are computed at once.
type benchShape struct {
	name                         string
	rows, T, width, heads, vocab int
	chunk                        int
}

// benchShapes: the quickstart, the GPT that peers were measured with, GPT-2.
var benchShapes = []benchShape{
	{"10.8M", 1024, 256, 384, 6, 256, 1024},
	{"29.5M", 512, 128, 512, 8, 4096, 512},
	{"GPT-2 124M", 1024, 1024, 768, 12, 50257, 256},
}

// onQueue runs f with a queue of a device of so many workers.
func onQueue(workers int, f func(d *cpu.Device, q *cpu.Queue) error) error {
	d := cpu.NewHost(workers)
	defer d.Close()
	q := d.NewQueue("bench")
	defer q.Close()
	return f(d, q)
}

// noise is n elements between -1 and 1.
func noise(t device.DType, n int) device.Buffer {
	wide := device.OfF32(make([]float32, n))
	fillNoise(wide.F32())
	if t == device.F32 {
		return wide
	}
	_ = onQueue(1, func(_ *cpu.Device, q *cpu.Queue) error { // a cast does not fail
		narrow := device.OfU16(t, make([]uint16, n))
		q.Cast(narrow, wide)
		err := q.Wait()
		wide = narrow
		return err
	})
	return wide
}

func fillNoise(to []float32) {
	x := uint32(1)
	for i := range to {
		x = x*1664525 + 1013904223
		to[i] = float32(int32(x)) / (1 << 31)
	}
}

// product is a matrix product of training: C (m, n) with k products each.
type benchProduct struct {
	name    string
	m, n, k int
	ta, tb  bool
	f32     bool // C is float32 whatever the activations: a gradient of parameters
}

// products are those of a block, forward and backward, and of the head.
func (s benchShape) products() []benchProduct {
	r, c := s.rows, s.width
	return []benchProduct{
		{"qkv", r, 3 * c, c, false, false, false},
		{"mlp in", r, 4 * c, c, false, false, false},
		{"mlp out", r, c, 4 * c, false, false, false},
		{"d mlp in", r, c, 4 * c, false, true, false},
		{"dW mlp in", c, 4 * c, r, true, false, true},
		{"logits", s.chunk, s.vocab, c, false, true, false},
		{"d logits", s.chunk, c, s.vocab, false, false, false},
	}
}

func (p benchProduct) operands(t device.DType) (c, a, b device.Mat) {
	mat := func(t device.DType, rows, cols int, trans bool) device.Mat {
		if trans {
			return device.Matrix(noise(t, rows*cols), cols, rows).T()
		}
		return device.Matrix(noise(t, rows*cols), rows, cols)
	}
	if p.f32 {
		return mat(device.F32, p.m, p.n, false), mat(t, p.m, p.k, p.ta), mat(t, p.k, p.n, p.tb)
	}
	return mat(t, p.m, p.n, false), mat(t, p.m, p.k, p.ta), mat(t, p.k, p.n, p.tb)
}

var benchTypes = []device.DType{device.F32, device.BF16}

func (b *bench) gemm() error {
	for _, s := range benchShapes {
		for _, p := range s.products() {
			for _, t := range benchTypes {
				c, x, y := p.operands(t)
				form := map[bool]string{true: "T", false: "N"}
				name := fmt.Sprintf("%s %s %s%s %dx%dx%d %v", s.name, p.name, form[p.ta], form[p.tb], p.m, p.n, p.k, t)
				for _, w := range b.Workers {
					err := onQueue(w, func(_ *cpu.Device, q *cpu.Queue) error {
						return b.line("gemm", name, w, 2*float64(p.m)*float64(p.n)*float64(p.k), "FLOP/s", "fp32", func() error {
							q.MatMul(c, x, y, device.Buffer{}, false)
							return q.Wait()
						})
					})
					if err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func (b *bench) attention() error {
	for _, s := range benchShapes {
		for _, t := range benchTypes {
			for _, w := range b.Workers {
				if err := b.attentionOf(s, t, w); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (b *bench) attentionOf(s benchShape, t device.DType, workers int) error {
	D := s.width / s.heads
	a := device.Attn{B: s.rows / s.T, T: s.T, H: s.heads, KV: s.heads, D: D, Scale: float32(1 / math.Sqrt(float64(D)))}
	var m [8]device.Mat // o, q, k, v and their gradients
	for i := range m {
		m[i] = device.Matrix(noise(t, s.rows*s.width), s.rows, s.width)
	}
	lse, delta := device.OfF32(make([]float32, s.rows*s.heads)), device.OfF32(make([]float32, s.rows*s.heads))
	pairs := float64(a.B*a.H) * float64(a.T) * float64(a.T+1) / 2 // of a query and a key it sees
	return onQueue(workers, func(_ *cpu.Device, q *cpu.Queue) error {
		name := fmt.Sprintf("%s %dx%d, %d heads of %d, %v", s.name, a.B, a.T, a.H, a.D, t)
		err := b.line("attention", name, workers, 4*pairs*float64(D), "FLOP/s", "fp32", func() error {
			q.Attention(m[0], lse, m[1], m[2], m[3], a)
			return q.Wait()
		})
		if err != nil {
			return err
		}
		return b.line("attention", name+", gradient", workers, 10*pairs*float64(D), "FLOP/s", "fp32", func() error {
			q.AttentionGrad(m[5], m[6], m[7], delta, m[4], m[0], lse, m[1], m[2], m[3], a)
			return q.Wait()
		})
	})
}

// updateLen is the elements of what passes over memory are measured on: more
// than a cache holds.
const updateLen = 48 << 20

// optimizer measures passes over memory: update rules, conversions, sums.
func (b *bench) optimizer() error {
	var f [4]device.Buffer
	for i := range f {
		mem, err := b.touched(updateLen)
		if err != nil {
			return err
		}
		defer b.memory.Free(mem)
		f[i] = mem
		fillNoise(mem.F32())
	}
	for i, v := range f[3].F32() { // second moments
		f[3].F32()[i] = v * v
	}
	half, err := b.memory.Alloc(device.BF16, updateLen, device.Workspace)
	if err != nil {
		return err
	}
	defer b.memory.Free(half)
	none := device.Buffer{}
	quarter := func(i int) device.Buffer { return f[i/4].Slice(i%4*updateLen/4, (i%4+1)*updateLen/4) }
	many := make([]device.Buffer, 8)
	for i := range many {
		many[i] = quarter(4 + i)
	}
	sum := device.OfI64(make([]int64, device.ExactLen))
	adamw := device.AdamW{GradScale: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Shrink: 1, Step: 1e-6, RootC2: 1}
	for _, k := range []struct {
		name  string
		bytes int // an element, read and written
		of    string
		run   func(q *cpu.Queue)
	}{
		{"adamw", 28, "in place", func(q *cpu.Queue) { q.AdamW(f[0], none, f[1], f[2], f[3], adamw) }},
		{"adamw, bf16 parameters", 30, "in place", func(q *cpu.Queue) { q.AdamW(f[0], half, f[1], f[2], f[3], adamw) }},
		{"lion", 20, "in place", func(q *cpu.Queue) {
			q.Lion(f[0], none, f[1], f[2], device.Lion{GradScale: 1, Beta1: 0.9, Beta2: 0.99, Shrink: 1, LR: 1e-9})
		}},
		{"sgd, momentum", 20, "in place", func(q *cpu.Queue) {
			q.SGD(f[0], none, f[1], f[2], device.SGD{GradScale: 1, Momentum: 0.5, LR: 1e-9})
		}},
		{"sgd", 12, "update", func(q *cpu.Queue) {
			q.SGD(f[0], none, f[1], none, device.SGD{GradScale: 1, LR: 1e-9})
		}},
		{"sum of squares", 4, "read", func(q *cpu.Queue) { q.SumSquares(sum, f[1]) }},
		{"add", 12, "triad", func(q *cpu.Queue) { q.AddTo(f[0], f[1], f[2]) }},
		{"copy", 8, "copy", func(q *cpu.Queue) { q.Copy(f[0], f[1]) }},
		{"fp32 to bf16", 6, "triad", func(q *cpu.Queue) { q.Cast(half, f[1]) }},
		{"bf16 to fp32", 6, "copy", func(q *cpu.Queue) { q.Cast(f[0], half) }},
	} {
		for _, w := range b.Workers {
			err := onQueue(w, func(_ *cpu.Device, q *cpu.Queue) error {
				return b.line("optimizer", k.name, w, float64(k.bytes)*updateLen, "B/s", k.of, func() error {
					k.run(q)
					return q.Wait()
				})
			})
			if err != nil {
				return err
			}
		}
	}
	return onQueue(1, func(_ *cpu.Device, q *cpu.Queue) error { // one worker, as a rank's part of a reduction
		for _, count := range []int{2, 4, 8} {
			err := b.line("optimizer", fmt.Sprintf("sum of %d", count), 1, float64(4*(count+1))*updateLen/4, "B/s", "triad", func() error {
				q.SumAll("sum", []device.Buffer{quarter(0)}, many[:count])
				return q.Wait()
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}
