package nn

import (
	"slices"

	"zeroth/data"
	"zeroth/device"
	"zeroth/shard"
)

// Classifier is a last module for samples with one of several classes: ReLU, a linear layer without
// bias ("classifier.weight") and the cross-entropy loss. The model's first metric, if it has one, is
// the accuracy, which is computed on the host.
type Classifier struct {
	Width   int // of its input: Model.Width
	Classes int
	Field   int // the index of the field with the class of each position, an int32 below Classes; data.Ignored: no loss
}

// Params implements Module.
func (c Classifier) Params() []shard.Param {
	return []shard.Param{weight("classifier.weight", initStd, c.Classes, c.Width)}
}

// Forward implements Module.
func (c Classifier) Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, _ device.Buffer, s *Saved) {
	if s != nil {
		return // Backward follows immediately
	}
	defer mem.Release(mem.Mark())
	logits, _ := c.logits(q, mem, w, bt, x)
	q.CrossEntropy(bt.Loss, logits, bt.Fields[c.Field], 0)
}

// Backward implements Module.
func (c Classifier) Backward(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, _ *Saved) {
	defer mem.Release(mem.Mark())
	logits, hidden := c.logits(q, mem, w, bt, x)
	q.CrossEntropyGrad(bt.Loss, logits, bt.Fields[c.Field], bt.Scale, 0)
	if dw[0].N > 0 {
		q.WeightGrad(device.Matrix(dw[0], c.Classes, c.Width), device.Buffer{}, logits, hidden)
	}
	q.MatMul(device.Matrix(d, bt.Rows(), c.Width), logits, device.Matrix(w[0], c.Classes, c.Width), device.Buffer{}, false)
	q.ActivateGrad(d, x, d, device.Relu)
}

// Predictions implements Predictor.
func (c Classifier) Predictions() int { return c.Classes }

// Predict implements Predictor: it writes the logits of all classes.
func (c Classifier) Predict(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, y device.Buffer) {
	defer mem.Release(mem.Mark())
	logits, _ := c.product(q, mem, w, bt, x)
	q.Cast(y, logits.Buf)
}

// product returns the logits and the input of the linear layer.
func (c Classifier) product(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x device.Buffer) (logits, hidden device.Mat) {
	hidden = device.Matrix(mem.Take(bt.Compute, bt.Rows()*c.Width), bt.Rows(), c.Width)
	logits = device.Matrix(mem.TakeFor(Logits, bt.Compute, bt.Rows()*c.Classes), bt.Rows(), c.Classes)
	q.Activate(hidden.Buf, x, device.Relu)
	q.MatMul(logits, hidden, device.Matrix(w[0], c.Classes, c.Width).T(), device.Buffer{}, false)
	return logits, hidden
}

// logits is like product, and sets the accuracy.
func (c Classifier) logits(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x device.Buffer) (logits, hidden device.Mat) {
	logits, hidden = c.product(q, mem, w, bt, x)
	if len(bt.Metrics) == 0 {
		return logits, hidden
	}
	wide, class, right := mem.Take(device.F32, logits.Buf.N), bt.Fields[c.Field], bt.Metrics[0]
	q.Cast(wide, logits.Buf)
	OnHost(q, "accuracy", func() error {
		for i, at := range class.I32() {
			row := wide.F32()[i*c.Classes : (i+1)*c.Classes]
			if right.F32()[i] = 0; at >= 0 && row[at] == slices.Max(row) {
				right.F32()[i] = 1
			}
		}
		return nil
	}, wide, class, right)
	return logits, hidden
}

// Below returns, for each field of a sample, what its numbers must be below because a module of this
// package uses them as indices, or 0.
func (m *Model) Below(fields []data.Field) []int {
	below := make([]int, len(fields))
	named := func(name string) {
		if i := slices.IndexFunc(fields, func(f data.Field) bool { return f.Name == name }); i >= 0 {
			below[i] = m.Vocab
		}
	}
	for _, mod := range m.Modules {
		switch x := mod.(type) {
		case embedding:
			named(data.Input)
		case head:
			named(data.Target)
		case Classifier:
			below[x.Field] = x.Classes
		}
	}
	return below
}
