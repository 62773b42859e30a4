package main

import (
	"slices"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// roofline generates the functions that measure the machine's limits, its roofline, and the pause
// of a spinning worker.
func roofline(c *build.Context) {
	declareTileConfig(c)
	dotLoop(c)
	tileLoop(c)
	triad(c)
	rewrite(c)
	update(c)
	readAll(c)
	pause(c)
}

// loop runs body n times.
func loop(c *build.Context, n reg.GPVirtual, body func()) {
	c.Label("loop")
	body()
	c.DECQ(n)
	c.JNZ(operand.LabelRef("loop"))
}

func dotLoop(c *build.Context) {
	text(c, "dotLoop", "func(n int)", "dotLoop performs 48 n independent multiply-adds of whole registers of pairs of bf16.")
	n := load64(c, "n")
	for i := range 13 {
		c.VPXORD(zmm[i], zmm[i], zmm[i])
	}
	loop(c, n, func() {
		for i := range 48 {
			emit(c, vdpbf16ps(zmm[i%12], zmm[12], zmm[12]))
		}
	})
	c.VZEROUPPER()
	c.RET()
}

func tileLoop(c *build.Context) {
	text(c, "tileLoop", "func(n int)", "tileLoop multiplies 16 n pairs of whole tiles of bf16 and adds the products to four others in turn.")
	n := load64(c, "n")
	c.LEAQ(tileConfig, reg.R8)
	emit(c, ldtilecfgR8)
	loop(c, n, func() {
		for i := range byte(16) {
			emit(c, tdpbf16ps(i%4, 4+i%2, 6+i/2%2))
		}
	})
	emit(c, tilerelease)
	c.RET()
}

// stream runs body on n floats, a positive multiple of 16, in halves of 8, for several pages at a
// time if there are enough, and prefetches the memory that is read.
func stream(c *build.Context, n reg.GPVirtual, pages int, written, read []reg.GPVirtual, body func(disp int)) {
	run := func(from, floats int) {
		for i := from; i < from+floats; i += 8 {
			for _, p := range read {
				if i%16 == 0 {
					c.PREFETCHT0(at(p, 4*(i+floats))) // the next of its page
				}
			}
			body(4 * i)
		}
	}
	on := func(floats int) {
		for _, p := range slices.Concat(written, read) {
			c.ADDQ(operand.U32(uint32(4*floats)), p)
		}
	}
	byPages(c, n, pages, pageLen, 16*pageLines, run, on)
	c.TESTQ(n, n)
	c.JZ(operand.LabelRef("done"))
	c.Label("loop")
	run(0, 16)
	on(16)
	c.SUBQ(operand.U8(16), n)
	c.JNZ(operand.LabelRef("loop"))
	c.Label("done")
	c.SFENCE()
	c.VZEROUPPER()
	c.RET()
}

func triad(c *build.Context) {
	text(c, "triad", "func(dst, a, b *byte, n int)", "triad sets dst = a + b/2 for n floats, a multiple of 16, bypassing the caches; dst is aligned to 64 bytes.")
	dst, a, b, n := load64(c, "dst"), load64(c, "a"), load64(c, "b"), load64(c, "n")
	half := everyLane(c, 0x3f000000)
	stream(c, n, pagesAtOnce, []reg.GPVirtual{dst}, []reg.GPVirtual{a, b}, func(disp int) {
		x := c.YMM()
		c.VMOVUPS(at(a, disp), x)
		c.VFMADD231PS(at(b, disp), half, x)
		c.VMOVNTPS(x, at(dst, disp))
	})
}

func rewrite(c *build.Context) {
	text(c, "rewrite", "func(x *byte, n int)", "rewrite negates the n floats of x, a multiple of 16, in place.")
	x, n := load64(c, "x"), load64(c, "n")
	minus := everyLane(c, 0xbf800000)
	stream(c, n, pagesAtOnce, nil, []reg.GPVirtual{x}, func(disp int) {
		v := c.YMM()
		c.VMULPS(at(x, disp), minus, v)
		c.VMOVUPS(v, at(x, disp))
	})
}

func update(c *build.Context) {
	text(c, "update", "func(x, a *byte, n int)", "update adds a/2 to n floats of x, a multiple of 16.")
	x, a, n := load64(c, "x"), load64(c, "a"), load64(c, "n")
	half := everyLane(c, 0x3f000000)
	stream(c, n, pagesOfEach, nil, []reg.GPVirtual{x, a}, func(disp int) {
		v := c.YMM()
		c.VMOVUPS(at(x, disp), v)
		c.VFMADD231PS(at(a, disp), half, v)
		c.VMOVUPS(v, at(x, disp))
	})
}

// readAll reads eight pages at a time: a core can fetch more in parallel from several pages than
// from one stream.
func readAll(c *build.Context) {
	const page, streams = 4096, 8
	text(c, "readAll", "func(x *byte, pages int) float32", "readAll adds up pages of 1024 floats, a multiple of 8.")
	x, n, at := load64(c, "x"), load64(c, "pages"), c.GP64()
	var sums [streams]reg.VecVirtual
	for i := range sums {
		sums[i] = c.YMM()
		c.VXORPS(sums[i], sums[i], sums[i])
	}
	c.Label("eight")
	c.XORQ(at, at)
	c.Label("line")
	for i, s := range sums {
		c.VADDPS(operand.Mem{Base: x, Index: at, Scale: 1, Disp: page * i}, s, s)
		c.VADDPS(operand.Mem{Base: x, Index: at, Scale: 1, Disp: page*i + 32}, s, s)
	}
	c.ADDQ(operand.U8(64), at)
	c.CMPQ(at, operand.U32(page))
	c.JNE(operand.LabelRef("line"))
	c.ADDQ(operand.U32(page*streams), x)
	c.SUBQ(operand.U8(streams), n)
	c.JNZ(operand.LabelRef("eight"))
	for _, s := range sums[1:] {
		c.VADDPS(s, sums[0], sums[0])
	}
	across(c, width{"AVX2", 8}, sums[0], c.VADDPS)
	returnFloat(c, sums[0])
	c.VZEROUPPER()
	c.RET()
}

// everyLane returns a float, given its bits, in every lane.
func everyLane(c *build.Context, bits uint32) reg.VecVirtual {
	r, v := c.GP32(), c.YMM()
	c.MOVL(operand.U32(bits), r)
	c.VMOVD(r, v.AsX())
	c.VPBROADCASTD(v.AsX(), v)
	return v
}

func pause(c *build.Context) {
	text(c, "Pause", "func(n int)", "Pause executes the PAUSE instruction n times, for loops that poll memory.")
	n := load64(c, "n")
	loop(c, n, func() { c.PAUSE() })
	c.RET()
}
