package cpu

import (
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// randomIDs returns n token ids; the last id of the vocabulary never occurs.
func randomIDs(rng *rand.Rand, n, vocab int) *guarded {
	return newVec(device.I32, n).fill(func(int) float64 { return float64(rng.IntN(vocab - 1)) })
}

const embedB, embedT, embedC, embedV, embedRows = 5, 61, 131, 307, 70 // embedRows position vectors

// embedStarts returns the starts of random documents if several is set, else none.
func embedStarts(several bool) *guarded {
	if !several {
		return newVec(device.I32, 0)
	}
	return starts(rand.New(rand.NewPCG(5, 6)), embedB, embedT)
}

func embedPosition(start *guarded, row int) int {
	if start.Buf.N == 0 {
		return row % embedT
	}
	return row%embedT - int(start.Buf.I32()[row])
}

func TestEmbed(t *testing.T) {
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for c, positions := range []int{embedRows, 0, embedRows} {
				start := embedStarts(c == 2)
				var wte, wpe, ids *guarded
				out := onWorkers(t, func(q *Queue) []*guarded {
					rng := rand.New(rand.NewPCG(1, 2))
					wte, wpe = newMat(dt, embedV, embedC).normal(rng, 0, 1), newMat(dt, positions, embedC).normal(rng, 0, 1)
					ids = randomIDs(rng, embedB*embedT, embedV)
					y := newMat(dt, embedB*embedT, embedC)
					q.Embed(y.Mat, wte.Mat, wpe.Mat, device.Vocab{}, ids.Buf, embedT, start.Buf)
					return []*guarded{y}
				})
				e, p := wte.values(), wpe.values()
				var want []float64
				for i, id := range ids.values() {
					for j := range embedC {
						v := e[int(id)*embedC+j]
						if positions > 0 {
							v += p[embedPosition(start, i)*embedC+j]
						}
						want = append(want, v)
					}
				}
				near(t, "embedding", out[0], want, 0)
			}
		})
	})
}

func TestEmbedGrad(t *testing.T) {
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for c, positions := range []int{embedRows, 0, embedRows} {
				start := embedStarts(c == 2)
				var dy, ids *guarded
				out := onWorkers(t, func(q *Queue) []*guarded {
					rng := rand.New(rand.NewPCG(3, 4))
					dy, ids = newMat(dt, embedB*embedT, embedC).normal(rng, 0, 1), randomIDs(rng, embedB*embedT, embedV)
					dwte, dwpe := newMat(device.F32, embedV, embedC), newMat(device.F32, positions, embedC)
					q.EmbedGrad(dwte.Mat, dwpe.Mat, dy.Mat, device.Vocab{}, ids.Buf, embedT, start.Buf, false)
					q.EmbedGrad(dwte.Mat, dwpe.Mat, dy.Mat, device.Vocab{}, ids.Buf, embedT, start.Buf, true)
					return []*guarded{dwte, dwpe}
				})
				dwte, dwpe, d := make([]float64, embedV*embedC), make([]float64, embedRows*embedC), dy.values()
				for i, id := range ids.values() {
					for j := range embedC {
						dwte[int(id)*embedC+j] += 2 * d[i*embedC+j]
						dwpe[embedPosition(start, i)*embedC+j] += 2 * d[i*embedC+j]
					}
				}
				near(t, "dwte", out[0], dwte, 1e-6)
				near(t, "dwpe", out[1], dwpe[:positions*embedC], 1e-6)
			}
		})
	})
}

// TestEmbedOfParts checks that the results of uneven parts of a vocabulary add up to the whole, and
// that each part gets its rows of the gradient.
func TestEmbedOfParts(t *testing.T) {
	eachType(t, func(t *testing.T, dt device.DType) {
		q, rng := queueOf(t, 2), rand.New(rand.NewPCG(5, 6))
		wte, wpe := newMat(dt, embedV, embedC).normal(rng, 0, 1), newMat(dt, embedRows, embedC).normal(rng, 0, 1)
		dy, ids := newMat(dt, embedB*embedT, embedC).normal(rng, 0, 1), randomIDs(rng, embedB*embedT, embedV)
		whole, dwhole := newMat(dt, embedB*embedT, embedC), newMat(device.F32, embedV, embedC)
		q.Embed(whole.Mat, wte.Mat, wpe.Mat, device.Vocab{}, ids.Buf, embedT, device.Buffer{})
		q.EmbedGrad(dwhole.Mat, device.Mat{}, dy.Mat, device.Vocab{}, ids.Buf, embedT, device.Buffer{}, false)
		sum, first := newMat(dt, embedB*embedT, embedC), 0
		q.Zero(sum.Buf)
		for i, rows := range []int{embedV / 2, 1, embedV - embedV/2 - 1} {
			part, places := device.Vocab{First: first, Size: embedV}, device.Mat{}
			if i == 0 {
				places = wpe.Mat // only one part adds them
			}
			y, dpart := newMat(dt, embedB*embedT, embedC), newMat(device.F32, rows, embedC)
			q.Embed(y.Mat, wte.RowRange(first, first+rows), places, part, ids.Buf, embedT, device.Buffer{})
			q.AddTo(sum.Buf, sum.Buf, y.Buf)
			q.EmbedGrad(dpart.Mat, device.Mat{}, dy.Mat, part, ids.Buf, embedT, device.Buffer{}, false)
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
			near(t, "gradient of a part", dpart, dwhole.values()[first*embedC:(first+rows)*embedC], 0)
			first += rows
		}
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		near(t, "sum of the parts", sum, whole.values(), 0)
	})
}

func TestEmbedRefuses(t *testing.T) {
	q := queueOf(t, 1)
	y, wte, none := newMat(device.F32, 6, 4).Mat, newMat(device.F32, 10, 4).Mat, device.Mat{}
	ids := newVec(device.I32, 6).Buf
	mustPanic(t, "fewer positions than T", func() { q.Embed(y, wte, newMat(device.F32, 2, 4).Mat, device.Vocab{}, ids, 3, device.Buffer{}) })
	mustPanic(t, "vectors of another width", func() { q.Embed(y, newMat(device.F32, 10, 3).Mat, none, device.Vocab{}, ids, 3, device.Buffer{}) })
	mustPanic(t, "ids of another length", func() { q.Embed(y, wte, none, device.Vocab{}, ids.Slice(0, 5), 3, device.Buffer{}) })
	mustPanic(t, "T of 0", func() { q.EmbedGrad(wte, none, y, device.Vocab{}, ids, 0, device.Buffer{}, false) })
	mustPanic(t, "starts of another length", func() { q.Embed(y, wte, none, device.Vocab{}, ids, 3, ids.Slice(0, 5)) })
	for _, id := range []int32{-1, 10} {
		ids.I32()[0] = id
		tk := &task{Args: kernel.Args{M: [8]device.Mat{y, wte}, B: [5]device.Buffer{ids}, T: 3}}
		mustPanic(t, "an id outside the vocabulary", func() { kernel.RunEmbed(&tk.Args, &testQueue(t, 1).w.Worker, 0, 1) })
	}
}
