package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// CrossEntropy sets loss[i] (float32, nats) to -log softmax(logits[i])[target[i]], and to 0 if
// target[i] (int32) is Ignored or Padding. With a cap above 0, a logit x counts as cap tanh(x/cap).
func (q *Queue) CrossEntropy(loss device.Buffer, logits device.Mat, target device.Buffer, cap float32) {
	q.crossEntropy("cross-entropy", kernel.RunCrossEntropy, loss, logits, target, 0, cap)
}

// CrossEntropyGrad is like CrossEntropy and also replaces logits[i] by scale*(softmax(logits[i])
// - onehot(target[i])), times the slope of the cap, or by zeros if target[i] is either.
func (q *Queue) CrossEntropyGrad(loss device.Buffer, logits device.Mat, target device.Buffer, scale, cap float32) {
	q.crossEntropy("cross-entropy gradient", kernel.RunCrossEntropyGrad, loss, logits, target, scale, cap)
}

// CrossEntropyPart sets stats[i], three float32, to the contribution of a row of logits for part of
// the vocabulary: the largest logit, the sum of exponentials relative to it, and the target's
// logit, or 0 if it is in another part. Rows whose target is Ignored or Padding are skipped.
func (q *Queue) CrossEntropyPart(stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, cap float32) {
	const op = "cross-entropy of a part"
	kernel.WantLen(op, device.F32, kernel.LossStats*logits.Rows, stats)
	t := q.partialLoss(op, logits, part, target, cap)
	t.B[0] = stats
	q.kernel(t, kernel.RunCrossEntropyPart, logits.Rows, kernel.RowGrain(4*logits.Cols))
}

// CrossEntropyMerge sets loss[i] like CrossEntropy, from the concatenated stats of all parts.
// With grad it also replaces the logits of this part like CrossEntropyGrad.
func (q *Queue) CrossEntropyMerge(loss, stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, scale, cap float32, grad bool) {
	const op = "cross-entropy of all parts"
	kernel.WantLen(op, device.F32, logits.Rows, loss)
	parts := stats.N / max(1, kernel.LossStats*logits.Rows)
	kernel.WantLen(op, device.F32, max(1, parts)*kernel.LossStats*logits.Rows, stats)
	t := q.partialLoss(op, logits, part, target, cap)
	t.B[0], t.B[2], t.F, t.Add = loss, stats, scale, grad
	q.kernel(t, kernel.RunCrossEntropyMerge, logits.Rows, kernel.RowGrain(4*logits.Cols))
}

// partialLoss issues a kernel on logits of a part of the vocabulary.
func (q *Queue) partialLoss(op string, logits device.Mat, part device.Vocab, target device.Buffer, cap float32) *task {
	kernel.WantMat(op, logits.Rows, logits.Cols, logits)
	kernel.WantLen(op, device.I32, logits.Rows, target)
	t := q.issue(op)
	t.M[0], t.B[1], t.Vocab, t.Cap = logits, target, part, cap
	return t
}

func (q *Queue) crossEntropy(op string, run kernel.RunFunc, loss device.Buffer, logits device.Mat, target device.Buffer, scale, cap float32) {
	kernel.WantMat(op, logits.Rows, logits.Cols, logits)
	kernel.WantLen(op, device.F32, logits.Rows, loss)
	kernel.WantLen(op, device.I32, logits.Rows, target)
	t := q.issue(op)
	t.M[0], t.B[0], t.B[1], t.F, t.Cap = logits, loss, target, scale, cap
	q.kernel(t, run, logits.Rows, kernel.RowGrain(4*logits.Cols))
}
