package main

import "fmt"

const (
	neonRows    = 8 // of a tile
	neonColumns = 12
)

// neonGemm generates the tiles of a product, and the functions that pack its operands and round its
// sums.
func neonGemm(file *neonFile) {
	file.constants(roundConstants...)
	neonTile(file)
	for _, e := range elems {
		neonMove(file, "moveFrom"+e.name+"NEON", e, f32)
		if e != f32 {
			neonMove(file, "moveTo"+e.name+"NEON", f32, e)
		}
		neonTranspose(file, e)
	}
}

// neonTile uses a register of sums for each row and four columns. A tile of fewer rows, the last of
// a block, checks after each row whether there are more.
func neonTile(file *neonFile) {
	doc := fmt.Sprintf("tileNEON implements tileFunc for %d rows by %d columns.", neonRows, neonColumns)
	file.function("tileNEON", "func(t *Tile)", doc, stackBytes, func(f *fn) {
		const vectors = neonColumns / 4
		k, a, b, rows := f.word("t.k"), f.word("t.a"), f.word("t.b"), f.word("t.rows")
		var sums [neonRows]vec
		for i := range sums {
			sums[i] = f.vec(vectors)
			f.zero(sums[i])
		}
		x, y := f.vec(2), f.vec(vectors)
		load := func(u int) {
			f.emit("FLDPQ %d(%v), (%s, %s)", 32*u, a, x[0].f(), x[1].f())
			f.emit("FLDPQ %d(%v), (%s, %s)", 48*u, b, y[0].f(), y[1].f())
			f.emit("FMOVQ %d(%v), %s", 48*u+32, b, y[2].f())
		}
		multiply := func(i int) {
			for j, s := range sums[i] {
				f.do(fmlaLane(s, y[j], x[i/4], i%4))
			}
		}
		untilRow := func(done string, i int) {
			if i < neonRows-1 {
				f.emit("CMP $%d, %v", i+1, rows)
				f.emit("BEQ %s", done)
			}
		}
		f.emit("CMP $%d, %v", neonRows, rows)
		f.emit("BNE fewer")
		all := func(words int) {
			for u := range words {
				load(u)
				for i := range sums {
					multiply(i)
				}
			}
			f.step(32*words, a)
			f.step(48*words, b)
		}
		f.while(k, unroll, func() { all(unroll) })
		f.while(k, 1, func() { all(1) })
		f.emit("B summed")
		f.here("fewer")
		f.while(k, 1, func() {
			load(0)
			for i := range sums {
				multiply(i)
				untilRow("next", i)
			}
			f.here("next")
			f.step(32, a)
			f.step(48, b)
		})
		f.here("summed")
		base, dst, cols := f.word("t.base"), f.word("t.c"), f.word("t.cols")
		ldb, ldc := f.word("t.ldb"), f.word("t.ldc")
		f32.bytes(f, ldb, ldc)
		store := func(row func(s vec)) {
			for i, s := range sums {
				row(s)
				untilRow("stored", i)
				if i < neonRows-1 {
					f.emit("ADD %v, %v", ldb, base)
					f.emit("ADD %v, %v", ldc, dst)
				}
			}
		}
		f.emit("CMP $%d, %v", neonColumns, cols)
		f.emit("BLT partial")
		store(func(s vec) {
			f.emit("FLDPQ (%v), (%s, %s)", base, y[0].f(), y[1].f())
			f.emit("FMOVQ 32(%v), %s", base, y[2].f())
			f.op(fadd, s, s, y)
			f.emit("FSTPQ (%s, %s), (%v)", s[0].f(), s[1].f(), dst)
			f.emit("FMOVQ %s, 32(%v)", s[2].f(), dst)
		})
		f.emit("RET")
		f.here("partial") // through memory, one column at a time
		mem, j := f.gp(), f.gp()
		f.emit("MOVD $row-%d(SP), %v", stackBytes, mem)
		store(func(s vec) {
			f.emit("FSTPQ (%s, %s), (%v)", s[0].f(), s[1].f(), mem)
			f.emit("FMOVQ %s, 32(%v)", s[2].f(), mem)
			f.emit("MOVD ZR, %v", j)
			column := f.label("column")
			f.here(column)
			f.emit("FMOVS (%v)(%v<<2), %s", mem, j, x[0].f())
			f.emit("FMOVS (%v)(%v<<2), %s", base, j, y[0].f())
			f.emit("FADDS %s, %s", y[0].f(), x[0].f())
			f.emit("FMOVS %s, (%v)(%v<<2)", x[0].f(), dst, j)
			f.step(1, j)
			f.emit("CMP %v, %v", cols, j)
			f.emit("BLT %s", column)
		})
		f.here("stored")
	})
}

// neonMove generates a moveFunc: eight elements of a row at a time, then four, then one.
func neonMove(file *neonFile, name string, from, to elem) {
	file.function(name, "func(dst, src unsafe.Pointer, ldd, lds, rows, cols int)", name+" implements moveFunc.", 0, func(f *fn) {
		dst, src, ldd, lds := f.word("dst"), f.word("src"), f.word("ldd"), f.word("lds")
		rows, cols := f.word("rows"), f.word("cols")
		to.bytes(f, ldd)
		from.bytes(f, lds)
		k := f.hold(to.rounding()...)
		x, y, left := f.gp(), f.gp(), f.gp()
		f.loop(rows, 1, func() {
			f.emit("MOVD %v, %v", src, x)
			f.emit("MOVD %v, %v", dst, y)
			f.emit("MOVD %v, %v", cols, left)
			for _, n := range []int{8, 4, 1} {
				f.while(left, n, func() {
					v := f.vec(2)
					if n == 8 {
						from.read(f, v, x, 0)
						to.write(f, k, v, y, 0)
					} else {
						from.readFew(f, v[0], x, n)
						to.writeFew(f, k, v, y, n)
					}
					f.step(n*from.size, x)
					f.step(n*to.size, y)
				})
			}
			f.emit("ADD %v, %v", lds, src)
			f.emit("ADD %v, %v", ldd, dst)
		})
	})
}

// neonTranspose generates a packTransFunc of four lanes, in blocks of four of k. For missing lanes
// it packs the first again.
func neonTranspose(file *neonFile, e elem) {
	name := "trans" + e.name + "NEON"
	doc := name + " implements packTransFunc for at most 4 lanes; it always writes 4 lanes."
	file.function(name, "func(dst, src unsafe.Pointer, ld, k, width, stride int)", doc, 0, func(f *fn) {
		dst, ld, k := f.word("dst"), f.word("ld"), f.word("k")
		width, stride := f.word("width"), f.word("stride")
		e.bytes(f, ld)
		f32.bytes(f, stride)
		lanes := [4]gp{f.word("src")}
		for i := 1; i < 4; i++ {
			lanes[i] = f.gp()
			f.emit("ADD %v, %v, %v", ld, lanes[i-1], lanes[i])
		}
		for i := 3; i > 0; i-- {
			f.emit("CMP $%d, %v", i, width)
			f.emit("CSEL GT, %v, %v, %v", lanes[i], lanes[0], lanes[i])
		}
		f.while(k, 4, func() {
			x, y := f.vec(4), f.vec(4)
			for i, p := range lanes {
				e.readFew(f, x[i], p, 4)
			}
			for i := 0; i < 4; i += 2 { // even and odd k of pairs of lanes
				f.do(trn1S.three(y[i], x[i], x[i+1]), trn2S.three(y[i+1], x[i], x[i+1]))
			}
			for i := range 2 { // k 0 and 2, 1 and 3
				f.do(trn1D.three(x[i], y[i], y[i+2]), trn2D.three(x[i+2], y[i], y[i+2]))
			}
			for _, v := range x {
				f.emit("FMOVQ %s, (%v)", v.f(), dst)
				f.emit("ADD %v, %v", stride, dst)
			}
			f.step(4*e.size, lanes[:]...)
		})
		f.while(k, 1, func() {
			x := f.vec(1)
			for i, p := range lanes {
				e.readFew(f, x[0], p, 1)
				f.emit("FMOVS %s, %d(%v)", x[0].f(), 4*i, dst)
			}
			f.emit("ADD %v, %v", stride, dst)
			f.step(e.size, lanes[:]...)
		})
	})
}
