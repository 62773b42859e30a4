package main

import (
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// norm generates layer norm on rows of n elements, a positive multiple of 16, and sums over
// columns; see normISA.
func norm(c *build.Context) {
	t := declare(c, "normConstants", roundConstants...)
	for _, w := range widths {
		for _, e := range elems {
			sumColumns(c, w, e)
			normColumns(c, w, e)
			if w == widths[1] && e != f32 {
				continue // it is converted, a row at a time
			}
			rowSum(c, w, e)
			rowSquares(c, w, e)
			normRow(c, w, t, e)
			normSums(c, w, e)
			normGrad(c, w, t, e)
		}
	}
}

const chains = 4 // independent sums, since an addition takes several cycles

// overRow calls step for each vector of n elements, with the number of its chain: 64 elements at a
// time, then 16, which belong to the first chains.
func overRow(c *build.Context, w width, at, n reg.GPVirtual, step func(lane, chain int)) {
	end := c.GP64()
	c.XORQ(at, at)
	c.MOVQ(n, end)
	c.ANDQ(operand.I8(-64), end)
	c.JZ(operand.LabelRef("few"))
	c.Label("many")
	for lane := 0; lane < 64; lane += w.lanes {
		step(lane, lane/w.lanes%chains)
	}
	c.ADDQ(operand.U8(64), at)
	c.CMPQ(at, end)
	c.JLT(operand.LabelRef("many"))
	c.Label("few")
	c.CMPQ(at, n)
	c.JGE(operand.LabelRef("done"))
	c.Label("loop")
	for lane := 0; lane < 16; lane += w.lanes {
		step(lane, lane/w.lanes)
	}
	next16(c, at, n)
	c.Label("done")
}

func zeros(c *build.Context, w width) []reg.VecVirtual {
	sums := make([]reg.VecVirtual, chains)
	for i := range sums {
		sums[i] = zeroed(c, w)
	}
	return sums
}

// total adds the chains and their lanes in the lowest lane of the first.
func total(c *build.Context, w width, sums []reg.VecVirtual) reg.VecVirtual {
	c.VADDPS(sums[1], sums[0], sums[0])
	c.VADDPS(sums[3], sums[2], sums[2])
	c.VADDPS(sums[2], sums[0], sums[0])
	across(c, w, sums[0], c.VADDPS)
	return sums[0]
}

func rowSum(c *build.Context, w width, e elem) {
	name := "rowSum" + e.name + w.suffix
	text(c, name, "func(x *byte, n int) float32", name+" returns the sum of n elements.")
	x, n, at, sums := load64(c, "x"), load64(c, "n"), c.GP64(), zeros(c, w)
	overRow(c, w, at, n, func(lane, chain int) {
		c.VADDPS(e.widen(c, w, e.mem(x, at, lane)), sums[chain], sums[chain])
	})
	returnFloat(c, total(c, w, sums))
	c.VZEROUPPER()
	c.RET()
}

func rowSquares(c *build.Context, w width, e elem) {
	name := "rowSquares" + e.name + w.suffix
	text(c, name, "func(x *byte, n int, m float32) float32", name+" returns the sum of (x-m)^2 over n elements.")
	x, n, at, m, sums := load64(c, "x"), load64(c, "n"), c.GP64(), broadcastParam(c, w, "m"), zeros(c, w)
	overRow(c, w, at, n, func(lane, chain int) {
		v := e.widen(c, w, e.mem(x, at, lane))
		c.VSUBPS(m, v, v)
		c.VFMADD231PS(v, v, sums[chain])
	})
	returnFloat(c, total(c, w, sums))
	c.VZEROUPPER()
	c.RET()
}

func normRow(c *build.Context, w width, t *constants, e elem) {
	name := "normRow" + e.name + w.suffix
	text(c, name, "func(y, x, w, b *byte, n int, m, r float32)", name+" sets y to (x-m)*r*w + b.")
	y, x, weight, bias := load64(c, "y"), load64(c, "x"), load64(c, "w"), load64(c, "b")
	n, at, m, r := load64(c, "n"), c.GP64(), broadcastParam(c, w, "m"), broadcastParam(c, w, "r")
	next := nextRow(c, x, n, e)
	c.XORQ(at, at)
	c.Label("loop")
	for lane := 0; lane < 16; lane += w.lanes {
		c.PREFETCHT0(e.mem(next, at, lane))
		v := e.widen(c, w, e.mem(x, at, lane))
		c.VSUBPS(m, v, v)
		c.VMULPS(r, v, v)
		out := f32.widen(c, w, f32.mem(bias, at, lane))
		c.VFMADD231PS(f32.mem(weight, at, lane), v, out)
		e.narrow(c, w, t, out, e.mem(y, at, lane), false)
	}
	next16(c, at, n)
	c.VZEROUPPER()
	c.RET()
}

// nextRow returns the address after the n elements at x: in most matrices the next row, which the
// last pass over a row prefetches.
func nextRow(c *build.Context, x, n reg.GPVirtual, e elem) reg.GPVirtual {
	next := c.GP64()
	c.LEAQ(operand.Mem{Base: x, Index: n, Scale: uint8(e.size)}, next)
	return next
}

func normSums(c *build.Context, w width, e elem) {
	name := "normSums" + e.name + w.suffix
	text(c, name, "func(sums, dy, x, w *byte, n int, m float32)", name+" sets two floats to the sums of dy*w and of dy*w*(x-m).")
	dy, x, weight, n := load64(c, "dy"), load64(c, "x"), load64(c, "w"), load64(c, "n")
	at, m, g, gx := c.GP64(), broadcastParam(c, w, "m"), zeros(c, w), zeros(c, w)
	overRow(c, w, at, n, func(lane, chain int) {
		d, v := e.widen(c, w, e.mem(dy, at, lane)), e.widen(c, w, e.mem(x, at, lane))
		c.VMULPS(f32.mem(weight, at, lane), d, d)
		c.VSUBPS(m, v, v)
		c.VADDPS(d, g[chain], g[chain])
		c.VFMADD231PS(d, v, gx[chain])
	})
	sums := load64(c, "sums")
	for i, s := range [][]reg.VecVirtual{g, gx} {
		c.VMOVSS(total(c, w, s).AsX(), operand.Mem{Base: sums, Disp: 4 * i})
	}
	c.VZEROUPPER()
	c.RET()
}

func normGrad(c *build.Context, w width, t *constants, e elem) {
	name := "normGrad" + e.name + w.suffix
	text(c, name, "func(a *NormGradRow)",
		name+" sets dx to r*(dy*w - g - (x-m)*gn), plus the old dx if add is not 0.")
	dx, dy, x, weight := load64(c, "a.dx"), load64(c, "a.dy"), load64(c, "a.x"), load64(c, "a.w")
	n, add, at := load64(c, "a.n"), load64(c, "a.add"), c.GP64()
	m, r, g, gn := broadcastParam(c, w, "a.m"), broadcastParam(c, w, "a.r"), broadcastParam(c, w, "a.g"), broadcastParam(c, w, "a.gn")
	nextD, nextX := nextRow(c, dy, n, e), nextRow(c, x, n, e)
	c.XORQ(at, at)
	c.TESTQ(add, add)
	c.JNZ(operand.LabelRef("add"))
	pass := func(loop string, add bool) {
		c.Label(loop)
		for lane := 0; lane < 16; lane += w.lanes {
			c.PREFETCHT0(e.mem(nextD, at, lane))
			c.PREFETCHT0(e.mem(nextX, at, lane))
			d, v := e.widen(c, w, e.mem(dy, at, lane)), e.widen(c, w, e.mem(x, at, lane))
			c.VMULPS(f32.mem(weight, at, lane), d, d) // rounded as in normSums: a single column has no gradient
			c.VSUBPS(g, d, d)
			c.VSUBPS(m, v, v)
			c.VFNMADD231PS(v, gn, d)
			if add {
				old := e.widen(c, w, e.mem(dx, at, lane))
				c.VFMADD213PS(old, r, d)
			} else {
				c.VMULPS(r, d, d)
			}
			e.narrow(c, w, t, d, e.mem(dx, at, lane), false)
		}
		c.ADDQ(operand.U8(16), at)
		c.CMPQ(at, n)
		c.JLT(operand.LabelRef(loop))
		c.VZEROUPPER()
		c.RET()
	}
	pass("set", false)
	pass("add", true)
}

// downRows calls step for each row, and then adds the sums of chains vectors side by side to those
// at dst.
func downRows(c *build.Context, w width, rows reg.GPVirtual, step func(), dst ...reg.GPVirtual) func(sums ...[]reg.VecVirtual) {
	c.Label("row")
	step()
	c.DECQ(rows)
	c.JNZ(operand.LabelRef("row"))
	return func(sums ...[]reg.VecVirtual) {
		for i, d := range dst {
			for j, s := range sums[i] {
				c.VADDPS(at(d, j*w.bytes()), s, s)
				c.VMOVUPS(s, at(d, j*w.bytes()))
			}
		}
		c.VZEROUPPER()
		c.RET()
	}
}

// fetchDown prefetches data eight rows below: the processor does not predict a walk down some
// columns.
func fetchDown(c *build.Context, w width, x, ld reg.GPVirtual, e elem) {
	for line := 0; line < chains*w.lanes*e.size; line += 64 {
		c.PREFETCHT0(operand.Mem{Base: x, Index: ld, Scale: 8, Disp: line})
	}
}

func sumColumns(c *build.Context, w width, e elem) {
	name := "sumColumns" + e.name + w.suffix
	text(c, name, "func(sum, x *byte, ld, rows int)", name+" adds rows of four vectors, ld elements apart, to sum.")
	sum, x, ld, rows, part := load64(c, "sum"), load64(c, "x"), load64(c, "ld"), load64(c, "rows"), zeros(c, w)
	scale(c, ld, e.size)
	downRows(c, w, rows, func() {
		fetchDown(c, w, x, ld, e)
		for j, s := range part {
			c.VADDPS(e.widen(c, w, at(x, j*w.lanes*e.size)), s, s)
		}
		c.ADDQ(ld, x)
	}, sum)(part)
}

func normColumns(c *build.Context, w width, e elem) {
	name := "normColumns" + e.name + w.suffix
	text(c, name, "func(a *ColumnGrads)",
		name+" adds the sums over rows, of four vectors each, of dy*(x-mean)*rstd to dw and of dy to db.")
	dw, db, dy, x := load64(c, "a.dw"), load64(c, "a.db"), load64(c, "a.dy"), load64(c, "a.x")
	lddy, ldx, rows := load64(c, "a.lddy"), load64(c, "a.ldx"), load64(c, "a.rows")
	mean, rstd := load64(c, "a.mean"), load64(c, "a.rstd")
	scale(c, lddy, e.size)
	scale(c, ldx, e.size)
	partW, partB := zeros(c, w), zeros(c, w)
	downRows(c, w, rows, func() {
		m, r := broadcast(c, w, at(mean, 0)), broadcast(c, w, at(rstd, 0))
		fetchDown(c, w, dy, lddy, e)
		fetchDown(c, w, x, ldx, e)
		for j := range chains {
			d, v := e.widen(c, w, at(dy, j*w.lanes*e.size)), e.widen(c, w, at(x, j*w.lanes*e.size))
			c.VSUBPS(m, v, v)
			c.VMULPS(r, v, v)
			c.VADDPS(d, partB[j], partB[j])
			c.VFMADD231PS(d, v, partW[j])
		}
		c.ADDQ(lddy, dy)
		c.ADDQ(ldx, x)
		c.ADDQ(operand.U8(4), mean)
		c.ADDQ(operand.U8(4), rstd)
	}, dw, db)(partW, partB)
}
