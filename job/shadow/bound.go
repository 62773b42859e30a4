package shadow

import (
	"bytes"
	"fmt"
	"math"

	"zeroth/device"
)

// bound limits the difference of an element from the CPU's: a multiple of the root mean square of
// its matrix, or of its row if that is larger, plus the rounding of the result. times is indexed
// by the result type, fp32, bf16 or fp16; all zero requires equal bits.
type bound struct {
	times   [3]float64
	anyhow  bool // work space, not compared
	carried bool // a device.Exact with pending carries
}

// near returns the same bound for all types.
func near(x float64) bound { return bound{times: [3]float64{x, x, x}} }

// The bounds of products are the absolute ones in TestProducts and TestFused, whose results are
// about 1. There GELU may use tanh.approx.f32, with an error of 2^-11.
var (
	product    = bound{times: [3]float64{1e-4, 4e-2, 4e-3}}
	activation = bound{times: [3]float64{1e-3, 4e-2, 4e-3}}
)

// bounds lists the bounds of the kernel tests in device/cuda/kernel, by operation and result.
// Other results must be bit-identical to the CPU's.
var bounds = map[string]bound{
	"matmul: c":                       product,
	"matmul onto: y":                  product,
	"matmul, activation: x":           product,
	"matmul, activation: y":           activation,
	"matmul, activation gradient: dx": activation,
	"weight gradient: dw":             product,
	"weight gradient: db":             product,
	"sum of rows: db":                 near(1e-5),

	"layer norm: y":                        near(1e-5),
	"layer norm: mean":                     near(1e-6),
	"layer norm: rstd":                     near(1e-5),
	"layer norm gradient: dx":              near(1e-4),
	"layer norm gradient: dw":              near(1e-5),
	"layer norm gradient: db":              near(1e-5),
	"rms norm: y":                          near(1e-5),
	"rms norm: rstd":                       near(1e-5),
	"rms norm gradient: dx":                near(1e-4),
	"rms norm gradient: dw":                near(1e-5),
	"rope: x":                              near(1e-7),
	"activation: y":                        near(1e-6),
	"activation gradient: dx":              near(1e-6),
	"gate: y":                              near(1e-6),
	"gate gradient: dgate":                 near(1e-6),
	"gate gradient: dup":                   near(1e-6),
	"route: weights":                       near(1e-6),
	"route gradient: dlogits":              near(1e-6),
	"matmul of groups: c":                  product,
	"weight gradient of groups: dw":        product,
	"gate of rows: y":                      near(1e-6),
	"gradient of a gate of rows: dgate":    near(1e-6),
	"gradient of a gate of rows: dup":      near(1e-6),
	"gradient of a gate of rows: dweights": near(1e-5),
	"attention: o":                         {times: [3]float64{1e-5, 0x1p-7, 0x1p-10}},
	"attention: lse":                       near(2e-6),
	"attention gradient: dq":               {times: [3]float64{3e-5, 4e-2, 6e-3}},
	"attention gradient: dk":               {times: [3]float64{3e-5, 4e-2, 6e-3}},
	"attention gradient: dv":               {times: [3]float64{3e-5, 4e-2, 6e-3}},
	"attention gradient: delta":            {anyhow: true},
	"cross-entropy: loss":                  near(1e-6),
	"cross-entropy: logits":                near(1e-6),
	"cross-entropy part: stats":            near(1e-6),
	"cross-entropy merge: loss":            near(1e-6),
	"cross-entropy merge: logits":          near(1e-6),
	"sum: acc":                             {carried: true},
	"sum of squares: acc":                  {carried: true},
	"normalize: acc":                       {carried: true},
}

// boundOf returns the bound for a result of an operation.
func boundOf(name string, r result) bound {
	b := bounds[name+": "+r.what]
	b.times[device.F32] = b.times[r.dtype]
	if r.wider > 0 {
		for i := range b.times {
			b.times[i] *= r.wider
		}
	}
	return b
}

// rounding is the relative unit in the last place of a type. The two sides may round in opposite
// directions.
var rounding = [3]float64{device.F32: 2e-6, device.BF16: 0x1p-7, device.F16: 0x1p-10}

// compare returns an error that names the first element beyond the bound.
func (b bound) compare(what string, got, want device.Mat) error {
	t := want.Buf.Type
	switch {
	case b.anyhow:
		return nil
	case b.carried:
		carry(got.Buf)
		carry(want.Buf)
	case b.times != [3]float64{} && t <= device.F16:
		return b.within(what, got, want)
	}
	return sameBits(what, got, want)
}

func carry(b device.Buffer) {
	for i := range b.N / device.ExactLen {
		device.ExactAt(b, i).Carry()
	}
}

// within compares numbers within the bound.
func (b bound) within(what string, got, want device.Mat) error {
	t := want.Buf.Type
	all := rms(want, 0, want.Rows)
	for i := range want.Rows {
		floor := b.times[t]*max(all, rms(want, i, i+1)) + 1e-30
		if t == device.F16 {
			floor += 0x1p-25
		}
		for j := range want.Cols {
			g, w := at(got, i, j), at(want, i, j)
			most := floor + rounding[t]*math.Abs(w)
			if g != w && !(math.Abs(g-w) <= most) && !(math.IsNaN(g) && math.IsNaN(w)) {
				return differs(what, want, i, j, fmt.Sprintf("%.9g on the GPU and %.9g by the CPU's kernels: error %.3g, bound %.3g", g, w, math.Abs(g-w), most))
			}
		}
	}
	return nil
}

func differs(what string, m device.Mat, i, j int, how string) error {
	return fmt.Errorf("%s (%d,%d) %v: element (%d,%d) is %s", what, m.Rows, m.Cols, m.Buf.Type, i, j, how)
}

// rms returns the root mean square of the finite elements of rows [lo, hi).
func rms(m device.Mat, lo, hi int) float64 {
	var square float64
	for i := lo; i < hi; i++ {
		for j := range m.Cols {
			if x := at(m, i, j); x-x == 0 {
				square += x * x
			}
		}
	}
	return math.Sqrt(square / float64(max(1, (hi-lo)*m.Cols)))
}

// at returns an element of a floating-point matrix.
func at(m device.Mat, i, j int) float64 { return number(m.Buf, i*m.Ld+j) }

func number(b device.Buffer, i int) float64 {
	switch b.Type {
	case device.F32:
		return float64(b.F32()[i])
	case device.BF16:
		return float64(device.WideBF16(b.U16()[i]))
	case device.F16:
		return float64(device.WideF16(b.U16()[i]))
	case device.F64:
		return b.F64()[i]
	}
	return float64(b.I64()[i])
}

// sameBits compares bits. NaNs are equal whatever their bits, which depend on the processor.
func sameBits(what string, got, want device.Mat) error {
	if want.Buf.Type.Coded() || want.Buf.Type == device.I32 || want.Buf.Type == device.I64 {
		g, w := got.Buf.Raw(), want.Buf.Raw()
		if bytes.Equal(g, w) {
			return nil
		}
		i := 0
		for g[i] == w[i] {
			i++
		}
		return fmt.Errorf("%s (%d) %v: byte %d of %d is %d on the GPU and %d by the CPU's kernels, which must agree in every bit", what, want.Buf.N, want.Buf.Type, i, len(w), g[i], w[i])
	}
	for i := range want.Rows {
		for j := range want.Cols {
			g, w := at(got, i, j), at(want, i, j)
			if math.Float64bits(g) != math.Float64bits(w) && !(math.IsNaN(g) && math.IsNaN(w)) {
				return differs(what, want, i, j, fmt.Sprintf("%.9g on the GPU and %.9g by the CPU's kernels: error %.3g, bound 0", g, w, math.Abs(g-w)))
			}
		}
	}
	return nil
}
