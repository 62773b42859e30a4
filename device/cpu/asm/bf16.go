package main

import (
	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// bf16 writes products of bf16 operands: by vdpbf16ps and by AMX, for which
// Go's assembler has no names. The encodings are checked by main_test.go.
func bf16(c *build.Context) {
	for rows := 1; rows <= 14; rows++ {
		tile512(c, rows, "tileDot", "pairs of bf16", func(b, x, acc reg.VecPhysical) { emit(c, vdpbf16ps(acc, x, b)) })
	}
	copyPairs(c)
	transPairs(c)
	declareTileConfig(c)
	roundingBF16 = declare(c, "roundingBF16", roundConstants...)
	amxBlock(c)
	amxRow(c, "amxRowF32", false)
	amxRow(c, "amxRowBF16", true)
	amxRows(c)
	amxColumns(c)
	amxNarrow(c)
	cpuVendor(c)
}

func emit(c *build.Context, code []byte) {
	for _, b := range code {
		c.Instruction(&ir.Instruction{Opcode: "BYTE", Operands: []operand.Op{operand.U8(b)}})
	}
}

// vdpbf16ps is acc += x·y in pairs: EVEX.512.F3.0F38.W0 52 /r.
func vdpbf16ps(acc, x, y reg.VecPhysical) []byte { return evex38(2, 0x52, acc, x, y) }

// vcvtne2ps2bf16 is dst = y, x as bf16, y in the lower half: EVEX.512.F2.0F38.W0
// 72 /r.
func vcvtne2ps2bf16(dst, x, y reg.VecPhysical) []byte { return evex38(3, 0x72, dst, x, y) }

// evex38 is an instruction of three 512-bit registers in map 0F38.
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
)

// tdpbf16ps is C += A·B of tiles: VEX.128.F3.0F38.W0 5C /r.
func tdpbf16ps(tc, ta, tb byte) []byte {
	return []byte{0xc4, 0xe2, ^tb&15<<3 | 2, 0x5c, 0xc0 | tc<<3 | ta}
}

// tileMove is tileloadd (prefix 3, F2) or tilestored (prefix 2, F3) of a tile
// whose rows are index bytes apart: VEX.128.W0 0F38 4B /r with a SIB.
func tileMove(prefix, tile, base, index byte, disp int32) []byte {
	high := base>>3<<5 | index>>3<<6
	code := []byte{0xc4, 0xe2 &^ high, 0x78 | prefix, 0x4b, 0x80 | tile<<3 | 4, index&7<<3 | base&7}
	return append(code, byte(disp), byte(disp>>8), byte(disp>>16), byte(disp>>24))
}

func tileLoad(tile, base, index byte, disp int32) []byte { return tileMove(3, tile, base, index, disp) }
func tileStore(tile, base, index byte, disp int32) []byte {
	return tileMove(2, tile, base, index, disp)
}

var (
	ldtilecfgR8 = []byte{0xc4, 0xc2, 0x78, 0x49, 0x00}
	// tilezero is VEX.128.F2.0F38.W0 49 /r with the tile in bits 3 to 5.
	tilezero    = func(tile byte) []byte { return []byte{0xc4, 0xe2, 0x7b, 0x49, 0xc0 | tile<<3} }
	tilerelease = []byte{0xc4, 0xe2, 0x78, 0x49, 0xc0}
)

// copyPairs packs lanes side by side: word i of row p/2 is (x[p][i], x[p+1][i]).
func copyPairs(c *build.Context) {
	text(c, "copyPairs", packSignature, "copyPairs is a packFunc of at most 32 lanes of bf16 side by side, two of k in a word.")
	dst, src, k := load64(c, "dst"), load64(c, "src"), load64(c, "k")
	ld, stride, width := load64(c, "ld"), times4(c, load64(c, "stride")), load64(c, "width")
	scale(c, ld, 2)
	m0, m1 := masks32(c, width)
	lo := []reg.VecVirtual{c.ZMM(), c.ZMM()}
	hi := []reg.VecVirtual{c.ZMM(), c.ZMM()}
	ahead := c.GP64() // of what is packed next
	c.MOVQ(ld, ahead)
	c.SHLQ(operand.U8(5), ahead)
	half := func(j int, src reg.GPVirtual, m reg.OpmaskVirtual, z []reg.VecVirtual) {
		c.VPMOVZXWD_Z(at(src, 32*j), m, z[j])
	}
	pair := func(j int, m reg.OpmaskVirtual, next reg.GPVirtual) {
		half(j, src, m, lo)
		half(j, next, m, hi)
		c.VPSLLD(operand.U8(16), hi[j], hi[j])
		c.VPORD(hi[j], lo[j], lo[j])
		c.VMOVDQU32(lo[j], at(dst, 64*j))
	}
	next := c.GP64()
	loop := func(name string, halves int) {
		masks := []reg.OpmaskVirtual{m0, m1}
		c.SUBQ(operand.U8(2), k)
		c.JLT(operand.LabelRef(name + "odd"))
		c.Label(name)
		c.LEAQ(operand.Mem{Base: src, Index: ld, Scale: 1}, next)
		for _, row := range []reg.GPVirtual{src, next} {
			c.PREFETCHT0(operand.Mem{Base: row, Index: ahead, Scale: 1})
		}
		for j := range halves {
			pair(j, masks[j], next)
		}
		c.LEAQ(operand.Mem{Base: next, Index: ld, Scale: 1}, src)
		c.ADDQ(stride, dst)
		c.SUBQ(operand.U8(2), k)
		c.JGE(operand.LabelRef(name))
		c.Label(name + "odd")
		c.ADDQ(operand.U8(2), k)
		c.JZ(operand.LabelRef(name + "done"))
		for j := range halves {
			half(j, src, masks[j], lo)
			c.VMOVDQU32(lo[j], at(dst, 64*j))
		}
		c.Label(name + "done")
		c.VZEROUPPER()
		c.RET()
	}
	c.CMPQ(width, operand.U8(16))
	c.JLE(operand.LabelRef("few"))
	loop("wide", 2)
	c.Label("few")
	loop("narrow", 1)
}

func transPairs(c *build.Context) {
	text(c, "transPairs", packSignature, "transPairs is a packFunc of at most 16 lanes of bf16 that lie apart, two of k in a word.")
	var x, y [16]reg.VecVirtual
	for i := range x {
		x[i], y[i] = c.ZMM(), c.ZMM()
		c.VPXORD(x[i], x[i], x[i])
	}
	mask := c.K()
	transLoop(c, 16, 2, 2, func(k reg.GPVirtual) { maskFirst(c, k, 32, mask) },
		func(i int, src operand.Mem) { c.VMOVDQU16_Z(src, mask, x[i]) },
		func() { turn16(c, &x, &y) },
		func(p int, dst operand.Mem) { c.VMOVUPS(x[p], dst) })
}

// roundingBF16 are the constants of narrowBF16.
var roundingBF16 *lanes16

var tileConfig = operand.Mem{Symbol: operand.NewStaticSymbol("tileConfig"), Base: reg.StaticBase}

// declareTileConfig: palette 1, every tile 16 rows of 64 bytes.
func declareTileConfig(c *build.Context) {
	c.StaticGlobal(tileConfig.Symbol.Name)
	c.DataAttributes(attr.RODATA | attr.NOPTR)
	var config [64]byte
	config[0] = 1
	for t := range 8 {
		config[16+2*t] = 64 // bytes of a row, uint16
		config[48+t] = 16   // rows
	}
	for i, b := range config {
		c.AddDatum(i, operand.U8(b))
	}
}

// amxBlock keeps no tile state between calls: a goroutine may change threads.
func amxBlock(c *build.Context) {
	text(c, "amxBlock", "func(k int, a, b, base *byte, ldb int, c *byte, ldc int)",
		"amxBlock is a whole tile of 32 by 32 from k words (a multiple of 16) of pairs of bf16.")
	k := load64(c, "k")
	c.LEAQ(tileConfig, reg.R8)
	emit(c, ldtilecfgR8)
	sums := func(pointer, ld string, move func(tile, base, index byte, disp int32) []byte) {
		c.Load(c.Param(pointer), reg.RDI)
		c.Load(c.Param(ld), reg.RCX)
		c.SHLQ(operand.U8(2), reg.RCX)
		emit(c, move(0, rdi, rcx, 0))
		emit(c, move(1, rdi, rcx, 64))
		c.SHLQ(operand.U8(4), reg.RCX)
		c.ADDQ(reg.RCX, reg.RDI)
		c.SHRQ(operand.U8(4), reg.RCX)
		emit(c, move(2, rdi, rcx, 0))
		emit(c, move(3, rdi, rcx, 64))
	}
	sums("base", "ldb", tileLoad)
	c.Load(c.Param("a"), reg.RSI)
	c.Load(c.Param("b"), reg.RDX)
	c.MOVQ(operand.U32(64), reg.RCX)
	c.MOVQ(operand.U32(128), reg.RBX)
	tileProducts(c, k)
	sums("c", "ldc", tileStore)
	emit(c, tilerelease)
	c.RET()
}

// tileProducts adds to tiles 0 to 3 the products of k words, 0 in the end, of a
// panel of A at RSI, rows RCX bytes apart, and of B at RDX, rows RBX apart.
//
// Meanwhile it fetches from where R8 points 256 bytes for every 16 words.
func tileProducts(c *build.Context, k reg.Register) {
	c.TESTQ(k, k)
	c.JZ(operand.LabelRef("multiplied"))
	c.Label("multiply")
	emit(c, tileLoad(4, rsi, rcx, 0))
	emit(c, tileLoad(6, rdx, rbx, 0))
	emit(c, tileLoad(7, rdx, rbx, 64))
	emit(c, tileLoad(5, rsi, rcx, 1024))
	emit(c, tdpbf16ps(0, 4, 6))
	emit(c, tdpbf16ps(1, 4, 7))
	emit(c, tdpbf16ps(2, 5, 6))
	emit(c, tdpbf16ps(3, 5, 7))
	for line := range 4 {
		c.PREFETCHT1(at(reg.R8, 64*line))
	}
	c.ADDQ(operand.U32(256), reg.R8)
	c.ADDQ(operand.U32(2048), reg.RSI)
	c.ADDQ(operand.U32(2048), reg.RDX)
	c.SUBQ(operand.U8(16), k)
	c.JNZ(operand.LabelRef("multiply"))
	c.Label("multiplied")
}

// What the parameter add of a rowFunc may have set; see gemm_pack.go.
const (
	addOld  = 1
	addNone = 2
)

// amxRow writes products of a panel of A by several of B. Results of bf16 are
// rounded on their way: a tile's while the tile units work at the next one.
func amxRow(c *build.Context, name string, round bool) {
	out := "float32"
	if round {
		out = "bf16"
	}
	text(c, name, "func(k int, a, b *byte, step int, c *byte, ld, n, add int, stage *byte)",
		name+" is a rowFunc of "+out+".")
	words, a, b, dst, ld, stage, last := reg.R11, reg.R12, reg.R13, reg.RDI, reg.R9, reg.R10, reg.RAX
	c.LEAQ(tileConfig, reg.R8)
	emit(c, ldtilecfgR8)
	n := reg.R15
	c.Load(c.Param("a"), a)
	c.Load(c.Param("b"), b)
	c.Load(c.Param("c"), dst)
	c.Load(c.Param("ld"), ld)
	c.Load(c.Param("n"), n)
	c.MOVQ(operand.U32(128), reg.RBX)
	if round {
		c.ADDQ(ld, ld)
		c.Load(c.Param("stage"), stage)
		c.LEAQ(at(stage, 4096), last)
	} else {
		c.SHLQ(operand.U8(2), ld)
	}
	c.Load(c.Param("k"), reg.R8) // the next panel of A: eight tiles fetch it
	c.SHLQ(operand.U8(7), reg.R8)
	c.ADDQ(a, reg.R8)
	rest := func() { // of the first half of the rows, in R10 the second
		c.MOVQ(ld, stage)
		c.SHLQ(operand.U8(4), stage)
		c.ADDQ(dst, stage)
	}
	c.Label("tile")
	c.Load(c.Param("add"), reg.RCX)
	c.TESTQ(operand.U32(addNone), reg.RCX)
	c.JNZ(operand.LabelRef("nothing"))
	if !round {
		c.TESTQ(reg.RCX, reg.RCX)
		c.JZ(operand.LabelRef("bias"))
		rest()
		emit(c, tileLoad(0, rdi, r9, 0))
		emit(c, tileLoad(1, rdi, r9, 64))
		emit(c, tileLoad(2, r10, r9, 0))
		emit(c, tileLoad(3, r10, r9, 64))
		c.JMP(operand.LabelRef("begun"))
		c.Label("bias")
	}
	c.MOVQ(b, reg.RDX)
	c.XORQ(reg.RCX, reg.RCX)
	for t := range byte(4) {
		emit(c, tileLoad(t, rdx, rcx, -128+64*int32(t&1)))
	}
	c.JMP(operand.LabelRef("begun"))
	c.Label("nothing")
	for t := range byte(4) {
		emit(c, tilezero(t))
	}
	c.Label("begun")
	c.MOVQ(operand.U32(64), reg.RCX)
	c.MOVQ(a, reg.RSI)
	c.MOVQ(b, reg.RDX)
	c.Load(c.Param("k"), words)
	tileProducts(c, words)
	if round {
		c.Load(c.Param("n"), reg.RCX)
		c.CMPQ(n, reg.RCX)
		c.JE(operand.LabelRef("first"))
		narrowTile(c, "before", last, dst, ld)
		c.ADDQ(operand.U8(64), dst)
		c.Label("first")
		for t := range byte(4) {
			emit(c, tileStore(t, r10, rbx, 64*int32(t&1)+2048*int32(t>>1)))
		}
		c.XCHGQ(stage, last)
	} else {
		rest()
		emit(c, tileStore(0, rdi, r9, 0))
		emit(c, tileStore(1, rdi, r9, 64))
		emit(c, tileStore(2, r10, r9, 0))
		emit(c, tileStore(3, r10, r9, 64))
		c.SUBQ(operand.I8(-128), dst)
	}
	c.Load(c.Param("step"), reg.RCX)
	c.ADDQ(reg.RCX, b)
	c.DECQ(n)
	c.JNZ(operand.LabelRef("tile"))
	if round {
		narrowTile(c, "end", last, dst, ld)
	}
	emit(c, tilerelease)
	c.VZEROUPPER()
	c.RET()
}

// narrowTile rounds the tile at src to dst, rows ld bytes apart, plus what was
// there if the parameter add is set; it changes RSI, RDX and RCX. Without that,
// what the tile units give has no subnormals, which vcvtne2ps2bf16 would take
// for zero.
func narrowTile(c *build.Context, label string, src, dst, ld reg.Register) {
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
	c.Load(c.Param("add"), reg.RCX)
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

// The panel of A for AMX is, for each 32 of k, two tiles of 16 rows of 32
// bf16: row i is 64 bytes at 64*i, and the next 32 of k are 2048 bytes on.
// What is missing of k is zero.

func amxRows(c *build.Context) {
	text(c, "amxRows", packSignature, "amxRows packs at most 32 rows of k bf16 into tiles; stride does not matter.")
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
	text(c, "amxColumns", packSignature, "amxColumns packs at most 16 columns of k bf16 into the rows of a tile; stride does not matter.")
	dst, src, k := load64(c, "dst"), load64(c, "src"), load64(c, "k")
	ld, width := load64(c, "ld"), load64(c, "width")
	scale(c, ld, 2)
	mask := c.K()
	maskFirst(c, width, 16, mask)
	var x, y [16]reg.VecVirtual
	for i := range x {
		x[i], y[i] = c.ZMM(), c.ZMM()
	}
	c.Label("block")
	for i := range x {
		c.VPXORD(x[i], x[i], x[i])
	}
	for i := range x {
		c.VPMOVZXWD_Z(at(src, 0), mask, x[i])
		c.ADDQ(ld, src)
		c.DECQ(k)
		c.JZ(operand.LabelRef("turn"))
		c.VPMOVZXWD_Z(at(src, 0), mask, y[i])
		c.VPSLLD(operand.U8(16), y[i], y[i])
		c.VPORD(y[i], x[i], x[i])
		c.ADDQ(ld, src)
		c.DECQ(k)
		c.JZ(operand.LabelRef("turn"))
	}
	c.Label("turn")
	turn16(c, &x, &y)
	for i := range x {
		c.VMOVDQU32(x[i], at(dst, 64*i))
	}
	c.ADDQ(operand.U32(2048), dst)
	c.TESTQ(k, k)
	c.JNZ(operand.LabelRef("block"))
	c.VZEROUPPER()
	c.RET()
}

func cpuVendor(c *build.Context) {
	text(c, "cpuVendor", "func() (b, d, c uint32)", "cpuVendor is the name CPUID gives the maker: twelve letters in three words.")
	c.XORL(reg.EAX, reg.EAX)
	c.XORL(reg.ECX, reg.ECX)
	c.CPUID()
	for i, r := range []reg.Register{reg.EBX, reg.EDX, reg.ECX} {
		c.Store(r, c.ReturnIndex(i))
	}
	c.RET()
}
