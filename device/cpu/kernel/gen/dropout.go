package main

import (
	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// dropout writes the parts of dropout; see package kernel's dropISA.
func dropout(c *build.Context) {
	t := declare(c, "dropConstants", roundConstants...)
	words := declareWords(c, "dropWords")
	for _, w := range widths {
		keeps(c, w, words)
		for _, e := range elems {
			drop(c, w, t, words, e)
		}
	}
}

// dropWords are a table of words of 64 bits: Philox's multipliers; the groups of the
// lanes, so that those of even lanes come before those of odd ones, by fours and by
// eights; and a bit in each of eight words of 32 bits.
var dropWords = []struct {
	name  string
	words []uint64
}{
	{"m0", []uint64{0xD2511F53}}, {"m1", []uint64{0xCD9E8D57}}, {"4", []uint64{4}}, {"8", []uint64{8}},
	{"lanes4", []uint64{0, 2, 1, 3}}, {"lanes8", []uint64{0, 4, 1, 5, 2, 6, 3, 7}},
	{"bits", []uint64{2<<32 | 1, 8<<32 | 4, 32<<32 | 16, 128<<32 | 64}},
}

func declareWords(c *build.Context, name string) map[string]operand.Mem {
	symbol, at, place := operand.NewStaticSymbol(name), 0, map[string]operand.Mem{}
	c.StaticGlobal(name)
	c.DataAttributes(attr.RODATA | attr.NOPTR)
	for _, row := range dropWords {
		place[row.name] = operand.Mem{Symbol: symbol, Base: reg.StaticBase, Disp: at}
		for _, x := range row.words {
			c.AddDatum(at, operand.U64(x))
			at += 8
		}
	}
	return place
}

// keeps computes Philox of as many groups as there are lanes of 64 bits, in the lower
// half of each, and makes bits of the eight halves of their four words.
func keeps(c *build.Context, w width, words map[string]operand.Mem) {
	name := "keeps" + w.suffix
	text(c, name, "func(p *DropBits)", name+" is dropISA's keeps.")
	keys, dst, left := load64(c, "p.keys"), load64(c, "p.keep"), load64(c, "p.words")
	row, place, group, limit := load64(c, "p.row"), load64(c, "p.place"), load64(c, "p.group"), load64(c, "p.drop")
	spread := func(r reg.GPVirtual) reg.VecVirtual {
		v, x := w.vec(c), c.XMM()
		c.MOVQ(r, x)
		c.VPBROADCASTQ(x, v)
		return v
	}
	constant := func(name string) reg.VecVirtual {
		v := w.vec(c)
		c.VPBROADCASTQ(words[name], v)
		return v
	}
	rowLow, rowHigh, places, groups, limits := spread(row), w.vec(c), spread(place), spread(group), w.vec(c)
	c.VPSRLQ(operand.U8(32), rowLow, rowHigh)
	x := c.XMM()
	c.MOVQ(limit, x)
	c.VPBROADCASTW(x, limits)
	m0, m1, step, passes := constant("m0"), constant("m1"), constant("8"), 1
	odd := c.K()
	if w.lanes == 16 {
		c.VPADDQ(words["lanes8"], groups, groups)
		mask := c.GP32()
		c.MOVL(operand.U32(0xAAAA), mask)
		c.KMOVW(mask, odd)
	} else {
		c.VPADDQ(words["lanes4"], groups, groups)
		step, passes = constant("4"), 2
	}
	c.Label("word")
	for pass := range passes {
		lo, hi := philox(c, w, keys, m0, m1, groups, places, rowLow, rowHigh, odd)
		c.VPADDQ(step, groups, groups)
		if w.lanes == 16 {
			atLeast64(c, lo, hi, limits, operand.Mem{Base: dst})
		} else {
			atLeast32(c, lo, hi, limits, operand.Mem{Base: dst, Disp: 4 * pass})
		}
	}
	c.ADDQ(operand.U8(8), dst)
	c.DECQ(left)
	c.JNZ(operand.LabelRef("word"))
	c.VZEROUPPER()
	c.RET()
}

// philox is the four words of each lane's group as halves in order: lo those of the
// even lanes, hi those of the odd ones.
func philox(c *build.Context, w width, keys reg.GPVirtual, m0, m1, groups, places, rowLow, rowHigh reg.VecVirtual, odd reg.Register) (lo, hi reg.VecVirtual) {
	a, b, r, d := groups, places, rowLow, rowHigh
	for i := range 10 {
		p0, p1, x, y := w.vec(c), w.vec(c), w.vec(c), w.vec(c)
		c.VPMULUDQ(m0, a, p0)
		c.VPMULUDQ(m1, r, p1)
		c.VPSRLQ(operand.U8(32), p1, x)
		c.VPSRLQ(operand.U8(32), p0, y)
		k0, k1 := operand.Mem{Base: keys, Disp: 8 * i}, operand.Mem{Base: keys, Disp: 8*i + 4}
		if w.lanes == 16 {
			const xorOfThree = 0x96
			c.VPTERNLOGD_BCST(operand.U8(xorOfThree), k0, b, x)
			c.VPTERNLOGD_BCST(operand.U8(xorOfThree), k1, d, y)
		} else {
			k := w.vec(c)
			c.VPXOR(b, x, x)
			c.VPBROADCASTD(k0, k)
			c.VPXOR(k, x, x)
			c.VPXOR(d, y, y)
			c.VPBROADCASTD(k1, k)
			c.VPXOR(k, y, y)
		}
		a, b, r, d = x, p1, y, p0
	}
	join := func(low, high reg.VecVirtual) reg.VecVirtual {
		v := w.vec(c)
		c.VPSLLQ(operand.U8(32), high, high)
		if w.lanes == 16 {
			c.VPBLENDMD(high, low, odd, v)
		} else {
			c.VPBLENDD(operand.U8(0xAA), high, low, v)
		}
		return v
	}
	first, second := join(a, b), join(r, d)
	lo, hi = w.vec(c), w.vec(c)
	c.VPUNPCKLQDQ(second, first, lo)
	c.VPUNPCKHQDQ(second, first, hi)
	return lo, hi
}

// atLeast64 stores a bit for each of 64 halves.
func atLeast64(c *build.Context, lo, hi, limits reg.VecVirtual, dst operand.Mem) {
	const notLess = 5
	for i, v := range []reg.VecVirtual{lo, hi} {
		k := c.K()
		c.VPCMPUW(operand.U8(notLess), limits, v, k)
		c.KMOVD(k, dst.Offset(4*i))
	}
}

// atLeast32 stores a bit for each of 32 halves.
func atLeast32(c *build.Context, lo, hi, limits reg.VecVirtual, dst operand.Mem) {
	for _, v := range []reg.VecVirtual{lo, hi} {
		most := c.YMM()
		c.VPMAXUW(limits, v, most)
		c.VPCMPEQW(most, v, v)
	}
	c.VPACKSSWB(hi, lo, lo)
	c.VPERMQ(operand.U8(0xD8), lo, lo) // the two sources were packed by halves
	mask := c.GP32()
	c.VPMOVMSKB(lo, mask)
	c.MOVL(mask, dst)
}

// drop works on n elements, a positive multiple of 16, all of one type.
func drop(c *build.Context, w width, t *constants, words map[string]operand.Mem, e elem) {
	name := "drop" + e.name + w.suffix
	text(c, name, "func(y, x, add, keep *byte, n int, s float32)", name+" is dropISA's drop.")
	y, x, add, keep, n := load64(c, "y"), load64(c, "x"), load64(c, "add"), load64(c, "keep"), load64(c, "n")
	s, i, bits := broadcastParam(c, w, "s"), c.GP64(), w.vec(c)
	if w.lanes == 8 {
		c.VMOVUPS(words["bits"], bits)
	}
	one := func(from int, adds bool) {
		v := e.widen(c, w, e.mem(x, i, from))
		c.VMULPS(s, v, v)
		keepBits(c, w, v, bits, operand.Mem{Base: keep, Disp: from / 8})
		if adds {
			c.VADDPS(e.widen(c, w, e.mem(add, i, from)), v, v)
		}
		e.narrow(c, w, t, v, e.mem(y, i, from), false)
	}
	loop := func(label string, adds bool) {
		c.Label(label)
		for from := 0; from < 16; from += w.lanes {
			one(from, adds)
		}
		c.ADDQ(operand.U8(2), keep)
		c.ADDQ(operand.U8(16), i)
		c.CMPQ(i, n)
		c.JLT(operand.LabelRef(label))
		c.VZEROUPPER()
		c.RET()
	}
	c.XORQ(i, i)
	c.TESTQ(add, add)
	c.JZ(operand.LabelRef("alone"))
	loop("adding", true)
	loop("alone", false)
}

// keepBits clears the lanes of v whose bits in memory are 0.
func keepBits(c *build.Context, w width, v, bits reg.VecVirtual, from operand.Mem) {
	if w.lanes == 16 {
		k := c.K()
		c.KMOVW(from, k)
		c.VMOVAPS_Z(v, k, v)
		return
	}
	mask, x, m := c.GP32(), c.XMM(), c.YMM()
	c.MOVBLZX(from, mask)
	c.MOVD(mask, x)
	c.VPBROADCASTD(x, m)
	c.VPAND(bits, m, m)
	c.VPCMPEQD(bits, m, m)
	c.VANDPS(m, v, v)
}
