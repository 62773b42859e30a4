//go:build !separate

package job_test

import (
	"context"
	"fmt"

	"zeroth/device"
	"zeroth/job"
	"zeroth/optim"
)

// nesterov is gradient descent with Nesterov's momentum: m = 0.9 m + g, w = w - lr (g + 0.9 m).
type nesterov struct{}

// States names the state of a parameter in checkpoints.
func (nesterov) States() []string { return []string{"momentum"} }

func (nesterov) Types() []device.DType { return []device.DType{device.F32} }

// Step updates any piece of a parameter, so any stage can divide it.
func (nesterov) Step(q optim.Ops, _ int, h optim.Hyper, p optim.Piece) {
	w, g, m, none := p.Master, p.Grad, p.State[0], device.Buffer{}
	q.Axpby(m, none, m, g, 0.9, float32(h.GradScale))
	q.Axpby(w, none, w, m, float32(1-h.LR*h.Decay), float32(-0.9*h.LR))
	q.Axpby(w, p.Param, w, g, 1, float32(-h.LR*h.GradScale))
}

const ruleJob = `
data: {text: [example_recurrent_test.go], validation: 0.1}
model: {layers: 2, heads: 2, width: 16, context: 16}
train: {steps: 12, batch: 4, micro_batch: 2, eval_every: 12}
parallel: {ranks: 2}
optimizer: {type: program, lr: 0.1}
checkpoint: {every: 2}
`

// ExampleRun_rule trains a model of the job file with an update rule of the program.
func ExampleRun_rule() {
	out, remove := temporary()
	defer remove()
	o, seen := job.Options{Rule: nesterov{}}, &job.Observation{}
	o.Out, o.Timeline = out, seen
	check(job.Run(context.Background(), load(write(o.Out, ruleJob)), o))
	steps, _ := metrics(o.Out)
	fmt.Println("the loss fell:", steps[11].Loss < steps[0].Loss)
	fmt.Println("as much memory as planned:", seen.Plan.Measured.Allocated == seen.Plan.Allocated)
	// Output:
	// the loss fell: true
	// as much memory as planned: true
}
