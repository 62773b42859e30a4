package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// Zero sets every element of b to 0.
func (q *Queue) Zero(b device.Buffer) {
	t := q.issue("zero")
	t.B[0] = b
	q.kernel(t, kernel.RunZero, b.Bytes(), copyGrain)
}

// elementwise issues a kernel on the elements of y, a and b, each of any float type.
func (q *Queue) elementwise(name string, f *[3]kernel.EachFunc, y, a, b device.Buffer, s float32) {
	t := q.issue(name)
	t.B[0], t.B[1], t.B[2], t.F, t.Each = y, a, b, s, f
	q.kernel(t, kernel.RunEach, kernel.Blocks(y.N), kernel.PieceWork/kernel.BlockLen)
}

// AddTo sets y = a + b, added in float32; y may be a or b.
func (q *Queue) AddTo(y, a, b device.Buffer) {
	kernel.WantSame("add", y, a, b)
	q.elementwise("add", &kernel.BestVec.Add, y, a, b, 0)
}

// Scale multiplies x by s.
func (q *Queue) Scale(x device.Buffer, s float32) {
	kernel.WantFloat("scale", x)
	q.elementwise("scale", &kernel.BestVec.Times, x, x, x, s)
}

// Gelu sets y = gelu(x), the tanh approximation; y may be x.
func (q *Queue) Gelu(y, x device.Buffer) {
	kernel.WantSame("gelu", y, x, x)
	q.elementwise("gelu", &kernel.BestVec.Gelu, y, x, x, 0)
}

// GeluGrad sets dx = dy * gelu'(x); dx may be dy.
func (q *Queue) GeluGrad(dx, x, dy device.Buffer) {
	kernel.WantSame("gelu gradient", dx, x, dy)
	q.elementwise("gelu gradient", &kernel.BestVec.GeluGrad, dx, x, dy, 0)
}
