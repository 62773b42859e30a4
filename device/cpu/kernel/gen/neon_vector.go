package main

import "slices"

// neonCast generates the conversions.
func neonCast(file *neonFile) {
	file.constants(roundConstants...)
	for _, c := range []struct {
		name     string
		from, to elem
	}{{"bf16ToF32", bf16s, f32}, {"f16ToF32", f16s, f32}, {"f32ToF16", f32, f16s}, {"f32ToBF16", f32, bf16s}} {
		name := c.name + "NEON"
		file.function(name, "func(dst, src unsafe.Pointer, n int)", name+" implements CastFunc.", 0, func(f *fn) {
			dst, src, n := f.word("dst"), f.word("src"), f.word("n")
			k := f.hold(c.to.rounding()...)
			f.loop(n, 16, func() {
				v := f.vec(4)
				c.from.read(f, v, src, 0)
				c.to.write(f, k, v, dst, 0)
				f.step(16*c.from.size, src)
				f.step(16*c.to.size, dst)
			})
		})
	}
}

// neonSums generates sums of many vectors.
func neonSums(file *neonFile) {
	file.constants(roundConstants...)
	for _, e := range elems {
		neonAddUp(file, e)
	}
}

// neonAddUp processes 64 elements at a time, with their sums in registers while the sources stream
// by, and then 16.
func neonAddUp(file *neonFile, e elem) {
	name := "addUp" + e.name + "NEON"
	file.function(name, "func(dst, src unsafe.Pointer, apart, count, at, n int)", name+" implements addUpFunc.", 0, func(f *fn) {
		dst, src, apart, count := f.word("dst"), f.word("src"), f.word("apart"), f.word("count")
		at, n := f.word("at"), f.word("n")
		k := f.hold(e.rounding()...)
		e.bytes(f, at)
		f.emit("ADD %v, %v", at, dst)
		f.emit("SUB $1, %v", count)
		x, from, left := f.gp(), f.gp(), f.gp()
		next := func() {
			f.emit("MOVD (%v), %v", from, x)
			f.emit("ADD %v, %v", at, x)
			f.emit("ADD %v, %v", apart, from)
		}
		for _, elements := range []int{64, 16} {
			f.while(n, elements, func() {
				sums := f.vec(elements / 4)
				f.emit("MOVD %v, %v", src, from)
				f.emit("MOVD %v, %v", count, left)
				next()
				e.read(f, sums, x, 0)
				f.while(left, 1, func() {
					next()
					for i := 0; i < len(sums); i += 2 {
						f.scope(func() {
							v := f.vec(2)
							e.read(f, v, x, 4*i)
							f.op(fadd, sums[i:i+2], sums[i:i+2], v)
						})
					}
				})
				e.write(f, k, sums, dst, 0)
				f.step(elements*e.size, dst, at)
			})
		}
	})
}

// neonOptim generates the update rules, which multiply and add with two roundings.
func neonOptim(file *neonFile) {
	file.constants(ruleConstants...)
	neonRule(file, "adamW", true, true, 10, (*neonStep).adamW)
	neonRule(file, "sgd", false, false, 3, (*neonStep).sgd)
	neonRule(file, "momentum", true, false, 4, (*neonStep).momentum)
	neonRule(file, "lion", true, false, 7, (*neonStep).lion, "sign", "1")
}

// neonStep processes eight elements of a rule; k contains the rule's constants.
type neonStep struct {
	*fn
	k          vec
	held       map[string]vec
	x, g, m, v vec
}

func neonRule(file *neonFile, name string, hasM, hasV bool, constants int, step func(s *neonStep), names ...string) {
	name += "NEON"
	file.function(name, "func(r *Rule)", name+" implements RuleFunc.", 0, func(f *fn) {
		w, g, n, table := f.word("r.w"), f.word("r.g"), f.word("r.n"), f.word("r.k")
		dst, kind := f.word("r.p"), f.word("r.kind")
		var m, v gp
		if hasM {
			m = f.word("r.m")
		}
		if hasV {
			v = f.word("r.v")
		}
		s := &neonStep{fn: f, k: f.vec(constants), held: f.hold(append(bf16s.rounding(), names...)...)}
		for i, k := range s.k {
			f.emit("FMOVQ %d(%v), %s", 64*i, table, k.f())
		}
		f.loop(n, 8, func() {
			s.x, s.g = f.vec(2), f.vec(2)
			f32.read(f, s.x, w, 0)
			f32.read(f, s.g, g, 0)
			if hasM {
				s.m = f.vec(2)
				f32.read(f, s.m, m, 0)
			}
			if hasV {
				s.v = f.vec(2)
				f32.read(f, s.v, v, 0)
			}
			f.scope(func() { step(s) })
			f.step(32, g)
			if hasM {
				f32.write(f, nil, s.m, m, 0)
				f.step(32, m)
			}
			if hasV {
				f32.write(f, nil, s.v, v, 0)
				f.step(32, v)
			}
			f32.write(f, nil, s.x, w, 0)
			f.step(32, w)
			f.emit("CBZ %v, next", dst)
			for _, p := range []elem{bf16s, f16s, f32} {
				f.emit("CMP $%d, %v", p.kind(), kind)
				f.emit("BNE not%s", p.name)
				p.write(f, s.held, s.x, dst, 0)
				f.step(8*p.size, dst)
				f.emit("B next")
				f.here("not" + p.name)
			}
			f.here("next")
		})
	})
}

// scale multiplies x by constant i; sum sets x to the sum of the products of x and y with two
// constants, and does not change y.
func (s *neonStep) scale(x vec, i int) { s.op(fmul, x, x, s.k[i:i+1]) }

func (s *neonStep) sum(x vec, i int, y vec, j int) {
	s.scope(func() {
		t := s.vec(2)
		s.op(fmul, t, y, s.k[j:j+1])
		s.scale(x, i)
		s.op(fadd, x, x, t)
	})
}

// move subtracts the product of y and constant i from x.
func (s *neonStep) move(y vec, i int) {
	s.scope(func() {
		t := s.vec(2)
		s.op(fmul, t, y, s.k[i:i+1])
		s.op(fsub, s.x, s.x, t)
	})
}

// Constants: GradScale, L2, Beta1, 1-Beta1, Beta2, 1-Beta2, Shrink, Step, RootC2, Eps.
func (s *neonStep) adamW() {
	d, root, move := s.g, s.vec(2), s.vec(2)
	s.sum(d, 0, s.x, 1)
	s.sum(s.m, 2, d, 3)
	s.op(fmul, root, d, s.k[5:6])
	s.op(fmul, root, root, d)
	s.scale(s.v, 4)
	s.op(fadd, s.v, s.v, root)
	s.op1(fsqrt, root, s.v)
	s.scale(root, 8)
	s.op(fadd, root, root, s.k[9:10])
	s.op(fmul, move, s.m, s.k[7:8])
	s.op(fdiv, move, move, root)
	s.scale(s.x, 6)
	s.op(fsub, s.x, s.x, move)
}

// Constants: GradScale, Decay, LR, Momentum.
func (s *neonStep) sgd() {
	s.sum(s.g, 0, s.x, 1)
	s.move(s.g, 2)
}

func (s *neonStep) momentum() {
	s.sum(s.g, 0, s.x, 1)
	s.scale(s.m, 3)
	s.op(fadd, s.m, s.m, s.g)
	s.move(s.m, 2)
}

// Constants: GradScale, Beta1, 1-Beta1, Beta2, 1-Beta2, Shrink, LR.
func (s *neonStep) lion() {
	u, sign, large, zero := s.vec(2), s.vec(2), s.vec(2), s.vec(1)
	s.scale(s.g, 0)
	s.copy(u, s.m)
	s.sum(u, 1, s.g, 2)
	s.sum(s.m, 3, s.g, 4)
	s.zero(zero)
	s.op(and, sign, u, s.held["sign"])
	s.op(orr, sign, sign, s.held["1"])
	s.op(facgt, large, u, zero)
	s.op(bif, sign, u, large) // 0 and NaN are unchanged
	s.scale(s.x, 5)
	s.move(sign, 6)
}

var neonEachConstants = slices.Concat(expConstants, roundConstants, []constant{
	float("-2u", -2*geluU), float("-2ux", -2*geluU*geluX), float("2u", 2*geluU), float("6ux", 6*geluU*geluX),
	float("flat", geluFlat), float("-flat", -geluFlat), float("silu", siluFlat), float("-silu", -siluFlat), float("-inf", negInf)})

// neonElementwise generates functions on n elements, a positive multiple of 16.
func neonElementwise(file *neonFile) {
	file.constants(neonEachConstants...)
	for _, e := range elems {
		neonEach(file, "scale"+e.name, e, e, e, nil, (*fn).times)
		neonEach(file, "add"+e.name, e, e, e, nil, (*fn).plus)
		if e != f32 {
			neonEach(file, "addF32"+e.name, f32, f32, e, nil, (*fn).plus)
		}
		neonRope(file, e)
		if e == f16s { // computed in float32
			continue
		}
		neonEach(file, "gelu"+e.name, e, e, e, geluNames, (*fn).gelu)
		neonEach(file, "geluGrad"+e.name, e, e, e, geluGradNames, (*fn).geluGrad)
		neonEach(file, "swiglu"+e.name, e, e, e, expNames, (*fn).swiglu)
		neonSwigluGrad(file, e)
		neonLargest(file, e)
		neonExpSum(file, e)
		neonSoftmax(file, e)
	}
	neonSumSquares(file)
}

// neonBody computes the result in x from x and the number s. second loads the other source when
// needed, since an exponential uses many registers.
type neonBody func(f *fn, k map[string]vec, x, s vec, second func() vec)

func neonEach(file *neonFile, name string, ey, ea, eb elem, constants []string, body neonBody) {
	name += "NEON"
	file.function(name, "func(y, a, b unsafe.Pointer, n int, s float32)", name+" implements EachFunc.", 0, func(f *fn) {
		y, a, b, n := f.word("y"), f.word("a"), f.word("b"), f.word("n")
		k, s := f.hold(append(ey.rounding(), constants...)...), f.number("s")
		f.loop(n, 8, func() {
			x := f.vec(2)
			ea.read(f, x, a, 0)
			f.step(8*ea.size, a)
			f.scope(func() {
				body(f, k, x, s, func() vec {
					v := f.vec(2)
					eb.read(f, v, b, 0)
					f.step(8*eb.size, b)
					return v
				})
			})
			ey.write(f, k, x, y, 0)
			f.step(8*ey.size, y)
		})
	})
}

func (f *fn) times(_ map[string]vec, x, s vec, _ func() vec) { f.op(fmul, x, x, s) }

func (f *fn) plus(_ map[string]vec, x, _ vec, second func() vec) { f.op(fadd, x, x, second()) }

var (
	geluNames     = append([]string{"-2ux"}, expNames...)
	geluGradNames = append([]string{"6ux", "flat", "-flat"}, geluNames...)
)

// geluExp returns e^(-2u), u = geluU (x + geluX x^3), given x and its square.
func (f *fn) geluExp(k map[string]vec, x, square vec) vec {
	e := f.vec(2)
	f.use("-2u", e)
	f.op(fmla, e, k["-2ux"], square)
	f.op(fmul, e, e, x)
	f.exp(k, e, true)
	return e
}

func (f *fn) gelu(k map[string]vec, x, _ vec, _ func() vec) {
	square := f.vec(2)
	f.op(fmul, square, x, x)
	e := f.geluExp(k, x, square)
	f.op(fadd, e, e, k["1"])
	f.op(fdiv, x, x, e)
}

func (f *fn) geluGrad(k map[string]vec, x, _ vec, second func() vec) {
	f.op(fmin, x, x, k["flat"])
	f.op(fmax, x, x, k["-flat"])
	slope := f.vec(2)
	f.op(fmul, slope, x, x)
	e := f.geluExp(k, x, slope)
	s, square := f.vec(2), f.vec(2)
	f.op(fadd, s, e, k["1"])
	f.op(fdiv, s, k["1"], s)
	f.copy(square, slope)
	f.use("2u", slope)
	f.op(fmla, slope, k["6ux"], square)
	f.op(fmul, e, e, s)
	f.op(fmul, e, e, x)
	f.use("1", x)
	f.op(fmla, x, slope, e) // 1 + x e s 2u'
	f.op(fmul, x, x, s)
	f.op(fmul, x, x, second())
}

func (f *fn) swiglu(k map[string]vec, x, _ vec, second func() vec) {
	e := f.vec(2)
	f.op1(fneg, e, x)
	f.exp(k, e, true)
	f.op(fadd, e, e, k["1"])
	f.op(fdiv, x, x, e)
	f.op(fmul, x, x, second())
}

func neonSwigluGrad(file *neonFile, e elem) {
	name := "swigluGrad" + e.name + "NEON"
	file.function(name, "func(dgate, dup, dy, gate, up unsafe.Pointer, n int)", name+" implements swigluGradFunc.", 0, func(f *fn) {
		dgate, dup, dy, gate := f.word("dgate"), f.word("dup"), f.word("dy"), f.word("gate")
		up, n := f.word("up"), f.word("n")
		k := f.hold(slices.Concat(e.rounding(), expNames, []string{"silu", "-silu"})...)
		f.loop(n, 8, func() {
			x, at, ex, s := f.vec(2), f.vec(2), f.vec(2), f.vec(2)
			e.read(f, x, gate, 0)
			f.op(fmax, x, x, k["-silu"])
			f.op(fmin, at, x, k["silu"])
			f.op1(fneg, ex, at)
			f.exp(k, ex, false)
			f.op(fadd, s, ex, k["1"])
			f.op(fdiv, s, k["1"], s)
			f.op(fmul, x, x, s) // silu
			d, u := f.vec(2), f.vec(2)
			e.read(f, d, dy, 0)
			e.read(f, u, up, 0)
			f.op(fmul, x, x, d)
			f.op(fmul, d, d, u)
			e.write(f, k, x, dup, 0)
			f.op(fmul, ex, ex, s)
			f.use("1", x)
			f.op(fmla, x, ex, at)
			f.op(fmul, x, x, s) // its slope
			f.op(fmul, x, x, d)
			e.write(f, k, x, dgate, 0)
			f.step(8*e.size, dgate, dup, dy, gate, up)
		})
	})
}

func neonLargest(file *neonFile, e elem) {
	name := "largest" + e.name + "NEON"
	file.function(name, "func(x unsafe.Pointer, n int) float32", name+" returns the maximum of n elements, a multiple of 16, ignoring NaN.", 0, func(f *fn) {
		x, n := f.word("x"), f.word("n")
		f.hold("-inf")
		tops := f.vec(4)
		f.use("-inf", tops)
		f.loop(n, 16, func() {
			v, more := f.vec(4), f.vec(4)
			e.read(f, v, x, 0)
			f.op(fcmgt, more, v, tops)
			f.op(bit, tops, v, more)
			f.step(16*e.size, x)
		})
		f.op(fmax, tops[:2], tops[:2], tops[2:])
		f.op(fmax, tops[:1], tops[:1], tops[1:2])
		f.do(fmaxLanes(tops[0], tops[0]))
		f.returns(tops[0])
	})
}

func neonExpSum(file *neonFile, e elem) {
	name := "expSum" + e.name + "NEON"
	file.function(name, "func(x unsafe.Pointer, n int, top float32) float32", name+" returns the sum of exp(x-top) over n elements, a multiple of 16.", 0, func(f *fn) {
		x, n, k, top, sums := f.word("x"), f.word("n"), f.hold(expNames...), f.number("top"), f.vec(4)
		f.zero(sums)
		f.loop(n, 16, func() {
			for i := 0; i < 4; i += 2 {
				f.scope(func() {
					v := f.vec(2)
					e.read(f, v, x, 4*i)
					f.op(fsub, v, v, top)
					f.exp(k, v, false)
					f.op(fadd, sums[i:i+2], sums[i:i+2], v)
				})
			}
			f.step(16*e.size, x)
		})
		f.returns(f.fold(sums))
	})
}

func neonSoftmax(file *neonFile, e elem) {
	name := "softmax" + e.name + "NEON"
	file.function(name, "func(x unsafe.Pointer, n int, top, r float32)", name+" sets n elements, a multiple of 16, to r*exp(x-top).", 0, func(f *fn) {
		x, n, k := f.word("x"), f.word("n"), f.hold(append(e.rounding(), expNames...)...)
		top, r := f.number("top"), f.number("r")
		f.loop(n, 8, func() {
			v := f.vec(2)
			e.read(f, v, x, 0)
			f.op(fsub, v, v, top)
			f.exp(k, v, false)
			f.op(fmul, v, v, r)
			e.write(f, k, v, x, 0)
			f.step(8*e.size, x)
		})
	})
}

// neonRope multiplies and adds with two roundings, like rope.go.
func neonRope(file *neonFile, e elem) {
	name := "rope" + e.name + "NEON"
	file.function(name, "func(x, cos, sin unsafe.Pointer, half, heads int, sign float32)", name+" implements ropeFunc.", 0, func(f *fn) {
		x, cos, sin, half, heads := f.word("x"), f.word("cos"), f.word("sin"), f.word("half"), f.word("heads")
		k, sign := f.hold(e.rounding()...), f.number("sign")
		y, cosAt, sinAt, left, bytes := f.gp(), f.gp(), f.gp(), f.gp(), f.gp()
		f.emit("MOVD %v, %v", half, bytes)
		e.bytes(f, bytes)
		f.loop(heads, 1, func() {
			f.emit("ADD %v, %v, %v", bytes, x, y)
			f.emit("MOVD %v, %v", cos, cosAt)
			f.emit("MOVD %v, %v", sin, sinAt)
			f.emit("MOVD %v, %v", half, left)
			f.loop(left, 8, func() {
				a, b, s, c, as := f.vec(2), f.vec(2), f.vec(2), f.vec(2), f.vec(2)
				e.read(f, a, x, 0)
				e.read(f, b, y, 0)
				f32.read(f, s, sinAt, 0)
				f32.read(f, c, cosAt, 0)
				f.op(fmul, s, s, sign)
				f.op(fmul, as, a, s)
				f.op(fmul, s, b, s)
				f.op(fmul, a, a, c)
				f.op(fmul, b, b, c)
				f.op(fsub, a, a, s)
				f.op(fadd, b, b, as)
				e.write(f, k, a, x, 0)
				e.write(f, k, b, y, 0)
				f.step(8*e.size, x, y)
				f.step(32, sinAt, cosAt)
			})
			f.emit("MOVD %v, %v", y, x)
		})
	})
}

// neonSumSquares adds the squares of each block like sumSquares of sum.go, and leaves all sums to
// the caller. Products of float32 are exact in float64, so a multiply-add rounds as often.
func neonSumSquares(file *neonFile) {
	const doc = "sumSquaresNEON stores the sums of the squares of blocks of 64 floats in odd and leaves the window empty."
	file.function("sumSquaresNEON", "func(odd, x unsafe.Pointer, blocks int, window unsafe.Pointer, base int) int", doc, 0, func(f *fn) {
		odd, x, blocks, window, left := f.word("odd"), f.word("x"), f.word("blocks"), f.word("window"), f.gp()
		zero := f.vec(2)
		f.zero(zero)
		for i := 0; i < 192; i += 32 {
			f.emit("FSTPQ (%s, %s), %d(%v)", zero[0].f(), zero[1].f(), i, window)
		}
		f.emit("MOVD %v, %v", blocks, left)
		f.loop(left, 1, func() {
			sums, v, wide := f.vec(4), f.vec(2), f.vec(4)
			for i := 0; i < 64; i += 8 {
				f32.read(f, v, x, i)
				for j := range v {
					f.do(fcvtlD.two(wide[2*j], v[j]), fcvtl2D.two(wide[2*j+1], v[j]))
				}
				o := fmlaD
				if i == 0 {
					o = fmulD
				}
				f.op(o, sums, wide, wide)
			}
			f.op(faddD, sums[:2], sums[:2], sums[2:])
			f.op(faddD, sums[:1], sums[:1], sums[1:2])
			f.do(addPair(sums[0], sums[0]))
			f.emit("FMOVD %s, (%v)", sums[0].f(), odd)
			f.step(8, odd)
			f.step(256, x)
		})
		f.emit("MOVD %v, %s", blocks, f.param("ret", 0))
	})
}
