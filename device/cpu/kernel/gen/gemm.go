package main

import (
	"fmt"
	"math/bits"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Sources of a packing routine: name and bytes of an element.
var sources = []struct {
	name string
	size int
}{{"F32", 4}, {"BF16", 2}, {"F16", 2}}

func gemm(c *build.Context) {
	declareOnes(c)
	tile512(c, "tile512", "float32", func(b, x, acc reg.VecPhysical) { c.VFMADD231PS(b, x, acc) })
	tile256(c)
	for _, s := range sources {
		copy512(c, s.name, s.size)
		trans512(c, s.name, s.size)
	}
	for _, w := range widths {
		chain(c, w)
	}
	moves512(c)
	copy256(c)
	trans256(c)
	peak(c, "512", func() reg.VecVirtual { return c.ZMM() })
	peak(c, "256", func() reg.VecVirtual { return c.YMM() })
}

func text(c *build.Context, name, signature, doc string) {
	clear(pointers)
	c.Function(name)
	c.Attributes(attr.NOSPLIT)
	c.Signature(parsed(signature))
	c.Doc(doc)
	c.Pragma("noescape")
}

func at(base reg.Register, disp int) operand.Mem { return operand.Mem{Base: base, Disp: disp} }

// times4 turns a number of floats into bytes.
func times4(c *build.Context, r reg.GPVirtual) reg.GPVirtual {
	c.SHLQ(operand.U8(2), r)
	return r
}

func load64(c *build.Context, name string) reg.GPVirtual {
	r := c.GP64()
	c.Load(param(c, name), r)
	return r
}

const unroll = 4 // words of k in the inner loop

// sumLoop runs word for each word of k: unroll at a time, then one at a time.
// word gets its number within the iteration. aStep and bStep are bytes.
func sumLoop(c *build.Context, k, a, b reg.GPVirtual, aStep, bStep int, word func(u int)) {
	main, tail, done := "main", "tail", "done"
	c.SUBQ(operand.U8(unroll), k)
	c.JLT(operand.LabelRef(tail + "in"))
	c.Label(main)
	for u := range unroll {
		word(u)
	}
	c.ADDQ(operand.U32(uint32(unroll*aStep)), a)
	c.ADDQ(operand.U32(uint32(unroll*bStep)), b)
	c.SUBQ(operand.U8(unroll), k)
	c.JGE(operand.LabelRef(main))
	c.Label(tail + "in")
	c.ADDQ(operand.U8(unroll), k)
	c.JZ(operand.LabelRef(done))
	c.Label(tail)
	word(0)
	c.ADDQ(operand.U32(uint32(aStep)), a)
	c.ADDQ(operand.U32(uint32(bStep)), b)
	c.DECQ(k)
	c.JNZ(operand.LabelRef(tail))
	c.Label(done)
}

// Rows of the largest tiles; so many words of A lie side by side.
const (
	rows512 = 14
	rows256 = 6
)

// tile512 writes a tileFunc in which mul adds the products of the words in
// registers b and x to register acc: floats, or pairs of bf16.
func tile512(c *build.Context, name, what string, mul func(b, x, acc reg.VecPhysical)) {
	text(c, name, "func(t *Tile)", fmt.Sprintf("%s is a tileFunc of %d rows by 32 columns, of %s.", name, rows512, what))
	k, a, b, rows := load64(c, "t.k"), load64(c, "t.a"), load64(c, "t.b"), load64(c, "t.rows")
	acc := func(i, j int) reg.VecPhysical { return zmm[2*i+j] }
	for _, z := range zmm[:2*rows512] {
		c.VPXORD(z, z, z)
	}
	b0, b1, x := zmm[28], zmm[29], zmm[30]
	tileSums(c, rows512, rows, k, a, b, 128, func(u int) {
		c.VMOVUPS(at(b, u*128), b0)
		c.VMOVUPS(at(b, u*128+64), b1)
	}, func(u, i int) {
		c.VBROADCASTSS(at(a, (u*rows512+i)*4), x)
		mul(b0, x, acc(i, 0))
		mul(b1, x, acc(i, 1))
	})
	m0, m1 := masks32(c, load64(c, "t.cols"))
	base, dst := load64(c, "t.base"), load64(c, "t.c")
	ldb, ldc := times4(c, load64(c, "t.ldb")), times4(c, load64(c, "t.ldc"))
	for i := range rows512 {
		c.VADDPS(at(base, 0), acc(i, 0), m0, acc(i, 0))
		c.VADDPS(at(base, 64), acc(i, 1), m1, acc(i, 1))
		c.VMOVUPS(acc(i, 0), m0, at(dst, 0))
		c.VMOVUPS(acc(i, 1), m1, at(dst, 64))
		untilRow(c, "stored", rows512, rows, i)
		c.ADDQ(ldb, base)
		c.ADDQ(ldc, dst)
	}
	c.Label("stored")
	c.VZEROUPPER()
	c.RET()
}

// chain writes a chainFunc: 32 columns at a time stay in registers.
func chain(c *build.Context, w width) {
	name := "chain" + w.suffix
	text(c, name, "func(y, a, b *byte, ldb, k, n int)", name+" is a chainFunc.")
	y, a, b, n := load64(c, "y"), load64(c, "a"), load64(c, "b"), load64(c, "n")
	ldb, k := times4(c, load64(c, "ldb")), load64(c, "k")
	p, q, left, x := c.GP64(), c.GP64(), c.GP64(), w.vec(c)
	sums := make([]reg.VecVirtual, 32/w.lanes)
	c.Label("columns")
	for i := range sums {
		sums[i] = w.vec(c)
		c.VMOVUPS(at(y, i*w.bytes()), sums[i])
	}
	c.MOVQ(a, p)
	c.MOVQ(b, q)
	c.MOVQ(k, left)
	c.Label("row")
	c.VBROADCASTSS(at(p, 0), x)
	for i, s := range sums {
		c.VFMADD231PS(at(q, i*w.bytes()), x, s)
	}
	c.ADDQ(operand.U8(4), p)
	c.ADDQ(ldb, q)
	c.DECQ(left)
	c.JNZ(operand.LabelRef("row"))
	for i, s := range sums {
		c.VMOVUPS(s, at(y, i*w.bytes()))
	}
	c.SUBQ(operand.I8(-128), y)
	c.SUBQ(operand.I8(-128), b)
	c.SUBQ(operand.U8(32), n)
	c.JNZ(operand.LabelRef("columns"))
	c.VZEROUPPER()
	c.RET()
}

// tileSums is the inner loop of a tile of at most most rows: columns loads a word
// of B, bStep bytes, and row adds its products with that of one row of A. A tile
// of fewer rows, the last of a block, looks after each of them whether it has more.
func tileSums(c *build.Context, most int, rows, k, a, b reg.GPVirtual, bStep int, columns func(u int), row func(u, i int)) {
	c.CMPQ(rows, operand.U8(uint8(most)))
	c.JNE(operand.LabelRef("fewer"))
	sumLoop(c, k, a, b, 4*most, bStep, func(u int) {
		columns(u)
		for i := range most {
			row(u, i)
		}
	})
	c.JMP(operand.LabelRef("summed"))
	c.Label("fewer")
	c.TESTQ(k, k)
	c.JZ(operand.LabelRef("summed"))
	c.Label("word")
	columns(0)
	for i := range most - 1 {
		row(0, i)
		untilRow(c, "next", most, rows, i)
	}
	c.Label("next")
	c.ADDQ(operand.U32(uint32(4*most)), a)
	c.ADDQ(operand.U32(uint32(bStep)), b)
	c.DECQ(k)
	c.JNZ(operand.LabelRef("word"))
	c.Label("summed")
}

// untilRow goes to done if row i of at most most is the last.
func untilRow(c *build.Context, done string, most int, rows reg.GPVirtual, i int) {
	if i < most-1 {
		c.CMPQ(rows, operand.U8(uint8(i+1)))
		c.JEQ(operand.LabelRef(done))
	}
}

// zmm are the registers of a 512-bit tile: the encodings of bf16 instructions need their numbers.
var zmm = [...]reg.VecPhysical{reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9,
	reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15, reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20,
	reg.Z21, reg.Z22, reg.Z23, reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30}

// masks32 are the masks of the first n of 32 lanes, 0 <= n <= 32.
func masks32(c *build.Context, n reg.GPVirtual) (lo, hi reg.OpmaskVirtual) {
	ones := c.GP64()
	c.MOVQ(operand.I64(-1), ones)
	c.BZHIQ(n, ones, ones)
	lo, hi = c.K(), c.K()
	c.KMOVW(ones.As32(), lo)
	c.SHRQ(operand.U8(16), ones)
	c.KMOVW(ones.As32(), hi)
	return lo, hi
}

func tile256(c *build.Context) {
	text(c, "tile256", "func(t *Tile)", fmt.Sprintf("tile256 is a tileFunc of %d rows by 16 columns.", rows256))
	k, a, b, rows := load64(c, "t.k"), load64(c, "t.a"), load64(c, "t.b"), load64(c, "t.rows")
	var acc [rows256][2]reg.VecVirtual
	for i := range acc {
		for j := range acc[i] {
			acc[i][j] = c.YMM()
			c.VXORPS(acc[i][j], acc[i][j], acc[i][j])
		}
	}
	b0, b1, x := c.YMM(), c.YMM(), c.YMM()
	tileSums(c, rows256, rows, k, a, b, 64, func(u int) {
		c.VMOVUPS(at(b, u*64), b0)
		c.VMOVUPS(at(b, u*64+32), b1)
	}, func(u, i int) {
		c.VBROADCASTSS(at(a, (u*rows256+i)*4), x)
		c.VFMADD231PS(b0, x, acc[i][0])
		c.VFMADD231PS(b1, x, acc[i][1])
	})
	cols, base, dst := load64(c, "t.cols"), load64(c, "t.base"), load64(c, "t.c")
	ldb, ldc := times4(c, load64(c, "t.ldb")), times4(c, load64(c, "t.ldc"))
	c.CMPQ(cols, operand.U8(16))
	c.JLT(operand.LabelRef("partial"))
	store := func(done string, row func(i int)) {
		for i := range acc {
			row(i)
			untilRow(c, done, rows256, rows, i)
			c.ADDQ(ldb, base)
			c.ADDQ(ldc, dst)
		}
		c.Label(done)
		c.VZEROUPPER()
		c.RET()
	}
	store("stored", func(i int) {
		for j := range 2 {
			c.VADDPS(at(base, 32*j), acc[i][j], acc[i][j])
			c.VMOVUPS(acc[i][j], at(dst, 32*j))
		}
	})
	c.Label("partial")
	m := masks16(c, cols)
	store("storedPart", func(i int) {
		for j := range 2 {
			c.VMASKMOVPS(at(base, 32*j), m[j], x)
			c.VADDPS(x, acc[i][j], acc[i][j])
			c.VMASKMOVPS(acc[i][j], m[j], at(dst, 32*j))
		}
	})
}

// masks16 are the masks of the first n of 16 lanes of 32 bits, 0 <= n <= 16,
// read from a window into 16 lanes of ones followed by 16 of zeros.
func masks16(c *build.Context, n reg.GPVirtual) [2]reg.VecVirtual {
	window := c.GP64()
	c.LEAQ(ones, window)
	c.ADDQ(operand.U8(64), window)
	from := c.GP64()
	c.MOVQ(n, from)
	c.SHLQ(operand.U8(2), from)
	c.SUBQ(from, window)
	m := [2]reg.VecVirtual{c.YMM(), c.YMM()}
	c.VMOVUPS(at(window, 0), m[0])
	c.VMOVUPS(at(window, 32), m[1])
	return m
}

// ones is 16 lanes of ones followed by 16 of zeros; gemm declares it.
var ones = operand.Mem{Symbol: operand.NewStaticSymbol("ones"), Base: reg.StaticBase}

func declareOnes(c *build.Context) {
	c.StaticGlobal(ones.Symbol.Name)
	c.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := range 16 {
		bits := operand.U64(0)
		if i < 8 {
			bits = 1<<64 - 1
		}
		c.AddDatum(8*i, bits)
	}
}

const (
	copySignature  = "func(dst, src *byte, ld, k, width, stride, panel int)"
	transSignature = "func(dst, src *byte, ld, k, width, stride int)"
)

// widen512 loads lanes under a mask as float32.
func widen512(c *build.Context, source string, src operand.Op, mask reg.Register, z reg.VecVirtual) {
	switch source {
	case "F32":
		c.VMOVUPS_Z(src, mask, z)
	case "BF16":
		c.VPMOVZXWD_Z(src, mask, z)
		c.VPSLLD(operand.U8(16), z, z)
	case "F16":
		c.VCVTPH2PS_Z(src, mask, z)
	}
}

// copying is what a packCopyFunc does with a row of words: those of a whole panel,
// and those of the last one, of more than half of the lanes or not.
type copying struct {
	lanes, size, pair   int
	setMasks            func(width reg.GPVirtual) // of the last panel; width may be 0
	last                func()                    // before the last row of words if it has only one of two k
	whole, wide, narrow func(src, ld, dst reg.GPVirtual)
}

// packCopies writes a packCopyFunc. It goes along the rows of the source, and what is
// eight rows of words on is fetched meanwhile.
func packCopies(c *build.Context, name, doc string, do copying) {
	text(c, name, copySignature, name+" is a packCopyFunc of "+doc+".")
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

// allLanes is the mask of 32 lanes.
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

// transLoop is the frame of a transposition of n by n blocks: it loads up to
// width rows of n words of pair elements
// of k each, and stores up to n rows of n lanes.
func transLoop(c *build.Context, n, size, pair int, setMask func(k reg.GPVirtual), load func(i int, src operand.Mem), turn func(), store func(p int, dst operand.Mem)) {
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
	turn()
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
	text(c, name, transSignature, name+" is a packTransFunc of at most 16 lanes, transposed.")
	var x, y [16]reg.VecVirtual
	for i := range x {
		x[i], y[i] = c.ZMM(), c.ZMM()
		c.VPXORD(x[i], x[i], x[i])
	}
	mask := c.K()
	transLoop(c, 16, size, 1, func(k reg.GPVirtual) { maskFirst(c, k, 16, mask) },
		func(i int, src operand.Mem) { widen512(c, source, src, mask, x[i]) },
		func() { turn16(c, &x, &y) },
		func(p int, dst operand.Mem) { c.VMOVUPS(x[p], dst) })
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

// turn16 transposes the 16 by 16 floats in x, using y.
func turn16(c *build.Context, x, y *[16]reg.VecVirtual) {
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
}

// moves512 writes the moveFuncs.
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

// move512 writes a moveFunc from a type of source to elements of size bytes.
func move512(c *build.Context, name, source string, size int, prepare func() func(z reg.VecVirtual) reg.Register) {
	text(c, name, "func(dst, src *byte, ldd, lds, rows, cols int)", name+" is a moveFunc.")
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
	text(c, "trans256F32", transSignature, "trans256F32 is a packTransFunc of at most 8 lanes, transposed.")
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
		func() { turn8(c, &x, out) },
		func(p int, dst operand.Mem) { c.VMOVUPS(out[p], dst) })
}

// turn8 transposes the 8 by 8 floats in x; row p of the result is in out[p].
func turn8(c *build.Context, x *[8]reg.VecVirtual, out []reg.VecVirtual) {
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

// peak is a loop of 12 independent multiply-adds, four times over.
func peak(c *build.Context, suffix string, vec func() reg.VecVirtual) {
	name := "fmaLoop" + suffix
	text(c, name, "func(n int)", name+" does 48 n independent multiply-adds of whole registers: the machine's peak.")
	n := load64(c, "n")
	x := vec()
	c.VXORPS(x.AsY(), x.AsY(), x.AsY())
	var acc [12]reg.VecVirtual
	for i := range acc {
		acc[i] = vec()
		c.VXORPS(acc[i].AsY(), acc[i].AsY(), acc[i].AsY())
	}
	c.Label("loop")
	for range 4 {
		for i := range acc {
			c.VFMADD231PS(x, x, acc[i])
		}
	}
	c.DECQ(n)
	c.JNZ(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}
