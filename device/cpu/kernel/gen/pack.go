package main

import (
	"math/bits"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// copying describes how a packCopyFunc copies a row of words: in a whole panel, and in the last
// one, with more than half of the lanes or fewer.
type copying struct {
	lanes, size, pair   int
	setMasks            func(width reg.GPVirtual) // of the last panel; width may be 0
	last                func()                    // runs before the last row of words if it has only one of two k
	whole, wide, narrow func(src, ld, dst reg.GPVirtual)
}

// packCopies generates a packCopyFunc. It processes the rows of the source in order and prefetches
// eight rows of words ahead.
func packCopies(c *build.Context, name, doc string, do copying) {
	text(c, name, copySignature, name+" implements packCopyFunc for "+doc+".")
	dst, src, k := load64(c, "dst"), load64(c, "src"), load64(c, "k")
	ld, stride, panel := load64(c, "ld"), times4(c, load64(c, "stride")), times4(c, load64(c, "panel"))
	panels, rest := load64(c, "width"), c.GP64()
	scale(c, ld, do.size)
	c.MOVQ(panels, rest)
	c.ANDQ(operand.U8(uint8(do.lanes-1)), rest)
	do.setMasks(rest)
	c.SHRQ(operand.U8(uint8(bits.TrailingZeros(uint(do.lanes)))), panels)
	from, to, left, ahead := c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.MOVQ(ld, ahead)
	c.SHLQ(operand.U8(uint8(2+do.pair)), ahead)
	c.Label("word")
	if do.pair == 2 {
		c.CMPQ(k, operand.U8(1))
		c.JNE(operand.LabelRef("both"))
		do.last()
		c.Label("both")
	}
	c.MOVQ(src, from)
	c.MOVQ(dst, to)
	c.LEAQ(operand.Mem{Base: src, Index: ld, Scale: uint8(do.pair)}, src)
	c.MOVQ(panels, left)
	c.TESTQ(left, left)
	c.JZ(operand.LabelRef("rest"))
	c.Label("panel")
	for line := 0; line < do.lanes*do.size; line += 64 {
		c.PREFETCHT0(operand.Mem{Base: from, Index: ahead, Scale: 1, Disp: line})
	}
	do.whole(from, ld, to)
	c.ADDQ(operand.U32(uint32(do.lanes*do.size)), from)
	c.ADDQ(panel, to)
	c.DECQ(left)
	c.JNZ(operand.LabelRef("panel"))
	c.Label("rest")
	c.TESTQ(rest, rest)
	c.JZ(operand.LabelRef("copied"))
	c.CMPQ(rest, operand.U8(uint8(do.lanes/2)))
	c.JG(operand.LabelRef("wide"))
	do.narrow(from, ld, to)
	c.JMP(operand.LabelRef("copied"))
	c.Label("wide")
	do.wide(from, ld, to)
	c.Label("copied")
	c.ADDQ(stride, dst)
	c.SUBQ(operand.U8(uint8(do.pair)), k)
	c.JG(operand.LabelRef("word"))
	c.VZEROUPPER()
	c.RET()
}

// allLanes returns the mask of 32 lanes.
func allLanes(c *build.Context) reg.OpmaskVirtual {
	m := c.K()
	c.KXNORD(m, m, m)
	return m
}

func copy512(c *build.Context, source string, size int) {
	var all reg.OpmaskVirtual
	var masks [2]reg.OpmaskVirtual
	z := c.ZMM()
	half := func(j int, src, dst reg.GPVirtual, mask reg.OpmaskVirtual) {
		widen512(c, source, at(src, 16*size*j), mask, z)
		c.VMOVUPS(z, at(dst, 64*j))
	}
	packCopies(c, "copy512"+source, "panels of 32 lanes", copying{lanes: 32, size: size, pair: 1,
		setMasks: func(width reg.GPVirtual) {
			all = allLanes(c)
			masks[0], masks[1] = masks32(c, width)
		},
		whole:  func(src, _, dst reg.GPVirtual) { half(0, src, dst, all); half(1, src, dst, all) },
		wide:   func(src, _, dst reg.GPVirtual) { half(0, src, dst, masks[0]); half(1, src, dst, masks[1]) },
		narrow: func(src, _, dst reg.GPVirtual) { half(0, src, dst, masks[0]) },
	})
}

func advance(c *build.Context, loop string, src, ld, dst, stride, k reg.GPVirtual) {
	c.ADDQ(ld, src)
	c.ADDQ(stride, dst)
	c.DECQ(k)
	c.JNZ(operand.LabelRef(loop))
}

func scale(c *build.Context, r reg.GPVirtual, size int) {
	for ; size > 1; size /= 2 {
		c.ADDQ(r, r)
	}
}

// transLoop generates a transposition of n by n blocks: it loads up to width rows of n words of
// pair elements of k each, and stores up to n rows of n lanes.
func transLoop(c *build.Context, n, size, pair int, setMask func(k reg.GPVirtual), load func(i int, src operand.Mem), transpose func(), store func(p int, dst operand.Mem)) {
	dst, src, k := load64(c, "dst"), load64(c, "src"), load64(c, "k")
	ld, stride, width := load64(c, "ld"), times4(c, load64(c, "stride")), load64(c, "width")
	scale(c, ld, size)
	row := c.GP64()
	c.Label("block")
	setMask(k)
	c.MOVQ(src, row)
	for i := range n {
		load(i, at(row, 0))
		if i < n-1 {
			c.CMPQ(width, operand.U8(uint8(i+1)))
			c.JE(operand.LabelRef("loaded"))
			c.ADDQ(ld, row)
		}
	}
	c.Label("loaded")
	transpose()
	for p := range n {
		store(p, at(dst, 0))
		c.ADDQ(stride, dst)
		c.SUBQ(operand.U8(uint8(pair)), k)
		c.JLE(operand.LabelRef("done"))
	}
	c.ADDQ(operand.U32(uint32(n*size*pair)), src)
	c.JMP(operand.LabelRef("block"))
	c.Label("done")
	c.VZEROUPPER()
	c.RET()
}

func trans512(c *build.Context, source string, size int) {
	name := "trans512" + source
	text(c, name, transSignature, name+" implements packTransFunc for at most 16 lanes, transposed.")
	for _, x := range square {
		c.VPXORD(x, x, x)
	}
	mask := c.K()
	transLoop(c, 16, size, 1, func(k reg.GPVirtual) { maskFirst(c, k, 16, mask) },
		func(i int, src operand.Mem) { widen512(c, source, src, mask, square[i]) },
		func() { transpose(c) },
		func(p int, dst operand.Mem) { c.VMOVUPS(square[p], dst) })
}

// maskFirst sets mask to the first min(n, most) lanes.
func maskFirst(c *build.Context, n reg.GPVirtual, most uint32, mask reg.OpmaskVirtual) {
	lanes, ones := c.GP64(), c.GP64()
	c.MOVQ(operand.U32(most), lanes)
	c.CMPQ(n, lanes)
	c.CMOVQLT(n, lanes)
	c.MOVQ(operand.I64(-1), ones)
	c.BZHIQ(lanes, ones, ones)
	c.KMOVD(ones.As32(), mask)
}

// transpose16 generates a function, for assembly only, that transposes the 16 by 16 words in the
// registers of square, using the other 16.
func transpose16(c *build.Context) {
	text(c, "transpose16", "func()", "transpose16 transposes 16 by 16 words in registers, for other functions in assembly.")
	x, y := zmm[:16], zmm[16:]
	for i := 0; i < 16; i += 2 { // pairs of rows, within quarters
		c.VUNPCKLPS(x[i+1], x[i], y[i])
		c.VUNPCKHPS(x[i+1], x[i], y[i+1])
	}
	for i := 0; i < 16; i += 4 { // fours of rows: x[i+q] has column q of every quarter
		c.VUNPCKLPD(y[i+2], y[i], x[i])
		c.VUNPCKHPD(y[i+2], y[i], x[i+1])
		c.VUNPCKLPD(y[i+3], y[i+1], x[i+2])
		c.VUNPCKHPD(y[i+3], y[i+1], x[i+3])
	}
	for q := range 4 { // quarters 0 and 2, 1 and 3 of rows 0-7, then of rows 8-15
		c.VSHUFF32X4(operand.U8(0x88), x[4+q], x[q], y[q])
		c.VSHUFF32X4(operand.U8(0xdd), x[4+q], x[q], y[4+q])
		c.VSHUFF32X4(operand.U8(0x88), x[12+q], x[8+q], y[8+q])
		c.VSHUFF32X4(operand.U8(0xdd), x[12+q], x[8+q], y[12+q])
	}
	for q := range 4 {
		c.VSHUFF32X4(operand.U8(0x88), y[8+q], y[q], x[q])
		c.VSHUFF32X4(operand.U8(0xdd), y[8+q], y[q], x[8+q])
		c.VSHUFF32X4(operand.U8(0x88), y[12+q], y[4+q], x[4+q])
		c.VSHUFF32X4(operand.U8(0xdd), y[12+q], y[4+q], x[12+q])
	}
	c.RET()
}

// square contains the 16 registers that transpose16 transposes.
var square = zmm[:16]

// transpose calls transpose16, which changes all 32 registers.
func transpose(c *build.Context) { c.CALL(operand.LabelRef("·transpose16(SB)")) }

// moves512 generates the moveFuncs.
func moves512(c *build.Context) {
	w := widths[0]
	plain := func(z reg.VecVirtual) reg.Register { return z }
	move512(c, "moveF32", "F32", 4, func() func(z reg.VecVirtual) reg.Register { return plain })
	move512(c, "moveFromBF16", "BF16", 4, func() func(z reg.VecVirtual) reg.Register { return plain })
	move512(c, "moveFromF16", "F16", 4, func() func(z reg.VecVirtual) reg.Register { return plain })
	move512(c, "moveToBF16", "F32", 2, func() func(z reg.VecVirtual) reg.Register {
		one, half, quiet := spread(c, w, 1), spread(c, w, 0x7fff), spread(c, w, 0x400000)
		return func(z reg.VecVirtual) reg.Register { return narrowBF16(c, w, z, one, half, quiet) }
	})
	move512(c, "moveToF16", "F32", 2, func() func(z reg.VecVirtual) reg.Register {
		return func(z reg.VecVirtual) reg.Register {
			c.VCVTPS2PH(operand.U8(0), z, z.AsY()) // 0: to nearest even
			return z.AsY()
		}
	})
}

// move512 generates a moveFunc from a type of source to elements of size bytes.
func move512(c *build.Context, name, source string, size int, prepare func() func(z reg.VecVirtual) reg.Register) {
	text(c, name, "func(dst, src *byte, ldd, lds, rows, cols int)", name+" implements moveFunc.")
	dst, src, rows := load64(c, "dst"), load64(c, "src"), load64(c, "rows")
	ldd, lds := load64(c, "ldd"), load64(c, "lds")
	in := map[string]int{"F32": 4, "BF16": 2, "F16": 2}[source]
	scale(c, ldd, size)
	scale(c, lds, in)
	m0, m1 := masks32(c, load64(c, "cols"))
	body := prepare()
	z := []reg.VecVirtual{c.ZMM(), c.ZMM()}
	c.Label("row")
	for j, m := range []reg.OpmaskVirtual{m0, m1} {
		widen512(c, source, at(src, 16*in*j), m, z[j])
		if to := at(dst, 16*size*j); size == 4 {
			c.VMOVDQU32(body(z[j]), m, to)
		} else {
			c.VMOVDQU16(body(z[j]), m, to)
		}
	}
	advance(c, "row", src, lds, dst, ldd, rows)
	c.VZEROUPPER()
	c.RET()
}

func copy256(c *build.Context) {
	var m [2]reg.VecVirtual
	y := c.YMM()
	half := func(j int, src, dst reg.GPVirtual) {
		c.VMASKMOVPS(at(src, 32*j), m[j], y)
		c.VMOVUPS(y, at(dst, 32*j))
	}
	packCopies(c, "copy256F32", "panels of 16 lanes", copying{lanes: 16, size: 4, pair: 1,
		setMasks: func(width reg.GPVirtual) { m = masks16(c, width) },
		whole: func(src, _, dst reg.GPVirtual) {
			for j := range 2 {
				c.VMOVUPS(at(src, 32*j), y)
				c.VMOVUPS(y, at(dst, 32*j))
			}
		},
		wide:   func(src, _, dst reg.GPVirtual) { half(0, src, dst); half(1, src, dst) },
		narrow: func(src, _, dst reg.GPVirtual) { half(0, src, dst) },
	})
}

func trans256(c *build.Context) {
	text(c, "trans256F32", transSignature, "trans256F32 implements packTransFunc for at most 8 lanes, transposed.")
	var x [8]reg.VecVirtual
	for i := range x {
		x[i] = c.YMM()
		c.VXORPS(x[i], x[i], x[i])
	}
	mask := c.YMM()
	setMask := func(k reg.GPVirtual) {
		n := c.GP64()
		c.MOVQ(operand.U32(8), n)
		c.CMPQ(k, n)
		c.CMOVQLT(k, n)
		window := c.GP64()
		c.LEAQ(ones, window)
		c.ADDQ(operand.U8(64), window)
		c.SHLQ(operand.U8(2), n)
		c.SUBQ(n, window)
		c.VMOVUPS(at(window, 0), mask)
	}
	out := make([]reg.VecVirtual, 8)
	transLoop(c, 8, 4, 1, setMask,
		func(i int, src operand.Mem) { c.VMASKMOVPS(src, mask, x[i]) },
		func() { transpose8(c, &x, out) },
		func(p int, dst operand.Mem) { c.VMOVUPS(out[p], dst) })
}

// transpose8 transposes the 8 by 8 floats in x; row p of the result is in out[p].
func transpose8(c *build.Context, x *[8]reg.VecVirtual, out []reg.VecVirtual) {
	var y [8]reg.VecVirtual
	for i := range y {
		y[i] = c.YMM()
	}
	for i := 0; i < 8; i += 4 {
		lo, hi, lo2, hi2 := y[i], y[i+1], y[i+2], y[i+3]
		c.VUNPCKLPS(x[i+1], x[i], lo)
		c.VUNPCKHPS(x[i+1], x[i], hi)
		c.VUNPCKLPS(x[i+3], x[i+2], lo2)
		c.VUNPCKHPS(x[i+3], x[i+2], hi2)
		c.VUNPCKLPD(lo2, lo, x[i])
		c.VUNPCKHPD(lo2, lo, x[i+1])
		c.VUNPCKLPD(hi2, hi, x[i+2])
		c.VUNPCKHPD(hi2, hi, x[i+3])
	}
	for q := range 4 {
		out[q], out[q+4] = y[q], y[q+4]
		c.VPERM2F128(operand.U8(0x20), x[4+q], x[q], out[q])
		c.VPERM2F128(operand.U8(0x31), x[4+q], x[q], out[q+4])
	}
}
