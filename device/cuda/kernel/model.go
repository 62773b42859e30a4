package kernel

import (
	"fmt"
	"math"
	"unsafe"

	"zeroth/device"
)

var (
	embedKernel        = entryOf("embed")
	embedGradKernel    = entryOf("embed_grad")
	positionGradKernel = entryOf("position_grad")
	ropeKernel         = entryOf("rope")
	crossEntropyKernel = entryOf("cross_entropy")
	crossPartKernel    = entryOf("cross_entropy_part")
	crossMergeKernel   = entryOf("cross_entropy_merge")
)

func wantPositions(op string, wpe device.Mat, n, T int) {
	if T < 1 || wpe.Rows > 0 && wpe.Rows < T {
		panic(fmt.Sprintf("cuda: %s of %d positions with %d position vectors", op, T, wpe.Rows))
	}
	if wpe.Rows > 0 {
		wantMat(op, wpe.Rows, n, &wpe)
	}
}

// Embed sets y[i] = wte[ids[i]] + wpe[i mod T], or with start wpe[i mod T - start[i]]; see
// device.Starts. wpe may be empty. If wte is a part of the vocabulary, other ids count as 0.
func (o *Ops) Embed(y, wte, wpe device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer) {
	const op = "embedding"
	wantMat(op, y.Rows, y.Cols, &y)
	wantMat(op, wte.Rows, y.Cols, &wte)
	wantLen(op, device.I32, y.Rows, &ids)
	wantPositions(op, wpe, y.Cols, T)
	device.Starts(op, start, y.Rows, 0)
	if wpe.Rows == 0 {
		wpe = device.Mat{}
	}
	l := o.begin(embedKernel).mat(&y).mat(&wte).mat(&wpe).ptr(&ids).ptr(&start).i32(y.Rows).i32(y.Cols).i32(wte.Rows).i32(part.First).i32(size(part, wte.Rows)).i32(T)
	cost := o.over(1, &y)
	cost.Bytes += int64(y.Rows) * int64(y.Cols) * int64(wte.Buf.Type.Size()) // rows looked up; those of wpe stay in cache
	o.run(l, rowBlocks(y.Rows), 1, 1, o.plus(cost, &ids, &start, &wpe.Buf))
}

// size returns the size of the whole vocabulary, given a table of n rows for the part.
func size(part device.Vocab, n int) int {
	if part.Size == 0 {
		return n
	}
	return part.Size
}

// embedBlocks is the number of blocks that share a vocabulary, each with every embedBlocks-th id,
// which is enough to separate frequent ids. embedCols is the number of columns per block.
const (
	embedBlocks = 128
	embedCols   = 64
)

// EmbedGrad sets dwte and dwpe (float32; dwpe may be empty) to the sums of the rows of dy with
// each id or position, in order. With add it adds to them instead. For a part of the vocabulary,
// rows count from its first id.
func (o *Ops) EmbedGrad(dwte, dwpe, dy device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer, add bool) {
	const op = "embedding gradient"
	wantMat(op, dy.Rows, dy.Cols, &dy)
	wantMat(op, dwte.Rows, dy.Cols, &dwte)
	wantLen(op, device.F32, dwte.Buf.N, &dwte.Buf)
	wantLen(op, device.I32, dy.Rows, &ids)
	wantPositions(op, dwpe, dy.Cols, T)
	device.Starts(op, start, dy.Rows, 0)
	l := o.begin(embedGradKernel).ptr(&dwte.Buf).i32(dwte.Ld).mat(&dy).ptr(&ids).i32(dy.Rows).i32(dy.Cols).i32(dwte.Rows).i32(part.First).flag(add)
	some := device.Mat{Buf: dwte.Buf, Rows: min(dy.Rows, dwte.Rows), Cols: dy.Cols} // maximum number of rows referenced by ids
	cost := o.over(1, &dy, &some, &some)
	if !add {
		cost = o.over(1, &dy, &dwte)
	}
	o.run(l, min(dwte.Rows, embedBlocks), ceil(dy.Cols, embedCols), 1, o.plus(cost, &ids))
	if dwpe.Rows == 0 {
		return
	}
	wantLen(op, device.F32, dwpe.Buf.N, &dwpe.Buf)
	l = o.begin(positionGradKernel).ptr(&dwpe.Buf).i32(dwpe.Ld).mat(&dy).ptr(&start).i32(dy.Rows).i32(dy.Cols).i32(dwpe.Rows).i32(T).flag(add)
	cost = o.over(1, &dy, &dwpe)
	if add {
		cost = o.over(1, &dy, &dwpe, &dwpe)
	}
	o.run(l, rowBlocks(dwpe.Rows), 1, 1, o.plus(cost, &start))
}

// MaxHead is the maximum head width for Rope, twice the number of frequencies that fit in its
// parameter. Attention supports heads up to MaxAttn.
const MaxHead = 512

// Rope rotates the heads of x (B*T, heads*D) in place by their positions or, with inverse, back.
func (o *Ops) Rope(x device.Mat, r device.Rope, inverse bool) {
	wantMat("rope", x.Rows, x.Cols, &x)
	if r.D < 2 || r.D > MaxHead || r.D%2 != 0 || x.Cols%r.D != 0 || r.Part%2 != 0 || r.Part < 0 || r.Part > r.D || r.T < 1 || x.Rows%r.T != 0 || r.Past < 0 {
		panic(fmt.Sprintf("cuda: rope of a matrix (%d, %d) as sequences of %d positions after %d with heads of width %d", x.Rows, x.Cols, r.T, r.Past, r.D))
	}
	device.Starts("rope", r.Start, x.Rows, r.Past)
	l := o.begin(ropeKernel).mat(&x)
	freq := l.slot(8 * MaxHead / 2)
	for j := range r.RotaryDim() / 2 {
		put64(unsafe.Add(freq, 8*j), math.Float64bits(r.Freq(j)))
	}
	sign := float32(1)
	if inverse {
		sign = -1
	}
	l = l.then().ptr(&r.Start).i32(x.Rows).i32(x.Cols / r.D).i32(r.D).i32(r.RotaryDim() / 2).i32(r.T).i32(r.Past).f32(sign).f64(r.Amplitude())
	o.run(l, rowBlocks(x.Rows), 1, 1, o.plus(o.over(3, &x, &x), &r.Start))
}

// CrossEntropy sets loss[i] (float32, nats) to -log softmax(logits[i])[target[i]], and to 0 if
// target[i] is -1. With a cap above 0, a logit x counts as cap tanh(x/cap).
func (o *Ops) CrossEntropy(loss device.Buffer, logits device.Mat, target device.Buffer, cap float32) {
	o.crossEntropy(loss, logits, target, 0, cap, false)
}

// CrossEntropyGrad is like CrossEntropy and also replaces logits[i] by scale*(softmax(logits[i])
// - onehot(target[i])), times the slope of the cap, or by zeros if target[i] is -1.
func (o *Ops) CrossEntropyGrad(loss device.Buffer, logits device.Mat, target device.Buffer, scale, cap float32) {
	o.crossEntropy(loss, logits, target, scale, cap, true)
}

func (o *Ops) crossEntropy(loss device.Buffer, logits device.Mat, target device.Buffer, scale, cap float32, grad bool) {
	const op = "cross-entropy"
	wantMat(op, logits.Rows, logits.Cols, &logits)
	wantLen(op, device.F32, logits.Rows, &loss)
	wantLen(op, device.I32, logits.Rows, &target)
	l := o.begin(crossEntropyKernel).ptr(&loss).mat(&logits).ptr(&target).i32(logits.Rows).i32(logits.Cols).f32(scale).f32(cap).flag(grad)
	more := 0 // operations each time a logit is read
	if cap > 0 {
		more = capFlops
	}
	cost := o.over(22+more, &logits)
	if grad {
		cost = o.over(39+2*more, &logits, &logits) // the second read comes from cache
		if cap > 0 {
			cost.Flops += o.over(slopeFlops, &logits).Flops
		}
	}
	o.run(l, min(logits.Rows, mostBlocks), 1, 1, o.plus(cost, &loss, &target))
}

// lossStats is the number of values per row that each part of the vocabulary contributes to the
// loss.
const lossStats = 3

// CrossEntropyPart sets stats[i], three float32, to the contribution of a row of logits for part of
// the vocabulary: the largest logit, the sum of exponentials relative to it, and the target's
// logit, or 0 if it is in another part. Rows whose target is -1 are skipped.
func (o *Ops) CrossEntropyPart(stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, cap float32) {
	const op = "cross-entropy of a part"
	wantMat(op, logits.Rows, logits.Cols, &logits)
	wantLen(op, device.F32, lossStats*logits.Rows, &stats)
	wantLen(op, device.I32, logits.Rows, &target)
	l := o.begin(crossPartKernel).ptr(&stats).mat(&logits).ptr(&target).i32(logits.Rows).i32(logits.Cols).i32(part.First).i32(size(part, logits.Cols)).f32(cap)
	more := 0 // operations each time a logit is read
	if cap > 0 {
		more = capFlops
	}
	o.run(l, min(logits.Rows, mostBlocks), 1, 1, o.plus(o.over(22+more, &logits), &stats, &target))
}

// CrossEntropyMerge sets loss[i] like CrossEntropy, from the concatenated stats of all parts.
// With grad it also replaces the logits of this part like CrossEntropyGrad.
func (o *Ops) CrossEntropyMerge(loss, stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, scale, cap float32, grad bool) {
	const op = "cross-entropy of all parts"
	wantMat(op, logits.Rows, logits.Cols, &logits)
	wantLen(op, device.F32, logits.Rows, &loss)
	wantLen(op, device.I32, logits.Rows, &target)
	parts := stats.N / max(1, lossStats*logits.Rows)
	wantLen(op, device.F32, max(1, parts)*lossStats*logits.Rows, &stats)
	l := o.begin(crossMergeKernel).ptr(&loss).ptr(&stats).i32(parts).mat(&logits).ptr(&target).i32(logits.Rows).i32(logits.Cols).
		i32(part.First).i32(size(part, logits.Cols)).f32(scale).f32(cap).flag(grad)
	cost := o.over(0, &device.Mat{Buf: stats, Rows: 1, Cols: stats.N, Ld: stats.N})
	if grad {
		flops := 17
		if cap > 0 {
			flops += capFlops + slopeFlops
		}
		cost = o.over(flops, &logits, &logits)
	}
	o.run(l, min(logits.Rows, mostBlocks), 1, 1, o.plus(cost, &loss, &target))
}
