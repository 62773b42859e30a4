package main

import (
	"encoding/binary"
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// bf16 generates products of bf16 operands, with vdpbf16ps and with AMX, which Go's assembler does
// not support. The encodings are checked by main_test.go.
func bf16(c *build.Context) {
	dot := func(b, x, acc reg.VecPhysical) { emit(c, vdpbf16ps(acc, x, b)) }
	tile512(c, "tileDot", "pairs of bf16", dot)
	copyPairs(c)
	transPairs(c)
	chain(c, "Pairs", chaining{"pairs of bf16", zmm[:], 16, dot, func(src, second reg.GPVirtual, b, x reg.VecPhysical, disp int) {
		c.VPMOVZXWD(at(src, disp), b)
		c.VPMOVZXWD(operand.Mem{Base: src, Index: second, Scale: 1, Disp: disp}, x)
		c.VPSLLD(operand.U8(16), x, x)
		c.VPORD(x, b, b)
	}})
	dots(c, "Pairs", "pairs of bf16", func(b reg.VecPhysical, a operand.Mem, acc reg.VecPhysical) {
		c.VBROADCASTSS(a, zmm[17])
		dot(b, zmm[17], acc)
	})
	declareTileConfig(c)
	roundingBF16 = declare(c, "roundingBF16", roundConstants...)
	amxRow(c, "amxRowF32", false)
	amxRow(c, "amxRowBF16", true)
	text(c, "storeFence", "func()", "storeFence makes stores past the caches visible before later ones.")
	c.SFENCE()
	c.RET()
	amxRows(c)
	amxColumns(c)
	amxNarrow(c)
	cpuVendor(c)
}

// emit writes an instruction by its bytes, as many per line as Go's assembler supports.
func emit(c *build.Context, code []byte) {
	for len(code) > 0 {
		n, op, bits := 1, "BYTE", operand.Op(operand.U8(code[0]))
		switch {
		case len(code) >= 4:
			n, op, bits = 4, "LONG", operand.U32(binary.LittleEndian.Uint32(code))
		case len(code) >= 2:
			n, op, bits = 2, "WORD", operand.U16(binary.LittleEndian.Uint16(code))
		}
		c.Instruction(&ir.Instruction{Opcode: op, Operands: []operand.Op{bits}})
		code = code[n:]
	}
}

// vdpbf16ps encodes acc += x·y in pairs: EVEX.512.F3.0F38.W0 52 /r.
func vdpbf16ps(acc, x, y reg.VecPhysical) []byte { return evex38(2, 0x52, acc, x, y) }

// vcvtne2ps2bf16 encodes dst = y, x as bf16, y in the lower half: EVEX.512.F2.0F38.W0 72 /r.
func vcvtne2ps2bf16(dst, x, y reg.VecPhysical) []byte { return evex38(3, 0x72, dst, x, y) }

// evex38 encodes an instruction with three 512-bit registers in map 0F38.
func evex38(prefix, op byte, dst, x, y reg.VecPhysical) []byte {
	a, v, b := byte(dst.PhysicalIndex()), byte(x.PhysicalIndex()), byte(y.PhysicalIndex())
	not := func(r, bit byte) byte { return ^r >> bit & 1 }
	return []byte{
		0x62,
		not(a, 3)<<7 | not(b, 4)<<6 | not(b, 3)<<5 | not(a, 4)<<4 | 2,
		^v&15<<3 | 1<<2 | prefix,
		2<<5 | not(v, 4)<<3,
		op,
		0xc0 | a&7<<3 | b&7,
	}
}

// Numbers of the registers in encodings.
const (
	rcx = 1
	rdx = 2
	rbx = 3
	rsi = 6
	rdi = 7
	r9  = 9
	r10 = 10
	r14 = 14
	r15 = 15
)

// tdpbf16ps encodes C += A·B of tiles: VEX.128.F3.0F38.W0 5C /r.
func tdpbf16ps(tc, ta, tb byte) []byte {
	return []byte{0xc4, 0xe2, ^tb&15<<3 | 2, 0x5c, 0xc0 | tc<<3 | ta}
}

// tileMove encodes tileloadd (prefix 3, F2) or tilestored (prefix 2, F3) of a tile with rows index
// bytes apart: VEX.128.W0 0F38 4B /r with a SIB.
func tileMove(prefix, tile, base, index byte, disp int32) []byte {
	high := base>>3<<5 | index>>3<<6
	code := []byte{0xc4, 0xe2 &^ high, 0x78 | prefix, 0x4b, 0x80 | tile<<3 | 4, index&7<<3 | base&7}
	return append(code, byte(disp), byte(disp>>8), byte(disp>>16), byte(disp>>24))
}

func tileLoad(tile, base, index byte, disp int32) []byte { return tileMove(3, tile, base, index, disp) }
func tileStore(tile, base, index byte, disp int32) []byte {
	return tileMove(2, tile, base, index, disp)
}

// prefetchW encodes prefetchw: 0F 0D /1. base is one of R8 to R15, but not R12.
func prefetchW(base byte, disp int8) []byte {
	return []byte{0x41, 0x0f, 0x0d, 0x48 | base&7, byte(disp)}
}

var (
	ldtilecfgR8 = []byte{0xc4, 0xc2, 0x78, 0x49, 0x00}
	// tilezero is VEX.128.F2.0F38.W0 49 /r with the tile in bits 3 to 5.
	tilezero    = func(tile byte) []byte { return []byte{0xc4, 0xe2, 0x7b, 0x49, 0xc0 | tile<<3} }
	tilerelease = []byte{0xc4, 0xe2, 0x78, 0x49, 0xc0}
)

// copyPairs packs lanes side by side: word i of row p/2 is (x[p][i], x[p+1][i]).
func copyPairs(c *build.Context) {
	var all, second reg.OpmaskVirtual
	var masks, seconds [2]reg.OpmaskVirtual
	lo, hi := c.ZMM(), c.ZMM()
	half := func(j int, src, ld, dst reg.GPVirtual, m, m2 reg.OpmaskVirtual) {
		c.VPMOVZXWD_Z(at(src, 32*j), m, lo)
		c.VPMOVZXWD_Z(operand.Mem{Base: src, Index: ld, Scale: 1, Disp: 32 * j}, m2, hi)
		c.VPSLLD(operand.U8(16), hi, hi)
		c.VPORD(hi, lo, lo)
		c.VMOVDQU32(lo, at(dst, 64*j))
	}
	packCopies(c, "copyPairs", "panels of 32 lanes of bf16, two elements of k per word", copying{lanes: 32, size: 2, pair: 2,
		setMasks: func(width reg.GPVirtual) {
			all, second = allLanes(c), allLanes(c)
			masks[0], masks[1] = masks32(c, width)
			seconds[0], seconds[1] = masks32(c, width)
		},
		last: func() {
			for _, m := range []reg.OpmaskVirtual{second, seconds[0], seconds[1]} {
				c.KXORD(m, m, m)
			}
		},
		whole: func(src, ld, dst reg.GPVirtual) {
			half(0, src, ld, dst, all, second)
			half(1, src, ld, dst, all, second)
		},
		wide: func(src, ld, dst reg.GPVirtual) {
			half(0, src, ld, dst, masks[0], seconds[0])
			half(1, src, ld, dst, masks[1], seconds[1])
		},
		narrow: func(src, ld, dst reg.GPVirtual) { half(0, src, ld, dst, masks[0], seconds[0]) },
	})
}

func transPairs(c *build.Context) {
	text(c, "transPairs", transSignature, "transPairs implements packTransFunc for at most 16 lanes of bf16, transposed, two elements of k per word.")
	for _, x := range square {
		c.VPXORD(x, x, x)
	}
	mask := c.K()
	transLoop(c, 16, 2, 2, func(k reg.GPVirtual) { maskFirst(c, k, 32, mask) },
		func(i int, src operand.Mem) { c.VMOVDQU16_Z(src, mask, square[i]) },
		func() { transpose(c) },
		func(p int, dst operand.Mem) { c.VMOVUPS(square[p], dst) })
}

// roundingBF16 contains the constants of narrowBF16.
var roundingBF16 *constants

var tileConfig = operand.Mem{Symbol: operand.NewStaticSymbol("tileConfig"), Base: reg.StaticBase}

// declareTileConfig declares palette 1, with tiles of 16 rows of 64 bytes.
func declareTileConfig(c *build.Context) {
	c.StaticGlobal(tileConfig.Symbol.Name)
	c.DataAttributes(attr.RODATA | attr.NOPTR)
	var config [64]byte
	config[0] = 1
	for t := range 8 {
		config[16+2*t] = 64 // bytes per row, uint16
		config[48+t] = 16   // rows
	}
	for i := 0; i < len(config); i += 8 {
		c.AddDatum(i, operand.U64(binary.LittleEndian.Uint64(config[i:])))
	}
}

// moveSums moves tiles 0 to 3 from or to RDI, with rows R9 bytes apart; it changes R10.
func moveSums(c *build.Context, move func(tile, base, index byte, disp int32) []byte) {
	c.MOVQ(reg.R9, reg.R10)
	c.SHLQ(operand.U8(4), reg.R10)
	c.ADDQ(reg.RDI, reg.R10)
	emit(c, move(0, rdi, r9, 0))
	emit(c, move(1, rdi, r9, 64))
	emit(c, move(2, r10, r9, 0))
	emit(c, move(3, r10, r9, 64))
}

// tileProducts adds to tiles 0 to 3 the products of R11 words, 0 at the end, of 32 rows of A at
// RSI, RCX bytes apart with the second half R12 bytes further, and of a panel of B at RDX, with
// rows RBX = 128 bytes apart. It runs meanwhile every 16 words, which may change R10.
func tileProducts(c *build.Context, label string, step operand.Mem, meanwhile func()) {
	c.TESTQ(reg.R11, reg.R11)
	c.JZ(operand.LabelRef(label + "done"))
	c.Label(label)
	c.LEAQ(operand.Mem{Base: reg.RSI, Index: reg.R12, Scale: 1}, reg.R10)
	emit(c, tileLoad(4, rsi, rcx, 0))
	emit(c, tileLoad(6, rdx, rbx, 0))
	emit(c, tileLoad(7, rdx, rbx, 64))
	emit(c, tileLoad(5, r10, rcx, 0))
	emit(c, tdpbf16ps(0, 4, 6))
	emit(c, tdpbf16ps(1, 4, 7))
	emit(c, tdpbf16ps(2, 5, 6))
	emit(c, tdpbf16ps(3, 5, 7))
	meanwhile()
	c.ADDQ(step, reg.RSI)
	c.ADDQ(operand.U32(2048), reg.RDX)
	c.SUBQ(operand.U8(16), reg.R11)
	c.JNZ(operand.LabelRef(label))
	c.Label(label + "done")
}

// Flags of a RowFunc's parameter add; see gemm_pack.go.
const (
	addOld  = 1
	addNone = 2
	pastAll = 4
)

// amxRow generates products of 32 rows of A by several panels of B. Results of bf16 are rounded on
// their way: a tile's while the tile units compute the next one. No tile state is kept between
// calls, since a goroutine may change threads.
//
// It prefetches four of the next 32 rows of A with every tile, what is ahead, and the lines of C that
// are written soon.
func amxRow(c *build.Context, name string, round bool) {
	out := "float32"
	if round {
		out = "bf16"
	}
	text(c, name, "func(r *TileRow)", name+" implements RowFunc for "+out+".")
	last, dst, ahead, ld, triple, stage, lines := reg.RAX, reg.RDI, reg.R8, reg.R9, reg.R13, reg.R14, reg.R15
	arg := wordsOf(c, "r", "TileRow", reg.RAX, reg.RCX)
	c.LEAQ(tileConfig, reg.R8)
	emit(c, ldtilecfgR8)
	c.MOVQ(arg("c"), dst)
	c.MOVQ(arg("ld"), ld)
	c.MOVQ(operand.U32(128), reg.RBX)
	if round {
		c.ADDQ(ld, ld)
		c.MOVQ(arg("stage"), stage)
		c.XORQ(last, last) // of the previous tile, if there is one
	} else {
		c.SHLQ(operand.U8(2), ld)
	}
	c.Label("tile")
	c.MOVQ(arg("add"), reg.RCX)
	c.TESTQ(operand.U32(addNone), reg.RCX)
	c.JNZ(operand.LabelRef("nothing"))
	if !round {
		c.TESTQ(reg.RCX, reg.RCX)
		c.JZ(operand.LabelRef("bias"))
		moveSums(c, tileLoad)
		c.JMP(operand.LabelRef("begun"))
		c.Label("bias")
	}
	c.MOVQ(arg("bias"), reg.RDX)
	c.XORQ(reg.RCX, reg.RCX)
	for t := range byte(4) {
		emit(c, tileLoad(t, rdx, rcx, 64*int32(t&1)))
	}
	c.SUBQ(operand.I8(-128), arg("bias"))
	c.JMP(operand.LabelRef("begun"))
	c.Label("nothing")
	for t := range byte(4) {
		emit(c, tilezero(t))
	}
	c.Label("begun")
	c.MOVQ(arg("row"), reg.RCX)
	c.MOVQ(reg.RCX, reg.R12)
	c.SHLQ(operand.U8(4), reg.R12)
	c.LEAQ(operand.Mem{Base: reg.RCX, Index: reg.RCX, Scale: 2}, triple)
	c.MOVQ(arg("next"), ahead)
	c.LEAQ(operand.Mem{Base: ahead, Index: reg.RCX, Scale: 4}, reg.R10)
	c.MOVQ(reg.R10, arg("next"))
	c.MOVQ(arg("a"), reg.RSI)
	c.MOVQ(arg("b"), reg.RDX)
	c.MOVQ(reg.RDX, reg.R10)
	c.ADDQ(arg("panel"), reg.R10)
	c.MOVQ(reg.R10, arg("b"))
	fetches := 0
	fetch := func() {
		fetches++
		past := fmt.Sprint("fetched", fetches)
		c.MOVQ(arg("ahead"), reg.R10)
		c.TESTQ(reg.R10, reg.R10)
		c.JZ(operand.LabelRef(past))
		for line := range 8 {
			c.PREFETCHT1(at(reg.R10, 64*line))
		}
		c.ADDQ(arg("stride"), reg.R10)
		c.MOVQ(reg.R10, arg("ahead"))
		c.Label(past)
		for _, row := range []operand.Mem{at(ahead, 0), {Base: ahead, Index: reg.RCX, Scale: 1},
			{Base: ahead, Index: reg.RCX, Scale: 2}, {Base: ahead, Index: triple, Scale: 1}} {
			c.PREFETCHT1(row)
		}
		c.ADDQ(arg("step"), ahead)
	}
	// With the first 8 × 16 words come the lines of C, four rows at a time: the tile's own if it is
	// rounded later on, else the next tile's.
	c.MOVQ(dst, lines)
	if round {
		c.TESTQ(last, last)
		c.JZ(operand.LabelRef("first"))
		c.ADDQ(operand.U8(64), lines)
		c.Label("first")
	} else {
		c.SUBQ(operand.I8(-128), lines)
	}
	const early = 8 * 16
	c.MOVQ(arg("k"), reg.R11)
	c.CMPQ(reg.R11, operand.U32(early))
	c.JLE(operand.LabelRef("few"))
	c.MOVQ(operand.U32(early), reg.R11)
	c.Label("few")
	tileProducts(c, "early", arg("step"), func() {
		fetch()
		if !round {
			c.TESTB(operand.U8(pastAll), arg("add"))
			c.JNZ(operand.LabelRef("past"))
		}
		for range 4 {
			emit(c, prefetchW(r15, 0))
			if !round {
				emit(c, prefetchW(r15, 64))
			}
			c.ADDQ(ld, lines)
		}
		c.Label("past")
	})
	c.MOVQ(arg("k"), reg.R11)
	c.SUBQ(operand.U32(early), reg.R11)
	c.JLE(operand.LabelRef("multiplied"))
	tileProducts(c, "late", arg("step"), fetch)
	c.Label("multiplied")
	if round {
		c.TESTQ(last, last)
		c.JZ(operand.LabelRef("none"))
		c.Label("narrow")
		narrowTile(c, "before", last, dst, ld, arg("add"))
		c.ADDQ(operand.U8(64), dst)
		c.CMPQ(arg("n"), operand.U8(0))
		c.JNE(operand.LabelRef("store"))
		c.JMP(operand.LabelRef("end"))
		c.Label("none")
		c.LEAQ(at(stage, 4096), last)
		c.Label("store")
		for t := range byte(4) {
			emit(c, tileStore(t, r14, rbx, 64*int32(t&1)+2048*int32(t>>1)))
		}
		c.XCHGQ(stage, last)
	} else {
		c.TESTB(operand.U8(pastAll), arg("add"))
		c.JNZ(operand.LabelRef("copy"))
		moveSums(c, tileStore)
		c.SUBQ(operand.I8(-128), dst)
	}
	c.Label("next")
	c.DECQ(arg("n"))
	c.JNZ(operand.LabelRef("tile"))
	if round {
		c.JMP(operand.LabelRef("narrow")) // the last one
	} else {
		c.JMP(operand.LabelRef("end"))
		c.Label("copy")
		copyTile(c, arg("stage"), dst, ld)
		c.JMP(operand.LabelRef("next"))
	}
	c.Label("end")
	emit(c, tilerelease)
	c.VZEROUPPER()
	c.RET()
}

// copyTile copies the sums to dst past the caches, by way of stage, and advances dst; it changes RSI, RDX and RCX.
func copyTile(c *build.Context, stage operand.Mem, dst, ld reg.Register) {
	c.MOVQ(stage, reg.RSI)
	c.MOVQ(dst, reg.RDX)
	for t := range byte(4) {
		emit(c, tileStore(t, rsi, rbx, 64*int32(t&1)+2048*int32(t>>1)))
	}
	c.MOVQ(operand.U32(32), reg.RCX)
	c.Label("row")
	for j := range 2 {
		c.VMOVUPS(at(reg.RSI, 64*j), zmm[j])
		c.VMOVNTPS(zmm[j], at(reg.RDX, 64*j))
	}
	c.ADDQ(ld, reg.RDX)
	c.SUBQ(operand.I8(-128), reg.RSI)
	c.DECQ(reg.RCX)
	c.JNZ(operand.LabelRef("row"))
	c.SUBQ(operand.I8(-128), dst)
}

// narrowTile rounds the tile at src to dst, with rows ld bytes apart, plus the old contents if the
// parameter add is set; it changes RSI, RDX and RCX. Without add, the results of the tile units
// contain no subnormals, which vcvtne2ps2bf16 would treat as zero.
func narrowTile(c *build.Context, label string, src, dst, ld reg.Register, add operand.Mem) {
	row := func(name string, body func()) {
		c.MOVQ(operand.U32(32), reg.RCX)
		c.Label(name)
		body()
		c.ADDQ(ld, reg.RDX)
		c.SUBQ(operand.I8(-128), reg.RSI)
		c.DECQ(reg.RCX)
		c.JNZ(operand.LabelRef(name))
	}
	c.MOVQ(src, reg.RSI)
	c.MOVQ(dst, reg.RDX)
	c.MOVQ(add, reg.RCX)
	c.TESTQ(operand.U32(addOld), reg.RCX)
	c.JNZ(operand.LabelRef(label + "add"))
	row(label, func() {
		lo, hi := zmm[0], zmm[1]
		c.VMOVUPS(at(reg.RSI, 0), lo)
		c.VMOVUPS(at(reg.RSI, 64), hi)
		emit(c, vcvtne2ps2bf16(lo, hi, lo))
		c.VMOVUPS(lo, at(reg.RDX, 0))
	})
	c.JMP(operand.LabelRef(label + "done"))
	c.Label(label + "add")
	w := widths[0]
	row(label+"row", func() {
		for j := range 2 {
			old := w.vec(c)
			c.VPMOVZXWD(at(reg.RDX, 32*j), old)
			c.VPSLLD(operand.U8(16), old, old)
			c.VADDPS(at(reg.RSI, 64*j), old, old)
			r := narrowBF16(c, w, old, roundingBF16.mem("bit"), roundingBF16.mem("half"), roundingBF16.mem("quiet"))
			c.VMOVDQU(r, at(reg.RDX, 32*j))
		}
	})
	c.Label(label + "done")
}

// A panel of A for AMX has, for each 32 of k, two tiles of 16 rows of 32 bf16: row i is 64 bytes at
// 64*i, and the next 32 of k begin 2048 bytes later. It is padded with zeros along k.

func amxRows(c *build.Context) {
	text(c, "amxRows", transSignature, "amxRows packs at most 32 rows of k bf16 into tiles; it ignores stride.")
	dst, src, k := load64(c, "dst"), load64(c, "src"), load64(c, "k")
	ld, width := load64(c, "ld"), load64(c, "width")
	scale(c, ld, 2)
	from, to, left := c.GP64(), c.GP64(), c.GP64()
	mask, z := c.K(), c.ZMM()
	c.Label("row")
	c.MOVQ(src, from)
	c.MOVQ(dst, to)
	c.MOVQ(k, left)
	c.Label("block")
	maskFirst(c, left, 32, mask)
	c.VMOVDQU16_Z(at(from, 0), mask, z)
	c.VMOVDQU32(z, at(to, 0))
	c.ADDQ(operand.U8(64), from)
	c.ADDQ(operand.U32(2048), to)
	c.SUBQ(operand.U8(32), left)
	c.JG(operand.LabelRef("block"))
	c.ADDQ(ld, src)
	c.ADDQ(operand.U8(64), dst)
	c.DECQ(width)
	c.JNZ(operand.LabelRef("row"))
	c.VZEROUPPER()
	c.RET()
}

func amxNarrow(c *build.Context) {
	text(c, "amxNarrow", "func(dst, src *byte, ld, k int)",
		"amxNarrow rounds 32 rows of k floats, a multiple of 32, ld apart, into tiles; subnormals become zero.")
	dst, src, ld, k := load64(c, "dst"), load64(c, "src"), times4(c, load64(c, "ld")), load64(c, "k")
	from, rows := c.GP64(), c.GP64()
	c.Label("block")
	c.MOVQ(src, from)
	c.MOVQ(operand.U32(8), rows)
	c.Label("rows")
	for i := range 4 {
		lo, hi := zmm[2*i], zmm[2*i+1]
		c.VMOVUPS(at(from, 0), lo)
		c.VMOVUPS(at(from, 64), hi)
		emit(c, vcvtne2ps2bf16(lo, hi, lo))
		c.VMOVUPS(lo, at(dst, 64*i))
		c.ADDQ(ld, from)
	}
	c.ADDQ(operand.U32(256), dst)
	c.DECQ(rows)
	c.JNZ(operand.LabelRef("rows"))
	c.ADDQ(operand.U32(128), src)
	c.SUBQ(operand.U8(32), k)
	c.JNZ(operand.LabelRef("block"))
	c.VZEROUPPER()
	c.RET()
}

func amxColumns(c *build.Context) {
	text(c, "amxColumns", copySignature, "amxColumns packs at most 32 columns of k bf16 into the rows of tiles; it ignores stride and panel.")
	dst, src, width := load64(c, "dst"), load64(c, "src"), load64(c, "width")
	ld := load64(c, "ld")
	scale(c, ld, 2)
	from, to, k := c.GP64(), c.GP64(), c.GP64()
	mask := c.K()
	x, y := square, zmm[16]
	c.Label("half")
	maskFirst(c, width, 16, mask)
	c.MOVQ(src, from)
	c.MOVQ(dst, to)
	c.Load(c.Param("k"), k)
	c.Label("block")
	for i := range x {
		c.VPXORD(x[i], x[i], x[i])
	}
	for i := range x {
		c.VPMOVZXWD_Z(at(from, 0), mask, x[i])
		c.ADDQ(ld, from)
		c.DECQ(k)
		c.JZ(operand.LabelRef("transpose"))
		c.VPMOVZXWD_Z(at(from, 0), mask, y)
		c.VPSLLD(operand.U8(16), y, y)
		c.VPORD(y, x[i], x[i])
		c.ADDQ(ld, from)
		c.DECQ(k)
		c.JZ(operand.LabelRef("transpose"))
	}
	c.Label("transpose")
	transpose(c)
	for i := range x {
		c.VMOVDQU32(x[i], at(to, 64*i))
	}
	c.ADDQ(operand.U32(2048), to)
	c.TESTQ(k, k)
	c.JNZ(operand.LabelRef("block"))
	c.ADDQ(operand.U8(32), src)
	c.ADDQ(operand.U32(1024), dst)
	c.SUBQ(operand.U8(16), width)
	c.JG(operand.LabelRef("half"))
	c.VZEROUPPER()
	c.RET()
}

func cpuVendor(c *build.Context) {
	text(c, "cpuVendor", "func() (b, d, c uint32)", "cpuVendor returns CPUID's vendor string, twelve letters in three words.")
	c.XORL(reg.EAX, reg.EAX)
	c.XORL(reg.ECX, reg.ECX)
	c.CPUID()
	for i, r := range []reg.Register{reg.EBX, reg.EDX, reg.ECX} {
		c.Store(r, c.ReturnIndex(i))
	}
	c.RET()
}
