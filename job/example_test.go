package job_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zeroth/checkpoint"
	"zeroth/device"
	"zeroth/job"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/shard"
)

// mix is a module of our own: y = x + x·W.
type mix struct{ width int }

func (m mix) Params() []shard.Param {
	return []shard.Param{{Name: "mix.weight", Shape: []int{m.width, m.width}, Group: shard.Decayed, Init: shard.Init{Std: 0.02}}}
}

func (m mix) Forward(q nn.Ops, _ nn.Scratch, w []device.Buffer, b *nn.Batch, x, y device.Buffer, _ *nn.Saved) {
	q.MatMul(device.Matrix(y, b.Rows(), m.width), device.Matrix(x, b.Rows(), m.width), device.Matrix(w[0], m.width, m.width), device.Buffer{}, false)
	q.AddTo(y, y, x)
}

func (m mix) Backward(q nn.Ops, mem nn.Scratch, w, dw []device.Buffer, b *nn.Batch, x, d device.Buffer, _ *nn.Saved) {
	defer mem.Release(mem.Mark())
	dx, dy := mem.Take(b.Compute, b.Rows()*m.width), device.Matrix(d, b.Rows(), m.width)
	q.MatMul(device.Matrix(dw[0], m.width, m.width), device.Matrix(x, b.Rows(), m.width).T(), dy, device.Buffer{}, false)
	q.MatMul(device.Matrix(dx, b.Rows(), m.width), dy, device.Matrix(w[0], m.width, m.width).T(), device.Buffer{}, false)
	q.AddTo(d, d, dx)
}

// ExampleRun trains a GPT-2 that contains a module of the program at stage 3, with checkpoints, a
// plan and metrics.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "mix")
	check(err)
	defer os.RemoveAll(dir)
	file, text := filepath.Join(dir, "job.yaml"), filepath.Join(dir, "a.txt")
	check(os.WriteFile(text, []byte(strings.Repeat("to be, or not to be; ", 300)), 0o666))
	check(os.WriteFile(file, fmt.Appendf(nil, `
data: {text: [%q]}
model: {family: program}
train: {steps: 6, micro_batch: 2}
parallel: {ranks: 2}
zero: {stage: 3, recompute: block}
checkpoint: {every: 6}
`, text), 0o666))

	run, seen := filepath.Join(dir, "run"), &job.Observation{}
	net := mixed(32, 16)
	check(job.Run(context.Background(), load(file), job.Options{Model: net, Out: run, Timeline: seen}))
	check(job.Run(context.Background(), load(file, "train.steps=8"), job.Options{Model: net, Out: run, Resume: "latest"}))

	steps, _, err := report.ReadMetrics(filepath.Join(run, "metrics.jsonl"))
	check(err)
	fmt.Println(len(steps), "steps, the loss fell:", steps[7].Loss < steps[0].Loss)
	fmt.Println("as much memory as planned:", seen.Plan.Measured.Allocated == seen.Plan.Allocated)
	ck, err := checkpoint.Open(filepath.Join(run, "ckpt", "step-00000006"))
	check(err)
	defer ck.Close()
	w, _ := ck.Tensor("mix.weight", checkpoint.Master)
	fmt.Println("in the checkpoint:", w.Name, w.Shape)
	// Output:
	// 8 steps, the loss fell: true
	// as much memory as planned: true
	// in the checkpoint: mix.weight [32 32]
}

// mixed is a GPT-2 with a mix after the first block.
func mixed(width, context int) *nn.Model {
	net := small(width, context)
	net.Modules = slices.Insert(net.Modules, 2, nn.Module(mix{width}))
	net.Uses = slices.Insert(net.Uses, 2, []nn.Use{{Unit: "mix", Params: 1}})
	return net
}

// small is a GPT-2 of two blocks for bytes.
func small(width, context int) *nn.Model {
	return nn.GPT2{Shape: nn.Shape{Layers: 2, Heads: 2, Width: width, Context: context, Vocab: 256, Eps: 1e-5}}.Model()
}

// load reads a job file.
func load(file string, sets ...string) *spec.Job {
	c, err := spec.Load(file, sets)
	check(err)
	return c
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
