package shadow

import "zeroth/device"

// The operations of Kernels with the results they write. Each method has the parameters of the
// method it shadows.

func rows(what string, m device.Mat) result { return result{what: what, mat: m} }

// op runs an operation and compares its results.
func (q *Queue) op(name string, issue func(k Kernels, at *view), results ...result) {
	q.run(operation{name, results, issue})
}

func (q *Queue) Zero(b device.Buffer) {
	q.op("zero", func(k Kernels, at *view) { k.Zero(at.buf(b)) }, rowResult("b", b))
}

func (q *Queue) Cast(dst, src device.Buffer) {
	q.op("cast", func(k Kernels, at *view) { k.Cast(at.buf(dst), at.buf(src)) }, rowResult("dst", dst))
}

func (q *Queue) Decode(dst device.Mat, codes device.Buffer, code device.Code) {
	q.op("decode", func(k Kernels, at *view) { k.Decode(at.mat(dst), at.buf(codes), code) }, rows("dst", dst))
}

func (q *Queue) MatMul(c, a, b device.Mat, bias device.Buffer, add bool) {
	q.op("matmul", func(k Kernels, at *view) { k.MatMul(at.mat(c), at.mat(a), at.mat(b), at.buf(bias), add) }, rows("c", c))
}

func (q *Queue) SumRows(db device.Buffer, dy device.Mat) {
	q.op("sum of rows", func(k Kernels, at *view) { k.SumRows(at.buf(db), at.mat(dy)) }, rowResult("db", db))
}

func (q *Queue) MatMulOnto(y, x, a, b device.Mat, bias device.Buffer) {
	q.op("matmul onto", func(k Kernels, at *view) { k.MatMulOnto(at.mat(y), at.mat(x), at.mat(a), at.mat(b), at.buf(bias)) }, rows("y", y))
}

func (q *Queue) MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation) {
	q.op("matmul, activation", func(k Kernels, at *view) {
		k.MatMulActivate(at.mat(y), at.mat(x), at.mat(a), at.mat(b), at.buf(bias), f)
	}, rows("x", x), rows("y", y))
}

func (q *Queue) MatMulActivateGrad(dx, a, b, x device.Mat, f device.Activation) {
	q.op("matmul, activation gradient", func(k Kernels, at *view) {
		k.MatMulActivateGrad(at.mat(dx), at.mat(a), at.mat(b), at.mat(x), f)
	}, rows("dx", dx))
}

func (q *Queue) WeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat) {
	q.op("weight gradient", func(k Kernels, at *view) { k.WeightGrad(at.mat(dw), at.buf(db), at.mat(dy), at.mat(x)) }, rows("dw", dw), rowResult("db", db))
}

func (q *Queue) Embed(y, wte, wpe device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer) {
	q.op("embedding", func(k Kernels, at *view) {
		k.Embed(at.mat(y), at.mat(wte), at.mat(wpe), part, at.buf(ids), T, at.buf(start))
	}, rows("y", y))
}

func (q *Queue) EmbedGrad(dwte, dwpe, dy device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer, add bool) {
	q.op("embedding gradient", func(k Kernels, at *view) {
		k.EmbedGrad(at.mat(dwte), at.mat(dwpe), at.mat(dy), part, at.buf(ids), T, at.buf(start), add)
	}, rows("dwte", dwte), rows("dwpe", dwpe))
}

func (q *Queue) LayerNorm(y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32) {
	q.op("layer norm", func(k Kernels, at *view) {
		k.LayerNorm(at.mat(y), at.buf(mean), at.buf(rstd), at.mat(x), at.buf(w), at.buf(b), eps)
	}, rows("y", y), rowResult("mean", mean), rowResult("rstd", rstd))
}

func (q *Queue) LayerNormGrad(dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool) {
	q.op("layer norm gradient", func(k Kernels, at *view) {
		k.LayerNormGrad(at.mat(dx), at.buf(dw), at.buf(db), at.mat(dy), at.mat(x), at.buf(w), at.buf(mean), at.buf(rstd), add)
	}, rows("dx", dx), rowResult("dw", dw), rowResult("db", db))
}

func (q *Queue) RMSNorm(y device.Mat, rstd device.Buffer, x device.Mat, w device.Buffer, eps float32) {
	q.op("rms norm", func(k Kernels, at *view) { k.RMSNorm(at.mat(y), at.buf(rstd), at.mat(x), at.buf(w), eps) }, rows("y", y), rowResult("rstd", rstd))
}

func (q *Queue) RMSNormGrad(dx device.Mat, dw device.Buffer, dy, x device.Mat, w, rstd device.Buffer, add bool) {
	q.op("rms norm gradient", func(k Kernels, at *view) {
		k.RMSNormGrad(at.mat(dx), at.buf(dw), at.mat(dy), at.mat(x), at.buf(w), at.buf(rstd), add)
	}, rows("dx", dx), rowResult("dw", dw))
}

func (q *Queue) Rope(x device.Mat, r device.Rope, inverse bool) {
	q.op("rope", func(k Kernels, at *view) {
		r := r
		r.Start = at.buf(r.Start)
		k.Rope(at.mat(x), r, inverse)
	}, rows("x", x))
}

func (q *Queue) Gate(y, gate, up device.Mat, f device.Activation) {
	q.op("gate", func(k Kernels, at *view) { k.Gate(at.mat(y), at.mat(gate), at.mat(up), f) }, rows("y", y))
}

func (q *Queue) GateGrad(dgate, dup, dy, gate, up device.Mat, f device.Activation) {
	q.op("gate gradient", func(k Kernels, at *view) {
		k.GateGrad(at.mat(dgate), at.mat(dup), at.mat(dy), at.mat(gate), at.mat(up), f)
	}, rows("dgate", dgate), rows("dup", dup))
}

func (q *Queue) Activate(y, x device.Buffer, f device.Activation) {
	q.op("activation", func(k Kernels, at *view) { k.Activate(at.buf(y), at.buf(x), f) }, rowResult("y", y))
}

func (q *Queue) ActivateGrad(dx, x, dy device.Buffer, f device.Activation) {
	q.op("activation gradient", func(k Kernels, at *view) { k.ActivateGrad(at.buf(dx), at.buf(x), at.buf(dy), f) }, rowResult("dx", dx))
}

func (q *Queue) AddTo(y, a, b device.Buffer) {
	q.op("add", func(k Kernels, at *view) { k.AddTo(at.buf(y), at.buf(a), at.buf(b)) }, rowResult("y", y))
}

func (q *Queue) Mul(y, a, b device.Buffer) {
	q.op("multiply", func(k Kernels, at *view) { k.Mul(at.buf(y), at.buf(a), at.buf(b)) }, rowResult("y", y))
}

func (q *Queue) AddScalar(y, x device.Buffer, s float32) {
	q.op("add scalar", func(k Kernels, at *view) { k.AddScalar(at.buf(y), at.buf(x), s) }, rowResult("y", y))
}

func (q *Queue) Scale(x device.Buffer, s float32) {
	q.op("scale", func(k Kernels, at *view) { k.Scale(at.buf(x), s) }, rowResult("x", x))
}

func (q *Queue) Dropout(y, x, add device.Buffer, d device.Dropout) {
	q.op("dropout", func(k Kernels, at *view) { k.Dropout(at.buf(y), at.buf(x), at.buf(add), d) }, rowResult("y", y))
}

// attn returns a view of what attention reads besides its matrices.
func (v *view) attn(a device.Attn) device.Attn {
	a.Start = v.buf(a.Start)
	return a
}

func (q *Queue) Attention(o device.Mat, lse device.Buffer, qm, k, v device.Mat, a device.Attn) {
	q.op("attention", func(on Kernels, at *view) {
		on.Attention(at.mat(o), at.buf(lse), at.mat(qm), at.mat(k), at.mat(v), at.attn(a))
	}, rows("o", o), rowResult("lse", lse))
}

func (q *Queue) AttentionGrad(dq, dk, dv device.Mat, delta device.Buffer, do, o device.Mat, lse device.Buffer, qm, k, v device.Mat, a device.Attn) {
	grad := func(what string, m device.Mat) result { // dropout scales rounded values
		r := rows(what, m)
		r.dtype = qm.Buf.Type
		if a.Drop.Drop > 0 {
			r.wider = float64(a.Drop.Scale())
		}
		return r
	}
	q.op("attention gradient", func(on Kernels, at *view) {
		on.AttentionGrad(at.mat(dq), at.mat(dk), at.mat(dv), at.buf(delta), at.mat(do), at.mat(o), at.buf(lse), at.mat(qm), at.mat(k), at.mat(v), at.attn(a))
	}, grad("dq", dq), grad("dk", dk), grad("dv", dv), rowResult("delta", delta))
}

func (q *Queue) CrossEntropy(loss device.Buffer, logits device.Mat, target device.Buffer, cap float32) {
	q.op("cross-entropy", func(k Kernels, at *view) { k.CrossEntropy(at.buf(loss), at.mat(logits), at.buf(target), cap) }, rowResult("loss", loss))
}

func (q *Queue) CrossEntropyGrad(loss device.Buffer, logits device.Mat, target device.Buffer, scale, cap float32) {
	q.op("cross-entropy", func(k Kernels, at *view) {
		k.CrossEntropyGrad(at.buf(loss), at.mat(logits), at.buf(target), scale, cap)
	}, rowResult("loss", loss), rows("logits", logits))
}

func (q *Queue) CrossEntropyPart(stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, cap float32) {
	q.op("cross-entropy part", func(k Kernels, at *view) {
		k.CrossEntropyPart(at.buf(stats), at.mat(logits), part, at.buf(target), cap)
	}, rowResult("stats", stats))
}

func (q *Queue) CrossEntropyMerge(loss, stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, scale, cap float32, grad bool) {
	results := []result{rowResult("loss", loss)}
	if grad {
		results = append(results, rows("logits", logits))
	}
	q.op("cross-entropy merge", func(k Kernels, at *view) {
		k.CrossEntropyMerge(at.buf(loss), at.buf(stats), at.mat(logits), part, at.buf(target), scale, cap, grad)
	}, results...)
}

func (q *Queue) Sum(acc, x device.Buffer) {
	q.op("sum", func(k Kernels, at *view) { k.Sum(at.buf(acc), at.buf(x)) }, rowResult("acc", acc))
}

func (q *Queue) SumSquares(acc, x device.Buffer) {
	q.op("sum of squares", func(k Kernels, at *view) { k.SumSquares(at.buf(acc), at.buf(x)) }, rowResult("acc", acc))
}

func (q *Queue) Axpby(y, p, a, b device.Buffer, alpha, beta float32) {
	q.op("axpby", func(k Kernels, at *view) { k.Axpby(at.buf(y), at.buf(p), at.buf(a), at.buf(b), alpha, beta) }, rowResult("y", y), rowResult("p", p))
}

func (q *Queue) Normalize(x, acc device.Buffer, eps float32) {
	q.op("normalize", func(k Kernels, at *view) { k.Normalize(at.buf(x), at.buf(acc), eps) }, rowResult("x", x), rowResult("acc", acc))
}

func (q *Queue) CopyBlock(dst, src device.Mat) {
	q.op("copy of a block", func(k Kernels, at *view) { k.CopyBlock(at.mat(dst), at.mat(src)) }, rows("dst", dst))
}

func (q *Queue) AdamW(w, p, g, m, v device.Buffer, a device.AdamW) {
	q.op("adamw", func(k Kernels, at *view) { k.AdamW(at.buf(w), at.buf(p), at.buf(g), at.buf(m), at.buf(v), a) },
		rowResult("w", w), rowResult("p", p), rowResult("m", m), rowResult("v", v))
}

func (q *Queue) AdamW8(w, p, g, m, v device.Buffer, a device.AdamW) {
	q.op("adamw in 8 bits", func(k Kernels, at *view) { k.AdamW8(at.buf(w), at.buf(p), at.buf(g), at.buf(m), at.buf(v), a) },
		rowResult("w", w), rowResult("p", p), rowResult("m", m), rowResult("v", v))
}

func (q *Queue) SGD(w, p, g, m device.Buffer, a device.SGD) {
	q.op("sgd", func(k Kernels, at *view) { k.SGD(at.buf(w), at.buf(p), at.buf(g), at.buf(m), a) }, rowResult("w", w), rowResult("p", p), rowResult("m", m))
}

func (q *Queue) Lion(w, p, g, m device.Buffer, a device.Lion) {
	q.op("lion", func(k Kernels, at *view) { k.Lion(at.buf(w), at.buf(p), at.buf(g), at.buf(m), a) }, rowResult("w", w), rowResult("p", p), rowResult("m", m))
}
