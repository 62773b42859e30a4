package nn

import (
	"math"

	"zeroth/device"
	"zeroth/shard"
)

// Linear is a linear layer with bias, followed by ReLU if that is set: a first module that reads numbers of the
// samples, or one between others.
type Linear struct {
	Name    string // of its parameters: Name.weight (Out, In) and Name.bias (Out)
	In, Out int    // Out is Model.Width, and so is In unless First is set
	Relu    bool
	First   bool // it reads a field of In float32 numbers a position
	Field   int  // the index of that field
}

// Params implements Module.
func (l Linear) Params() []shard.Param {
	return []shard.Param{weight(l.Name+".weight", float32(1/math.Sqrt(float64(l.In))), l.Out, l.In), {Name: l.Name + ".bias", Shape: []int{l.Out}}}
}

// Forward implements Module.
func (l Linear) Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, y device.Buffer, _ *Saved) {
	defer mem.Release(mem.Mark())
	l.product(q, w, bt, l.input(q, mem, bt, x), y)
	if l.Relu {
		q.Activate(y, y, device.Relu)
	}
}

func (l Linear) product(q Ops, w []device.Buffer, bt *Batch, in device.Mat, y device.Buffer) {
	q.MatMul(device.Matrix(y, bt.Rows(), l.Out), in, device.Matrix(w[0], l.Out, l.In).T(), w[1], false)
}

// input returns what the layer reads, in the compute dtype.
func (l Linear) input(q Ops, mem Scratch, bt *Batch, x device.Buffer) device.Mat {
	if l.First {
		x = mem.Take(bt.Compute, bt.Rows()*l.In)
		q.Cast(x, bt.Fields[l.Field])
	}
	return device.Matrix(x, bt.Rows(), l.In)
}

// Backward implements Module. With ReLU it computes the product again.
func (l Linear) Backward(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, _ *Saved) {
	defer mem.Release(mem.Mark())
	in := l.input(q, mem, bt, x)
	if l.Relu {
		z := mem.Take(bt.Compute, bt.Rows()*l.Out)
		l.product(q, w, bt, in, z)
		q.ActivateGrad(d, z, d, device.Relu)
	}
	dy := device.Matrix(d, bt.Rows(), l.Out)
	linearGrad(q, dw, dy, in)
	if !l.First {
		dx := device.Matrix(mem.Take(bt.Compute, bt.Rows()*l.In), bt.Rows(), l.In)
		q.MatMul(dx, dy, device.Matrix(w[0], l.Out, l.In), device.Buffer{}, false)
		q.Cast(d, dx.Buf)
	}
}

// linearGrad sets the gradients of a weight and a bias, unless they are frozen.
func linearGrad(q Ops, dw []device.Buffer, dy, x device.Mat) {
	if dw[0].N > 0 {
		q.WeightGrad(device.Matrix(dw[0], dy.Cols, x.Cols), dw[1], dy, x)
	} else if dw[1].N > 0 {
		q.SumRows(dw[1], dy)
	}
}

// SquaredError is a last module for samples with numbers to predict: a linear layer with bias ("output.weight" and
// "output.bias"), and for each position the mean of its squared errors as the loss.
type SquaredError struct {
	Width   int // of its input: Model.Width
	Outputs int // numbers to predict at each position
	Field   int // the index of the field with them, float32
}

// Params implements Module.
func (e SquaredError) Params() []shard.Param {
	return []shard.Param{weight("output.weight", float32(1/math.Sqrt(float64(e.Width))), e.Outputs, e.Width), {Name: "output.bias", Shape: []int{e.Outputs}}}
}

// Forward implements Module.
func (e SquaredError) Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, _ device.Buffer, s *Saved) {
	if s != nil {
		return // Backward follows immediately
	}
	defer mem.Release(mem.Mark())
	e.errors(q, mem, w, bt, x)
}

// Backward implements Module.
func (e SquaredError) Backward(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, _ *Saved) {
	defer mem.Release(mem.Mark())
	wrong := e.errors(q, mem, w, bt, x)
	q.Scale(wrong, 2*bt.Scale/float32(e.Outputs))
	dy := device.Matrix(mem.Take(bt.Compute, wrong.N), bt.Rows(), e.Outputs)
	q.Cast(dy.Buf, wrong)
	linearGrad(q, dw, dy, device.Matrix(x, bt.Rows(), e.Width))
	q.MatMul(device.Matrix(d, bt.Rows(), e.Width), dy, device.Matrix(w[0], e.Outputs, e.Width), device.Buffer{}, false)
}

// Predictions implements Predictor.
func (e SquaredError) Predictions() int { return e.Outputs }

// Predict implements Predictor.
func (e SquaredError) Predict(q Ops, _ Scratch, w []device.Buffer, bt *Batch, x, y device.Buffer) {
	rows := bt.Rows()
	q.MatMul(device.Matrix(y, rows, e.Outputs), device.Matrix(x, rows, e.Width), device.Matrix(w[0], e.Outputs, e.Width).T(), w[1], false)
}

// errors returns the predictions minus what they should be, in float32, and sets the loss.
func (e SquaredError) errors(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x device.Buffer) device.Buffer {
	rows := bt.Rows()
	wrong, other, parts := mem.Take(device.F32, rows*e.Outputs), mem.Take(device.F32, rows*e.Outputs), mem.Take(device.F32, e.Outputs)
	e.Predict(q, mem, w, bt, x, wrong)
	q.Cast(other, bt.Fields[e.Field])
	q.Scale(other, -1)
	q.AddTo(wrong, wrong, other)
	q.Mul(other, wrong, wrong)
	q.Zero(parts)
	q.AddScalar(parts, parts, 1/float32(e.Outputs))
	q.MatMul(device.Matrix(bt.Loss, rows, 1), device.Matrix(other, rows, e.Outputs), device.Matrix(parts, e.Outputs, 1), device.Buffer{}, false)
	return wrong
}
