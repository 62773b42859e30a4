package main

import (
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// ahead is the prefetch distance of a rule's operands in elements.
const ahead = 256

var ruleConstants = append([]constant{{"sign", 1 << 31}, float("1", 1)}, roundConstants...)

// optim generates the update rules. They multiply and add with two roundings, like package kernel's
// portable rules, so that their bits are the same everywhere.
func optim(c *build.Context) {
	t := declare(c, "ruleConstants", ruleConstants...)
	for _, w := range widths {
		rule(c, w, t, "adamW", 1, true, true, adamW)
		rule(c, w, t, "sgd", pagesOfEach, false, false, sgd)
		rule(c, w, t, "momentum", 1, true, false, momentum)
		rule(c, w, t, "lion", 1, true, false, lion)
	}
}

// ruleStep is one vector of a rule.
type ruleStep struct {
	c          *build.Context
	w          width
	t          *constants
	k          reg.GPVirtual // the rule's constants, 16 lanes each
	x, g, m, v reg.VecVirtual
}

// times multiplies x by constant i into a new register.
func (s *ruleStep) times(x reg.VecVirtual, i int) reg.VecVirtual {
	y := s.w.vec(s.c)
	s.c.VMULPS(at(s.k, 64*i), x, y)
	return y
}

// plus adds y to x.
func (s *ruleStep) plus(x, y reg.VecVirtual) reg.VecVirtual {
	s.c.VADDPS(y, x, x)
	return x
}

// rule generates a RuleFunc. Operands other than a copy of another type are processed by pages.
func rule(c *build.Context, w width, t *constants, name string, pages int, hasM, hasV bool, step func(s *ruleStep)) {
	name += w.suffix
	text(c, name, "func(r *Rule)", name+" implements RuleFunc.")
	arrays := map[string]reg.GPVirtual{"w": load64(c, "r.w"), "g": load64(c, "r.g")}
	if hasM {
		arrays["m"] = load64(c, "r.m")
	}
	if hasV {
		arrays["v"] = load64(c, "r.v")
	}
	dst, kind := load64(c, "r.p"), load64(c, "r.kind")
	s := &ruleStep{c: c, w: w, t: t, k: load64(c, "r.k")}
	n, i := load64(c, "r.n"), c.GP64()
	c.XORQ(i, i)
	run := func(from, elements, ahead int) (x []reg.VecVirtual) {
		for lane := from; lane < from+elements; lane += w.lanes {
			get := func(a string) reg.VecVirtual {
				base, ok := arrays[a]
				if !ok {
					return nil
				}
				if lane%16 == 0 {
					c.PREFETCHT0(f32.mem(base, i, lane+ahead))
				}
				return f32.widen(c, w, f32.mem(base, i, lane))
			}
			s.x, s.g, s.m, s.v = get("w"), get("g"), get("m"), get("v")
			step(s)
			put := func(v reg.VecVirtual, a string) { f32.narrow(c, w, t, v, f32.mem(arrays[a], i, lane), false) }
			if hasM {
				put(s.m, "m")
			}
			if hasV {
				put(s.v, "v")
			}
			put(s.x, "w")
			x = append(x, s.x)
		}
		return x
	}
	on := func(elements int) { c.ADDQ(operand.U32(uint32(elements)), i) }
	if pages > 1 {
		c.TESTQ(dst, dst)
		c.JNZ(operand.LabelRef("loop"))
		byPages(c, n, pages, pageLen, 16*pageLines, func(from, elements int) { run(from, elements, elements) }, on)
		c.TESTQ(n, n)
		c.JZ(operand.LabelRef("done"))
	}
	c.Label("loop")
	x := run(0, 16, ahead)
	c.TESTQ(dst, dst)
	c.JZ(operand.LabelRef("next"))
	for _, e := range []elem{bf16s, f16s, f32} {
		c.CMPQ(kind, operand.U8(uint8(e.kind())))
		c.JNE(operand.LabelRef("not" + e.name))
		for j, v := range x {
			e.narrow(c, w, t, v, e.mem(dst, i, j*w.lanes), false)
		}
		c.JMP(operand.LabelRef("next"))
		c.Label("not" + e.name)
	}
	c.Label("next")
	on(16)
	c.SUBQ(operand.U8(16), n)
	c.JNZ(operand.LabelRef("loop"))
	c.Label("done")
	c.VZEROUPPER()
	c.RET()
}

// Constants: GradScale, L2, Beta1, 1-Beta1, Beta2, 1-Beta2, Shrink, Step, RootC2, Eps.
func adamW(s *ruleStep) {
	c := s.c
	d := s.plus(s.times(s.g, 0), s.times(s.x, 1))
	s.m = s.plus(s.times(s.m, 2), s.times(d, 3))
	square := s.times(d, 5)
	c.VMULPS(d, square, square)
	s.v = s.plus(s.times(s.v, 4), square)
	root := s.w.vec(c)
	c.VSQRTPS(s.v, root)
	root = s.times(root, 8)
	c.VADDPS(at(s.k, 64*9), root, root)
	move := s.times(s.m, 7)
	c.VDIVPS(root, move, move)
	s.x = s.times(s.x, 6)
	c.VSUBPS(move, s.x, s.x)
}

// Constants: GradScale, Decay, LR, Momentum.
func sgd(s *ruleStep) {
	s.g = s.plus(s.times(s.g, 0), s.times(s.x, 1))
	s.c.VSUBPS(s.times(s.g, 2), s.x, s.x)
}

func momentum(s *ruleStep) {
	s.g = s.plus(s.times(s.g, 0), s.times(s.x, 1))
	s.m = s.plus(s.times(s.m, 3), s.g)
	s.c.VSUBPS(s.times(s.m, 2), s.x, s.x)
}

// Constants: GradScale, Beta1, 1-Beta1, Beta2, 1-Beta2, Shrink, LR.
func lion(s *ruleStep) {
	c := s.c
	d := s.times(s.g, 0)
	u := s.plus(s.times(s.m, 1), s.times(d, 2))
	s.m = s.plus(s.times(s.m, 3), s.times(d, 4))
	sign := s.w.vec(c)
	const equalOrNaN = 8
	zero := zeroed(c, s.w)
	c.VANDPS(s.t.mem("sign"), u, sign)
	c.VORPS(s.t.mem("1"), sign, sign)
	if s.w.lanes == 16 {
		same := c.K()
		c.VCMPPS(operand.U8(equalOrNaN), zero, u, same)
		c.VMOVAPS(u, same, sign)
	} else {
		same := c.YMM()
		c.VCMPPS(operand.U8(equalOrNaN), zero, u, same)
		c.VBLENDVPS(same, u, sign, sign)
	}
	s.x = s.times(s.x, 5)
	c.VSUBPS(s.times(sign, 6), s.x, s.x)
}
