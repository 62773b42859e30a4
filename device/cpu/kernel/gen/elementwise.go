package main

import (
	"math"
	"math/bits"
	"slices"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/gotypes"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var elems = []elem{f32, bf16s, f16s}

// The tanh approximation of GELU; see elementwise.go of package kernel.
const (
	geluU    = 0.7978845608028654
	geluX    = 0.044715
	geluFlat = 9.5
	siluFlat = 80 // see swiglu.go of package kernel
)

// elementwise generates functions on n elements, a positive multiple of 16.
func elementwise(c *build.Context) {
	t := declare(c, "eachConstants", slices.Concat(expConstants, roundConstants, logisticConstants, halfConstants, []constant{
		float("geluZ", -2*geluU*math.Log2E), float("geluZx", -2*geluU*geluX*math.Log2E), float("2u", 2*geluU), float("6ux", 6*geluU*geluX),
		float("flat", geluFlat), float("-flat", -geluFlat), float("silu", siluFlat), float("-silu", -siluFlat),
		float("siluZ", -math.Log2E), float("siluLow", float64(float32(math.Log2E))-math.Log2E), float("-inf", negInf)})...)
	for _, w := range widths {
		for _, e := range computed(w) {
			halves := e == bf16s
			each(c, w, t, "gelu"+e.name, e, e, e, 1, false, halves, gelu)
			each(c, w, t, "geluGrad"+e.name, e, e, e, 2, false, halves, geluGrad)
			each(c, w, t, "add"+e.name, e, e, e, 2, false, halves, plus)
			if e != f32 {
				each(c, w, t, "addF32"+e.name, f32, f32, e, 2, false, false, plus)
			}
			each(c, w, t, "swiglu"+e.name, e, e, e, 2, false, halves, swiglu)
			swigluGrad(c, w, t, e)
		}
		for _, e := range rowwise(w) {
			each(c, w, t, "scale"+e.name, e, e, e, 1, false, false, times) // s may be any NaN
			each(c, w, t, "addStream"+e.name, e, e, e, 2, true, e == bf16s, plus)
			largest(c, w, t, e)
			expSum(c, w, t, e)
			softmax(c, w, t, e)
		}
		rope(c, w, t, f32)
		rope(c, w, t, bf16s)
	}
	rope(c, widths[1], t, f16s) // for both widths
	squares := declare64(c, squareConstants, map[string]uint64{"64": 64, "mantissa": 1<<52 - 1, "one": 1 << 52, "low": 1<<32 - 1})
	for _, w := range widths {
		sumSquares(c, w, squares)
	}
}

// The types with functions of their own. Others are converted to float32 and back, which gives the
// same bits.

// computed returns the types of expensive functions. On AVX2, bf16 is included since products of
// bf16 are shorter than float32's there.
func computed(w width) []elem {
	if w == widths[0] {
		return elems
	}
	return []elem{f32, bf16s}
}

// rowwise returns the types of the other functions.
func rowwise(w width) []elem {
	if w == widths[0] {
		return elems
	}
	return []elem{f32}
}

// body computes the elements of the destination, to be rounded to ey, from those of the sources and
// the number s.
type body func(c *build.Context, w width, t *constants, ey elem, x []reg.VecVirtual, s reg.VecVirtual) reg.VecVirtual

func each(c *build.Context, w width, t *constants, name string, ey, ea, eb elem, sources int, stream, halves bool, f body) {
	name += w.suffix
	text(c, name, "func(y, a, b *byte, n int, s float32)", name+" implements EachFunc.")
	y, a, b, n := load64(c, "y"), load64(c, "a"), load64(c, "b"), load64(c, "n")
	s := broadcastParam(c, w, "s")
	at := c.GP64()
	walk(c, w, t, at, n, stream, halves, func(get getVec, put putVec) {
		x := []reg.VecVirtual{get(ea, a)}
		if sources == 2 {
			x = append(x, get(eb, b))
		}
		put(f(c, w, t, ey, x, s), ey, y)
	})
	if stream {
		c.SFENCE()
	}
	c.VZEROUPPER()
	c.RET()
}

// getVec loads a vector of an array's elements for a step of a walk, putVec stores it; all loads
// come before all stores.
type (
	getVec func(e elem, from reg.GPVirtual) reg.VecVirtual
	putVec func(v reg.VecVirtual, e elem, to reg.GPVirtual)
)

// walk runs step on n elements, a positive multiple of 16: on AVX-512 on four interleaved vectors,
// which are the halves of words if all arrays are bf16.
func walk(c *build.Context, w width, t *constants, at, n reg.GPVirtual, stream, halves bool, step func(get getVec, put putVec)) {
	one := func(i int) {
		step(func(e elem, from reg.GPVirtual) reg.VecVirtual { return e.widen(c, w, e.mem(from, at, i)) },
			func(v reg.VecVirtual, e elem, to reg.GPVirtual) { e.narrow(c, w, t, v, e.mem(to, at, i), stream) })
	}
	if halves {
		byVectors(c, w, at, n, 2, 2*w.lanes, func(i int) { byHalves(c, w, t, at, i, stream, step) }, one)
	} else {
		byVectors(c, w, at, n, 4, w.lanes, one, one)
	}
}

// halfConstants contains the constants of byHalves.
var halfConstants = []constant{{"high", 0xffff0000}, {"last", 0x10000}}

// byHalves runs step on the 32 elements of bf16 from at+i on: those in the upper halves of words
// separately from the lower ones, so that they need not move between lanes. Rounding adds half a
// unit, less one if the last kept bit is even. NaN needs no check: its lower half, widened from
// bf16, is zero, so nothing is carried.
func byHalves(c *build.Context, w width, t *constants, at reg.GPVirtual, i int, stream bool, step func(get getVec, put putVec)) {
	var rounded [2][]reg.VecVirtual
	var dst []operand.Mem
	inTurns(c, 2, func(upper int) {
		step(func(e elem, from reg.GPVirtual) reg.VecVirtual {
			if upper == 0 {
				v := w.vec(c)
				c.VPSLLD(operand.U8(16), e.mem(from, at, i), v)
				return v
			}
			v := t.get(c, w, "high")
			c.VPANDD(e.mem(from, at, i), v, v)
			return v
		}, func(v reg.VecVirtual, e elem, to reg.GPVirtual) {
			r, odd := w.vec(c), c.K()
			c.VPTESTMD(t.mem("last"), v, odd)
			c.VPADDD(t.mem("half"), v, r)
			c.VPADDD(t.mem("bit"), r, odd, r)
			if upper == 0 {
				c.VPSRLD(operand.U8(16), r, r)
				dst = append(dst, e.mem(to, at, i))
			}
			rounded[upper] = append(rounded[upper], r)
		})
	})
	const aOrBAndC = 0xf8
	for i, lower := range rounded[0] {
		c.VPTERNLOGD(operand.U8(aOrBAndC), t.mem("high"), rounded[1][i], lower)
		storeVec(c, lower, dst[i], 64, stream)
	}
}

// mem returns element at+i of the array at base.
func (e elem) mem(base, at reg.GPVirtual, i int) operand.Mem {
	return operand.Mem{Base: base, Index: at, Scale: uint8(e.size), Disp: i * e.size}
}

// next16 advances to the next 16 of n elements, at "loop".
func next16(c *build.Context, at, n reg.GPVirtual) {
	c.ADDQ(operand.U8(16), at)
	c.CMPQ(at, n)
	c.JLT(operand.LabelRef("loop"))
}

// broadcastParam and returnFloat use only instructions of AVX. avo's Load and Store use SSE for
// floats, which waits some hundred cycles for the upper halves of registers once they are in use.
func broadcastParam(c *build.Context, w width, name string) reg.VecVirtual {
	return broadcast(c, w, address(param(c, name)))
}

func returnFloat(c *build.Context, v reg.VecVirtual) { c.VMOVSS(v.AsX(), address(c.ReturnIndex(0))) }

func address(of gotypes.Component) operand.Mem {
	b, err := of.Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

func times(c *build.Context, _ width, _ *constants, _ elem, x []reg.VecVirtual, s reg.VecVirtual) reg.VecVirtual {
	c.VMULPS(x[0], s, x[0])
	return x[0]
}

func plus(c *build.Context, _ width, _ *constants, _ elem, x []reg.VecVirtual, _ reg.VecVirtual) reg.VecVirtual {
	c.VADDPS(x[1], x[0], x[0])
	return x[0]
}

// geluPower returns the power of two in gelu, for logistic, given x and its square. e^(-2u) is 2^z,
// and z is rounded as often as u would be.
func geluPower(c *build.Context, w width, t *constants, x, square reg.VecVirtual) (n, f reg.VecVirtual) {
	z := t.get(c, w, "geluZx")
	c.VFMADD213PS(t.mem("geluZ"), square, z)
	c.VMULPS(x, z, z)
	return split(c, w, z)
}

func gelu(c *build.Context, w width, t *constants, e elem, in []reg.VecVirtual, _ reg.VecVirtual) reg.VecVirtual {
	x, at, square := in[0], w.vec(c), w.vec(c)
	c.VMAXPS(x, t.get(c, w, "-flat"), x) // x second: NaN stays
	c.VMINPS(x, t.get(c, w, "flat"), at)
	c.VMULPS(at, at, square)
	n, f := geluPower(c, w, t, at, square)
	s, _ := logistic(c, w, t, n, f, e)
	c.VMULPS(s, x, x)
	return x
}

func geluGrad(c *build.Context, w width, t *constants, e elem, in []reg.VecVirtual, _ reg.VecVirtual) reg.VecVirtual {
	x, dy, square, slope := in[0], in[1], w.vec(c), t.get(c, w, "6ux")
	c.VMINPS(x, t.get(c, w, "flat"), x) // x second: NaN stays
	c.VMAXPS(x, t.get(c, w, "-flat"), x)
	c.VMULPS(x, x, square)
	n, f := geluPower(c, w, t, x, square)
	c.VFMADD213PS(t.mem("2u"), square, slope)
	c.VMULPS(x, slope, slope) // x 2u'
	s, power := logistic(c, w, t, n, f, e)
	c.VMULPS(s, power, power)
	c.VMULPS(power, slope, slope)
	c.VFMADD231PS(slope, s, s) // s + s x 2u' (1-s)
	c.VMULPS(dy, s, s)
	return s
}

// siluPower returns the power of two in silu, e^-x = 2^z, for logistic, given an x within its
// limits. For types wider than bf16, f has only its own rounding error, since that of a product
// would grow with x.
func siluPower(c *build.Context, w width, t *constants, x reg.VecVirtual, e elem) (n, f reg.VecVirtual) {
	z := w.vec(c)
	c.VMULPS(t.mem("siluZ"), x, z)
	n, f = split(c, w, z)
	if e != bf16s {
		f = t.get(c, w, "siluZ")
		c.VFMSUB213PS(n, x, f)
		c.VFMADD231PS(t.mem("siluLow"), x, f)
	}
	return n, f
}

func swiglu(c *build.Context, w width, t *constants, e elem, x []reg.VecVirtual, _ reg.VecVirtual) reg.VecVirtual {
	gate, up, at := x[0], x[1], w.vec(c)
	c.VMAXPS(gate, t.get(c, w, "-silu"), gate) // gate second: NaN stays
	c.VMINPS(gate, t.get(c, w, "silu"), at)
	n, f := siluPower(c, w, t, at, e)
	s, _ := logistic(c, w, t, n, f, e)
	c.VMULPS(s, gate, gate)
	c.VMULPS(up, gate, gate)
	return gate
}

func swigluGrad(c *build.Context, w width, t *constants, e elem) {
	name := "swigluGrad" + e.name + w.suffix
	text(c, name, "func(dgate, dup, dy, gate, up *byte, n int)", name+" implements swigluGradFunc.")
	dgate, dup, dy, gate, up := load64(c, "dgate"), load64(c, "dup"), load64(c, "dy"), load64(c, "gate"), load64(c, "up")
	n, i := load64(c, "n"), c.GP64()
	walk(c, w, t, i, n, false, e == bf16s, func(get getVec, put putVec) {
		x, d, u, at := get(e, gate), get(e, dy), get(e, up), w.vec(c)
		c.VMAXPS(x, t.get(c, w, "-silu"), x) // x second: NaN stays
		c.VMINPS(x, t.get(c, w, "silu"), at)
		n, f := siluPower(c, w, t, at, e)
		s, power := logistic(c, w, t, n, f, e)
		c.VMULPS(s, x, x) // silu
		c.VMULPS(d, x, x)
		put(x, e, dup)
		c.VMULPS(s, power, power)
		c.VMULPS(power, at, at)
		c.VFMADD231PS(at, s, s) // its slope: s + s x (1-s)
		c.VMULPS(u, d, d)
		c.VMULPS(d, s, s)
		put(s, e, dgate)
	})
	c.VZEROUPPER()
	c.RET()
}

func largest(c *build.Context, w width, t *constants, e elem) {
	name := "largest" + e.name + w.suffix
	text(c, name, "func(x *byte, n int) float32", name+" returns the maximum of n elements, a multiple of 16.")
	x, n, at := load64(c, "x"), load64(c, "n"), c.GP64()
	tops := []reg.VecVirtual{t.get(c, w, "-inf"), t.get(c, w, "-inf")}[:16/w.lanes]
	c.XORQ(at, at)
	c.Label("loop")
	for i, top := range tops {
		v := e.widen(c, w, e.mem(x, at, i*w.lanes))
		c.VMAXPS(top, v, top) // NaN: the first operand as written, which never is one
	}
	next16(c, at, n)
	if len(tops) == 2 {
		c.VMAXPS(tops[1], tops[0], tops[0])
	}
	across(c, w, tops[0], c.VMAXPS)
	returnFloat(c, tops[0])
	c.VZEROUPPER()
	c.RET()
}

func expSum(c *build.Context, w width, t *constants, e elem) {
	name := "expSum" + e.name + w.suffix
	text(c, name, "func(x *byte, n int, top float32) float32", name+" returns the sum of exp(x-top) over n elements, a multiple of 16.")
	x, n, at, top := load64(c, "x"), load64(c, "n"), c.GP64(), broadcastParam(c, w, "top")
	sums := []reg.VecVirtual{zeroed(c, w), zeroed(c, w)}[:16/w.lanes]
	step := func(i int) {
		c.PREFETCHT0(e.mem(x, at, i).Offset(4096 * e.size)) // the data needed next; see LogitsChunk
		sum := sums[i/w.lanes%len(sums)]                    // each width in a fixed order
		v := e.widen(c, w, e.mem(x, at, i))
		c.VSUBPS(top, v, v)
		exp(c, w, t, v, false)
		c.VADDPS(v, sum, sum)
	}
	byVectors(c, w, at, n, 2, w.lanes, step, step)
	if len(sums) == 2 {
		c.VADDPS(sums[1], sums[0], sums[0])
	}
	across(c, w, sums[0], c.VADDPS)
	returnFloat(c, sums[0])
	c.VZEROUPPER()
	c.RET()
}

func softmax(c *build.Context, w width, t *constants, e elem) {
	name := "softmax" + e.name + w.suffix
	text(c, name, "func(x *byte, n int, top, r float32)", name+" sets n elements, a multiple of 16, to r*exp(x-top).")
	x, n, at := load64(c, "x"), load64(c, "n"), c.GP64()
	top, r := broadcastParam(c, w, "top"), broadcastParam(c, w, "r")
	step := func(i int) {
		v := e.widen(c, w, e.mem(x, at, i))
		c.VSUBPS(top, v, v)
		exp(c, w, t, v, false)
		c.VMULPS(v, r, v)
		e.narrow(c, w, t, v, e.mem(x, at, i), false)
	}
	byVectors(c, w, at, n, 2, w.lanes, step, step)
	c.VZEROUPPER()
	c.RET()
}

// rope multiplies and adds with two roundings, like rope.go.
func rope(c *build.Context, w width, t *constants, e elem) {
	name := "rope" + e.name + w.suffix
	text(c, name, "func(x, cos, sin *byte, half, heads int, sign float32)", name+" implements ropeFunc.")
	x, cos, sin, half, heads := load64(c, "x"), load64(c, "cos"), load64(c, "sin"), load64(c, "half"), load64(c, "heads")
	sign, at, y := broadcastParam(c, w, "sign"), c.GP64(), c.GP64()
	c.Label("head")
	c.LEAQ(operand.Mem{Base: x, Index: half, Scale: uint8(e.size)}, y)
	c.XORQ(at, at)
	c.Label("loop")
	for i := 0; i < 16; i += w.lanes {
		a, b, s := e.widen(c, w, e.mem(x, at, i)), e.widen(c, w, e.mem(y, at, i)), w.vec(c)
		c.VMULPS(f32.mem(sin, at, i), sign, s)
		as, k := w.vec(c), f32.widen(c, w, f32.mem(cos, at, i))
		c.VMULPS(s, a, as)
		c.VMULPS(s, b, s)
		c.VMULPS(k, a, a)
		c.VMULPS(k, b, b)
		c.VSUBPS(s, a, a)
		c.VADDPS(as, b, b)
		e.narrow(c, w, t, a, e.mem(x, at, i), false)
		e.narrow(c, w, t, b, e.mem(y, at, i), false)
	}
	next16(c, at, half)
	c.LEAQ(operand.Mem{Base: y, Index: half, Scale: uint8(e.size)}, x)
	c.DECQ(heads)
	c.JNZ(operand.LabelRef("head"))
	c.VZEROUPPER()
	c.RET()
}

// sumSquares uses eight lanes of float64 per block, one register on AVX-512 and two on AVX2, that
// are added like sumSquares of sum.go, for a group of blocks at once, so that the fold costs little
// more than for one. Products of float32 are exact in float64, so a multiply-add rounds as often.
// The blocks of a group are far apart: a core reads several pages in parallel 1.5 times as fast as
// one after the other.
//
// A sum is m * 2^e with an integer m < 2^53. If its last bit is in the window, it is added as three
// numbers: the two halves of the lower 64 bits of m * 2^(e - window's begin), and the bits above.
// Otherwise, and if it is 0, the caller adds it.
func sumSquares(c *build.Context, w width, t *constants) {
	name := "sumSquares" + w.suffix
	text(c, name, "func(odd, x *byte, blocks int, window *byte, base int) int",
		name+" adds the sums of the squares of blocks of 64 floats to a window, or stores them in odd; see squareWindow.")
	odd, x, blocks := load64(c, "odd"), load64(c, "x"), load64(c, "blocks")
	group := w.lanes / 2
	acc := make([]reg.VecVirtual, 8) // of a group
	for i := range acc {
		acc[i] = w.vec(c)
	}
	v := w.vec(c)
	win := newSquareWindow(c, w, t)
	// Stream i of a group begins i*apart bytes after the first.
	apart, apart3, half, groups := c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.MOVQ(blocks, groups)
	c.SHRQ(operand.U8(bits.TrailingZeros(uint(group))), groups)
	c.JZ(operand.LabelRef("few"))
	c.MOVQ(groups, apart)
	c.SHLQ(operand.U8(8), apart)
	c.LEAQ(operand.Mem{Base: apart, Index: apart, Scale: 2}, apart3)
	c.LEAQ(operand.Mem{Base: x, Index: apart, Scale: 4}, half)
	c.Label("group")
	for b := range group {
		m := operand.Mem{Base: []reg.GPVirtual{x, half}[b/4]}
		switch b % 4 {
		case 1, 2:
			m.Index, m.Scale = apart, uint8(b%4)
		case 3:
			m.Index, m.Scale = apart3, 1
		}
		blockSquares(c, w, m, v, acc[b*8/group:(b+1)*8/group])
	}
	if w.lanes == 16 {
		foldSquares8(c, acc, v)
	} else {
		foldSquares4(c, acc, v)
	}
	win.add(c, w, acc[0], acc[1:], odd)
	c.ADDQ(operand.U32(256), x)
	c.ADDQ(operand.U32(256), half)
	c.DECQ(groups)
	c.JNZ(operand.LabelRef("group"))
	c.SUBQ(apart, x)
	c.LEAQ(operand.Mem{Base: x, Index: apart, Scale: uint8(group)}, x) // after the last stream
	c.Label("few")
	win.keep(c, w)
	c.ANDQ(operand.U8(group-1), blocks)
	c.JZ(operand.LabelRef("done"))
	c.Label("one")
	blockSquares(c, w, at(x, 0), v, acc[:8/group])
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
	c.VMOVSD(acc[0].AsX(), at(odd, 0))
	c.ADDQ(operand.U32(256), x)
	c.ADDQ(operand.U8(8), odd)
	c.DECQ(blocks)
	c.JNZ(operand.LabelRef("one"))
	c.Label("done")
	c.SUBQ(load64(c, "odd"), odd)
	c.SHRQ(operand.U8(3), odd)
	c.Store(odd, c.ReturnIndex(0))
	c.VZEROUPPER()
	c.RET()
}

// squareWindow contains the registers of a window: three sums, stored one after the other at the
// end, and the window's begin in every lane.
type squareWindow struct {
	sums [3]reg.VecVirtual
	base reg.VecVirtual
	t    *constants
}

func newSquareWindow(c *build.Context, w width, t *constants) *squareWindow {
	s := &squareWindow{base: w.vec(c), t: t}
	r := load64(c, "base")
	c.VMOVQ(r, s.base.AsX())
	c.VPBROADCASTQ(s.base.AsX(), s.base)
	for i := range s.sums {
		s.sums[i] = zeroed(c, w)
	}
	return s
}

// add adds the sums x; free are registers.
func (s *squareWindow) add(c *build.Context, w width, x reg.VecVirtual, free []reg.VecVirtual, odd reg.GPVirtual) {
	at, m, high := free[0], free[1], free[2]
	next := c.GP64()
	c.LEAQ(operand.Mem{Base: odd, Disp: w.bytes()}, next)
	c.VPSRLQ(operand.U8(52), x, at)
	c.VPSUBQ(s.base, at, at) // of the last bit, in the window
	if w.lanes == 16 {
		const notLess = 5
		out, bits := c.K(), c.GP32()
		c.VPCMPUQ(operand.U8(notLess), s.t.mem("64"), at, out)
		c.VMOVDQU64_Z(x, out, m)
		c.VMOVDQU64(m, operand.Mem{Base: odd})
		c.KMOVB(out, bits)
		c.TESTL(bits, bits)
		c.CMOVQNE(next, odd)
		c.VPANDQ(s.t.mem("mantissa"), x, m)
		c.VPORQ(s.t.mem("one"), m, m)
		c.KNOTB(out, out)
		c.VMOVDQU64_Z(m, out, m)
	} else {
		in, bits := free[3], c.GP32()
		c.VPSRLQ(operand.U8(6), at, in)
		c.VPXOR(m, m, m)
		c.VPCMPEQQ(m, in, in)
		c.VPANDN(x, in, m)
		c.VMOVDQU(m, operand.Mem{Base: odd})
		c.VMOVMSKPD(in, bits)
		c.CMPL(bits, operand.U8(0xf))
		c.CMOVQNE(next, odd)
		c.VPAND(s.t.mem("mantissa"), x, m)
		c.VPOR(s.t.mem("one"), m, m)
		c.VPAND(in, m, m)
	}
	c.VMOVUPS(s.t.mem("64"), high)
	c.VPSUBQ(at, high, high)
	c.VPSRLVQ(high, m, high)
	c.VPADDQ(high, s.sums[2], s.sums[2])
	c.VPSLLVQ(at, m, m)
	c.VPSRLQ(operand.U8(32), m, high)
	c.VPADDQ(high, s.sums[1], s.sums[1])
	if w.lanes == 16 {
		c.VPANDQ(s.t.mem("low"), m, m)
	} else {
		c.VPAND(s.t.mem("low"), m, m)
	}
	c.VPADDQ(m, s.sums[0], s.sums[0])
}

// keep stores the window, eight lanes per sum.
func (s *squareWindow) keep(c *build.Context, w width) {
	window := load64(c, "window")
	for i, v := range s.sums {
		f32.narrow(c, w, nil, v, at(window, 64*i), false)
	}
}

// blockSquares sets the eight lanes of acc to the sums of squares of the block at x.
func blockSquares(c *build.Context, w width, x operand.Mem, v reg.VecVirtual, acc []reg.VecVirtual) {
	half := w.lanes / 2
	for i := 0; i < 64; i += half {
		a := acc[i/half%len(acc)]
		if i%16 == 0 {
			c.PREFETCHT0(x.Offset(4*i + 256)) // the next of its stream
		}
		c.VCVTPS2PD(x.Offset(4*i), v)
		if i < 8 {
			c.VMULPD(v, v, a)
		} else {
			c.VFMADD231PD(v, v, a)
		}
	}
}

// foldSquares8 adds lanes i and i+4, then i and i+2, then i and i+1, of each of eight registers,
// with the eight sums in the first.
func foldSquares8(c *build.Context, a []reg.VecVirtual, v reg.VecVirtual) {
	for i := 0; i < 8; i += 2 { // quarters of 128 bits: 0 and 1 of both against 2 and 3
		c.VSHUFF64X2(operand.U8(0x44), a[i+1], a[i], v)
		c.VSHUFF64X2(operand.U8(0xee), a[i+1], a[i], a[i])
		c.VADDPD(v, a[i], a[i])
	}
	for i := 0; i < 8; i += 4 { // 0 and 2 against 1 and 3
		c.VSHUFF64X2(operand.U8(0x88), a[i+2], a[i], v)
		c.VSHUFF64X2(operand.U8(0xdd), a[i+2], a[i], a[i])
		c.VADDPD(v, a[i], a[i])
	}
	c.VUNPCKLPD(a[4], a[0], v)
	c.VUNPCKHPD(a[4], a[0], a[0])
	c.VADDPD(v, a[0], a[0])
}

// foldSquares4 does so for four blocks in two registers each.
func foldSquares4(c *build.Context, a []reg.VecVirtual, v reg.VecVirtual) {
	for i := 0; i < 8; i += 2 {
		c.VADDPD(a[i+1], a[i], a[i])
	}
	for i := 0; i < 8; i += 4 {
		c.VPERM2F128(operand.U8(0x20), a[i+2], a[i], v)
		c.VPERM2F128(operand.U8(0x31), a[i+2], a[i], a[i])
		c.VADDPD(v, a[i], a[i])
	}
	c.VUNPCKLPD(a[4], a[0], v)
	c.VUNPCKHPD(a[4], a[0], a[0])
	c.VADDPD(v, a[0], a[0])
}
