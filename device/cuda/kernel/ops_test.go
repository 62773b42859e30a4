//go:build cuda

package kernel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/device"
)

// lengths contains lengths of vectors: shorter than a word of four, not a multiple of it, and
// longer than a block processes.
var lengths = []int{1, 3, 4, 5, 255, 1024, 4099}

func (b *bench) activation() device.Activation { return device.Activation(b.rng.IntN(5)) }

func (b *bench) length() int { return lengths[b.rng.IntN(len(lengths))] }

// flat returns a matrix without gaps, as required by elementwise operations.
func (b *bench) flat(what string, dt device.DType, n int, std float64) *operand {
	return b.makeWith(what, dt, 1, n, 0, b.rng.IntN(5)*b.rng.IntN(2)).fill(func(int) float64 { return std * b.rng.NormFloat64() })
}

func (b *bench) flatOut(what string, dt device.DType, n int) *operand {
	return b.makeWith(what, dt, 1, n, 0, b.rng.IntN(5)*b.rng.IntN(2))
}

// drops returns a dropout of n elements with a random row length that divides n.
func (b *bench) drops(n int) device.Dropout {
	d := device.Dropout{Seed: b.rng.Uint64(), Site: b.rng.Uint32(), Drop: 1 + b.rng.Uint32N(65535), Row: b.rng.Uint64() >> 1, Cols: max(1, n), First: 8 * b.rng.IntN(2) * b.rng.IntN(1000)}
	for range 20 {
		if cols := 1 + b.rng.IntN(d.Cols); n%cols == 0 {
			d.Cols = cols
			break
		}
	}
	return d
}

func TestElementwise(t *testing.T) {
	for name, f := range map[string]func(b *bench, n int) func(q operations){
		"activation": func(b *bench, n int) func(q operations) {
			y, x := b.flatOut("y", b.float(), n).near(1e-6), b.flat("x", b.float(), n, 4)
			f := b.activation()
			return func(q operations) { q.Activate(y.Buf, x.Buf, f) }
		},
		"activation in place": func(b *bench, n int) func(q operations) {
			x := b.flat("x", b.float(), n, 4).near(1e-6)
			f := b.activation()
			return func(q operations) { q.Activate(x.Buf, x.Buf, f) }
		},
		"activation gradient": func(b *bench, n int) func(q operations) {
			dx, x, dy := b.flatOut("dx", b.float(), n).near(1e-6), b.flat("x", b.float(), n, 5), b.flat("dy", b.float(), n, 1)
			f := b.activation()
			return func(q operations) { q.ActivateGrad(dx.Buf, x.Buf, dy.Buf, f) }
		},
		"activation gradient in place": func(b *bench, n int) func(q operations) {
			x, dy := b.flat("x", b.float(), n, 5), b.flat("dy", b.float(), n, 1).near(1e-6)
			f := b.activation()
			return func(q operations) { q.ActivateGrad(dy.Buf, x.Buf, dy.Buf, f) }
		},
		"add": func(b *bench, n int) func(q operations) {
			y, x, z := b.flatOut("y", b.float(), n).bits(), b.flat("a", b.float(), n, 1), b.flat("b", b.float(), n, 1)
			return func(q operations) { q.AddTo(y.Buf, x.Buf, z.Buf) }
		},
		"add in place": func(b *bench, n int) func(q operations) {
			y, x := b.flat("y", b.float(), n, 1).bits(), b.flat("b", b.float(), n, 1)
			return func(q operations) { q.AddTo(y.Buf, y.Buf, x.Buf) }
		},
		"multiply": func(b *bench, n int) func(q operations) {
			y, x, z := b.flatOut("y", b.float(), n).bits(), b.flat("a", b.float(), n, 1), b.flat("b", b.float(), n, 1)
			return func(q operations) { q.Mul(y.Buf, x.Buf, z.Buf) }
		},
		"add scalar": func(b *bench, n int) func(q operations) {
			y, x := b.flatOut("y", b.float(), n).bits(), b.flat("x", b.float(), n, 1)
			return func(q operations) { q.AddScalar(y.Buf, x.Buf, 0.7) }
		},
		"dropout": func(b *bench, n int) func(q operations) {
			y, x, add := b.flatOut("y", b.float(), n).bits(), b.flat("x", b.float(), n, 1), b.flat("add", b.float(), n, 1)
			d, with := b.drops(n), add.Buf
			if b.flip() {
				with = device.Buffer{}
			}
			return func(q operations) { q.Dropout(y.Buf, x.Buf, with, d) }
		},
		"dropout in place": func(b *bench, n int) func(q operations) {
			x, add := b.flat("x", b.float(), n, 1), b.flat("add", b.float(), n, 1)
			d, to := b.drops(n), []*operand{x.bits(), add}[b.rng.IntN(2)].bits()
			return func(q operations) { q.Dropout(to.Buf, x.Buf, add.Buf, d) }
		},
		"scale": func(b *bench, n int) func(q operations) {
			x := b.flat("x", b.float(), n, 1).bits()
			return func(q operations) { q.Scale(x.Buf, 0.37) }
		},
		"zero": func(b *bench, n int) func(q operations) {
			dt := []device.DType{device.F32, device.BF16, device.F16, device.I32, device.F64, device.I64}[b.rng.IntN(6)]
			x := b.flatOut("x", dt, n).bits()
			return func(q operations) { q.Zero(x.Buf) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range times(20) {
				check(t, uint64(i), func(b *bench) func(operations) { return f(b, lengths[i%len(lengths)]) })
			}
		})
	}
}

// TestGates also computes with columns of one matrix, and gradients in place.
func TestGates(t *testing.T) {
	for i := range times(60) {
		check(t, uint64(i), func(b *bench) func(operations) {
			rows, cols := b.shape()
			mat := func(what string, std float64) *operand { return b.mat(what, b.float(), rows, cols, std).near(1e-6) }
			if i == 1 || i == 3 { // aligned rows of half as many elements as are loaded at a time
				rows, cols = 5, 4
				mat = func(what string, std float64) *operand {
					return b.makeWith(what, device.F32, rows, cols, 0, 0).fill(func(int) float64 { return std * b.rng.NormFloat64() }).near(1e-6)
				}
			}
			gate, up := mat("gate", 4), mat("up", 1)
			g, u := gate.Mat, up.Mat
			if i%2 == 0 {
				if i%4 == 0 {
					cols = (cols + 7) &^ 7
				}
				both := b.mat("gate and up", b.float(), rows, 2*cols, 2).near(1e-6)
				g, u = both.Columns(0, cols), both.Columns(cols, 2*cols)
			}
			other, f := mat("y or dy", 1), b.activation()
			if i%3 == 0 {
				return func(q operations) { q.Gate(other.Mat, g, u, f) }
			}
			return func(q operations) { q.GateGrad(g, u, other.Mat, g, u, f) }
		})
	}
}

// TestCast casts every float type to every other, including special values.
func TestCast(t *testing.T) {
	types := []device.DType{device.F32, device.BF16, device.F16, device.F64}
	special := []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, 1e-300, 65504, 65519.99, 65520,
		0x1p-14, 0x1p-24, 0x1p-25, 0x1.8p-25, 0x1p-26, 0x1p-149, 0x1p-150, 1 + 0x1p-9, 1 + 0x1p-8 + 0x1p-40, math.MaxFloat32, 0x1.fffffefp127}
	for _, to := range types {
		for _, from := range types {
			for i := range times(8) {
				check(t, uint64(i), func(b *bench) func(operations) {
					n := len(special) + b.length()
					dst, src := b.flatOut("dst", to, n).bits(), b.flatOut("src", from, n)
					src.fill(func(i int) float64 {
						if i < len(special) {
							return special[i]
						}
						return b.rng.NormFloat64() * math.Exp(8*b.rng.NormFloat64())
					})
					return func(q operations) { q.Cast(dst.Buf, src.Buf) }
				})
			}
		}
	}
}

func TestSumInto(t *testing.T) {
	for i := range times(40) {
		check(t, uint64(i), func(b *bench) func(operations) {
			dt := append(anyFloat, device.F64)[b.rng.IntN(4)]
			n, count, peers := b.length(), 1+b.rng.IntN(9), b.flip()
			switch {
			case i == 0:
				count = MaxSources
			case i == 1: // more than a turn of all blocks
				n, count, peers = 32*peerBlocks*threads+8, 2, true
			case i < 4:
				n, peers = 8*b.rng.IntN(9*threads), true
			}
			var from []device.Buffer
			for range count {
				from = append(from, b.flat("source", dt, n, 1).bits().Buf)
			}
			dst := from[b.rng.IntN(count)]
			if b.flip() {
				dst = b.flatOut("dst", dt, n).bits().Buf
			}
			if peers {
				return func(q operations) { q.SumPeers(dst, from) }
			}
			return func(q operations) { q.SumInto(dst, from) }
		})
	}
}

// launches is a Launcher that passes calls on.
type launches func(*Call)

func (l launches) Launch(c *Call) { l(c) }

// TestSumPeersHasFewBlocks checks that sums over memory of other GPUs leave multiprocessors to others, however long they are.
func TestSumPeersHasFewBlocks(t *testing.T) {
	var blocks []uint32
	o := &Ops{To: launches(func(c *Call) { blocks = append(blocks, c.Grid[0]) })}
	x := device.OfF32(make([]float32, 1<<20))
	for _, n := range []int{1, 64 * threads, 1 << 20} {
		o.SumPeers(x.Slice(0, n), []device.Buffer{x.Slice(0, n), x.Slice(0, n)})
	}
	if want := []uint32{1, 2, 32}; !slices.Equal(blocks, want) {
		t.Errorf("%d blocks, want %d", blocks, want)
	}
}

func TestAddRow(t *testing.T) {
	for i := range times(20) {
		check(t, uint64(i), func(b *bench) func(operations) {
			rows, cols := 1+b.rng.IntN(20), b.length()
			y, v, set := b.mat("y", b.float(), rows, cols, 1).bits(), b.vec("v", b.float(), cols, 1), b.flip()
			return func(q operations) { q.AddRow(y.Mat, v.Buf, set) }
		})
	}
}

// shape returns a matrix shape: small, with one row or column, or with more rows than one part of
// a sum over columns.
func (b *bench) shape() (rows, cols int) {
	switch b.rng.IntN(4) {
	case 0:
		return 1 + b.rng.IntN(9), b.length()
	case 1:
		return 1 + b.rng.IntN(300), 1
	case 2:
		return 65 + b.rng.IntN(2000), 1 + b.rng.IntN(40)
	}
	return 1 + b.rng.IntN(70), 1 + b.rng.IntN(300)
}

func TestNorms(t *testing.T) {
	for i := range times(60) {
		check(t, uint64(i), func(b *bench) func(operations) {
			rows, cols := b.shape()
			x := b.mat("x", b.float(), rows, cols, 1.5)
			x.fill(func(i int) float64 { return 2 + 1.5*b.rng.NormFloat64() })
			y, w, bias := b.make("y", b.float(), rows, cols).near(1e-5), b.vec("w", b.float(), cols, 1), b.vec("b", b.float(), cols, 1)
			mean, rstd := b.make("mean", device.F32, 1, rows).near(1e-6), b.make("rstd", device.F32, 1, rows).near(1e-5)
			if b.flip() {
				return func(q operations) { q.LayerNorm(y.Mat, mean.Buf, rstd.Buf, x.Mat, w.Buf, bias.Buf, 1e-5) }
			}
			return func(q operations) { q.RMSNorm(y.Mat, rstd.Buf, x.Mat, w.Buf, 1e-6) }
		})
	}
}

// normWidths contains a width or more for each kernel of norm gradients. Rows are narrow if they
// consist of words of one type, up to 2048 columns, without a bias up to 4096.
var normWidths = []int{16, 768, 1000, 1025, 2048, 2049, 3000, 4096, 4100, 9000, MaxNorm}

func TestNormGradients(t *testing.T) {
	for i := range max(2*len(normWidths), times(80)) {
		check(t, uint64(i), func(b *bench) func(operations) {
			rows, cols := b.shape()
			if i < 2*len(normWidths) {
				rows, cols = 1+b.rng.IntN(70), normWidths[i/2]
			}
			typ, mat := b.float, b.mat
			if i%2 == 0 {
				cols = (cols + 7) / 8 * 8
				one := b.float()
				typ, mat = func() device.DType { return one }, b.aligned
			}
			dy, x, w := mat("dy", typ(), rows, cols, 1).near(1e-4), mat("x", typ(), rows, cols, 1), mat("w", typ(), 1, cols, 1)
			mean, rstd := b.vec("mean", device.F32, rows, 0.3), b.vec("rstd", device.F32, rows, 1)
			dw, db := b.make("dw", device.F32, 1, cols).near(1e-5), b.make("db", device.F32, 1, cols).near(1e-5)
			dx, add, layer := dy, false, b.flip() && cols != 3000 && cols != 4096
			switch {
			case b.rng.IntN(3) > 0:
				dx, add = mat("dx", typ(), rows, cols, 1).near(1e-4), b.flip()
			case !layer && b.flip():
				dx = x.near(1e-4)
			}
			if layer {
				return func(q operations) {
					q.LayerNormGrad(dx.Mat, dw.Buf, db.Buf, dy.Mat, x.Mat, w.Buf, mean.Buf, rstd.Buf, add)
				}
			}
			return func(q operations) { q.RMSNormGrad(dx.Mat, dw.Buf, dy.Mat, x.Mat, w.Buf, rstd.Buf, add) }
		})
	}
}

func TestSumRows(t *testing.T) {
	for i := range times(30) {
		check(t, uint64(i), func(b *bench) func(operations) {
			rows, cols := b.shape()
			if i == 0 {
				rows, cols = 9000, 130 // parts of more than the minimum number of rows
			}
			dy, db := b.mat("dy", b.float(), rows, cols, 1), b.make("db", device.F32, 1, cols).near(1e-5)
			return func(q operations) { q.SumRows(db.Buf, dy.Mat) }
		})
	}
}

func TestEmbed(t *testing.T) {
	for i := range times(30) {
		check(t, uint64(i), func(b *bench) func(operations) {
			T := 1 + b.rng.IntN(40)
			rows, cols, vocab := T*(1+b.rng.IntN(5)), b.length()/8+1, 1+b.rng.IntN(500)
			y, wte, ids := b.make("y", b.float(), rows, cols).bits(), b.mat("wte", b.float(), vocab, cols, 1), b.ints("ids", rows, 0, vocab)
			var wpe device.Mat
			if b.flip() {
				wpe = b.mat("wpe", b.float(), T+b.rng.IntN(2)*b.rng.IntN(60), cols, 1).Mat
			}
			start := b.starts(rows/T, T, max(0, wpe.Rows-T))
			part := device.Vocab{}
			if b.rng.IntN(3) == 0 {
				part = device.Vocab{First: b.rng.IntN(vocab), Size: 2 * vocab}
			}
			return func(q operations) { q.Embed(y.Mat, wte.Mat, wpe, part, ids.Buf, T, start) }
		})
	}
}

// TestEmbedGrad checks for the CPU's bits: sums are in the order of positions.
func TestEmbedGrad(t *testing.T) {
	for i := range times(40) {
		check(t, uint64(i), func(b *bench) func(operations) {
			T := 1 + b.rng.IntN(40)
			rows, cols, vocab := T*(1+b.rng.IntN(5)), b.length()/16+1, 1+b.rng.IntN(3000)
			if i%5 == 0 {
				T, rows, vocab = 100, 100*(20+b.rng.IntN(40)), 1+b.rng.IntN(3) // lists overflow
			}
			dwte, dy, ids := b.mat("dwte", device.F32, vocab, cols, 1).bits(), b.mat("dy", b.float(), rows, cols, 1), b.ints("ids", rows, 0, vocab)
			var dwpe device.Mat
			if b.flip() {
				dwpe = b.mat("dwpe", device.F32, T+b.rng.IntN(2)*b.rng.IntN(60), cols, 1).bits().Mat
			}
			add, start := b.flip(), b.starts(rows/T, T, max(0, dwpe.Rows-T))
			part := device.Vocab{}
			if b.rng.IntN(3) == 0 {
				part = device.Vocab{First: b.rng.IntN(vocab), Size: 2 * vocab}
			}
			return func(q operations) { q.EmbedGrad(dwte.Mat, dwpe, dy.Mat, part, ids.Buf, T, start, add) }
		})
	}
}

func TestRope(t *testing.T) {
	for i := range times(30) {
		check(t, uint64(i), func(b *bench) func(operations) {
			r := device.Rope{T: 1 + b.rng.IntN(50), D: 2 * (1 + b.rng.IntN(70)), Past: b.rng.IntN(2) * b.rng.IntN(5000), Theta: 10000}
			switch b.rng.IntN(3) {
			case 0:
				r.Theta, r.Scaling = 5e5, device.RopeScaling{Kind: device.RopeLlama3, Factor: 8, Low: 1, High: 4, Context: 64}
			case 1:
				r.Scaling = device.RopeScaling{Kind: device.RopeYaRN, Factor: 4, Low: 2.5, High: 9, Context: 64, Amplitude: 1.14}
			}
			if i == 0 {
				r.D = MaxHead
			}
			if b.flip() {
				r.Part = 2 * (1 + b.rng.IntN(r.D/2))
			}
			if i%2 == 1 { // whole words, of which a warp's last block has a part
				r.D, r.Part = 16*(1+2*b.rng.IntN(5)), 0
			}
			if b.rng.IntN(4) == 0 {
				r.Scaling = device.RopeScaling{Kind: device.RopeLong, Context: 9, Amplitude: 1.2}
				for range r.RotaryDim() / 2 {
					r.Scaling.Factors = append(r.Scaling.Factors, 1+b.rng.Float64())
				}
			}
			x, inverse := b.mat("x", b.float(), r.T*(1+b.rng.IntN(3)), r.D*(1+b.rng.IntN(4)), 1).near(1e-7), b.flip()
			if r.Past == 0 {
				r.Span = r.T + b.rng.IntN(2)*30
				r.Start = b.starts(x.Rows/r.T, r.T, r.Span-r.T)
			}
			return func(q operations) { q.Rope(x.Mat, r, inverse) }
		})
	}
}

func TestCrossEntropy(t *testing.T) {
	for i := range times(40) {
		check(t, uint64(i), func(b *bench) func(operations) {
			rows, cols := 1+b.rng.IntN(12), b.length()
			if i == 0 {
				cols = 50257
			}
			tol, std := 1e-6, []float64{0.1, 3, 20}[b.rng.IntN(3)]
			logits, target := b.mat("logits", b.float(), rows, cols, std), b.ints("target", rows, -1, cols)
			loss := b.make("loss", device.F32, 1, rows).near(tol)
			cap := []float32{0, 0, 30, 3}[b.rng.IntN(4)]
			if b.flip() {
				return func(q operations) { q.CrossEntropy(loss.Buf, logits.Mat, target.Buf, cap) }
			}
			logits.near(tol)
			return func(q operations) { q.CrossEntropyGrad(loss.Buf, logits.Mat, target.Buf, 0.125, cap) }
		})
	}
}

// TestCrossEntropyOfParts checks both kernels on logits for part of the vocabulary, with stats of
// three parts.
func TestCrossEntropyOfParts(t *testing.T) {
	for i := range times(40) {
		check(t, uint64(i), func(b *bench) func(operations) {
			rows, cols := 1+b.rng.IntN(12), b.length()
			part := device.Vocab{First: b.rng.IntN(cols + 1), Size: 3 * cols}
			tol, std := 1e-6, []float64{0.1, 3, 20}[b.rng.IntN(3)]
			logits, target := b.mat("logits", b.float(), rows, cols, std), b.ints("target", rows, -1, 3*cols)
			cap := []float32{0, 0, 30, 3}[b.rng.IntN(4)]
			if b.flip() {
				stats := b.make("stats", device.F32, 1, 3*rows).near(tol)
				return func(q operations) { q.CrossEntropyPart(stats.Buf, logits.Mat, part, target.Buf, cap) }
			}
			stats, loss, grad := b.flat("stats", device.F32, 9*rows, 1), b.make("loss", device.F32, 1, rows).near(tol), b.flip()
			for k, s := 0, stats.Buf; k < s.N; k += 3 { // a sum is positive, and no logit exceeds the largest
				s.F32()[k], s.F32()[k+1] = 200, 1+s.F32()[k+1]*s.F32()[k+1]
			}
			if grad {
				logits.near(tol)
			}
			return func(q operations) {
				q.CrossEntropyMerge(loss.Buf, stats.Buf, logits.Mat, part, target.Buf, 0.125, cap, grad)
			}
		})
	}
}

// TestUpdates checks for the CPU's bits.
func TestUpdates(t *testing.T) {
	for i := range times(60) {
		check(t, uint64(i), func(b *bench) func(operations) {
			n := b.length()
			w, g := b.flat("w", device.F32, n, 1).bits(), b.flat("g", device.F32, n, 1)
			m, v := b.flat("m", device.F32, n, 1).bits(), b.flat("v", device.F32, n, 1).bits()
			v.fill(func(int) float64 { return math.Abs(b.rng.NormFloat64()) * 1e-3 })
			var p device.Buffer
			if b.rng.IntN(3) > 0 {
				p = b.flatOut("p", b.float(), n).bits().Buf
			}
			switch b.rng.IntN(4) {
			case 0:
				a := device.AdamW{GradScale: 0.5, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Shrink: 0.999, L2: 0.01, Step: 3e-4, RootC2: 1.5}
				return func(q operations) { q.AdamW(w.Buf, p, g.Buf, m.Buf, v.Buf, a) }
			case 1:
				return func(q operations) {
					q.Lion(w.Buf, p, g.Buf, m.Buf, device.Lion{GradScale: 0.5, Beta1: 0.9, Beta2: 0.99, Shrink: 0.9, LR: 1e-3})
				}
			case 2:
				return func(q operations) {
					q.SGD(w.Buf, p, g.Buf, m.Buf, device.SGD{GradScale: 0.5, Momentum: 0.9, Decay: 0.1, LR: 0.01})
				}
			}
			return func(q operations) {
				q.SGD(w.Buf, p, g.Buf, device.Buffer{}, device.SGD{GradScale: 0.5, Decay: 0.1, LR: 0.01})
			}
		})
	}
}

// TestJoinedUpdates checks that runs of a tile joined into launches have the CPU's bits of each run by
// itself, at any cut, with gaps between runs and more runs than a launch takes.
func TestJoinedUpdates(t *testing.T) {
	for i := range times(30) {
		check(t, uint64(i), func(b *bench) func(operations) {
			n := 40 + b.length()
			w, g := b.flat("w", device.F32, n, 1).bits(), b.flat("g", device.F32, n, 1)
			m, v := b.flat("m", device.F32, n, 1).bits(), b.flat("v", device.F32, n, 1).bits()
			v.fill(func(int) float64 { return math.Abs(b.rng.NormFloat64()) * 1e-3 })
			p := b.flatOut("p", b.float(), n).bits()
			p.fill(func(int) float64 { return 0 }) // gaps keep it
			var at []int
			for range 1 + b.rng.IntN(2*maxRuns) {
				at = append(at, b.rng.IntN(n+1))
			}
			slices.Sort(at)
			skip, l2 := b.rng.IntN(3), b.rng.Float32()
			return func(q operations) {
				if o, ok := q.(interface{ JoinUpdates() }); ok {
					o.JoinUpdates()
				}
				for k := range len(at) - 1 {
					if lo, hi := at[k], at[k+1]; skip == 0 || k%7 != 3 {
						a := device.AdamW{GradScale: 0.5, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Shrink: 1 - float32(k)/100, L2: l2 * float32(k%2), Step: 3e-4 * float32(1+k), RootC2: 1.5}
						q.AdamW(w.Buf.Slice(lo, hi), p.Buf.Slice(lo, hi), g.Buf.Slice(lo, hi), m.Buf.Slice(lo, hi), v.Buf.Slice(lo, hi), a)
					}
				}
				if skip == 2 {
					q.Scale(w.Buf, 0.5) // launches what has been joined first
				}
				if o, ok := q.(interface{ EndUpdates() }); ok {
					o.EndUpdates()
				}
			}
		})
	}
}

// TestJoinedLaunches counts the launches of updates.
func TestJoinedLaunches(t *testing.T) {
	x := [6]device.Buffer{}
	for i := range x {
		x[i] = device.OfF32(make([]float32, 200))
	}
	update := func(o *Ops, lo, hi int, a device.AdamW) {
		o.AdamW(x[0].Slice(lo, hi), x[1].Slice(lo, hi), x[2].Slice(lo, hi), x[3].Slice(lo, hi), x[4].Slice(lo, hi), a)
	}
	for _, c := range []struct {
		what string
		want int
		f    func(o *Ops)
	}{
		{"runs of a tile", 1, func(o *Ops) {
			update(o, 0, 9, device.AdamW{})
			update(o, 9, 11, device.AdamW{Step: 1})
			update(o, 11, 200, device.AdamW{L2: 1})
		}},
		{"an empty run", 1, func(o *Ops) {
			update(o, 0, 9, device.AdamW{})
			update(o, 9, 9, device.AdamW{})
			update(o, 9, 10, device.AdamW{})
		}},
		{"a gap", 2, func(o *Ops) {
			update(o, 0, 9, device.AdamW{})
			update(o, 10, 11, device.AdamW{})
		}},
		{"other constants", 2, func(o *Ops) {
			update(o, 0, 9, device.AdamW{})
			update(o, 9, 11, device.AdamW{Beta1: 1})
		}},
		{"an operation between", 3, func(o *Ops) {
			update(o, 0, 9, device.AdamW{})
			o.Zero(x[5])
			update(o, 9, 11, device.AdamW{})
		}},
		{"many runs", 3, func(o *Ops) {
			for i := range 2*maxRuns + 1 {
				update(o, i, i+1, device.AdamW{})
			}
		}},
	} {
		d := &dropped{}
		o := &Ops{To: d}
		o.JoinUpdates()
		c.f(o)
		o.EndUpdates()
		if d.calls != c.want {
			t.Errorf("%s: %d launches, want %d", c.what, d.calls, c.want)
		}
		if c.f(o); d.calls < c.want+2 {
			t.Errorf("%s: %d launches after EndUpdates", c.what, d.calls-c.want)
		}
	}
}

// TestAdamW8 checks for the CPU's bits with whole, incomplete, zero and tiny blocks, and with the
// largest numbers.
func TestAdamW8(t *testing.T) {
	for i := range times(40) {
		check(t, uint64(i), func(b *bench) func(operations) {
			n := 1 + b.rng.IntN(1500)
			if b.flip() {
				n = device.BlockLen * (1 + b.rng.IntN(4))
			}
			w, g := b.flat("w", device.F32, n, 1).bits(), b.flat("g", device.F32, n, 1)
			var p device.Buffer
			if b.rng.IntN(3) > 0 {
				p = b.flatOut("p", b.float(), n).bits().Buf
			}
			scale := []float64{1, 0, 1e-35, 1e30}[b.rng.IntN(4)]
			m := b.coded("m", device.Q8, n, func() float64 { return scale * b.rng.NormFloat64() })
			v := b.coded("v", device.U8, n, func() float64 { return math.Abs(b.rng.NormFloat64()) * 1e-3 })
			a := device.AdamW{GradScale: []float32{0.5, 0, 1e-30}[b.rng.IntN(3)], Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Shrink: 0.999, L2: 0.01, Step: 3e-4, RootC2: 1.5}
			return func(q operations) { q.AdamW8(w.Buf, p, g.Buf, m, v, a) }
		})
	}
}

// TestDecode checks for the CPU's bits, for all types, with whole and incomplete groups, rows and words.
func TestDecode(t *testing.T) {
	for i := range times(80) {
		check(t, uint64(i), func(b *bench) func(operations) {
			code, cols := device.NF4+device.Code(b.rng.IntN(2)), 1+b.rng.IntN(300)
			if b.flip() {
				cols = 8 * (1 + b.rng.IntN(100))
			}
			rows := 1 + b.rng.IntN(50_000/cols)
			codes := b.ints("codes", code.Words(rows, cols), math.MinInt32, math.MaxInt32)
			magnitude := func(word int) { codes.Buf.Words()[word] = math.Float32bits(float32(b.rng.NormFloat64())) }
			magnitude(0)
			for lo := 0; lo < rows*cols; lo += code.Piece(cols) {
				first, _ := code.Span(lo, rows*cols, cols)
				magnitude(first)
			}
			copy(codes.before, codes.Buf.Raw())
			y := b.flatOut("y", b.float(), rows*cols).bits()
			return func(q operations) { q.Decode(device.Matrix(y.Buf, rows, cols), codes.Buf, code) }
		})
	}
}

// TestAxpby checks for the CPU's bits, for all types, in place and not.
func TestAxpby(t *testing.T) {
	for i := range times(60) {
		check(t, uint64(i), func(b *bench) func(operations) {
			n := b.length()
			x, z := b.flat("a", b.float(), n, 1), b.flat("b", b.float(), n, 1)
			y := []*operand{x, z, b.flatOut("y", b.float(), n)}[b.rng.IntN(3)].bits()
			var p device.Buffer
			if b.flip() {
				p = b.flatOut("p", b.float(), n).bits().Buf
			}
			return func(q operations) { q.Axpby(y.Buf, p, x.Buf, z.Buf, -4.775, 0.3) }
		})
	}
}

// TestCopyBlock copies between matrices that may be wider.
func TestCopyBlock(t *testing.T) {
	for i := range times(20) {
		check(t, uint64(i), func(b *bench) func(operations) {
			dt, rows, cols := b.float(), 1+b.rng.IntN(40), 1+b.length()/8
			dst, src := b.mat("dst", dt, rows, cols, 1).bits(), b.mat("src", dt, rows, cols, 1)
			return func(q operations) { q.CopyBlock(dst.Mat, src.Mat) }
		})
	}
}

// TestNormalize checks for the CPU's bits with numbers of similar and of all magnitudes, with no
// numbers, with numbers so small that eps applies, and for NaN if a number is not finite.
func TestNormalize(t *testing.T) {
	for i := range times(80) {
		check(t, uint64(i), func(b *bench) func(operations) {
			n := []int{1, 3, 63, 64, 65, 1000, 70000}[i%7]
			x, acc := b.flat("x", b.float(), n, 1).bits(), b.make("acc", device.I64, 1, device.ExactLen).bits()
			spread, scale := []float64{0, 1, 6}[b.rng.IntN(3)], []float64{1, 0, 1e-9, 1e4}[b.rng.IntN(4)]
			x.fill(func(i int) float64 { return scale * b.rng.NormFloat64() * math.Exp(spread*b.rng.NormFloat64()) })
			if odd := b.rng.IntN(12); odd < 2 {
				x.fill(func(i int) float64 { return []float64{math.Inf(1), math.NaN(), float64(i)}[min(2, i+odd)] })
			}
			return func(q operations) { q.Normalize(x.Buf, acc.Buf, 1e-3) }
		})
	}
}

// coded returns n numbers coded in blocks of 8 bits. Comparisons use whole words.
func (b *bench) coded(what string, dt device.DType, n int, draw func() float64) device.Buffer {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(draw())
	}
	from := device.Narrow(x, dt)
	o := b.make(what, device.I32, 1, dt.Bytes(n)/4).bits()
	copy(o.Buf.Raw(), from.Raw())
	copy(o.before, o.Buf.Raw())
	return device.Buffer{Type: dt, Host: true, N: n, Ptr: o.Buf.Ptr}
}

// TestExactSums checks for the limbs of package device, after a carry.
func TestExactSums(t *testing.T) {
	for i := range times(40) {
		on, n := started(t), []int{1, 63, 64, 65, 1000, 70000}[i%6]
		for _, e := range on {
			e.reset()
			b := &bench{e: e, rng: rand.New(rand.NewPCG(uint64(i), 2))}
			x, acc := b.flat("x", device.F32, n, 1), e.alloc(device.I64, device.ExactLen, 0)
			spread := []float64{0, 1, 12}[b.rng.IntN(3)] // nearly all exponents
			x.fill(func(i int) float64 { return b.rng.NormFloat64() * math.Exp(spread*b.rng.NormFloat64()) })
			if odd := x.Buf.F32(); i%3 == 0 {
				for j, v := range []float64{math.NaN(), math.Inf(-1), 0, 0x1p-149, -0x1p-149, math.MaxFloat32, -math.MaxFloat32, 0x1p-126} {
					odd[(j*577)%n] = float32(v)
				}
			}
			was := *device.ExactAt(acc, 0)
			for j := range was {
				was[j] = int64(j * 1000)
			}
			*device.ExactAt(acc, 0) = was
			o := &Ops{To: e, Weigh: true}
			block := device.BlockSum
			if i%2 == 0 {
				o.Sum(acc, x.Buf)
			} else {
				block = device.BlockSquares
				o.SumSquares(acc, x.Buf)
			}
			if e.err != nil {
				t.Fatal(e.err)
			}
			for j := 0; j < n; j += device.ExactBlock {
				var part [device.ExactBlock]float32
				copy(part[:], x.Buf.F32()[j:])
				was.Add(block(&part))
			}
			was.Carry()
			got := device.ExactAt(acc, 0)
			got.Carry()
			if *got != was {
				t.Fatalf("%d elements: %v, want %v", n, *got, was)
			}
		}
	}
}
