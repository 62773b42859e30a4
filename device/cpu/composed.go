package cpu

import "zeroth/device"

// Modules request these products as fused operations, since a GPU may fuse them. Here each is
// composed by the functions of package device that define it, so its result is the reference to
// the bit.

// MatMulOnto sets y = x + a·b, plus bias.
func (q *Queue) MatMulOnto(y, x, a, b device.Mat, bias device.Buffer) {
	device.MatMulOnto(q, y, x, a, b, bias)
}

// MatMulActivate sets x = a·b, plus bias, and y = f(x).
func (q *Queue) MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation) {
	device.MatMulActivate(q, y, x, a, b, bias, f)
}

// MatMulActivateGrad sets dx = (a·b) * f'(x).
func (q *Queue) MatMulActivateGrad(dx, a, b, x device.Mat, f device.Activation) {
	device.MatMulActivateGrad(q, dx, a, b, x, f)
}

// WeightGrad sets dw = dyᵀ·x and db to the sum of the rows of dy.
func (q *Queue) WeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat) {
	device.WeightGrad(q, dw, db, dy, x)
}
