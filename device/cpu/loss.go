package cpu

import (
	"fmt"
	"math"

	"zeroth/device"
)

// Ignored is the target of a position that has no loss and no gradient.
const Ignored = -1

// CrossEntropy sets loss[i] (float32, nats) to -log softmax(logits[i])[target[i]],
// 0 where target[i] (int32) is Ignored.
func (q *Queue) CrossEntropy(loss device.Buffer, logits device.Mat, target device.Buffer) {
	q.crossEntropy("cross-entropy", runCrossEntropy, loss, logits, target, 0)
}

// CrossEntropyGrad does the same and replaces logits[i] by
// scale*(softmax(logits[i]) - onehot(target[i])), by zeros where target[i] is Ignored.
func (q *Queue) CrossEntropyGrad(loss device.Buffer, logits device.Mat, target device.Buffer, scale float32) {
	q.crossEntropy("cross-entropy gradient", runCrossEntropyGrad, loss, logits, target, scale)
}

func (q *Queue) crossEntropy(op string, run func(*task, *worker, int, int), loss device.Buffer, logits device.Mat, target device.Buffer, scale float32) {
	wantMat(op, logits, logits.Rows, logits.Cols)
	wantLen(op, loss, device.F32, logits.Rows)
	wantLen(op, target, device.I32, logits.Rows)
	t := q.issue(op)
	t.m[0], t.b[0], t.b[1], t.f[0] = logits, loss, target, scale
	q.kernel(t, run, logits.Rows, rowGrain(4*logits.Cols))
}

func runCrossEntropy(t *task, w *worker, lo, hi int) {
	m, n := &t.m[0], t.m[0].Cols
	loss, target, mem := t.b[0].F32(), t.b[1].I32(), w.floats(n+lossChunk)
	for i := lo; i < hi; i++ {
		loss[i] = 0
		if target[i] == Ignored {
			continue
		}
		x := floatsOf(mem, m.Buf, i*m.Ld, n)
		at := x[wantTarget(int(target[i]), i, n)]
		top := largest(x)
		var sum float64
		for c := 0; c < n; c += lossChunk {
			sum += float64(expSum(mem[n:], x[c:min(c+lossChunk, n)], top))
		}
		loss[i] = float32(math.Log(sum) + float64(top) - float64(at))
	}
}

// lossChunk is the number of exponentials summed in float32 before their sum
// is added up in float64.
const lossChunk = 256

func runCrossEntropyGrad(t *task, w *worker, lo, hi int) {
	m, n := &t.m[0], t.m[0].Cols
	loss, target, mem := t.b[0].F32(), t.b[1].I32(), w.floats(n)
	for i := lo; i < hi; i++ {
		x := floatsOf(mem, m.Buf, i*m.Ld, n)
		if target[i] == Ignored {
			loss[i] = 0
			clear(x)
		} else {
			loss[i] = lossGrad(x, wantTarget(int(target[i]), i, n), t.f[0])
		}
		keep(m.Buf, i*m.Ld, x)
	}
}

// lossGrad returns the loss of a row of logits and turns it into its gradient.
func lossGrad(x []float32, target int, scale float32) float32 {
	at, top := x[target], largest(x)
	var sum float64
	for c := 0; c < len(x); c += lossChunk {
		chunk := x[c:min(c+lossChunk, len(x))]
		sum += float64(expSum(chunk, chunk, top))
	}
	r := float32(float64(scale) / sum)
	for j := range x {
		x[j] *= r
	}
	x[target] -= scale
	return float32(math.Log(sum) + float64(top) - float64(at))
}

// wantTarget is the target, which must be an index of the n logits of row i.
func wantTarget(target, i, n int) int {
	if target < 0 || target >= n {
		panic(fmt.Sprintf("cpu: cross-entropy: target %d at %d, %d logits", target, i, n))
	}
	return target
}
