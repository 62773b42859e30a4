package main

import (
	"slices"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var elems = []elem{f32, bf16s, f16s}

// The tanh approximation of GELU; see elementwise.go of package cpu.
const (
	geluU    = 0.7978845608028654
	geluX    = 0.044715
	geluFlat = 9.5
	siluFlat = 80 // see swiglu.go of package cpu
)

// elementwise writes functions over n elements, a positive multiple of 16.
func elementwise(c *build.Context) {
	t := declare(c, "eachConstants", slices.Concat(expConstants, roundConstants, []constant{
		float("-2u", -2*geluU), float("-2ux", -2*geluU*geluX), float("2u", 2*geluU), float("6ux", 6*geluU*geluX),
		float("flat", geluFlat), float("-flat", -geluFlat), float("silu", siluFlat), float("-silu", -siluFlat), float("-inf", negInf)})...)
	for _, w := range widths {
		for _, e := range elems {
			each(c, w, t, "gelu"+e.name, e, e, e, 1, false, gelu)
			each(c, w, t, "geluGrad"+e.name, e, e, e, 2, false, geluGrad)
			each(c, w, t, "scale"+e.name, e, e, e, 1, false, times)
			each(c, w, t, "add"+e.name, e, e, e, 2, false, plus)
			each(c, w, t, "addStream"+e.name, e, e, e, 2, true, plus)
			if e != f32 {
				each(c, w, t, "addF32"+e.name, f32, f32, e, 2, false, plus)
			}
			each(c, w, t, "swiglu"+e.name, e, e, e, 2, false, swiglu)
			swigluGrad(c, w, t, e)
			largest(c, w, t, e)
			expSum(c, w, t, e)
			softmax(c, w, t, e)
		}
		sumSquares(c, w)
	}
}

// body turns the elements of the sources, and the number s, into those of the destination.
type body func(c *build.Context, w width, t *lanes16, x []reg.VecVirtual, s reg.VecVirtual) reg.VecVirtual

func each(c *build.Context, w width, t *lanes16, name string, ey, ea, eb elem, sources int, stream bool, f body) {
	name += w.suffix
	text(c, name, "func(y, a, b *byte, n int, s float32)", name+" is an eachFunc.")
	y, a, b, n := load64(c, "y"), load64(c, "a"), load64(c, "b"), load64(c, "n")
	s := broadcastParam(c, w, "s")
	at := c.GP64()
	c.XORQ(at, at)
	c.Label("loop")
	for i := 0; i < 16; i += w.lanes {
		x := []reg.VecVirtual{ea.widen(c, w, ea.mem(a, at, i))}
		if sources == 2 {
			x = append(x, eb.widen(c, w, eb.mem(b, at, i)))
		}
		ey.narrow(c, w, t, f(c, w, t, x, s), ey.mem(y, at, i), stream)
	}
	next16(c, at, n)
	if stream {
		c.SFENCE()
	}
	c.VZEROUPPER()
	c.RET()
}

// mem is element at+i of the array at base.
func (e elem) mem(base, at reg.GPVirtual, i int) operand.Mem {
	return operand.Mem{Base: base, Index: at, Scale: uint8(e.size), Disp: i * e.size}
}

// next16 goes on to the next 16 of n elements, at "loop".
func next16(c *build.Context, at, n reg.GPVirtual) {
	c.ADDQ(operand.U8(16), at)
	c.CMPQ(at, n)
	c.JLT(operand.LabelRef("loop"))
}

func broadcastParam(c *build.Context, w width, name string) reg.VecVirtual {
	v, x := w.vec(c), c.XMM()
	c.Load(c.Param(name), x)
	c.VBROADCASTSS(x, v)
	return v
}

func times(c *build.Context, _ width, _ *lanes16, x []reg.VecVirtual, s reg.VecVirtual) reg.VecVirtual {
	c.VMULPS(x[0], s, x[0])
	return x[0]
}

func plus(c *build.Context, _ width, _ *lanes16, x []reg.VecVirtual, _ reg.VecVirtual) reg.VecVirtual {
	c.VADDPS(x[1], x[0], x[0])
	return x[0]
}

// geluExp is e^(-2u), u = geluU (x + geluX x^3), of x and its square.
func geluExp(c *build.Context, w width, t *lanes16, x, square reg.VecVirtual) reg.VecVirtual {
	e := t.get(c, w, "-2ux")
	c.VFMADD213PS(t.mem("-2u"), square, e)
	c.VMULPS(x, e, e)
	exp(c, w, t, e, true)
	return e
}

func gelu(c *build.Context, w width, t *lanes16, x []reg.VecVirtual, _ reg.VecVirtual) reg.VecVirtual {
	square := w.vec(c)
	c.VMULPS(x[0], x[0], square)
	e := geluExp(c, w, t, x[0], square)
	c.VADDPS(t.mem("1"), e, e)
	c.VDIVPS(e, x[0], x[0])
	return x[0]
}

func geluGrad(c *build.Context, w width, t *lanes16, in []reg.VecVirtual, _ reg.VecVirtual) reg.VecVirtual {
	x, dy := in[0], in[1]
	c.VMINPS(x, t.get(c, w, "flat"), x) // x second: NaN stays
	c.VMAXPS(x, t.get(c, w, "-flat"), x)
	square, s, slope := w.vec(c), w.vec(c), t.get(c, w, "6ux")
	c.VMULPS(x, x, square)
	e := geluExp(c, w, t, x, square)
	c.VADDPS(t.mem("1"), e, s)
	c.VDIVPS(s, t.get(c, w, "1"), s)
	c.VFMADD213PS(t.mem("2u"), square, slope)
	c.VMULPS(s, e, e)
	c.VMULPS(x, e, e)
	c.VFMADD213PS(t.mem("1"), e, slope) // 1 + x e s 2u'
	c.VMULPS(s, slope, slope)
	c.VMULPS(dy, slope, slope)
	return slope
}

func swiglu(c *build.Context, w width, t *lanes16, x []reg.VecVirtual, _ reg.VecVirtual) reg.VecVirtual {
	gate, up := x[0], x[1]
	e := zeroed(c, w)
	c.VSUBPS(gate, e, e)
	exp(c, w, t, e, true)
	c.VADDPS(t.mem("1"), e, e)
	c.VDIVPS(e, gate, gate)
	c.VMULPS(up, gate, gate)
	return gate
}

func swigluGrad(c *build.Context, w width, t *lanes16, e elem) {
	name := "swigluGrad" + e.name + w.suffix
	text(c, name, "func(dgate, dup, dy, gate, up *byte, n int)", name+" is a swigluGradFunc.")
	dgate, dup, dy, gate, up := load64(c, "dgate"), load64(c, "dup"), load64(c, "dy"), load64(c, "gate"), load64(c, "up")
	n, i := load64(c, "n"), c.GP64()
	c.XORQ(i, i)
	c.Label("loop")
	for lane := 0; lane < 16; lane += w.lanes {
		x, d, u := e.widen(c, w, e.mem(gate, i, lane)), e.widen(c, w, e.mem(dy, i, lane)), e.widen(c, w, e.mem(up, i, lane))
		c.VMAXPS(x, t.get(c, w, "-silu"), x) // x second: NaN stays
		at, ex := w.vec(c), zeroed(c, w)
		c.VMINPS(x, t.get(c, w, "silu"), at)
		c.VSUBPS(at, ex, ex)
		exp(c, w, t, ex, false)
		s := w.vec(c)
		c.VADDPS(t.mem("1"), ex, s)
		c.VDIVPS(s, t.get(c, w, "1"), s)
		c.VMULPS(s, x, x) // silu
		c.VMULPS(d, x, x)
		e.narrow(c, w, t, x, e.mem(dup, i, lane), false)
		c.VMULPS(s, ex, ex)
		c.VFMADD213PS(t.mem("1"), at, ex)
		c.VMULPS(s, ex, ex) // its slope
		c.VMULPS(u, d, d)
		c.VMULPS(d, ex, ex)
		e.narrow(c, w, t, ex, e.mem(dgate, i, lane), false)
	}
	next16(c, i, n)
	c.VZEROUPPER()
	c.RET()
}

func largest(c *build.Context, w width, t *lanes16, e elem) {
	name := "largest" + e.name + w.suffix
	text(c, name, "func(x *byte, n int) float32", name+" is the maximum of n elements, a multiple of 16.")
	x, n, at := load64(c, "x"), load64(c, "n"), c.GP64()
	tops := []reg.VecVirtual{t.get(c, w, "-inf"), t.get(c, w, "-inf")}[:16/w.lanes]
	c.XORQ(at, at)
	c.Label("loop")
	for i, top := range tops {
		v := e.widen(c, w, e.mem(x, at, i*w.lanes))
		c.VMAXPS(top, v, top) // NaN: the first as written, which never is one
	}
	next16(c, at, n)
	if len(tops) == 2 {
		c.VMAXPS(tops[1], tops[0], tops[0])
	}
	across(c, w, tops[0], c.VMAXPS)
	c.Store(tops[0].AsX(), c.ReturnIndex(0))
	c.VZEROUPPER()
	c.RET()
}

func expSum(c *build.Context, w width, t *lanes16, e elem) {
	name := "expSum" + e.name + w.suffix
	text(c, name, "func(x *byte, n int, top float32) float32", name+" is the sum of exp(x-top) of n elements, a multiple of 16.")
	x, n, at, top := load64(c, "x"), load64(c, "n"), c.GP64(), broadcastParam(c, w, "top")
	sums := []reg.VecVirtual{zeroed(c, w), zeroed(c, w)}[:16/w.lanes]
	c.XORQ(at, at)
	c.Label("loop")
	for i, sum := range sums {
		v := e.widen(c, w, e.mem(x, at, i*w.lanes))
		c.VSUBPS(top, v, v)
		exp(c, w, t, v, false)
		c.VADDPS(v, sum, sum)
	}
	next16(c, at, n)
	if len(sums) == 2 {
		c.VADDPS(sums[1], sums[0], sums[0])
	}
	across(c, w, sums[0], c.VADDPS)
	c.Store(sums[0].AsX(), c.ReturnIndex(0))
	c.VZEROUPPER()
	c.RET()
}

func softmax(c *build.Context, w width, t *lanes16, e elem) {
	name := "softmax" + e.name + w.suffix
	text(c, name, "func(x *byte, n int, top, r float32)", name+" sets n elements, a multiple of 16, to r*exp(x-top).")
	x, n, at := load64(c, "x"), load64(c, "n"), c.GP64()
	top, r := broadcastParam(c, w, "top"), broadcastParam(c, w, "r")
	c.XORQ(at, at)
	c.Label("loop")
	for i := 0; i < 16; i += w.lanes {
		v := e.widen(c, w, e.mem(x, at, i))
		c.VSUBPS(top, v, v)
		exp(c, w, t, v, false)
		c.VMULPS(v, r, v)
		e.narrow(c, w, t, v, e.mem(x, at, i), false)
	}
	next16(c, at, n)
	c.VZEROUPPER()
	c.RET()
}

// sumSquares has eight lanes of float64, one register on AVX-512 and two on
// AVX2, that are added as sumSquares of sum.go adds them. Products of float32
// are exact in float64, so that a multiply-add rounds no less often.
func sumSquares(c *build.Context, w width) {
	name := "sumSquares" + w.suffix
	text(c, name, "func(sums, x *byte, blocks int)", name+" sets sums (float64) to those of the squares of blocks of 64 floats.")
	sums, x, blocks := load64(c, "sums"), load64(c, "x"), load64(c, "blocks")
	half := w.lanes / 2
	acc := []reg.VecVirtual{w.vec(c), w.vec(c)}[:16/w.lanes]
	v := w.vec(c)
	c.Label("loop")
	for i := 0; i < 64; i += half {
		a := acc[i/half%len(acc)]
		c.VCVTPS2PD(at(x, 4*i), v)
		if i < 8 {
			c.VMULPD(v, v, a)
		} else {
			c.VFMADD231PD(v, v, a)
		}
	}
	if w.lanes == 16 {
		c.VEXTRACTF64X4(operand.U8(1), acc[0], v.AsY())
	} else {
		v = acc[1]
	}
	c.VADDPD(v.AsY(), acc[0].AsY(), acc[0].AsY())
	c.VEXTRACTF128(operand.U8(1), acc[0].AsY(), v.AsX())
	c.VADDPD(v.AsX(), acc[0].AsX(), acc[0].AsX())
	c.VPERMILPD(operand.U8(1), acc[0].AsX(), v.AsX())
	c.VADDSD(v.AsX(), acc[0].AsX(), acc[0].AsX())
	c.VMOVSD(acc[0].AsX(), at(sums, 0))
	c.ADDQ(operand.U32(256), x)
	c.ADDQ(operand.U8(8), sums)
	c.DECQ(blocks)
	c.JNZ(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}
