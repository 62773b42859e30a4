//go:build !separate

package job_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"zeroth/data"
	"zeroth/device"
	"zeroth/job"
	"zeroth/nn"
	"zeroth/shard"
)

// points are samples without an end: a vector x, a number y, and a mask that hides two of three.
type points struct{}

func (points) Len() int64 { return 0 }

func (points) Fields() []data.Field {
	return []data.Field{{Name: "x", Type: data.Float32, Len: 3}, {Name: "y", Type: data.Float32, Len: 1}, {Name: "mask", Type: data.Float32, Len: 1}}
}

func (p points) Read(sample int64, into []data.Values) error {
	for i := range into[0].F32 {
		into[0].F32[i] = float32(math.Sin(float64(3*sample) + float64(i)))
	}
	into[1].F32[0], into[2].F32[0] = float32(sample%5), float32(p.Counted(sample))
	return nil
}

func (points) Counted(sample int64) int {
	if sample%3 > 0 {
		return 0
	}
	return 1
}

// product is y = w * x, element by element.
type product struct{}

func (product) Params() []shard.Param {
	return []shard.Param{{Name: "w", Shape: []int{3}, Init: shard.Init{Mean: 1}}}
}

func (product) Forward(q nn.Ops, _ nn.Scratch, w []device.Buffer, b *nn.Batch, _, y device.Buffer, _ *nn.Saved) {
	x := b.Fields[0]
	nn.OnHost(q, "product", func() error {
		for i, x := range x.F32() {
			y.F32()[i] = w[0].F32()[i%3] * x
		}
		return nil
	}, w[0], x, y)
}

func (product) Backward(q nn.Ops, _ nn.Scratch, _, dw []device.Buffer, b *nn.Batch, _, d device.Buffer, _ *nn.Saved) {
	x := b.Fields[0]
	nn.OnHost(q, "product", func() error {
		clear(dw[0].F32())
		for i, x := range x.F32() {
			dw[0].F32()[i%3] += d.F32()[i] * x
		}
		return nil
	}, dw[0], x, d)
}

// squares is a loss of our own: the masked square of the sum of a row, minus y, plus a bias.
type squares struct{}

func (squares) Params() []shard.Param { return []shard.Param{{Name: "bias", Shape: []int{1}}} }

func (squares) Forward(q nn.Ops, _ nn.Scratch, w []device.Buffer, b *nn.Batch, x, _ device.Buffer, _ *nn.Saved) {
	y, mask, loss := b.Fields[1], b.Fields[2], b.Loss
	nn.OnHost(q, "squares", func() error {
		for i, y := range y.F32() {
			e := x.F32()[3*i] + x.F32()[3*i+1] + x.F32()[3*i+2] + w[0].F32()[0] - y
			loss.F32()[i] = mask.F32()[i] * e * e
		}
		return nil
	}, x, w[0], y, mask, loss)
}

func (s squares) Backward(q nn.Ops, mem nn.Scratch, w, dw []device.Buffer, b *nn.Batch, x, d device.Buffer, _ *nn.Saved) {
	s.Forward(q, mem, w, b, x, device.Buffer{}, nil)
	y, mask, scale := b.Fields[1], b.Fields[2], b.Scale
	nn.OnHost(q, "squares", func() error {
		clear(dw[0].F32())
		for i, y := range y.F32() {
			e := x.F32()[3*i] + x.F32()[3*i+1] + x.F32()[3*i+2] + w[0].F32()[0] - y
			g := 2 * scale * mask.F32()[i] * e
			d.F32()[3*i], d.F32()[3*i+1], d.F32()[3*i+2] = g, g, g
			dw[0].F32()[0] += g
		}
		return nil
	}, x, w[0], dw[0], y, mask, d)
}

// TestMasksAreCounted compares the first loss and gradient norm of a program's loss with slow loops
// over the samples that are not masked, and the losses at all stages with each other.
func TestMasksAreCounted(t *testing.T) {
	const batch = 16
	loss, counted, grad := 0.0, 0.0, [4]float64{}
	for i := range int64(batch) {
		if i%3 > 0 {
			continue
		}
		e, x := -float64(i%5), [4]float64{3: 1}
		for j := range 3 {
			x[j] = math.Sin(float64(3*i) + float64(j))
			e += x[j]
		}
		loss, counted = loss+e*e, counted+1
		for j := range x {
			grad[j] += 2 * e * x[j]
		}
	}
	norm := 0.0
	for _, g := range grad {
		norm += g * g / counted / counted
	}
	for _, stage := range []string{"zero.stage=0", "zero.stage=3"} {
		out := folder(t)
		c := load(write(out, "data: {program: true}\nmodel: {family: program}\ndevice: cpu\nprecision: fp32\ntrain: {steps: 3, batch: 16, micro_batch: 4}\nparallel: {ranks: 2}\n"), stage)
		check(job.Run(t.Context(), c, job.Options{Out: out, Data: points{}, Model: &nn.Model{
			Name: "regression", Width: 3, Context: 1, Modules: []nn.Module{product{}, squares{}}, Uses: [][]nn.Use{{{Unit: "w", Params: 1}}, {{Unit: "bias", Params: 1}}},
		}}))
		steps, _ := metrics(out)
		const rounding = 1e-6 // of float32, over 16 terms
		if s := steps[0]; math.Abs(s.Loss/(loss/counted)-1) > rounding || math.Abs(s.GradNorm/math.Sqrt(norm)-1) > rounding {
			t.Errorf("%s: loss %v, norm %v, want %v and %v", stage, s.Loss, s.GradNorm, loss/counted, math.Sqrt(norm))
		}
	}
}

// wrong are digits of which those after the first have another class, and count other positions.
type wrong struct {
	digits
	class   int32
	counted int
}

func (w wrong) Read(sample int64, into []data.Values) error {
	err := w.digits.Read(sample, into)
	if sample > 0 {
		into[1].I32[0] = w.class
	}
	return err
}

func (w wrong) Counted(int64) int { return w.counted }

// TestWrongSamples checks that numbers of a program beyond the network's sizes are errors that name the sample:
// a kernel can only end the process.
func TestWrongSamples(t *testing.T) {
	for want, d := range map[string]wrong{
		"field class has 10 at 0; the network takes -1 to 9":       {class: 10, counted: 1},
		"field class has -2 at 0; the network takes -1 to 9":       {class: -2, counted: 1},
		"Counted says that -1 positions have a loss; it has 1":     {class: 1, counted: -1},
		"Counted says that 2 positions have a loss; it has 1":      {class: 1, counted: 2},
		"samples 0 to 15 of the training order have no position w": {class: data.Ignored, counted: 0},
		"": {class: 9, counted: 1},
	} {
		out, o := folder(t), images()
		d.digits = digits{1}
		o.Out, o.Data = out, d
		if err := job.Run(t.Context(), load(write(out, imagesJob), "train.steps=2"), o); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	fields := []data.Field{{Name: data.Start, Type: data.Int32, Len: 2}, {Name: data.Target, Type: data.Int32, Len: 2}, {Name: data.Input, Type: data.Int32, Len: 2}}
	m := nn.GPT2{Shape: nn.Shape{Layers: 1, Heads: 2, Width: 8, Context: 4, Vocab: 11}}.Model()
	if below := m.Below(fields); !slices.Equal(below, []int{0, 11, 11}) {
		t.Errorf("ids are below %v", below)
	}
}
