package main

import (
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// sums generates sums of many vectors, n elements of each, a positive multiple of 16.
func sums(c *build.Context) {
	t := declare(c, "sumsConstants", roundConstants...)
	for _, w := range widths {
		for _, e := range elems {
			addUp(c, w, t, e, false)
		}
		for _, e := range rowwise(w) {
			if e != f16s {
				addUp(c, w, t, e, true)
			}
		}
	}
}

// pagedSources is the number of sources that is too large for several pages of each: their lines
// would evict each other from the first-level cache.
const pagedSources = 7

// addUp processes 64 elements at a time, with their sums in registers while the sources stream by,
// and then 16; if it bypasses the caches, first some lines of several pages at a time.
func addUp(c *build.Context, w width, t *constants, e elem, stream bool) {
	name := "addUp" + e.name + w.suffix
	if stream {
		name += "Stream"
	}
	text(c, name, "func(dst, src *byte, apart, count, at, n int)", name+" implements addUpFunc.")
	dst, src, apart, n, i := load64(c, "dst"), load64(c, "src"), load64(c, "apart"), load64(c, "n"), load64(c, "at")
	others := load64(c, "count")
	c.DECQ(others)
	scale(c, i, e.size)
	// step adds vectors at these byte offsets from element i on.
	step := func(label string, vectors []int, ahead int) {
		sums := make([]reg.VecVirtual, len(vectors))
		x, from, left := c.GP64(), c.GP64(), c.GP64()
		mem := func(base reg.GPVirtual, j int) operand.Mem {
			return operand.Mem{Base: base, Index: i, Scale: 1, Disp: vectors[j]}
		}
		fetch := func(j int) {
			if m := mem(x, j); ahead > 0 && m.Disp%64 == 0 {
				c.PREFETCHT0(m.Offset(ahead))
			}
		}
		c.MOVQ(at(src, 0), x)
		for j := range sums {
			fetch(j)
			sums[j] = e.widen(c, w, mem(x, j))
		}
		c.MOVQ(src, from)
		c.MOVQ(others, left)
		c.TESTQ(left, left)
		c.JZ(operand.LabelRef(label + "Store"))
		c.Label(label + "Source")
		c.ADDQ(apart, from)
		c.MOVQ(at(from, 0), x)
		for j, s := range sums {
			fetch(j)
			if e == f32 {
				c.VADDPS(mem(x, j), s, s)
			} else {
				c.VADDPS(e.widen(c, w, mem(x, j)), s, s)
			}
		}
		c.DECQ(left)
		c.JNZ(operand.LabelRef(label + "Source"))
		c.Label(label + "Store")
		for j, s := range sums {
			e.narrow(c, w, t, s, mem(dst, j), stream)
		}
	}
	line := 64 * pageLines * w.lanes / 16 // bytes
	// row returns vectors side by side in each of some pages.
	row := func(bytes, pages int) (at []int) {
		for p := range pages {
			for b := 0; b < bytes; b += w.lanes * e.size {
				at = append(at, p*pageBytes+b)
			}
		}
		return at
	}
	on := func(elements int) { c.ADDQ(operand.U32(uint32(elements*e.size)), i) }
	if stream {
		c.CMPQ(others, operand.U8(pagedSources-1))
		c.JGE(operand.LabelRef("rest"))
		pages := min(pagesOfEach, 8/len(row(line, 1))) // eight sums
		pageRounds(c, n, pages, pageBytes/e.size, line/e.size, func() { step("line", row(line, pages), line) }, on)
	}
	c.SUBQ(operand.U8(64), n)
	c.JLT(operand.LabelRef("few"))
	c.Label("many")
	step("many", row(64*e.size, 1), 0)
	on(64)
	c.SUBQ(operand.U8(64), n)
	c.JGE(operand.LabelRef("many"))
	c.Label("few")
	c.ADDQ(operand.U8(64), n)
	c.JZ(operand.LabelRef("done"))
	c.Label("sixteen")
	step("sixteen", row(16*e.size, 1), 0)
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
