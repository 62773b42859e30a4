package main

import (
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// code8From and code8Last are the first and the last index of device.Code8's third table.
const (
	code8From = 101 << 7
	code8Last = 27 << 7
)

// codes8 generates the functions that code n elements, a positive multiple of 16, in 8 bits, and
// decode them.
func codes8(c *build.Context) {
	t := declare(c, "codeConstants", constant{"magnitude", 1<<31 - 1}, constant{"from", code8From}, constant{"last", code8Last},
		constant{"byte", 0xff}, constant{"sign", 0x80}, constant{"bit", 1})
	for _, w := range widths {
		decode8(c, w)
		encode8(c, w, t)
		most8(c, w, t)
	}
}

// gather8 returns the 32 bits at base + index × scale for every lane.
func gather8(c *build.Context, w width, base reg.GPVirtual, index reg.VecVirtual, scale uint8) reg.VecVirtual {
	v, from := w.vec(c), operand.Mem{Base: base, Index: index, Scale: scale}
	if w.lanes == 16 {
		k := c.K()
		c.KXNORW(k, k, k)
		c.VPXORD(v, v, v)
		c.VPGATHERDD(from, k, v)
		return v
	}
	mask := w.vec(c)
	c.VPCMPEQD(mask, mask, mask)
	c.VPXOR(v, v, v)
	c.VPGATHERDD(mask, from, v)
	return v
}

// table8 looks up codes in a table of 256 words: on AVX2 with a gather; on AVX-512 that takes
// longer than permuting the table's 16 registers in pairs and selecting by the codes' three upper
// bits.
func table8(c *build.Context, w width, base reg.GPVirtual) func(code reg.VecVirtual) reg.VecVirtual {
	if w.lanes == 8 {
		return func(code reg.VecVirtual) reg.VecVirtual { return gather8(c, w, base, code, 4) }
	}
	var rows [16]reg.VecVirtual
	for i := range rows {
		rows[i] = c.ZMM()
		c.VMOVUPS(operand.Mem{Base: base, Disp: 64 * i}, rows[i])
	}
	return func(code reg.VecVirtual) reg.VecVirtual {
		bit := c.ZMM()
		var is [3]reg.Register // bits 5, 6 and 7
		for b := range is {
			k := c.K()
			c.VPSLLD(operand.U8(uint8(26-b)), code, bit)
			c.VPMOVD2M(bit, k)
			is[b] = k
		}
		var choose func(first, levels int) reg.VecVirtual
		choose = func(first, levels int) reg.VecVirtual {
			if levels == 0 {
				v := c.ZMM()
				c.VMOVDQA32(code, v)
				c.VPERMI2PS(rows[first+1], rows[first], v)
				return v
			}
			low := choose(first, levels-1)
			high := choose(first+1<<levels, levels-1)
			c.VBLENDMPS(high, low, is[levels-1], low)
			return low
		}
		return choose(0, 3)
	}
}

func decode8(c *build.Context, w width) {
	name := "decode8" + w.suffix
	text(c, name, "func(x, codes, values *byte, n int, largest float32)", name+" implements codeISA.decode.")
	x, codes, values, n := load64(c, "x"), load64(c, "codes"), load64(c, "values"), load64(c, "n")
	s, i := broadcastParam(c, w, "largest"), c.GP64()
	look := table8(c, w, values)
	c.XORQ(i, i)
	c.Label("loop")
	for lane := 0; lane < 16; lane += w.lanes {
		code := w.vec(c)
		c.VPMOVZXBD(operand.Mem{Base: codes, Index: i, Scale: 1, Disp: lane}, code)
		v := look(code)
		c.VMULPS(s, v, v)
		c.VMOVUPS(v, f32.mem(x, i, lane))
	}
	next16(c, i, n)
	c.VZEROUPPER()
	c.RET()
}

func encode8(c *build.Context, w width, t *constants) {
	name := "encode8" + w.suffix
	text(c, name, "func(codes, x, limits, first *byte, n, signed int, inverse float32)", name+" implements codeISA.encode.")
	codes, x, limits, first := load64(c, "codes"), load64(c, "x"), load64(c, "limits"), load64(c, "first")
	n, signed := load64(c, "n"), load64(c, "signed")
	s, i, signs := broadcastParam(c, w, "inverse"), c.GP64(), w.vec(c)
	spread := c.XMM()
	c.MOVQ(signed, spread) // 0x80, or 0
	c.VPBROADCASTD(spread, signs)
	zero := zeroed(c, w)
	get := func(name string) reg.VecVirtual {
		v := w.vec(c)
		c.VPBROADCASTD(t.mem(name), v)
		return v
	}
	magnitude, from, last, low, one := get("magnitude"), get("from"), get("last"), get("byte"), get("bit")
	and := func(a, b, to reg.VecVirtual) {
		if w.lanes == 16 {
			c.VPANDD(a, b, to)
		} else {
			c.VPAND(a, b, to)
		}
	}
	look := table8(c, w, limits)
	c.XORQ(i, i)
	c.Label("loop")
	for lane := 0; lane < 16; lane += w.lanes {
		u, a, index := w.vec(c), w.vec(c), w.vec(c)
		c.VMULPS(f32.mem(x, i, lane), s, u)
		and(u, magnitude, a)
		c.VPSRLD(operand.U8(16), a, index)
		c.VPSUBD(from, index, index)
		c.VPMAXSD(zero, index, index)
		c.VPMINSD(last, index, index)
		code := gather8(c, w, first, index, 1)
		and(low, code, code)
		limit := look(code)
		above(c, w, a, limit, one, code)
		c.VPSRLD(operand.U8(24), u, u) // the sign becomes bit 7
		and(signs, u, u)
		signedCodes(c, w, code, u, zero)
		storeBytes(c, w, code, operand.Mem{Base: codes, Index: i, Scale: 1, Disp: lane})
	}
	next16(c, i, n)
	c.VZEROUPPER()
	c.RET()
}

// above adds 1 to the codes of magnitudes above their limits.
func above(c *build.Context, w width, a, limit, one, code reg.VecVirtual) {
	const greater = 14
	if w.lanes == 16 {
		k := c.K()
		c.VCMPPS(operand.U8(greater), limit, a, k)
		c.VPADDD(one, code, k, code)
		return
	}
	c.VCMPPS(operand.U8(greater), limit, a, limit)
	c.VPSUBD(limit, code, code) // all ones is -1
}

// signedCodes adds sign bits to codes that are not 0.
func signedCodes(c *build.Context, w width, code, sign, zero reg.VecVirtual) {
	if w.lanes == 16 {
		k := c.K()
		c.VPTESTMD(code, code, k)
		c.VPORD(sign, code, k, code)
		return
	}
	none := w.vec(c)
	c.VPCMPEQD(zero, code, none)
	c.VPANDN(sign, none, sign)
	c.VPOR(sign, code, code)
}

// storeBytes stores the lowest byte of every lane.
func storeBytes(c *build.Context, w width, v reg.VecVirtual, to operand.Mem) {
	if w.lanes == 16 {
		c.VPMOVDB(v, to)
		return
	}
	c.VPACKUSDW(v, v, v)
	c.VPERMQ(operand.U8(0x08), v, v) // words 0 to 7
	c.VPACKUSWB(v, v, v)
	c.VMOVQ(v.AsX(), to)
}

func most8(c *build.Context, w width, t *constants) {
	name := "most8" + w.suffix
	text(c, name, "func(x *byte, n int) float32", name+" implements codeISA.most.")
	x, n, i := load64(c, "x"), load64(c, "n"), c.GP64()
	magnitude, top := w.vec(c), zeroed(c, w)
	c.VPBROADCASTD(t.mem("magnitude"), magnitude)
	c.XORQ(i, i)
	c.Label("loop")
	for lane := 0; lane < 16; lane += w.lanes {
		v := w.vec(c)
		c.VMOVUPS(f32.mem(x, i, lane), v)
		if w.lanes == 16 {
			c.VPANDD(magnitude, v, v)
		} else {
			c.VPAND(magnitude, v, v)
		}
		c.VMAXPS(v, top, top)
	}
	next16(c, i, n)
	across(c, w, top, c.VMAXPS)
	c.Store(top.AsX(), c.ReturnIndex(0))
	c.VZEROUPPER()
	c.RET()
}
