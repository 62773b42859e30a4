//go:build !separate

package job_test

import (
	"context"
	"fmt"
	"math"

	"zeroth/device"
	"zeroth/job"
	"zeroth/nn"
	"zeroth/shard"
)

// recurrent is a recurrent layer in Go: y[t] = x[t] + h[t], h[t] = tanh(W x[t] + U h[t-1]).
type recurrent struct{ width int }

func (r recurrent) Params() []shard.Param {
	p := shard.Param{Shape: []int{r.width, r.width}, Group: shard.Decayed, Init: shard.Init{Std: 0.1}}
	w, u := p, p
	w.Name, u.Name = "rnn.input.weight", "rnn.hidden.weight"
	return []shard.Param{w, u}
}

// each calls f for every position, in order or in reverse, with the first elements of its row and
// of the one before, -1 if there is none.
func (r recurrent) each(b, T int, reverse bool, f func(at, before int)) {
	for i := range b * T {
		if reverse {
			i = b*T - 1 - i
		}
		before := (i - 1) * r.width
		if i%T == 0 {
			before = -1
		}
		f(i*r.width, before)
	}
}

func (r recurrent) Forward(q nn.Ops, mem nn.Scratch, w []device.Buffer, b *nn.Batch, x, y device.Buffer, s *nn.Saved) {
	if s == nil {
		defer mem.Release(mem.Mark())
	}
	h, n, T := mem.Keep(device.F32, b.Rows()*r.width), b.B, b.T
	if s != nil {
		s.Own[0] = h
	}
	nn.OnHost(q, "recurrent", func() error {
		w, u, x, y, h := w[0].F32(), w[1].F32(), x.F32(), y.F32(), h.F32()
		r.each(n, T, false, func(at, before int) {
			for i := range r.width {
				sum := float32(0)
				for j := range r.width {
					if sum += w[i*r.width+j] * x[at+j]; before >= 0 {
						sum += u[i*r.width+j] * h[before+j]
					}
				}
				h[at+i] = float32(math.Tanh(float64(sum)))
				y[at+i] = x[at+i] + h[at+i]
			}
		})
		return nil
	}, w[0], w[1], x, y, h)
}

func (r recurrent) Backward(q nn.Ops, mem nn.Scratch, w, dw []device.Buffer, b *nn.Batch, x, d device.Buffer, s *nn.Saved) {
	h, n, T := s.Own[0], b.B, b.T
	nn.OnHost(q, "recurrent", func() error {
		w, u, dw, du, x, d, h := w[0].F32(), w[1].F32(), dw[0].F32(), dw[1].F32(), x.F32(), d.F32(), h.F32()
		clear(dw)
		clear(du)
		later := make([]float32, r.width) // gradient of h from the position after
		r.each(n, T, true, func(at, before int) {
			sums := make([]float32, r.width) // gradients of tanh's argument
			for i := range sums {
				sums[i] = (d[at+i] + later[i]) * (1 - h[at+i]*h[at+i])
			}
			clear(later)
			for i, sum := range sums {
				for j := range r.width {
					dw[i*r.width+j] += sum * x[at+j]
					d[at+j] += sum * w[i*r.width+j]
					if before >= 0 {
						du[i*r.width+j] += sum * h[before+j]
						later[j] += sum * u[i*r.width+j]
					}
				}
			}
		})
		return nil
	}, w[0], w[1], dw[0], dw[1], x, d, h)
}

const recurrentJob = `
data: {text: [example_recurrent_test.go], validation: 0.1}
model: {family: program}
device: cpu
precision: fp32
train: {steps: 12, batch: 4, micro_batch: 2, eval_every: 12}
parallel: {ranks: 2}
optimizer: {lr: 1e-2}
checkpoint: {every: 2}
`

// words is a GPT-2 with a recurrent layer in place of its block.
func words() job.Options {
	net := nn.GPT2{Shape: nn.Shape{Layers: 1, Heads: 1, Width: 16, Context: 16, Vocab: 256, Eps: 1e-5}}.Model()
	net.Name, net.Modules[1], net.Uses[1] = "recurrent", recurrent{16}, []nn.Use{{Unit: "rnn", Params: 2}}
	return job.Options{Model: net}
}

// ExampleRun_recurrent trains a recurrent language model: its layer belongs to the program, between
// an embedding and a head of zeroth; text, tokenizer and validation are the job's.
func ExampleRun_recurrent() {
	out, remove := temporary()
	defer remove()
	o, seen := words(), &job.Observation{}
	o.Out, o.Timeline = out, seen
	check(job.Run(context.Background(), load(write(o.Out, recurrentJob)), o))
	steps, _ := metrics(o.Out)
	fmt.Println("the loss fell:", steps[11].Loss < steps[0].Loss)
	fmt.Println("as much memory as planned:", seen.Plan.Measured.Allocated == seen.Plan.Allocated)
	// Output:
	// the loss fell: true
	// as much memory as planned: true
}
