package main

import (
	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// dropout generates the functions of dropout; see package kernel's dropISA. There is only one
// width, since even in Go dropout is a small part of a step, and no fp16, which is converted to
// float32.
func dropout(c *build.Context) {
	t := declare(c, "dropConstants", roundConstants...)
	words, w := declareWords(c, "dropWords"), widths[0]
	keeps(c, w, words)
	for _, e := range elems[:2] {
		drop(c, w, t, e)
	}
}

// dropWords is a table of 64-bit words: Philox's multipliers, and the groups of the lanes, even
// lanes before odd ones.
var dropWords = []struct {
	name  string
	words []uint64
}{
	{"m0", []uint64{0xD2511F53}}, {"m1", []uint64{0xCD9E8D57}}, {"8", []uint64{8}}, {"lanes8", []uint64{0, 4, 1, 5, 2, 6, 3, 7}},
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

// keeps computes Philox for as many groups as there are 64-bit lanes, in the lower half of each,
// and converts the eight halves of their four words to bits.
func keeps(c *build.Context, w width, words map[string]operand.Mem) {
	name := "keeps" + w.suffix
	text(c, name, "func(p *DropBits)", name+" implements dropISA.keeps.")
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
	m0, m1, step, odd, mask := constant("m0"), constant("m1"), constant("8"), c.K(), c.GP32()
	c.VPADDQ(words["lanes8"], groups, groups)
	c.MOVL(operand.U32(0xAAAA), mask)
	c.KMOVW(mask, odd)
	c.Label("word")
	lo, hi := philox(c, w, keys, m0, m1, groups, places, rowLow, rowHigh, odd)
	c.VPADDQ(step, groups, groups)
	atLeast(c, lo, hi, limits, operand.Mem{Base: dst})
	c.ADDQ(operand.U8(8), dst)
	c.DECQ(left)
	c.JNZ(operand.LabelRef("word"))
	c.VZEROUPPER()
	c.RET()
}

// philox returns the four words of each lane's group as halves in order: lo for the even lanes,
// hi for the odd ones.
func philox(c *build.Context, w width, keys reg.GPVirtual, m0, m1, groups, places, rowLow, rowHigh reg.VecVirtual, odd reg.Register) (lo, hi reg.VecVirtual) {
	a, b, r, d := groups, places, rowLow, rowHigh
	for i := range 10 {
		p0, p1, x, y := w.vec(c), w.vec(c), w.vec(c), w.vec(c)
		c.VPMULUDQ(m0, a, p0)
		c.VPMULUDQ(m1, r, p1)
		c.VPSRLQ(operand.U8(32), p1, x)
		c.VPSRLQ(operand.U8(32), p0, y)
		k0, k1 := operand.Mem{Base: keys, Disp: 8 * i}, operand.Mem{Base: keys, Disp: 8*i + 4}
		const xorOfThree = 0x96
		c.VPTERNLOGD_BCST(operand.U8(xorOfThree), k0, b, x)
		c.VPTERNLOGD_BCST(operand.U8(xorOfThree), k1, d, y)
		a, b, r, d = x, p1, y, p0
	}
	join := func(low, high reg.VecVirtual) reg.VecVirtual {
		v := w.vec(c)
		c.VPSLLQ(operand.U8(32), high, high)
		c.VPBLENDMD(high, low, odd, v)
		return v
	}
	first, second := join(a, b), join(r, d)
	lo, hi = w.vec(c), w.vec(c)
	c.VPUNPCKLQDQ(second, first, lo)
	c.VPUNPCKHQDQ(second, first, hi)
	return lo, hi
}

// atLeast stores a bit for each of 64 halves.
func atLeast(c *build.Context, lo, hi, limits reg.VecVirtual, dst operand.Mem) {
	const notLess = 5
	for i, v := range []reg.VecVirtual{lo, hi} {
		k := c.K()
		c.VPCMPUW(operand.U8(notLess), limits, v, k)
		c.KMOVD(k, dst.Offset(4*i))
	}
}

// drop generates dropout of n elements, a positive multiple of 16, all of one type.
func drop(c *build.Context, w width, t *constants, e elem) {
	name := "drop" + e.name + w.suffix
	text(c, name, "func(y, x, add, keep *byte, n int, s float32)", name+" implements dropISA.drop.")
	y, x, add, keep, n := load64(c, "y"), load64(c, "x"), load64(c, "add"), load64(c, "keep"), load64(c, "n")
	s, i := broadcastParam(c, w, "s"), c.GP64()
	one := func(from int, adds bool) {
		v := e.widen(c, w, e.mem(x, i, from))
		c.VMULPS(s, v, v)
		k := c.K()
		c.KMOVW(operand.Mem{Base: keep, Disp: from / 8}, k)
		c.VMOVAPS_Z(v, k, v)
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
