package kernel

import (
	"fmt"
	"math"
	"unsafe"

	"zeroth/device"
)

// The targets of positions that contribute neither loss nor gradient. Those of padding do not count in the
// balancing loss either.
const (
	Ignored = -1
	Padding = -2
)

// unlearned reports whether a target is of a position without a loss.
func unlearned(target int32) bool { return target == Ignored || target == Padding }

// RunCrossEntropy computes the losses of rows [lo, hi).
func RunCrossEntropy(t *Args, w *Worker, lo, hi int) {
	m, loss, target := &t.M[0], t.B[0].F32(), t.B[1].I32()
	for i := lo; i < hi; i++ {
		loss[i] = 0
		if !unlearned(target[i]) {
			x := logitsOf(w, m, i, t.Cap)
			loss[i] = x.loss(WantTarget(int(target[i]), i, m.Cols))
		}
	}
}

// RunCrossEntropyGrad computes the losses of rows [lo, hi) and replaces their logits by the
// gradient.
func RunCrossEntropyGrad(t *Args, w *Worker, lo, hi int) {
	m, loss, target := &t.M[0], t.B[0].F32(), t.B[1].I32()
	for i := lo; i < hi; i++ {
		row := m.Buf.Slice(i*m.Ld, i*m.Ld+m.Cols)
		if unlearned(target[i]) {
			loss[i] = 0
			clear(row.Raw())
			continue
		}
		x, at := logitsOf(w, m, i, t.Cap), WantTarget(int(target[i]), i, m.Cols)
		loss[i] = x.loss(at)
		x.replace(row, at, t.F, t.Cap)
	}
}

// LossStats is the number of values per row that each part of the vocabulary contributes to the
// loss.
const LossStats = 3

// RunCrossEntropyPart sets each row's stats: the largest logit, the sum of exponentials relative
// to it, and the target's logit, or 0 if the target is in another part.
func RunCrossEntropyPart(t *Args, w *Worker, lo, hi int) {
	m, stats, target := &t.M[0], t.B[0].F32(), t.B[1].I32()
	for i := lo; i < hi; i++ {
		if unlearned(target[i]) {
			continue
		}
		x, own := logitsOf(w, m, i, t.Cap), stats[LossStats*i:][:LossStats]
		own[0], own[1], own[2] = x.top, float32(x.sum), 0
		if at, has := t.Vocab.Index(int(target[i]), m.Cols); has {
			own[2] = x.at(at)
		}
	}
}

// RunCrossEntropyMerge computes losses from the stats of all parts, in order. If t.Add is set, it
// also replaces the logits by their gradient.
func RunCrossEntropyMerge(t *Args, w *Worker, lo, hi int) {
	m, loss, target, stats := &t.M[0], t.B[0].F32(), t.B[1].I32(), t.B[2].F32()
	for i := lo; i < hi; i++ {
		row := m.Buf.Slice(i*m.Ld, i*m.Ld+m.Cols)
		if unlearned(target[i]) {
			loss[i] = 0
			if t.Add {
				clear(row.Raw())
			}
			continue
		}
		x, own := logits{w: w, row: row, top: negInf}, float32(0)
		for at := LossStats * i; at < len(stats); at += LossStats * m.Rows {
			x.top = max(x.top, stats[at])
		}
		for at := LossStats * i; at < len(stats); at += LossStats * m.Rows {
			x.sum += float64(stats[at+1]) * float64(Exp32(stats[at]-x.top))
			own += stats[at+2]
		}
		loss[i] = float32(math.Log(x.sum) + float64(x.top) - float64(own))
		if !t.Add {
			continue
		}
		at, has := t.Vocab.Index(int(target[i]), m.Cols)
		if !has {
			at = -1
		}
		x.load(t.Cap)
		x.replace(row, at, t.F, t.Cap)
	}
}

// logits contains a row of logits, either in place or converted or capped in a worker's scratch,
// with the largest logit and the sum of exponentials relative to it.
type logits struct {
	w   *Worker
	row device.Buffer
	top float32
	sum float64
}

// LogitsChunk is the number of logits processed at a time, few enough to stay in cache between
// the search for the largest and the sum. Sums are float32 within a chunk and float64 across
// chunks.
const LogitsChunk = 4096

func logitsOf(w *Worker, m *device.Mat, i int, cap float32) logits {
	x := logits{w: w, row: m.Buf.Slice(i*m.Ld, i*m.Ld+m.Cols), top: negInf}
	x.load(cap)
	for c := 0; c < m.Cols; c += LogitsChunk {
		x.add(x.row.Slice(c, min(c+LogitsChunk, m.Cols)))
	}
	return x
}

// load converts or caps the row if needed.
func (x *logits) load(cap float32) {
	switch {
	case cap > 0:
		own := x.w.Floats(x.row.N)
		Load(own, x.row)
		capped(own, cap)
		x.row = device.OfF32(own)
	case BestVec.softmax[x.row.Type] == nil:
		x.row = device.OfF32(floatsOf(x.w.Floats(x.row.N), x.row, 0, x.row.N))
	}
}

// add adds the next chunk and rescales the sum to the new largest logit.
func (x *logits) add(chunk device.Buffer) {
	whole, end := x.cut(chunk)
	top, t := x.top, chunk.Type
	if whole.N > 0 {
		top = max(top, BestVec.largest[t](whole.Ptr, whole.N))
	}
	if end != nil {
		top = max(top, BestVec.largest[t](end, 16))
	}
	x.sum *= float64(Exp32(x.top - top))
	x.top = top
	if whole.N > 0 {
		x.sum += float64(BestVec.expSum[t](whole.Ptr, whole.N, top))
	}
	if end != nil {
		x.sum += float64(BestVec.expSum[t](end, 16, top))
	}
}

// cut returns the whole vectors of x and, if elements remain, a vector with the remaining ones
// padded with -Inf.
func (x *logits) cut(chunk device.Buffer) (whole device.Buffer, end unsafe.Pointer) {
	n := chunk.N &^ 15
	if n < chunk.N {
		vector := RawBuffer(chunk.Type, unsafe.Pointer(&x.w.ends[0]), 16)
		fill(x.w.ends[1][:], negInf)
		Store(vector, x.w.ends[1][:])
		copy(x.w.end(0), chunk.Slice(n, chunk.N).Raw())
		end = vector.Ptr
	}
	return chunk.Slice(0, n), end
}

// at returns logit i.
func (x *logits) at(i int) float32 {
	v := x.w.ends[2][:1]
	Load(v, x.row.Slice(i, i+1))
	return v[0]
}

func (x *logits) loss(target int) float32 {
	return float32(math.Log(x.sum) + float64(x.top) - float64(x.at(target)))
}

// replace overwrites the logits in row with their gradient.
func (x *logits) replace(row device.Buffer, target int, scale, cap float32) {
	if cap > 0 {
		x.cappedGradient(target, scale, cap)
	} else {
		x.gradient(target, scale)
	}
	if x.row.Ptr != row.Ptr {
		Store(row, x.row.F32())
	}
}

// gradient replaces the logits by scale*(softmax - onehot(target)). A negative target means that
// the target is in another part.
func (x *logits) gradient(target int, scale float32) {
	r, t := float32(float64(scale)/x.sum), x.row.Type
	own := float32(0)
	if target >= 0 {
		own = Exp32(x.at(target)-x.top)*r - scale
	}
	whole, end := x.cut(x.row)
	if end != nil {
		BestVec.softmax[t](end, 16, x.top, r)
		copy(x.row.Slice(whole.N, x.row.N).Raw(), x.w.end(0))
	}
	for c := 0; c < whole.N; c += LogitsChunk {
		part := whole.Slice(c, min(c+LogitsChunk, whole.N))
		BestVec.softmax[t](part.Ptr, part.N, x.top, r)
	}
	if target >= 0 {
		x.w.ends[2][0] = own
		Store(x.row.Slice(target, target+1), x.w.ends[2][:1])
	}
}

// cappedGradient replaces capped logits cap tanh(x/cap) like gradient, but with respect to x.
func (x *logits) cappedGradient(target int, scale, cap float32) {
	r, row := float32(float64(scale)/x.sum), x.row.F32()
	for j, v := range row {
		g := Exp32(v-x.top) * r
		if j == target {
			g -= scale
		}
		row[j] = g * capSlope(v, 1/cap)
	}
}

// WantTarget returns the target and panics unless it is an index of the n logits of row i.
func WantTarget(target, i, n int) int {
	if target < 0 || target >= n {
		panic(fmt.Sprintf("cpu: cross-entropy: target %d at %d, %d logits", target, i, n))
	}
	return target
}
