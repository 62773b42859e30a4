package main

// neonRoofline generates the functions that measure the machine's limits.
func neonRoofline(file *neonFile) {
	neonPeak(file)
	neonPlusHalf(file, "triad", "func(dst, a, b unsafe.Pointer, n int)", "triad sets dst = a + b/2 for n floats, a multiple of 16.", "dst", "a", "b")
	neonPlusHalf(file, "update", "func(x, a unsafe.Pointer, n int)", "update adds a/2 to n floats of x, a multiple of 16.", "x", "x", "a")
	neonRewrite(file)
	neonReadAll(file)
}

// neonPeak generates 48 independent multiply-adds on registers.
func neonPeak(file *neonFile) {
	const doc = "fmaLoopNEON performs 48 n independent multiply-adds of whole registers."
	file.function("fmaLoopNEON", "func(n int)", doc, 0, func(f *fn) {
		n, sums, x := f.word("n"), f.vec(24), f.vec(1)
		f.zero(sums)
		f.zero(x)
		f.loop(n, 1, func() {
			f.op(fmla, sums, x, x)
			f.op(fmla, sums, x, x)
		})
	})
}

// neonPlusHalf adds half of b to a, in dst; these are names of parameters.
func neonPlusHalf(file *neonFile, name, signature, doc, dst, a, b string) {
	file.function(name, signature, doc, 0, func(f *fn) {
		to, from, by, n := f.word(dst), f.word(a), f.word(b), f.word("n")
		half := f.vec(1)
		f.emit("FMOVS $0.5, %s", half[0].f())
		f.spread(half[0], half[0])
		f.loop(n, 16, func() {
			x, y := f.vec(4), f.vec(4)
			f32.read(f, x, from, 0)
			f32.read(f, y, by, 0)
			f.op(fmla, x, y, half)
			f32.write(f, nil, x, to, 0)
			f.step(64, to, from, by)
		})
	})
}

func neonRewrite(file *neonFile) {
	const doc = "rewrite negates the n floats of x, a multiple of 16, in place."
	file.function("rewrite", "func(x unsafe.Pointer, n int)", doc, 0, func(f *fn) {
		x, n := f.word("x"), f.word("n")
		f.loop(n, 16, func() {
			v := f.vec(4)
			f32.read(f, v, x, 0)
			f.op1(fneg, v, v)
			f32.write(f, nil, v, x, 0)
			f.step(64, x)
		})
	})
}

func neonReadAll(file *neonFile) {
	const doc = "readAll adds up pages of 1024 floats."
	file.function("readAll", "func(x unsafe.Pointer, pages int) float32", doc, 0, func(f *fn) {
		x, n, sums := f.word("x"), f.word("pages"), f.vec(8)
		f.emit("LSL $10, %v", n)
		f.zero(sums)
		f.loop(n, 32, func() {
			v := f.vec(8)
			f32.read(f, v, x, 0)
			f.op(fadd, sums, sums, v)
			f.step(128, x)
		})
		f.returns(f.fold(sums))
	})
}
