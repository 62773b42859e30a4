package cpu

import (
	"fmt"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// Gate sets y = f(gate) * up (Shazeer, arXiv 2002.05202); y may be gate or up.
func (q *Queue) Gate(y, gate, up device.Mat, f device.Activation) {
	q.gate("gate", kernel.RunGate, f, y, gate, up)
}

// GateGrad sets dgate = dy * up * f'(gate) and dup = dy * f(gate). Each may be any one of dy, gate
// and up.
func (q *Queue) GateGrad(dgate, dup, dy, gate, up device.Mat, f device.Activation) {
	wantApart("gate gradient", dgate, dup)
	q.gate("gate gradient", kernel.RunGateGrad, f, dgate, dup, dy, gate, up)
}

// wantApart panics if two results begin at the same element.
func wantApart(op string, x, y device.Mat) {
	if x.Buf.Ptr == y.Buf.Ptr && x.Buf.N > 0 && y.Buf.N > 0 {
		panic(fmt.Sprintf("cpu: both results of a %s of %d elements into one buffer", op, x.Buf.N))
	}
}

func (q *Queue) gate(op string, run kernel.RunFunc, f device.Activation, ms ...device.Mat) {
	dense := true
	for _, m := range ms {
		kernel.WantMat(op, ms[0].Rows, ms[0].Cols, m)
		dense = dense && m.Ld == m.Cols
	}
	t := q.issue(op)
	copy(t.M[:], ms)
	for i := range ms {
		if dense { // one row, so that blocks do not end with rows
			t.M[i] = device.Matrix(ms[i].Buf, 1, ms[i].Rows*ms[i].Cols)
		}
	}
	t.T = int(f)
	q.kernel(t, run, t.M[0].Rows*kernel.Blocks(t.M[0].Cols), kernel.PieceWork/kernel.BlockLen)
}
