package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// CrossEntropy sets loss[i] (float32, nats) to -log softmax(logits[i])[target[i]],
// 0 where target[i] (int32) is Ignored. With a cap above 0 a logit x counts as cap tanh(x/cap).
func (q *Queue) CrossEntropy(loss device.Buffer, logits device.Mat, target device.Buffer, cap float32) {
	q.crossEntropy("cross-entropy", kernel.RunCrossEntropy, loss, logits, target, 0, cap)
}

// CrossEntropyGrad does the same and replaces logits[i] by
// scale*(softmax(logits[i]) - onehot(target[i])), with a cap times its slope, by zeros where target[i] is Ignored.
func (q *Queue) CrossEntropyGrad(loss device.Buffer, logits device.Mat, target device.Buffer, scale, cap float32) {
	q.crossEntropy("cross-entropy gradient", kernel.RunCrossEntropyGrad, loss, logits, target, scale, cap)
}

func (q *Queue) crossEntropy(op string, run kernel.RunFunc, loss device.Buffer, logits device.Mat, target device.Buffer, scale, cap float32) {
	kernel.WantMat(op, logits, logits.Rows, logits.Cols)
	kernel.WantLen(op, loss, device.F32, logits.Rows)
	kernel.WantLen(op, target, device.I32, logits.Rows)
	t := q.issue(op)
	t.M[0], t.B[0], t.B[1], t.F, t.Cap = logits, loss, target, scale, cap
	q.kernel(t, run, logits.Rows, kernel.RowGrain(4*logits.Cols))
}
