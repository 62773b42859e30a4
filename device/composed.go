package device

// Operations that a GPU may fuse, composed of simpler ones. Queues that do not fuse an operation
// use these.

// Parts contains the operations that they are composed of; see nn.Ops.
type Parts interface {
	Cast(dst, src Buffer)
	MatMul(c, a, b Mat, bias Buffer, add bool)
	SumRows(db Buffer, dy Mat)
	Activate(y, x Buffer, f Activation)
	ActivateGrad(dx, x, dy Buffer, f Activation)
}

// MatMulOnto composes nn.Ops' MatMulOnto.
func MatMulOnto(q Parts, y, x, a, b Mat, bias Buffer) {
	q.Cast(y.Buf, x.Buf)
	q.MatMul(y, a, b, bias, true)
}

// MatMulActivate composes nn.Ops' MatMulActivate.
func MatMulActivate(q Parts, y, x, a, b Mat, bias Buffer, f Activation) {
	q.MatMul(x, a, b, bias, false)
	q.Activate(y.Buf, x.Buf, f)
}

// MatMulActivateGrad composes nn.Ops' MatMulActivateGrad.
func MatMulActivateGrad(q Parts, dx, a, b, x Mat, f Activation) {
	q.MatMul(dx, a, b, Buffer{}, false)
	q.ActivateGrad(dx.Buf, x.Buf, dx.Buf, f)
}

// WeightGrad composes nn.Ops' WeightGrad.
func WeightGrad(q Parts, dw Mat, db Buffer, dy, x Mat) {
	c, a, b := GradOperands(dw, dy, x)
	q.MatMul(c, a, b, Buffer{}, false)
	if db.N > 0 {
		q.SumRows(db, dy)
	}
}

// GradOperands returns the product c = a·b that computes dw = dyᵀ·x, with c not transposed.
func GradOperands(dw, dy, x Mat) (c, a, b Mat) {
	if dw.Trans {
		return dw.T(), x.T(), dy
	}
	return dw, dy.T(), x
}
