package main

import (
	"fmt"
	"slices"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var attnConstants = slices.Concat([]constant{float("-inf", negInf)}, expConstants, roundConstants)

// attention generates the functions for blocks of attention; see VecISA.
func attention(c *build.Context) {
	k := declare(c, "attnConstants", attnConstants...)
	declareWindow(c, "attnSeen", 0x7f800000, 0xff800000)
	declareWindow(c, "attnOnes", 0xffffffff, 0)
	for _, w := range widths {
		for vectors := 1; vectors <= 2; vectors++ {
			micro(c, w, vectors)
		}
		onlineSoftmax(c, w, k)
		softmaxGrad(c, w, k)
		scaleRow(c, w)
		for _, e := range []elem{f32, bf16s, f16s} {
			scaledRows(c, w, k, "load"+e.name+w.suffix, e, f32)
			scaledRows(c, w, k, "store"+e.name+w.suffix, f32, e)
		}
		dotRow(c, w)
	}
}

// declareWindow declares 16 lanes of one value followed by 16 of another.
func declareWindow(c *build.Context, name string, seen, unseen uint32) {
	c.StaticGlobal(name)
	c.DataAttributes(attr.RODATA | attr.NOPTR)
	for i, bits := range [2]uint64{uint64(seen), uint64(unseen)} {
		for pair := range 8 {
			c.AddDatum(64*i+8*pair, operand.U64(bits<<32|bits))
		}
	}
}

// window returns a pointer such that a vector from it has the first value in n lanes, n < 16.
func window(c *build.Context, name string, n reg.GPVirtual) reg.GPVirtual {
	p, back := c.GP64(), c.GP64()
	c.LEAQ(operand.Mem{Symbol: operand.NewStaticSymbol(name), Base: reg.StaticBase, Disp: 64}, p)
	c.MOVQ(n, back)
	c.SHLQ(operand.U8(2), back)
	c.SUBQ(back, p)
	return p
}

// micro generates a tile of rows by vectors: eight rows on AVX-512, four on AVX2.
func micro(c *build.Context, w width, vectors int) {
	rows := w.lanes / 2
	name := fmt.Sprintf("micro%dx%s", vectors, w.suffix)
	text(c, name, "func(t *MicroTile)", fmt.Sprintf("%s implements microFunc for %d rows by %d columns.", name, rows, vectors*w.lanes))
	k, a, b, dst := load64(c, "t.k"), load64(c, "t.a"), load64(c, "t.b"), load64(c, "t.c")
	ai, ak := times4(c, load64(c, "t.ai")), times4(c, load64(c, "t.ak"))
	ldb, ldc := times4(c, load64(c, "t.ldb")), times4(c, load64(c, "t.ldc"))
	third, a3 := c.GP64(), c.GP64() // 3 ai; a + 3 ai
	c.LEAQ(operand.Mem{Base: ai, Index: ai, Scale: 2}, third)
	c.LEAQ(operand.Mem{Base: a, Index: third, Scale: 1}, a3)
	row := []operand.Mem{{Base: a}, {Base: a, Index: ai, Scale: 1}, {Base: a, Index: ai, Scale: 2}, {Base: a3},
		{Base: a, Index: ai, Scale: 4}, {Base: a3, Index: ai, Scale: 2}, {Base: a, Index: third, Scale: 2}, {Base: a3, Index: ai, Scale: 4}}
	acc := make([][2]reg.VecVirtual, rows)
	for i := range acc {
		for j := range vectors {
			acc[i][j] = zeroed(c, w)
		}
	}
	x, y := w.vec(c), []reg.VecVirtual{w.vec(c), w.vec(c)}
	c.Label("loop")
	for j := range vectors {
		c.VMOVUPS(at(b, j*w.bytes()), y[j])
	}
	for i := range acc {
		c.VBROADCASTSS(row[i], x)
		for j := range vectors {
			c.VFMADD231PS(y[j], x, acc[i][j])
		}
	}
	c.ADDQ(ldb, b)
	c.ADDQ(ak, a)
	c.ADDQ(ak, a3)
	c.DECQ(k)
	c.JNZ(operand.LabelRef("loop"))
	store := func(add bool) {
		for i := range acc {
			for j := range vectors {
				if add {
					c.VADDPS(at(dst, j*w.bytes()), acc[i][j], acc[i][j])
				}
				c.VMOVUPS(acc[i][j], at(dst, j*w.bytes()))
			}
			c.ADDQ(ldc, dst)
		}
		c.VZEROUPPER()
		c.RET()
	}
	add := load64(c, "t.add")
	c.TESTQ(add, add)
	c.JZ(operand.LabelRef("set"))
	store(true)
	c.Label("set")
	store(false)
}

// seen returns the number of vectors for the lanes that row i sees, min(n, most); lanes of the last
// vector that it does not see are passed to hide.
func seen(c *build.Context, w width, n, most reg.GPVirtual, hide func(lane, left reg.GPVirtual)) (vectors reg.GPVirtual) {
	count, left := c.GP64(), c.GP64()
	vectors = c.GP64()
	c.MOVQ(most, count)
	c.CMPQ(n, most)
	c.CMOVQLT(n, count)
	c.MOVQ(count, vectors)
	c.ADDQ(operand.U8(uint8(w.lanes-1)), vectors)
	c.SHRQ(operand.U8(uint8(3+w.lanes/16)), vectors)
	c.MOVQ(count, left)
	c.ANDQ(operand.U8(uint8(w.lanes-1)), left)
	c.JZ(operand.LabelRef("whole"))
	c.SUBQ(left, count)
	hide(count, left)
	c.Label("whole")
	return vectors
}

// clearRest stores zeros from vector number vectors on, up to lane end.
func clearRest(c *build.Context, w width, vectors, end reg.GPVirtual, rows ...reg.GPVirtual) {
	zero, lane := zeroed(c, w), c.GP64()
	c.MOVQ(vectors, lane)
	c.SHLQ(operand.U8(uint8(3+w.lanes/16)), lane)
	c.JMP(operand.LabelRef("cleared"))
	c.Label("clear")
	for _, row := range rows {
		c.VMOVUPS(zero, operand.Mem{Base: row, Index: lane, Scale: 4})
	}
	c.ADDQ(operand.U8(uint8(w.lanes)), lane)
	c.Label("cleared")
	c.CMPQ(lane, end)
	c.JLT(operand.LabelRef("clear"))
}

func onlineSoftmax(c *build.Context, w width, t *constants) {
	name := "onlineSoftmax" + w.suffix
	text(c, name, "func(r *SoftmaxRows)", name+" implements onlineSoftmaxFunc.")
	s, ld, rows := load64(c, "r.s"), times4(c, load64(c, "r.ld")), load64(c, "r.rows")
	n, most, end := load64(c, "r.n"), load64(c, "r.most"), load64(c, "r.end")
	m, l, shrink := load64(c, "r.m"), load64(c, "r.l"), load64(c, "r.shrink")
	c.Label("row")
	vectors := seen(c, w, n, most, func(lane, left reg.GPVirtual) {
		x, from := w.vec(c), operand.Mem{Base: s, Index: lane, Scale: 4}
		c.VMOVUPS(from, x)
		c.VMINPS(at(window(c, "attnSeen", left), 0), x, x)
		c.VMOVUPS(x, from)
	})
	p, left := c.GP64(), c.GP64()
	c.MOVQ(s, p)
	c.MOVQ(vectors, left)
	top := t.get(c, w, "-inf")
	c.Label("max")
	c.VMAXPS(at(p, 0), top, top)
	c.ADDQ(operand.U8(uint8(w.bytes())), p)
	c.DECQ(left)
	c.JNZ(operand.LabelRef("max"))
	across(c, w, top, c.VMAXPS)
	old := broadcast(c, w, at(m, 0))
	c.VMAXSS(old.AsX(), top.AsX(), top.AsX())
	c.VMOVSS(top.AsX(), at(m, 0))
	c.VBROADCASTSS(top.AsX(), top)
	c.VSUBPS(top, old, old)
	exp(c, w, t, old, false)
	c.VMOVSS(old.AsX(), at(shrink, 0))
	sum := w.vec(c)
	c.VMULPS(at(l, 0), old, sum)
	c.MOVQ(s, p)
	c.MOVQ(vectors, left)
	c.Label("exp")
	x := w.vec(c)
	c.VMOVUPS(at(p, 0), x)
	c.VSUBPS(top, x, x)
	exp(c, w, t, x, false)
	c.VADDPS(x, sum, sum)
	c.VMOVUPS(x, at(p, 0))
	c.ADDQ(operand.U8(uint8(w.bytes())), p)
	c.DECQ(left)
	c.JNZ(operand.LabelRef("exp"))
	c.VMOVUPS(sum, at(l, 0))
	clearRest(c, w, vectors, end, s)
	c.ADDQ(ld, s)
	c.ADDQ(operand.U8(4), m)
	c.ADDQ(operand.U8(4), shrink)
	c.ADDQ(operand.U8(uint8(w.bytes())), l)
	c.INCQ(n)
	c.DECQ(rows)
	c.JNZ(operand.LabelRef("row"))
	c.VZEROUPPER()
	c.RET()
}

func softmaxGrad(c *build.Context, w width, t *constants) {
	name := "softmaxGrad" + w.suffix
	text(c, name, "func(r *SoftmaxGradRows)", name+" implements softmaxGradFunc.")
	p, ds, ld, rows := load64(c, "r.p"), load64(c, "r.ds"), times4(c, load64(c, "r.ld")), load64(c, "r.rows")
	n, most, end := load64(c, "r.n"), load64(c, "r.most"), load64(c, "r.end")
	lse, delta := load64(c, "r.lse"), load64(c, "r.delta")
	c.Label("row")
	vectors := seen(c, w, n, most, func(lane, left reg.GPVirtual) {
		x, d := w.vec(c), w.vec(c)
		from := operand.Mem{Base: p, Index: lane, Scale: 4}
		fromD := operand.Mem{Base: ds, Index: lane, Scale: 4}
		c.VMOVUPS(from, x)
		c.VMINPS(at(window(c, "attnSeen", left), 0), x, x)
		c.VMOVUPS(x, from)
		c.VMOVUPS(fromD, d)
		c.VANDPS(at(window(c, "attnOnes", left), 0), d, d)
		c.VMOVUPS(d, fromD)
	})
	lane, left := c.GP64(), c.GP64()
	c.XORQ(lane, lane)
	c.MOVQ(vectors, left)
	minus, off := broadcast(c, w, at(lse, 0)), broadcast(c, w, at(delta, 0))
	c.Label("exp")
	x, d := w.vec(c), w.vec(c)
	c.VMOVUPS(operand.Mem{Base: p, Index: lane, Scale: 4}, x)
	c.VSUBPS(minus, x, x)
	exp(c, w, t, x, true)
	c.VMOVUPS(operand.Mem{Base: ds, Index: lane, Scale: 4}, d)
	c.VSUBPS(off, d, d)
	c.VMULPS(x, d, d)
	c.VMOVUPS(x, operand.Mem{Base: p, Index: lane, Scale: 4})
	c.VMOVUPS(d, operand.Mem{Base: ds, Index: lane, Scale: 4})
	c.ADDQ(operand.U8(uint8(w.lanes)), lane)
	c.DECQ(left)
	c.JNZ(operand.LabelRef("exp"))
	clearRest(c, w, vectors, end, p, ds)
	c.ADDQ(ld, p)
	c.ADDQ(ld, ds)
	c.ADDQ(operand.U8(4), lse)
	c.ADDQ(operand.U8(4), delta)
	c.INCQ(n)
	c.DECQ(rows)
	c.JNZ(operand.LabelRef("row"))
	c.VZEROUPPER()
	c.RET()
}

func scaleRow(c *build.Context, w width) {
	name := "scaleRow" + w.suffix
	text(c, name, "func(x *byte, n int, by float32)", name+" multiplies n floats, a multiple of 16, by a number.")
	x, n := load64(c, "x"), load64(c, "n")
	s, y := broadcastParam(c, w, "by"), w.vec(c)
	c.Label("loop")
	for i := 0; i < 16; i += w.lanes {
		c.VMULPS(at(x, 4*i), s, y)
		c.VMOVUPS(y, at(x, 4*i))
	}
	c.ADDQ(operand.U8(64), x)
	c.SUBQ(operand.U8(16), n)
	c.JNZ(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}

func dotRow(c *build.Context, w width) {
	name := "dotRow" + w.suffix
	text(c, name, "func(x, y *byte, n int) float32", name+" returns the inner product of n floats, a multiple of 16.")
	x, y, n := load64(c, "x"), load64(c, "y"), load64(c, "n")
	v := w.vec(c)
	sums := []reg.VecVirtual{zeroed(c, w), zeroed(c, w)}[:16/w.lanes]
	c.Label("loop")
	for i, s := range sums {
		c.VMOVUPS(at(x, i*w.bytes()), v)
		c.VFMADD231PS(at(y, i*w.bytes()), v, s)
	}
	c.ADDQ(operand.U8(64), x)
	c.ADDQ(operand.U8(64), y)
	c.SUBQ(operand.U8(16), n)
	c.JNZ(operand.LabelRef("loop"))
	if len(sums) == 2 {
		c.VADDPS(sums[1], sums[0], sums[0])
	}
	across(c, w, sums[0], c.VADDPS)
	returnFloat(c, sums[0])
	c.VZEROUPPER()
	c.RET()
}

func scaledRows(c *build.Context, w width, t *constants, name string, from, to elem) {
	text(c, name, "func(dst, src *byte, ldd, lds, rows, n int, by float32)", name+" implements rowsFunc.")
	dst, src := load64(c, "dst"), load64(c, "src")
	ldd, lds := load64(c, "ldd"), load64(c, "lds")
	rows, n := load64(c, "rows"), load64(c, "n")
	scale(c, ldd, to.size)
	scale(c, lds, from.size)
	s, lane := broadcastParam(c, w, "by"), c.GP64()
	c.Label("row")
	c.XORQ(lane, lane)
	c.Label("loop")
	v := from.widen(c, w, operand.Mem{Base: src, Index: lane, Scale: uint8(from.size)})
	c.VMULPS(v, s, v)
	to.narrow(c, w, t, v, operand.Mem{Base: dst, Index: lane, Scale: uint8(to.size)}, false)
	c.ADDQ(operand.U8(uint8(w.lanes)), lane)
	c.CMPQ(lane, n)
	c.JLT(operand.LabelRef("loop"))
	c.ADDQ(ldd, dst)
	c.ADDQ(lds, src)
	c.DECQ(rows)
	c.JNZ(operand.LabelRef("row"))
	c.VZEROUPPER()
	c.RET()
}
