package main

import (
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// cast generates the conversions: for each direction, vector width and kind of store, a function on
// n elements, a positive multiple of 16. Functions that stream need dst aligned to a vector and end
// with a fence.
func cast(c *build.Context) {
	for _, w := range widths {
		for _, stream := range []bool{false, true} {
			castLoop(c, w, stream, "bf16ToF32", 2, 4, bf16ToF32)
			if !stream || w == widths[0] { // rare or long functions have only one width
				castLoop(c, w, stream, "f16ToF32", 2, 4, f16ToF32)
				castLoop(c, w, stream, "f32ToF16", 4, 2, f32ToF16)
				castLoop(c, w, stream, "f32ToBF16", 4, 2, roundBF16(c, w))
			}
		}
	}
	streamCopy(c)
}

// width is a vector width: its suffix in names and its number of 32-bit lanes.
type width struct {
	suffix string
	lanes  int
}

func (w width) vec(c *build.Context) reg.VecVirtual {
	if w.lanes == 16 {
		return c.ZMM()
	}
	return c.YMM()
}

// half returns the lower half of a vector of this width.
func (w width) half(v reg.VecVirtual) reg.Register {
	if w.lanes == 16 {
		return v.AsY()
	}
	return v.AsX()
}

const castSignature = "func(dst, src *byte, n int)"

// convert loads the elements at src into a register and converts them to out bytes per lane.
type convert func(c *build.Context, w width, src operand.Mem) reg.Register

// pagesAtOnce is the number of pages of src that a streaming function processes at a time, and
// pageLines the number of lines of a page before it switches to the next: a core can fetch more
// lines in parallel from several pages than from one, up to half as many again. With several
// arrays, fewer pages of each suffice.
const (
	pagesAtOnce = 8
	pagesOfEach = 4
	pageLines   = 2
	pageBytes   = 4096
	pageLen     = pageBytes / 4 // elements of 4 bytes
)

func castLoop(c *build.Context, w width, stream bool, name string, in, out int, f func() (prepare func(), body convert)) {
	name += w.suffix
	if stream {
		name += "Stream"
	}
	text(c, name, castSignature, name+" converts n elements, a multiple of 16.")
	prepare, body := f()
	prepare()
	dst, src, n := load64(c, "dst"), load64(c, "src"), load64(c, "n")
	run := func(from, elements int) {
		for i := from; i < from+elements; i += w.lanes {
			if stream && i*in%64 == 0 {
				c.PREFETCHT0(at(src, (i+elements)*in)) // the next of its page
			}
			storeVec(c, body(c, w, at(src, i*in)), at(dst, i*out), w.lanes*out, stream)
		}
	}
	on := func(elements int) {
		c.ADDQ(operand.U32(uint32(elements*in)), src)
		c.ADDQ(operand.U32(uint32(elements*out)), dst)
	}
	if stream {
		byPages(c, n, pagesAtOnce, pageBytes/in, pageLines*64/in, run, on)
	}
	c.SUBQ(operand.U8(64), n)
	c.JLT(operand.LabelRef("few"))
	c.Label("many")
	run(0, 64)
	on(64)
	c.SUBQ(operand.U8(64), n)
	c.JGE(operand.LabelRef("many"))
	c.Label("few")
	c.ADDQ(operand.U8(64), n)
	c.JZ(operand.LabelRef("done"))
	c.Label("sixteen")
	run(0, 16)
	on(16)
	c.SUBQ(operand.U8(16), n)
	c.JNZ(operand.LabelRef("sixteen"))
	c.Label("done")
	if stream {
		c.SFENCE()
	}
	c.VZEROUPPER()
	c.RET()
}

// byPages processes n by pages pages of page units at once, as long as there are that many: run
// processes some units of each in turn, and on advances all pointers.
func byPages(c *build.Context, n reg.GPVirtual, pages, page, some int, run func(from, units int), on func(units int)) {
	pageRounds(c, n, pages, page, some, func() {
		for p := range pages {
			run(p*page, some)
		}
	}, on)
}

// pageRounds calls byPages with round processing some units of every page.
func pageRounds(c *build.Context, n reg.GPVirtual, pages, page, some int, round func(), on func(units int)) {
	left := c.GP64()
	c.CMPQ(n, operand.U32(uint32(pages*page)))
	c.JLT(operand.LabelRef("rest"))
	c.Label("pages")
	c.MOVQ(operand.U32(uint32(page/some)), left)
	c.Label("page")
	round()
	on(some)
	c.DECQ(left)
	c.JNZ(operand.LabelRef("page"))
	on((pages - 1) * page)
	c.SUBQ(operand.U32(uint32(pages*page)), n)
	c.CMPQ(n, operand.U32(uint32(pages*page)))
	c.JGE(operand.LabelRef("pages"))
	c.Label("rest")
}

func storeVec(c *build.Context, v reg.Register, dst operand.Mem, bytes int, stream bool) {
	switch {
	case stream:
		c.VMOVNTDQ(v, dst)
	case bytes == 64:
		c.VMOVDQU32(v, dst)
	default:
		c.VMOVDQU(v, dst)
	}
}

func plain(body convert) (func(), convert) { return func() {}, body }

func bf16ToF32() (func(), convert) {
	return plain(func(c *build.Context, w width, src operand.Mem) reg.Register {
		v := w.vec(c)
		c.VPMOVZXWD(src, v)
		c.VPSLLD(operand.U8(16), v, v)
		return v
	})
}

func f16ToF32() (func(), convert) {
	return plain(func(c *build.Context, w width, src operand.Mem) reg.Register {
		v := w.vec(c)
		c.VCVTPH2PS(src, v)
		return v
	})
}

func f32ToF16() (func(), convert) {
	return plain(func(c *build.Context, w width, src operand.Mem) reg.Register {
		v := w.vec(c)
		c.VMOVUPS(src, v)
		h := w.half(w.vec(c))
		c.VCVTPS2PH(operand.U8(0), v, h) // 0: to nearest even
		return h
	})
}

// roundBF16 adds half a unit, less one if the last kept bit is even, and keeps the upper half; a
// NaN is made quiet instead. vcvtneps2bf16 is unsuitable: it treats subnormals as zero.
func roundBF16(c *build.Context, w width) func() (func(), convert) {
	var one, half, quiet reg.VecVirtual
	prepare := func() { one, half, quiet = spread(c, w, 1), spread(c, w, 0x7fff), spread(c, w, 0x400000) }
	return func() (func(), convert) {
		return prepare, func(c *build.Context, w width, src operand.Mem) reg.Register {
			u := w.vec(c)
			c.VMOVUPS(src, u)
			return narrowBF16(c, w, u, one, half, quiet)
		}
	}
}

// spread returns a constant in every lane.
func spread(c *build.Context, w width, bits uint32) reg.VecVirtual {
	r, v := c.GP32(), w.vec(c)
	c.MOVL(operand.U32(bits), r)
	c.VMOVD(r, v.AsX())
	c.VPBROADCASTD(v.AsX(), v)
	return v
}

// narrowBF16 returns u rounded, in the lower half of a register.
func narrowBF16(c *build.Context, w width, u reg.VecVirtual, one, half, quiet operand.Op) reg.Register {
	r := w.vec(c)
	c.VPSRLD(operand.U8(16), u, r)
	if w.lanes == 16 {
		nan := c.K()
		c.VPANDD(one, r, r)
		c.VPADDD(half, r, r)
		c.VCMPPS(operand.U8(3), u, u, nan) // 3: unordered
		c.VPADDD(u, r, r)
		c.VPORD(quiet, u, nan, r)
		c.VPSRLD(operand.U8(16), r, r)
		c.VPMOVDW(r, r.AsY())
		return r.AsY()
	}
	nan, q := c.YMM(), c.YMM()
	c.VPAND(one, r, r)
	c.VPADDD(half, r, r)
	c.VCMPPS(operand.U8(3), u, u, nan)
	c.VPADDD(u, r, r)
	c.VPOR(quiet, u, q)
	c.VBLENDVPS(nan, q, r, r)
	c.VPSRLD(operand.U8(16), r, r)
	c.VEXTRACTI128(operand.U8(1), r, q.AsX())
	c.VPACKUSDW(q.AsX(), r.AsX(), r.AsX())
	return r.AsX()
}

func streamCopy(c *build.Context) {
	text(c, "copyStream", castSignature, "copyStream copies n bytes, a positive multiple of 64, to an aligned dst.")
	dst, src, n := load64(c, "dst"), load64(c, "src"), load64(c, "n")
	v := make([]reg.VecVirtual, 2*pageLines)
	for i := range v {
		v[i] = c.YMM()
	}
	run := func(from, bytes int) {
		for i := range bytes / 32 {
			c.VMOVDQU(at(src, from+32*i), v[i])
		}
		for i := range bytes / 32 {
			c.VMOVNTDQ(v[i], at(dst, from+32*i))
		}
	}
	on := func(bytes int) {
		c.ADDQ(operand.U32(uint32(bytes)), src)
		c.ADDQ(operand.U32(uint32(bytes)), dst)
	}
	byPages(c, n, pagesAtOnce, pageBytes, 64*pageLines, run, on)
	c.TESTQ(n, n)
	c.JZ(operand.LabelRef("done"))
	c.Label("loop")
	run(0, 64)
	on(64)
	c.SUBQ(operand.U8(64), n)
	c.JNZ(operand.LabelRef("loop"))
	c.Label("done")
	c.SFENCE()
	c.VZEROUPPER()
	c.RET()
}
