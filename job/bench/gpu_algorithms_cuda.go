//go:build cuda

package bench

import (
	"fmt"
	"unsafe"

	"zeroth/device"
	"zeroth/device/cuda/driver"
	"zeroth/internal/setup"
)

// candidates is the number of cuBLASLt algorithms to time per product, in its own order of
// preference.
const candidates = 8

// algorithms times the candidates for every product in Options.Products. It records the fastest if
// that is faster than the choice without a table.
func (g *gpuBench) algorithms() error {
	if g.Products == nil {
		return nil
	}
	lib, err := driver.OpenBLAS()
	if err != nil {
		return err
	}
	g.report.algorithms = &setup.Algorithms{GPU: g.dev.Info().Name, CUBLAS: lib.Version}
	for i, p := range g.Products.Products {
		if g.ctx.Err() != nil {
			return nil
		}
		g.progress(fmt.Sprintf("gpu product %d of %d", i+1, len(g.Products.Products)))
		if err := g.fastest(p.Gemm); err != nil {
			return err
		}
	}
	return nil
}

// fastest measures the candidates for one product.
func (g *gpuBench) fastest(s driver.Gemm) error {
	defer g.release()
	o := g.operands(&s)
	if g.err != nil {
		return g.err
	}
	all, err := g.q.Candidates(&s, candidates)
	if err != nil || len(all) == 0 {
		return err
	}
	best := setup.Product{Gemm: s, By: driver.ByTable}
	if s.Plain() {
		if best.Usual, err = g.once(func() { g.q.Multiply(&s, o, false) }); err != nil {
			return err
		}
	}
	for i := range all {
		if err := g.q.Use(&s, all[i]); err != nil {
			return err
		}
		took, err := g.once(func() { g.q.Multiply(&s, o, true) })
		if err != nil {
			return err
		}
		if i == 0 && !s.Plain() {
			best.Usual = took
		}
		if best.Seconds == 0 || took < best.Seconds {
			best.Seconds, best.Algorithm, best.Config = took, all[i], all[i].String()
		}
	}
	if best.Seconds < best.Usual || !s.Plain() {
		g.report.algorithms.Products = append(g.report.algorithms.Products, best)
	}
	g.row(gpuGroup, fmt.Sprint(s), 2*float64(s.M)*float64(s.N)*float64(s.K), "FLOP/s", "bf16 product", sample{seconds: best.Seconds, n: len(all)})
	return nil
}

func (g *gpuBench) once(issue func()) (seconds float64, err error) {
	took, _, err := g.timed(g.Seconds, issue)
	return took.Seconds(), err
}

// operands returns memory for a product, with noise in its inputs.
func (g *gpuBench) operands(s *driver.Gemm) (o driver.Operands) {
	in, out := typeOf(s.Type), typeOf(s.TypeD)
	at := func(t device.DType, rows, cols, ld int32) unsafe.Pointer { // column-major
		return g.noise(t, int(cols-1)*int(ld)+int(rows)).Ptr
	}
	o.A, o.B = at(in, s.M, s.K, s.LdA), at(in, s.K, s.N, s.LdB)
	if s.TransA {
		o.A = at(in, s.K, s.M, s.LdA)
	}
	if s.TransB {
		o.B = at(in, s.N, s.K, s.LdB)
	}
	o.D = at(out, s.M, s.N, s.LdD)
	o.C = o.D
	if s.LdC != s.LdD {
		o.C = at(out, s.M, s.N, s.LdC)
	}
	o.Vector = at(out, max(s.M, s.N), 1, max(s.M, s.N))
	if s.LdAux > 0 {
		o.Aux = at(out, s.M, s.N, s.LdAux)
	}
	return o
}

// typeOf returns the device's type for a cuBLAS type.
func typeOf(t int32) device.DType {
	return map[int32]device.DType{driver.Float32: device.F32, driver.Float16: device.F16, driver.BFloat16: device.BF16}[t]
}
