package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// Mul sets y = a * b; y may be a or b.
func (q *Queue) Mul(y, a, b device.Buffer) {
	kernel.WantSame("multiply", y, a, b)
	q.elementwise("multiply", &kernel.Mul, y, a, b, 0)
}

// AddScalar sets y = x + s; y may be x.
func (q *Queue) AddScalar(y, x device.Buffer, s float32) {
	kernel.WantSame("add scalar", y, x, x)
	q.elementwise("add scalar", &kernel.AddScalar, y, x, x, s)
}

// Activate sets y = f(x); y may be x.
func (q *Queue) Activate(y, x device.Buffer, f device.Activation) {
	if f == device.GeluTanh {
		q.Gelu(y, x)
		return
	}
	kernel.WantSame("activation", y, x, x)
	q.elementwise("activation", &kernel.Activations[f], y, x, x, 0)
}

// ActivateGrad sets dx = dy * f'(x); dx may be dy.
func (q *Queue) ActivateGrad(dx, x, dy device.Buffer, f device.Activation) {
	if f == device.GeluTanh {
		q.GeluGrad(dx, x, dy)
		return
	}
	kernel.WantSame("activation gradient", dx, x, dy)
	q.elementwise("activation gradient", &kernel.ActivationGrads[f], dx, x, dy, 0)
}
