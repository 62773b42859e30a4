package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Products with few rows.

// The rows of a chainFunc, and how many rows of B ahead it prefetches.
const (
	chainRows  = 4
	chainAhead = 8
)

// chaining describes a chainFunc: mul adds the products of words in registers b and x to register
// acc. Two registers contain the current columns of B.
type chaining struct {
	what  string
	regs  []reg.VecPhysical
	lanes int
	mul   func(b, x, acc reg.VecPhysical)
	pair  func(src, second reg.GPVirtual, b, x reg.VecPhysical, disp int) // sets b to words of two rows, by way of x; nil: a row consists of words
}

// chain generates a chainFunc: four rows of A by two registers of columns.
func chain(c *build.Context, suffix string, of chaining) {
	name := "chain" + suffix
	text(c, name, "func(t *Chain)", fmt.Sprintf("%s implements chainFunc for %d columns, of %s.", name, 2*of.lanes, of.what))
	b, ldb, panel, n := load64(c, "t.b"), times4(c, load64(c, "t.ldb")), times4(c, load64(c, "t.panel")), load64(c, "t.n")
	words, p, q, column := times4(c, load64(c, "t.k")), c.GP64(), c.GP64(), c.GP64()
	var a [chainRows]reg.GPVirtual
	for i := range a {
		a[i] = c.GP64()
		c.Load(param(c, "t.a").Index(i), a[i])
		c.ADDQ(words, a[i])
	}
	c.NEGQ(words)
	c.XORQ(column, column)
	sums := func(move func(x reg.VecPhysical, at operand.Mem)) {
		for i := range a {
			c.Load(param(c, "t.y").Index(i), q)
			for j := range 2 {
				move(of.regs[2*i+j], operand.Mem{Base: q, Index: column, Scale: 1, Disp: 4 * j * of.lanes})
			}
		}
	}
	b0, b1, x := of.regs[2*chainRows], of.regs[2*chainRows+1], of.regs[2*chainRows+2]
	next := of.next(c, ldb)
	c.Label("columns")
	sums(func(x reg.VecPhysical, at operand.Mem) { c.VMOVUPS(at, x) })
	c.MOVQ(words, p)
	c.MOVQ(b, q)
	c.Label("row")
	next(q, b0, b1, x)
	for i := range a {
		c.VBROADCASTSS(operand.Mem{Base: a[i], Index: p, Scale: 1}, x)
		of.mul(b0, x, of.regs[2*i])
		of.mul(b1, x, of.regs[2*i+1])
	}
	c.ADDQ(ldb, q)
	c.ADDQ(operand.U8(4), p)
	c.JNZ(operand.LabelRef("row"))
	sums(func(x reg.VecPhysical, at operand.Mem) { c.VMOVUPS(x, at) })
	c.ADDQ(panel, b)
	c.ADDQ(operand.U32(uint32(8*of.lanes)), column)
	c.SUBQ(operand.U8(uint8(2*of.lanes)), n)
	c.JNZ(operand.LabelRef("columns"))
	c.VZEROUPPER()
	c.RET()
}

// next returns a function that loads the next row of words at q, by way of x, and prefetches a
// later one.
func (of chaining) next(c *build.Context, ldb reg.GPVirtual) func(q reg.GPVirtual, b0, b1, x reg.VecPhysical) {
	ahead := func(q reg.GPVirtual, disp int) {
		c.PREFETCHT0(operand.Mem{Base: q, Index: ldb, Scale: chainAhead, Disp: disp})
	}
	if of.pair == nil {
		return func(q reg.GPVirtual, b0, b1, x reg.VecPhysical) {
			c.VMOVUPS(at(q, 0), b0)
			c.VMOVUPS(at(q, 4*of.lanes), b1)
			for line := 0; line < 8*of.lanes; line += 64 {
				ahead(q, line)
			}
		}
	}
	second := c.GP64()
	c.MOVQ(ldb, second)
	c.SHRQ(operand.U8(1), second)
	return func(q reg.GPVirtual, b0, b1, x reg.VecPhysical) {
		of.pair(q, second, b0, x, 0)
		ahead(q, 0)
		of.pair(q, second, b1, x, 2*of.lanes)
		c.ADDQ(second, q)
		ahead(q, 0)
		c.SUBQ(second, q)
	}
}

// dots generates a dotsFunc in which mul adds the products of the words in register b and the one
// at a to register acc. The words of 16 rows of B are transposed in registers, then all rows of A
// are multiplied by them; then come the other 16 rows of B, so that the chains need not wait for
// each other.
func dots(c *build.Context, suffix, what string, mul func(b reg.VecPhysical, a operand.Mem, acc reg.VecPhysical)) {
	name := "dots" + suffix
	text(c, name, "func(t *Dots)", fmt.Sprintf("%s implements dotsFunc for %s.", name, what))
	a, b, k, next := load64(c, "t.a"), load64(c, "t.b"), load64(c, "t.k"), load64(c, "t.next")
	ld, ld3, half := load64(c, "t.ldb"), load64(c, "t.missing"), c.GP64()
	there, bits := c.K(), c.GP64()
	c.ADDQ(b, next)
	c.MOVQ(operand.I32(-1), bits)
	c.SHLXQ(ld3, bits, bits)
	c.KMOVW(bits.As32(), there)
	c.SHLQ(operand.U8(2), ld3)
	c.SUBQ(ld3, b)
	field := func(name string) operand.Mem {
		m, err := param(c, "t."+name).Resolve()
		if err != nil {
			panic(err)
		}
		return m.Addr
	}
	c.LEAQ(operand.Mem{Base: ld, Index: ld, Scale: 2}, ld3)
	c.XORQ(half, half)
	row, from, y, m := c.GP64(), c.GP64(), c.GP64(), c.GP64()
	acc := zmm[16]
	c.Label("block")
	c.MOVQ(b, row)
	c.Label("half")
	for i := 0; i < 16; i += 4 {
		c.VMOVUPS_Z(at(row, 0), there, square[i])
		c.VMOVUPS_Z(operand.Mem{Base: row, Index: ld, Scale: 1}, there, square[i+1])
		c.VMOVUPS_Z(operand.Mem{Base: row, Index: ld, Scale: 2}, there, square[i+2])
		c.VMOVUPS_Z(operand.Mem{Base: row, Index: ld3, Scale: 1}, there, square[i+3])
		c.LEAQ(operand.Mem{Base: row, Index: ld, Scale: 4}, row)
		for j := range 4 {
			c.PREFETCHT1(at(next, 64*(i+j)))
		}
	}
	transpose(c)
	c.MOVQ(field("y"), y)
	c.ADDQ(half, y)
	c.MOVQ(field("m"), m)
	c.MOVQ(a, from)
	c.Label("row")
	c.VMOVUPS(at(y, 0), acc)
	for p, b := range square {
		mul(b, at(from, 4*p), acc)
	}
	c.VMOVUPS(acc, at(y, 0))
	c.ADDQ(field("lda"), from)
	c.ADDQ(field("ldy"), y)
	c.DECQ(m)
	c.JNZ(operand.LabelRef("row"))
	c.ADDQ(operand.U32(1024), next)
	c.XORQ(operand.U8(64), half)
	c.JNZ(operand.LabelRef("half"))
	c.ADDQ(operand.U8(64), a)
	c.ADDQ(operand.U8(64), b)
	c.SUBQ(operand.U8(16), k)
	c.JNZ(operand.LabelRef("block"))
	c.VZEROUPPER()
	c.RET()
}
