package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/tests/nightly"
)

// crossEntropy64 returns the losses of the rows of logits and scale times their gradient. With a
// cap, they are those of cap tanh(x/cap).
func crossEntropy64(logits []float64, target []float64, scale, cap float64) (loss, grad []float64) {
	if cap > 0 {
		capped := make([]float64, len(logits))
		for i, x := range logits {
			capped[i] = cap * math.Tanh(x/cap)
		}
		loss, grad = crossEntropy64(capped, target, scale, 0)
		for i, y := range capped {
			grad[i] *= 1 - y/cap*y/cap
		}
		return loss, grad
	}
	cols := len(logits) / max(1, len(target))
	grad = make([]float64, len(logits))
	for i, tgt := range target {
		if tgt == kernel.Ignored {
			loss = append(loss, 0)
			continue
		}
		x, sum := logits[i*cols:][:cols], 0.0
		for _, v := range x {
			sum += math.Exp(v - x[0])
		}
		for j, v := range x {
			grad[i*cols+j] = scale * math.Exp(v-x[0]) / sum
		}
		grad[i*cols+int(tgt)] -= scale
		loss = append(loss, math.Log(sum)+x[0]-x[int(tgt)])
	}
	return loss, grad
}

// lossCase returns logits, some large, and targets, some ignored.
func lossCase(dt device.DType, rows, cols int) (logits, target *guarded) {
	rng := rand.New(rand.NewPCG(1, 2))
	logits = newMat(dt, rows, cols).normal(rng, 3, 4)
	target = newVec(device.I32, rows).fill(func(i int) float64 {
		if i%7 == 3 {
			return kernel.Ignored
		}
		return float64(rng.IntN(cols))
	})
	return logits, target
}

var lossShapes = [][2]int{{1, 1}, {2, 3}, {61, 1301}, {9, 256}, {2, 2*kernel.LogitsChunk + 5}}

func TestCrossEntropy(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for i, s := range append(lossShapes, lossShapes...) {
				cap := float32(i / len(lossShapes) * 5)
				var want []float64
				out := onWorkers(t, func(q *Queue) []*guarded {
					logits, target := lossCase(dt, s[0], s[1])
					want, _ = crossEntropy64(logits.values(), target.values(), 1, float64(cap))
					loss := newVec(device.F32, s[0])
					before := logits.values()
					q.CrossEntropy(loss.Buf, logits.Mat, target.Buf, cap)
					if err := q.Wait(); err != nil {
						t.Fatal(err)
					}
					for i, v := range logits.values() {
						if v != before[i] {
							t.Fatalf("logit %d was changed from %g to %g", i, before[i], v)
						}
					}
					return []*guarded{loss}
				})
				near(t, "loss", out[0], want, 5e-7)
			}
		})
	})
}

func TestCrossEntropyGrad(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		const scale = 1.0 / 64 * 3
		eachType(t, func(t *testing.T, dt device.DType) {
			for i, s := range append(lossShapes, lossShapes...) {
				cap := float32(i / len(lossShapes) * 5)
				var loss, grad []float64
				out := onWorkers(t, func(q *Queue) []*guarded {
					logits, target := lossCase(dt, s[0], s[1])
					loss, grad = crossEntropy64(logits.values(), target.values(), scale, float64(cap))
					l := newVec(device.F32, s[0])
					q.CrossEntropyGrad(l.Buf, logits.Mat, target.Buf, scale, cap)
					return []*guarded{l, logits}
				})
				near(t, "loss", out[0], loss, 5e-7)
				near(t, "gradient", out[1], grad, 2e-6+float64(cap)*5e-7) // near the cap, the slope is the difference of two numbers close to 1
			}
		})
	})
}

// TestCrossEntropyOfParts compares losses and gradients of logits in three uneven parts with those
// of all.
func TestCrossEntropyOfParts(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		const scale = 1.0 / 64 * 3
		eachType(t, func(t *testing.T, dt device.DType) {
			for i, s := range append(lossShapes[1:], lossShapes[1:]...) {
				rows, cols, cap := s[0], s[1], float32(i/(len(lossShapes)-1)*5)
				var loss, grad []float64
				var bounds [4]int
				out := onWorkers(t, func(q *Queue) []*guarded {
					logits, target := lossCase(dt, rows, cols)
					loss, grad = crossEntropy64(logits.values(), target.values(), scale, float64(cap))
					bounds = [4]int{0, 1, 1 + (cols-1)/3, cols}
					all := newVec(device.F32, 3*3*rows)
					var parts []*guarded
					for k, lo := range bounds[:3] {
						part := newMat(dt, rows, bounds[k+1]-lo)
						for r := range rows {
							q.Copy(part.RowRange(r, r+1).Buf, logits.Buf.Slice(r*logits.Ld+lo, r*logits.Ld+bounds[k+1]))
						}
						q.CrossEntropyPart(all.Buf.Slice(3*k*rows, 3*(k+1)*rows), part.Mat, device.Vocab{First: lo, Size: cols}, target.Buf, cap)
						parts = append(parts, part)
					}
					l, again := newVec(device.F32, rows), newVec(device.F32, rows)
					q.CrossEntropyMerge(again.Buf, all.Buf, parts[0].Mat, device.Vocab{Size: cols}, target.Buf, 0, cap, false)
					for k, part := range parts {
						q.CrossEntropyMerge(l.Buf, all.Buf, part.Mat, device.Vocab{First: bounds[k], Size: cols}, target.Buf, scale, cap, true)
					}
					return append([]*guarded{l, again}, parts...)
				})
				near(t, "loss", out[0], loss, 1e-6)
				near(t, "loss without a gradient", out[1], loss, 1e-6)
				for k, lo := range bounds[:3] {
					var want []float64
					for r := range rows {
						want = append(want, grad[r*cols+lo:r*cols+bounds[k+1]]...)
					}
					near(t, "gradient of a part", out[2+k], want, 2e-6+float64(cap)*5e-7)
				}
			}
		})
	})
}

func TestCrossEntropyOfHugeAndIgnoredLogits(t *testing.T) {
	withVec(t, func(t *testing.T) {
		nan := math.NaN()
		x := []float64{1e38, -1e38, 3e38, -200, 0, 200, nan, nan, nan}
		q := queueOf(t, 1)
		logits := newMat(device.F32, 3, 3).fill(func(i int) float64 { return x[i] })
		target := newVec(device.I32, 3).fill(func(i int) float64 { return []float64{2, 0, kernel.Ignored}[i] })
		loss := newVec(device.F32, 3)
		q.CrossEntropyGrad(loss.Buf, logits.Mat, target.Buf, 2, 0)
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		near(t, "loss", loss, []float64{0, 400, 0}, 0)
		near(t, "gradient", logits, []float64{0, 0, 0, -2, 0, 2, 0, 0, 0}, 0)
	})
}

func TestCrossEntropyGradAgainstFiniteDifferences(t *testing.T) {
	for _, cap := range []float32{0, 6} {
		logits, target := lossCase(device.F32, 12, 17)
		xs, ts := logits.values(), target.values()
		want := slopes(xs, func() (sum float64) {
			loss, _ := crossEntropy64(xs, ts, 1, float64(cap))
			for _, l := range loss {
				sum += 0.25 * l
			}
			return sum
		})
		q := queueOf(t, 1)
		q.CrossEntropyGrad(newVec(device.F32, 12).Buf, logits.Mat, target.Buf, 0.25, cap)
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		near(t, "gradient", logits, want, 2e-6)
	}
}

func TestCrossEntropyRefuses(t *testing.T) {
	q := queueOf(t, 1)
	logits, target, loss := newMat(device.F32, 3, 4).Mat, newVec(device.I32, 3).Buf, newVec(device.F32, 3).Buf
	mustPanic(t, "a loss too few", func() { q.CrossEntropy(loss.Slice(0, 2), logits, target, 0) })
	mustPanic(t, "a target too few", func() { q.CrossEntropyGrad(loss, logits, target.Slice(0, 2), 1, 0) })
	for _, id := range []int{-2, 4} {
		mustPanic(t, "a target outside the vocabulary", func() { kernel.WantTarget(id, 0, 4) })
	}
}
