package device

// Operations that a GPU may fuse, made of the ones they stand for. Queues that fuse
// nothing, or not all, are the latter's.

// Parts are what they are made of; package nn says what each does.
type Parts interface {
	Cast(dst, src Buffer)
	MatMul(c, a, b Mat, bias Buffer, add bool)
	SumRows(db Buffer, dy Mat)
	Activate(y, x Buffer, f Activation)
	ActivateGrad(dx, x, dy Buffer, f Activation)
}

// MatMulOnto is nn.Ops' from its parts.
func MatMulOnto(q Parts, y, x, a, b Mat, bias Buffer) {
	q.Cast(y.Buf, x.Buf)
	q.MatMul(y, a, b, bias, true)
}

// MatMulActivate is nn.Ops' from its parts.
func MatMulActivate(q Parts, y, x, a, b Mat, bias Buffer, f Activation) {
	q.MatMul(x, a, b, bias, false)
	q.Activate(y.Buf, x.Buf, f)
}

// MatMulActivateGrad is nn.Ops' from its parts.
func MatMulActivateGrad(q Parts, dx, a, b, x Mat, f Activation) {
	q.MatMul(dx, a, b, Buffer{}, false)
	q.ActivateGrad(dx.Buf, x.Buf, dx.Buf, f)
}

// WeightGrad is nn.Ops' from its parts.
func WeightGrad(q Parts, dw Mat, db Buffer, dy, x Mat) {
	c, a, b := GradOperands(dw, dy, x)
	q.MatMul(c, a, b, Buffer{}, false)
	if db.N > 0 {
		q.SumRows(db, dy)
	}
}

// GradOperands is the product c = a·b that is dw = dyᵀ·x, of which c is not transposed.
func GradOperands(dw, dy, x Mat) (c, a, b Mat) {
	if dw.Trans {
		return dw.T(), x.T(), dy
	}
	return dw, dy.T(), x
}
