package main

import (
	"fmt"

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
	transpose16(c)
	tile512(c, "tile512", "float32", func(b, x, acc reg.VecPhysical) { c.VFMADD231PS(b, x, acc) })
	tile256(c)
	for _, s := range sources {
		copy512(c, s.name, s.size)
	}
	for _, s := range sources[:2] { // float16 is rare
		trans512(c, s.name, s.size)
	}
	floats := func(b, x, acc reg.VecPhysical) { c.VFMADD231PS(b, x, acc) }
	chain(c, "512", chaining{"float32", zmm[:], 16, floats, nil})
	chain(c, "256", chaining{"float32", ymm[:], 8, floats, nil})
	dots(c, "512", "float32", func(b reg.VecPhysical, a operand.Mem, acc reg.VecPhysical) { c.VFMADD231PS_BCST(a, b, acc) })
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

// times4 converts a number of floats to bytes.
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

// sumLoop runs word for each word of k: unroll at a time, then one at a time. word gets its number
// within the iteration. aStep and bStep are bytes.
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

// Rows of the largest tiles: the number of words of A side by side.
const (
	rows512 = 14
	rows256 = 6
)

// tile512 generates a tileFunc in which mul adds the products of the words in registers b and x to
// register acc: floats, or pairs of bf16.
func tile512(c *build.Context, name, what string, mul func(b, x, acc reg.VecPhysical)) {
	text(c, name, "func(t *Tile)", fmt.Sprintf("%s implements tileFunc for %d rows by 32 columns, of %s.", name, rows512, what))
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

// tileSums generates the inner loop of a tile of up to most rows: columns loads a word of B,
// bStep bytes, and row adds its products with that of one row of A. A tile of fewer rows, the last
// of a block, checks after each row whether there are more.
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

// untilRow jumps to done if row i of up to most is the last.
func untilRow(c *build.Context, done string, most int, rows reg.GPVirtual, i int) {
	if i < most-1 {
		c.CMPQ(rows, operand.U8(uint8(i+1)))
		c.JEQ(operand.LabelRef(done))
	}
}

// zmm are the registers of a 512-bit tile: the encodings of bf16 instructions need their numbers.
var zmm = [...]reg.VecPhysical{reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9,
	reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15, reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20,
	reg.Z21, reg.Z22, reg.Z23, reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31}

// ymm are registers of 256 bits.
var ymm = [...]reg.VecPhysical{reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7, reg.Y8, reg.Y9, reg.Y10}

// masks32 returns the masks of the first n of 32 lanes, 0 <= n <= 32.
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
	text(c, "tile256", "func(t *Tile)", fmt.Sprintf("tile256 implements tileFunc for %d rows by 16 columns.", rows256))
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

// masks16 returns the masks of the first n of 16 lanes of 32 bits, 0 <= n <= 16, read from a window
// into 16 lanes of ones followed by 16 of zeros.
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

// ones contains 16 lanes of ones followed by 16 of zeros; gemm declares it.
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
func widen512(c *build.Context, source string, src operand.Op, mask, z reg.Register) {
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

// peak generates a loop of 12 independent multiply-adds, four times unrolled.
func peak(c *build.Context, suffix string, vec func() reg.VecVirtual) {
	name := "fmaLoop" + suffix
	text(c, name, "func(n int)", name+" performs 48 n independent multiply-adds of whole registers, at the machine's peak rate.")
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
