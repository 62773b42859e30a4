package main

import "fmt"

// neonNorm generates layer norm on rows of n elements, a positive multiple of 16, and sums over
// columns; see normISA.
func neonNorm(file *neonFile) {
	file.constants(roundConstants...)
	for _, e := range elems {
		neonSumColumns(file, e)
		neonNormColumns(file, e)
		if e == f16s {
			continue // it is converted, a row at a time
		}
		neonRowSum(file, e)
		neonRowSquares(file, e)
		neonNormRow(file, e)
		neonNormSums(file, e)
		neonNormGrad(file, e)
	}
}

func neonRowSum(file *neonFile, e elem) {
	name := "rowSum" + e.name + "NEON"
	file.function(name, "func(x unsafe.Pointer, n int) float32", name+" returns the sum of n elements.", 0, func(f *fn) {
		x, n, sums := f.word("x"), f.word("n"), f.vec(4)
		f.zero(sums)
		f.loop(n, 16, func() {
			v := f.vec(4)
			e.read(f, v, x, 0)
			f.op(fadd, sums, sums, v)
			f.step(16*e.size, x)
		})
		f.returns(f.fold(sums))
	})
}

func neonRowSquares(file *neonFile, e elem) {
	name := "rowSquares" + e.name + "NEON"
	file.function(name, "func(x unsafe.Pointer, n int, m float32) float32", name+" returns the sum of (x-m)^2 over n elements.", 0, func(f *fn) {
		x, n, m, sums := f.word("x"), f.word("n"), f.number("m"), f.vec(4)
		f.zero(sums)
		f.loop(n, 16, func() {
			v := f.vec(4)
			e.read(f, v, x, 0)
			f.op(fsub, v, v, m)
			f.op(fmla, sums, v, v)
			f.step(16*e.size, x)
		})
		f.returns(f.fold(sums))
	})
}

func neonNormRow(file *neonFile, e elem) {
	name := "normRow" + e.name + "NEON"
	file.function(name, "func(y, x, w, b unsafe.Pointer, n int, m, r float32)", name+" sets y to (x-m)*r*w + b.", 0, func(f *fn) {
		y, x, w, b, n := f.word("y"), f.word("x"), f.word("w"), f.word("b"), f.word("n")
		k, m, r := f.hold(e.rounding()...), f.number("m"), f.number("r")
		f.loop(n, 16, func() {
			v, weight, out := f.vec(4), f.vec(4), f.vec(4)
			e.read(f, v, x, 0)
			f32.read(f, weight, w, 0)
			f32.read(f, out, b, 0)
			f.op(fsub, v, v, m)
			f.op(fmul, v, v, r)
			f.op(fmla, out, v, weight)
			e.write(f, k, out, y, 0)
			f.step(16*e.size, x, y)
			f.step(64, w, b)
		})
	})
}

func neonNormSums(file *neonFile, e elem) {
	name := "normSums" + e.name + "NEON"
	file.function(name, "func(sums, dy, x, w unsafe.Pointer, n int, m float32)", name+" sets two floats to the sums of dy*w and of dy*w*(x-m).", 0, func(f *fn) {
		sums, dy, x, w := f.word("sums"), f.word("dy"), f.word("x"), f.word("w")
		n, m, g, gx := f.word("n"), f.number("m"), f.vec(4), f.vec(4)
		f.zero(g)
		f.zero(gx)
		f.loop(n, 16, func() {
			d, v, weight := f.vec(4), f.vec(4), f.vec(4)
			e.read(f, d, dy, 0)
			e.read(f, v, x, 0)
			f32.read(f, weight, w, 0)
			f.op(fmul, d, d, weight)
			f.op(fsub, v, v, m)
			f.op(fadd, g, g, d)
			f.op(fmla, gx, d, v)
			f.step(16*e.size, dy, x)
			f.step(64, w)
		})
		for i, s := range []vec{g, gx} {
			f.emit("FMOVS %s, %d(%v)", f.fold(s).f(), 4*i, sums)
		}
	})
}

func neonNormGrad(file *neonFile, e elem) {
	name := "normGrad" + e.name + "NEON"
	doc := name + " sets dx to r*(dy*w - g - (x-m)*gn), plus the old dx if add is not 0."
	file.function(name, "func(a *NormGradRow)", doc, 0, func(f *fn) {
		dx, dy, x, w, n := f.word("a.dx"), f.word("a.dy"), f.word("a.x"), f.word("a.w"), f.word("a.n")
		k := f.hold(e.rounding()...)
		m, r, g, gn := f.number("a.m"), f.number("a.r"), f.number("a.g"), f.number("a.gn")
		pass := func(add bool) {
			f.loop(n, 8, func() {
				d, v, weight := f.vec(2), f.vec(2), f.vec(2)
				e.read(f, d, dy, 0)
				e.read(f, v, x, 0)
				f32.read(f, weight, w, 0)
				f.op(fmul, d, d, weight) // rounded as in normSums: a single column has no gradient
				f.op(fsub, d, d, g)
				f.op(fsub, v, v, m)
				f.op(fmls, d, v, gn)
				if add {
					old := f.vec(2)
					e.read(f, old, dx, 0)
					f.op(fmla, old, d, r)
					d = old
				} else {
					f.op(fmul, d, d, r)
				}
				e.write(f, k, d, dx, 0)
				f.step(8*e.size, dx, dy, x)
				f.step(32, w)
			})
		}
		f.emit("CBNZ %v, add", f.word("a.add"))
		pass(false)
		f.emit("RET")
		f.here("add")
		pass(true)
	})
}

// neonAcross is the number of columns summed at a time.
const neonAcross = 32

func neonSumColumns(file *neonFile, e elem) {
	name := "sumColumns" + e.name + "NEON"
	doc := fmt.Sprintf("%s adds rows of %d elements, ld elements apart, to sum.", name, neonAcross)
	file.function(name, "func(sum, x unsafe.Pointer, ld, rows int)", doc, 0, func(f *fn) {
		sum, x, ld, rows, part := f.word("sum"), f.word("x"), f.word("ld"), f.word("rows"), f.vec(neonAcross/4)
		e.bytes(f, ld)
		f.zero(part)
		f.loop(rows, 1, func() {
			v := f.vec(len(part))
			e.read(f, v, x, 0)
			f.op(fadd, part, part, v)
			f.emit("ADD %v, %v", ld, x)
		})
		f.addTo(sum, part)
	})
}

// addTo adds registers to the floats at p.
func (f *fn) addTo(p gp, v vec) {
	f.scope(func() {
		old := f.vec(len(v))
		f32.read(f, old, p, 0)
		f.op(fadd, old, old, v)
		f32.write(f, nil, old, p, 0)
	})
}

func neonNormColumns(file *neonFile, e elem) {
	name := "normColumns" + e.name + "NEON"
	doc := fmt.Sprintf("%s adds the sums over rows, of %d elements each, of dy*(x-mean)*rstd to dw and of dy to db.", name, neonAcross)
	file.function(name, "func(a *ColumnGrads)", doc, 0, func(f *fn) {
		dw, db, dy, x := f.word("a.dw"), f.word("a.db"), f.word("a.dy"), f.word("a.x")
		lddy, ldx, rows := f.word("a.lddy"), f.word("a.ldx"), f.word("a.rows")
		mean, rstd := f.word("a.mean"), f.word("a.rstd")
		e.bytes(f, lddy, ldx)
		partW, partB := f.vec(neonAcross/4), f.vec(neonAcross/4)
		f.zero(partW)
		f.zero(partB)
		f.loop(rows, 1, func() {
			m, r := f.vec(1), f.vec(1)
			f.every(m[0], mean)
			f.every(r[0], rstd)
			for i := 0; i < len(partW); i += 4 {
				f.scope(func() {
					d, v := f.vec(4), f.vec(4)
					e.read(f, d, dy, 4*i)
					e.read(f, v, x, 4*i)
					f.op(fsub, v, v, m)
					f.op(fmul, v, v, r)
					f.op(fadd, partB[i:i+4], partB[i:i+4], d)
					f.op(fmla, partW[i:i+4], d, v)
				})
			}
			f.emit("ADD %v, %v", lddy, dy)
			f.emit("ADD %v, %v", ldx, x)
			f.step(4, mean, rstd)
		})
		f.addTo(dw, partW)
		f.addTo(db, partB)
	})
}

// neonLanes is the number of elements in a vector of attention: two registers.
const neonLanes = 8

// neonAttention generates the functions for blocks of attention; see attnISA.
func neonAttention(file *neonFile) {
	file.constants(attnConstants...)
	for vectors := 1; vectors <= 2; vectors++ {
		neonMicro(file, vectors)
	}
	neonOnlineSoftmax(file)
	neonSoftmaxGrad(file)
	neonScaleRow(file)
	neonDotRow(file)
	for _, e := range elems {
		neonScaledRows(file, "load"+e.name, e, f32)
		neonScaledRows(file, "store"+e.name, f32, e)
	}
}

// neonMicro generates four rows by one or two vectors.
func neonMicro(file *neonFile, vectors int) {
	const rows = 4
	name := fmt.Sprintf("micro%dxNEON", vectors)
	doc := fmt.Sprintf("%s implements microFunc for %d rows by %d columns.", name, rows, vectors*neonLanes)
	file.function(name, "func(t *MicroTile)", doc, 0, func(f *fn) {
		k, b, c := f.word("t.k"), f.word("t.b"), f.word("t.c")
		ai, ak, ldb, ldc, add := f.word("t.ai"), f.word("t.ak"), f.word("t.ldb"), f.word("t.ldc"), f.word("t.add")
		f32.bytes(f, ai, ak, ldb, ldc)
		a := [rows]gp{f.word("t.a")}
		for i := 1; i < rows; i++ {
			a[i] = f.gp()
			f.emit("ADD %v, %v, %v", ai, a[i-1], a[i])
		}
		var sums [rows]vec
		for i := range sums {
			sums[i] = f.vec(2 * vectors)
			f.zero(sums[i])
		}
		at := f.gp()
		f.emit("MOVD ZR, %v", at)
		f.loop(k, 1, func() {
			x, y := f.vec(rows), f.vec(2*vectors)
			f32.read(f, y, b, 0)
			for i, p := range a {
				f.emit("FMOVS (%v)(%v), %s", p, at, x[i].f())
			}
			for i, row := range sums {
				for j := range row {
					f.do(fmlaLane(row[j], y[j], x[i], 0))
				}
			}
			f.emit("ADD %v, %v", ldb, b)
			f.emit("ADD %v, %v", ak, at)
		})
		store := func(add bool) {
			for _, row := range sums {
				if add {
					f.addTo(c, row)
				} else {
					f32.write(f, nil, row, c, 0)
				}
				f.emit("ADD %v, %v", ldc, c)
			}
		}
		f.emit("CBNZ %v, add", add)
		store(false)
		f.emit("RET")
		f.here("add")
		store(true)
	})
}

// seen sets count to the min(n, most) elements that a row sees, up to whole vectors; in the
// invisible lanes of the last it stores hide.
func (f *fn) seen(count, n, most gp, hide vreg, row gp) {
	f.emit("CMP %v, %v", n, most)
	f.emit("CSEL LT, %v, %v, %v", most, n, count)
	top, done := f.label("hide"), f.label("whole")
	f.here(top)
	f.emit("TST $%d, %v", neonLanes-1, count)
	f.emit("BEQ %s", done)
	f.emit("FMOVS %s, (%v)(%v<<2)", hide.f(), row, count)
	f.step(1, count)
	f.emit("B %s", top)
	f.here(done)
}

// clearRest stores zeros in rows from element at, a multiple of a vector, to end.
func (f *fn) clearRest(at, end gp, rows ...gp) {
	top, done, p := f.label("clear"), f.label("cleared"), f.gp()
	zero := f.vec(2)
	f.zero(zero)
	f.here(top)
	f.emit("CMP %v, %v", end, at)
	f.emit("BGE %s", done)
	for _, row := range rows {
		f.emit("ADD %v<<2, %v, %v", at, row, p)
		f32.write(f, nil, zero, p, 0)
	}
	f.step(neonLanes, at)
	f.emit("B %s", top)
	f.here(done)
}

func neonOnlineSoftmax(file *neonFile) {
	file.function("onlineSoftmaxNEON", "func(r *SoftmaxRows)", "onlineSoftmaxNEON implements onlineSoftmaxFunc.", 0, func(f *fn) {
		s, ld, rows, n, most, end := f.word("r.s"), f.word("r.ld"), f.word("r.rows"), f.word("r.n"), f.word("r.most"), f.word("r.end")
		m, l, shrink, count, p, left := f.word("r.m"), f.word("r.l"), f.word("r.shrink"), f.gp(), f.gp(), f.gp()
		f32.bytes(f, ld)
		k := f.hold(append([]string{"-inf"}, expNames...)...)
		f.loop(rows, 1, func() {
			f.seen(count, n, most, k["-inf"][0], s)
			pass := func(body func(x vec)) {
				f.emit("MOVD %v, %v", s, p)
				f.emit("MOVD %v, %v", count, left)
				f.loop(left, neonLanes, func() {
					x := f.vec(2)
					f32.read(f, x, p, 0)
					body(x)
					f.step(4*neonLanes, p)
				})
			}
			tops, old, sum := f.vec(2), f.vec(1), f.vec(2)
			top := tops[:1]
			f.use("-inf", tops)
			pass(func(x vec) { f.op(fmax, tops, tops, x) })
			f.op(fmax, top, top, tops[1:])
			f.do(fmaxLanes(top[0], top[0]))
			f.spread(top[0], top[0])
			f.every(old[0], m)
			f.op(fmax, top, top, old)
			f.emit("FMOVS %s, (%v)", top[0].f(), m)
			f.op(fsub, old, old, top)
			f.exp(k, old, false)
			f.emit("FMOVS %s, (%v)", old[0].f(), shrink)
			f32.read(f, sum, l, 0)
			f.op(fmul, sum, sum, old)
			pass(func(x vec) {
				f.op(fsub, x, x, top)
				f.exp(k, x, false)
				f.op(fadd, sum, sum, x)
				f32.write(f, nil, x, p, 0)
			})
			f32.write(f, nil, sum, l, 0)
			f.clearRest(count, end, s)
			f.emit("ADD %v, %v", ld, s)
			f.step(1, n)
			f.step(4, m, shrink)
			f.step(4*neonLanes, l)
		})
	})
}

func neonSoftmaxGrad(file *neonFile) {
	file.function("softmaxGradNEON", "func(r *SoftmaxGradRows)", "softmaxGradNEON implements softmaxGradFunc.", 0, func(f *fn) {
		p, ds, ld, rows := f.word("r.p"), f.word("r.ds"), f.word("r.ld"), f.word("r.rows")
		n, most, end := f.word("r.n"), f.word("r.most"), f.word("r.end")
		lse, delta, count, left := f.word("r.lse"), f.word("r.delta"), f.gp(), f.gp()
		pAt, dsAt := f.gp(), f.gp()
		f32.bytes(f, ld)
		k := f.hold(append([]string{"-inf"}, expNames...)...)
		zero := f.vec(1)
		f.zero(zero)
		f.loop(rows, 1, func() {
			f.seen(count, n, most, k["-inf"][0], p)
			f.seen(count, n, most, zero[0], ds)
			minus, off := f.vec(1), f.vec(1)
			f.every(minus[0], lse)
			f.every(off[0], delta)
			f.emit("MOVD %v, %v", p, pAt)
			f.emit("MOVD %v, %v", ds, dsAt)
			f.emit("MOVD %v, %v", count, left)
			f.loop(left, neonLanes, func() {
				x, d := f.vec(2), f.vec(2)
				f32.read(f, x, pAt, 0)
				f32.read(f, d, dsAt, 0)
				f.op(fsub, x, x, minus)
				f.exp(k, x, true)
				f.op(fsub, d, d, off)
				f.op(fmul, d, d, x)
				f32.write(f, nil, x, pAt, 0)
				f32.write(f, nil, d, dsAt, 0)
				f.step(4*neonLanes, pAt, dsAt)
			})
			f.clearRest(count, end, p, ds)
			f.emit("ADD %v, %v", ld, p)
			f.emit("ADD %v, %v", ld, ds)
			f.step(1, n)
			f.step(4, lse, delta)
		})
	})
}

func neonScaleRow(file *neonFile) {
	const doc = "scaleRowNEON multiplies n floats, a multiple of 16, by a number."
	file.function("scaleRowNEON", "func(x unsafe.Pointer, n int, by float32)", doc, 0, func(f *fn) {
		x, n, by := f.word("x"), f.word("n"), f.number("by")
		f.loop(n, 16, func() {
			v := f.vec(4)
			f32.read(f, v, x, 0)
			f.op(fmul, v, v, by)
			f32.write(f, nil, v, x, 0)
			f.step(64, x)
		})
	})
}

func neonDotRow(file *neonFile) {
	const doc = "dotRowNEON returns the inner product of n floats, a multiple of 16."
	file.function("dotRowNEON", "func(x, y unsafe.Pointer, n int) float32", doc, 0, func(f *fn) {
		x, y, n, sums := f.word("x"), f.word("y"), f.word("n"), f.vec(4)
		f.zero(sums)
		f.loop(n, 16, func() {
			v, w := f.vec(4), f.vec(4)
			f32.read(f, v, x, 0)
			f32.read(f, w, y, 0)
			f.op(fmla, sums, v, w)
			f.step(64, x, y)
		})
		f.returns(f.fold(sums))
	})
}

func neonScaledRows(file *neonFile, name string, from, to elem) {
	name += "NEON"
	file.function(name, "func(dst, src unsafe.Pointer, ldd, lds, rows, n int, by float32)", name+" implements rowsFunc.", 0, func(f *fn) {
		dst, src, ldd, lds := f.word("dst"), f.word("src"), f.word("ldd"), f.word("lds")
		rows, n := f.word("rows"), f.word("n")
		to.bytes(f, ldd)
		from.bytes(f, lds)
		k, by := f.hold(to.rounding()...), f.number("by")
		x, y, left := f.gp(), f.gp(), f.gp()
		f.loop(rows, 1, func() {
			f.emit("MOVD %v, %v", src, x)
			f.emit("MOVD %v, %v", dst, y)
			f.emit("MOVD %v, %v", n, left)
			f.loop(left, 16, func() {
				v := f.vec(4)
				from.read(f, v, x, 0)
				f.op(fmul, v, v, by)
				to.write(f, k, v, y, 0)
				f.step(16*from.size, x)
				f.step(16*to.size, y)
			})
			f.emit("ADD %v, %v", lds, src)
			f.emit("ADD %v, %v", ldd, dst)
		})
	})
}
