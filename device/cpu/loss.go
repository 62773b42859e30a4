package cpu

import (
	"fmt"
	"math"
	"unsafe"

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

func (q *Queue) crossEntropy(op string, run runFunc, loss device.Buffer, logits device.Mat, target device.Buffer, scale float32) {
	wantMat(op, logits, logits.Rows, logits.Cols)
	wantLen(op, loss, device.F32, logits.Rows)
	wantLen(op, target, device.I32, logits.Rows)
	t := q.issue(op)
	t.m[0], t.b[0], t.b[1], t.f[0] = logits, loss, target, scale
	q.kernel(t, run, logits.Rows, rowGrain(4*logits.Cols))
}

func runCrossEntropy(t *args, w *worker, lo, hi int) {
	m, loss, target := &t.m[0], t.b[0].F32(), t.b[1].I32()
	for i := lo; i < hi; i++ {
		loss[i] = 0
		if target[i] != Ignored {
			x := logitsOf(w, m, i)
			loss[i] = x.loss(wantTarget(int(target[i]), i, m.Cols))
		}
	}
}

func runCrossEntropyGrad(t *args, w *worker, lo, hi int) {
	m, loss, target := &t.m[0], t.b[0].F32(), t.b[1].I32()
	for i := lo; i < hi; i++ {
		row := m.Buf.Slice(i*m.Ld, i*m.Ld+m.Cols)
		if target[i] == Ignored {
			loss[i] = 0
			clear(row.Raw())
			continue
		}
		x, at := logitsOf(w, m, i), wantTarget(int(target[i]), i, m.Cols)
		loss[i] = x.loss(at)
		x.gradient(at, t.f[0])
		if x.row.Type != m.Buf.Type {
			store(row, x.row.F32())
		}
	}
}

// logits is a row of them, in memory or converted in a worker's scratch, with
// the largest and the sum of exponentials relative to it.
type logits struct {
	w   *worker
	row device.Buffer
	top float32
	sum float64
}

// logitsChunk is the number of logits looked at at a time: they stay in cache
// between the search for the largest and the sum, which is float32 within the
// chunk and float64 beyond.
const logitsChunk = 4096

func logitsOf(w *worker, m *device.Mat, i int) logits {
	x := logits{w: w, row: m.Buf.Slice(i*m.Ld, i*m.Ld+m.Cols), top: negInf}
	if bestVec.softmax[x.row.Type] == nil {
		x.row = device.OfF32(floatsOf(w.floats(m.Cols), m.Buf, i*m.Ld, m.Cols))
	}
	for c := 0; c < m.Cols; c += logitsChunk {
		x.more(x.row.Slice(c, min(c+logitsChunk, m.Cols)))
	}
	return x
}

// more goes on to the next chunk: the sum so far is brought to the new largest.
func (x *logits) more(chunk device.Buffer) {
	whole, end := x.cut(chunk)
	top, t := x.top, chunk.Type
	if whole.N > 0 {
		top = max(top, bestVec.largest[t](whole.Ptr, whole.N))
	}
	if end != nil {
		top = max(top, bestVec.largest[t](end, 16))
	}
	x.sum *= float64(exp32(x.top - top))
	x.top = top
	if whole.N > 0 {
		x.sum += float64(bestVec.expSum[t](whole.Ptr, whole.N, top))
	}
	if end != nil {
		x.sum += float64(bestVec.expSum[t](end, 16, top))
	}
}

// cut is the whole vectors of x and, if elements are left, a vector of those
// filled up with -Inf.
func (x *logits) cut(chunk device.Buffer) (whole device.Buffer, end unsafe.Pointer) {
	n := chunk.N &^ 15
	if n < chunk.N {
		fill := rawBuffer(chunk.Type, unsafe.Pointer(&x.w.ends[0]), 16)
		for i := range x.w.ends[1] {
			x.w.ends[1][i] = negInf
		}
		store(fill, x.w.ends[1][:])
		copy(x.w.end(0), chunk.Slice(n, chunk.N).Raw())
		end = fill.Ptr
	}
	return chunk.Slice(0, n), end
}

// at is logit i.
func (x *logits) at(i int) float32 {
	v := x.w.ends[2][:1]
	load(v, x.row.Slice(i, i+1))
	return v[0]
}

func (x *logits) loss(target int) float32 {
	return float32(math.Log(x.sum) + float64(x.top) - float64(x.at(target)))
}

// gradient turns the logits into scale*(softmax - onehot(target)).
func (x *logits) gradient(target int, scale float32) {
	r, t := float32(float64(scale)/x.sum), x.row.Type
	own := exp32(x.at(target)-x.top)*r - scale
	whole, end := x.cut(x.row)
	if end != nil {
		bestVec.softmax[t](end, 16, x.top, r)
		copy(x.row.Slice(whole.N, x.row.N).Raw(), x.w.end(0))
	}
	for c := 0; c < whole.N; c += logitsChunk {
		part := whole.Slice(c, min(c+logitsChunk, whole.N))
		bestVec.softmax[t](part.Ptr, part.N, x.top, r)
	}
	x.w.ends[2][0] = own
	store(x.row.Slice(target, target+1), x.w.ends[2][:1])
}

// wantTarget is the target, which must be an index of the n logits of row i.
func wantTarget(target, i, n int) int {
	if target < 0 || target >= n {
		panic(fmt.Sprintf("cpu: cross-entropy: target %d at %d, %d logits", target, i, n))
	}
	return target
}
