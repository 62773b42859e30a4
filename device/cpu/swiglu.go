package cpu

import (
	"fmt"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// SwiGLU sets y = silu(gate) * up (Shazeer, arXiv 2002.05202); y may be gate or up.
func (q *Queue) SwiGLU(y, gate, up device.Buffer) {
	kernel.WantSame("swiglu", y, gate, up)
	q.elementwise("swiglu", &kernel.BestVec.Swiglu, y, gate, up, 0)
}

// SwiGLUGrad sets dgate = dy * up * silu'(gate) and dup = dy * silu(gate). Each may be any one of
// dy, gate and up.
func (q *Queue) SwiGLUGrad(dgate, dup, dy, gate, up device.Buffer) {
	kernel.WantSame("swiglu gradient", dgate, gate, dy)
	kernel.WantSame("swiglu gradient", dup, up, dy)
	if dgate.Ptr == dup.Ptr && dy.N > 0 {
		panic(fmt.Sprintf("cpu: both swiglu gradients of %d elements into one buffer", dy.N))
	}
	t := q.issue("swiglu gradient")
	t.B[0], t.B[1], t.B[2], t.B[3], t.B[4] = dgate, dup, dy, gate, up
	q.kernel(t, kernel.RunSwiGLUGrad, kernel.Blocks(dy.N), kernel.PieceWork/kernel.BlockLen)
}
