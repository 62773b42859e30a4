package nn

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/device"
)

// TestClassifier compares the losses, the accuracy and the gradients of a Classifier with a slow loop in
// float64 and its slopes. One position has no class.
func TestClassifier(t *testing.T) {
	for _, dt := range computeTypes {
		t.Run(dt.String(), func(t *testing.T) {
			r, rng := newRig(t, subjects[0], dt), rand.New(rand.NewPCG(5, 5))
			c, rows := Classifier{Width: r.width, Classes: 7, Field: 1}, r.B*r.T
			class := make([]int32, rows)
			for i := range class {
				class[i] = rng.Int32N(7)
			}
			class[2] = -1
			in, w := normal(rng, rows*r.width, 0.1, 1), normal(rng, 7*r.width, 0, 0.3)
			x, d, dw := r.buffer(in), r.poisoned(dt, rows*r.width), r.poisoned(device.F32, 7*r.width)
			weights := []device.Buffer{r.buffer(w)}
			r.bt.Fields = []device.Buffer{{}, device.OfI32(class)}
			r.bt.Metrics = []device.Buffer{r.poisoned(device.F32, rows)}
			losses := func() (loss, right []float64) {
				for i, at := range class {
					logits, sum := make([]float64, 7), 0.0
					for j := range logits {
						for k := range r.width {
							logits[j] += max(in[i*r.width+k], 0) * w[j*r.width+k]
						}
						sum += math.Exp(logits[j])
					}
					loss, right = append(loss, 0), append(right, 0)
					if at >= 0 {
						loss[i] = math.Log(sum) - logits[at]
						if logits[at] == slices.Max(logits) {
							right[i] = 1
						}
					}
				}
				return loss, right
			}
			loss, right := losses()
			c.Forward(r.q, r.mem, weights, &r.bt, x, device.Buffer{}, nil)
			r.near("losses", r.bt.Loss, 1, loss, tolerance[dt])
			r.near("accuracy", r.bt.Metrics[0], 1, right, 0)

			objective := func() (sum float64) {
				loss, _ := losses()
				for _, x := range loss {
					sum += x * float64(r.bt.Scale)
				}
				return sum
			}
			poison(r.bt.Loss)
			c.Backward(r.q, r.mem, weights, []device.Buffer{dw}, &r.bt, x, d, nil)
			r.near("losses of Backward", r.bt.Loss, 1, loss, tolerance[dt])
			r.near("dx", d, 1, slopes(in, 1, objective), tolerance[dt])
			r.near("gradient of classifier.weight", dw, 1, slopes(w, 1, objective), tolerance[dt])
		})
	}
}
