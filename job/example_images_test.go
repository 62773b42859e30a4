//go:build !separate

package job_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"zeroth/data"
	"zeroth/device"
	"zeroth/job"
	"zeroth/nn"
	"zeroth/shard"
)

// digits are made-up images of 28×28 pixels: noise, and a bar at one of ten places, the class.
type digits struct{ seed uint64 }

func (digits) Len() int64 { return 512 }

func (digits) Fields() []data.Field {
	return []data.Field{{Name: "image", Type: data.Float32, Len: 28 * 28}, {Name: "class", Type: data.Int32, Len: 1}}
}

func (d digits) Read(sample int64, into []data.Values) error {
	r := rand.New(rand.NewPCG(d.seed, uint64(sample)))
	image, class := into[0].F32, r.IntN(10)
	into[1].I32[0] = int32(class)
	for i := range image {
		image[i] = r.Float32() / 2
	}
	for at, i := 28*(3+class/5*14+r.IntN(3))+2+class%5*5, 0; i < 24; i++ { // 8 rows of 3 pixels
		image[at+28*(i/3)+i%3] += 1
	}
	return nil
}

// conv is a convolution in plain Go: 8 maps of 13×13 from an image, by filters of 3×3 with stride 2.
type conv struct{}

func (conv) Params() []shard.Param {
	return []shard.Param{{Name: "conv.weight", Shape: []int{8, 9}, Group: shard.Decayed, Init: shard.Init{Std: 0.3}}}
}

// pass calls f for every product of a weight and a pixel, which is part of an output. It clears c.
func (conv) pass(q nn.Ops, b *nn.Batch, w, y, c device.Buffer, f func(weight, pixel, out *float32)) {
	images := b.Fields[0]
	nn.OnHost(q, "conv", func() error {
		clear(c.F32())
		weights, pixels, outs := w.F32(), images.F32(), y.F32()
		for out := range outs {
			image, m, i, j := out/(8*13*13), out/13/13%8, out/13%13, out%13
			for k := range 9 {
				f(&weights[9*m+k], &pixels[28*28*image+28*(2*i+k/3)+2*j+k%3], &outs[out])
			}
		}
		return nil
	}, w, images, y)
}

func (c conv) Forward(q nn.Ops, _ nn.Scratch, w []device.Buffer, b *nn.Batch, _, y device.Buffer, _ *nn.Saved) {
	c.pass(q, b, w[0], y, y, func(weight, pixel, out *float32) { *out += *weight * *pixel })
}

func (c conv) Backward(q nn.Ops, _ nn.Scratch, _, dw []device.Buffer, b *nn.Batch, _, d device.Buffer, _ *nn.Saved) {
	c.pass(q, b, dw[0], d, dw[0], func(weight, pixel, out *float32) { *weight += *out * *pixel })
}

func images() job.Options {
	return job.Options{Data: digits{1}, Validation: digits{2}, Model: &nn.Model{
		Name: "classifier", Width: 8 * 13 * 13, Context: 1, Vocab: 10, Metrics: []string{"accuracy"},
		Modules: []nn.Module{conv{}, nn.Classifier{Width: 8 * 13 * 13, Classes: 10, Field: 1}},
		Uses:    [][]nn.Use{{{Unit: "conv", Params: 1}}, {{Unit: "classifier", Params: 1}}},
	}}
}

const imagesJob = `
data: {program: true}
model: {family: program}
device: cpu
precision: fp32
train: {steps: 12, batch: 16, micro_batch: 8, eval_every: 6}
parallel: {ranks: 2}
optimizer: {lr: 1e-2}
checkpoint: {every: 2}
`

// ExampleRun_images trains an image classifier: data, network, loss and accuracy belong to the
// program; stages, checkpoints, plans and metrics to zeroth.
func ExampleRun_images() {
	out, remove := temporary()
	defer remove()
	o, seen := images(), &job.Observation{}
	o.Out, o.Timeline = out, seen
	file := write(o.Out, imagesJob)
	check(job.Run(context.Background(), load(file), o))
	_, evals := metrics(o.Out)
	fmt.Println("accuracy above 0.9:", evals[1].Metrics["accuracy"] > 0.9)
	fmt.Println("as much memory as planned:", seen.Plan.Measured.Allocated == seen.Plan.Allocated)

	fresh, right := digits{3}, 0
	o.Data = fresh
	check(job.Predict(context.Background(), file, nil, o, o.Out, "", func(sample int64, logits []float32) error {
		class := make([]int32, 1)
		if err := fresh.Read(sample, []data.Values{{F32: make([]float32, 28*28)}, {I32: class}}); err != nil {
			return err
		}
		if slices.Index(logits, slices.Max(logits)) == int(class[0]) {
			right++
		}
		return nil
	}))
	fmt.Println("predicts nine in ten other images:", right > 512*9/10)
	// Output:
	// accuracy above 0.9: true
	// as much memory as planned: true
	// predicts nine in ten other images: true
}
