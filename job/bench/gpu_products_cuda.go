//go:build cuda

package bench

import "zeroth/device"

// square returns a product of square matrices.
func (g *gpuBench) square(t device.DType) func() {
	n := g.gpuSizes.square
	mat := func() device.Mat { return device.Matrix(g.noise(t, n*n), n, n) }
	c, a, b := mat(), mat(), mat()
	return func() { g.q.MatMul(c, a, b, device.Buffer{}, false) }
}

func (g *gpuBench) squares() error {
	n := float64(g.gpuSizes.square)
	for _, t := range []device.DType{device.F32, device.F16, device.BF16} {
		if err := g.line(squareOf(t), 2*n*n*n, "FLOP/s", "", g.square(t)); err != nil {
			return err
		}
		g.limit(t.String() + " product")
	}
	return nil
}

// oneRow measures the product of one row with a weight, as generation has it, by the weight's bytes
// relative to a copy.
func (g *gpuBench) oneRow() error {
	n := g.gpuSizes.square
	for _, t := range []device.DType{device.F32, device.BF16} {
		y, x, w := device.Matrix(g.noise(t, n), 1, n), device.Matrix(g.noise(t, n), 1, n), device.Matrix(g.noise(t, n*n), n, n)
		if err := g.line("product of one row, "+t.String(), float64(n*n*t.Size()), "B/s", "copy", func() { g.q.MatMul(y, x, w.T(), device.Buffer{}, false) }); err != nil {
			return err
		}
	}
	return nil
}

// products measures the products of a block and of the head, relative to the square one.
func (g *gpuBench) products() error {
	r, c, vocab := g.rows, g.width, (g.vocab+63)/64*64 // padded as in training
	for _, p := range []struct {
		name    string
		m, n, k int // (m, n) with inner dimension k
		ta, tb  bool
		out     device.DType
	}{
		{"qkv", r, 3 * c, c, false, false, device.BF16},
		{"mlp in", r, 4 * c, c, false, false, device.BF16},
		{"mlp out", r, c, 4 * c, false, false, device.BF16},
		{"d mlp in", r, c, 4 * c, false, true, device.BF16},
		{"dW mlp in", c, 4 * c, r, true, false, device.F32}, // as gradients of parameters are
		{"logits", r, vocab, c, false, true, device.BF16},
		{"d logits", r, c, vocab, false, false, device.BF16},
	} {
		mat := func(t device.DType, rows, cols int, trans bool) device.Mat {
			if trans {
				return device.Matrix(g.noise(t, rows*cols), cols, rows).T()
			}
			return device.Matrix(g.noise(t, rows*cols), rows, cols)
		}
		c, x, y := mat(p.out, p.m, p.n, false), mat(device.BF16, p.m, p.k, p.ta), mat(device.BF16, p.k, p.n, p.tb)
		err := g.line("product "+p.name, 2*float64(p.m)*float64(p.n)*float64(p.k), "FLOP/s", "bf16 product", func() { g.q.MatMul(c, x, y, device.Buffer{}, false) })
		if err != nil {
			return err
		}
	}
	return nil
}

// fused measures products with operations that cuBLASLt may fuse, each followed by the same with
// separate kernels.
func (g *gpuBench) fused() error {
	wide := 4 * g.width
	flops := 2 * float64(g.rows) * float64(g.width) * float64(wide)
	x, weight, back, bias := g.mat(g.rows, g.width), g.mat(g.width, wide), g.mat(wide, g.width), g.noise(device.BF16, wide)
	pre, act := g.mat(g.rows, wide), g.mat(g.rows, wide)
	dw, db := device.Matrix(g.vec(g.width*wide), g.width, wide), g.vec(wide)
	keep := g.taken
	g.taken = nil
	defer func() { g.taken = keep; g.release() }()
	for _, l := range []struct {
		name         string
		fused, apart func()
	}{
		{"bias and GELU", func() { g.q.MatMulActivate(act, pre, x, weight, bias, device.GeluTanh) },
			func() { device.MatMulActivate(g.q, act, pre, x, weight, bias, device.GeluTanh) }},
		{"the slope of GELU", func() { g.q.MatMulActivateGrad(act, x, back.T(), pre, device.GeluTanh) },
			func() { device.MatMulActivateGrad(g.q, act, x, back.T(), pre, device.GeluTanh) }},
		{"a bias's gradient", func() { g.q.FusedWeightGrad(dw.T(), db, act, x) },
			func() { device.WeightGrad(g.q, dw.T(), db, act, x) }},
	} {
		if err := g.line("product with "+l.name, flops, "FLOP/s", "bf16 product", l.fused); err != nil {
			return err
		}
		if err := g.line("product, then "+l.name, flops, "FLOP/s", "bf16 product", l.apart); err != nil {
			return err
		}
	}
	return nil
}
