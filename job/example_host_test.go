//go:build !separate

package job_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zeroth/device"
	"zeroth/job"
	"zeroth/job/report"
	"zeroth/nn"
	"zeroth/shard"
)

// gate is a module in plain Go: y[i][j] = g[j]·x[i][j]. All is float32, because the
// job's precision is.
type gate struct{ width int }

func (m gate) Params() []shard.Param {
	return []shard.Param{{Name: "gate.weight", Shape: []int{m.width}, Init: shard.Init{Mean: 1}}}
}

func (m gate) Forward(q nn.Ops, _ nn.Scratch, w []device.Buffer, _ *nn.Batch, x, y device.Buffer, _ *nn.Saved) {
	nn.OnHost(q, "gate", func() error {
		x, y, g := x.F32(), y.F32(), w[0].F32()
		for i := range x {
			y[i] = g[i%m.width] * x[i]
		}
		return nil
	}, x, y, w[0])
}

func (m gate) Backward(q nn.Ops, _ nn.Scratch, w, dw []device.Buffer, _ *nn.Batch, x, d device.Buffer, _ *nn.Saved) {
	nn.OnHost(q, "gate", func() error {
		x, d, g, dg := x.F32(), d.F32(), w[0].F32(), dw[0].F32()
		clear(dg)
		for i := range x {
			dg[i%m.width] += d[i] * x[i]
			d[i] *= g[i%m.width]
		}
		return nil
	}, x, d, w[0], dw[0])
}

// ExampleRun_onHost trains a module with its arithmetic in plain Go at stage 3, with checkpoints, a
// plan and metrics.
func ExampleRun_onHost() {
	dir, err := os.MkdirTemp("", "gate")
	check(err)
	defer os.RemoveAll(dir)
	file, text := filepath.Join(dir, "job.yaml"), filepath.Join(dir, "a.txt")
	check(os.WriteFile(text, []byte(strings.Repeat("to be, or not to be; ", 300)), 0o666))
	check(os.WriteFile(file, fmt.Appendf(nil, `
data: {text: [%q]}
device: cpu
model: {family: program}
train: {steps: 6, micro_batch: 2}
parallel: {ranks: 2}
precision: fp32
zero: {stage: 3}
checkpoint: {every: 3}
`, text), 0o666))

	run, seen := filepath.Join(dir, "run"), &job.Observation{}
	net := gated(32, 16)
	check(job.Run(context.Background(), load(file), job.Options{Model: net, Out: run, Timeline: seen}))
	check(job.Run(context.Background(), load(file, "train.steps=8"), job.Options{Model: net, Out: run, Resume: "latest"}))

	steps, _, err := report.ReadMetrics(filepath.Join(run, "metrics.jsonl"))
	check(err)
	fmt.Println(len(steps), "steps, the loss fell:", steps[7].Loss < steps[0].Loss)
	fmt.Println("as much memory as planned:", seen.Plan.Measured.Allocated == seen.Plan.Allocated)
	// Output:
	// 8 steps, the loss fell: true
	// as much memory as planned: true
}

// gated is a GPT-2 with a gate after the first block.
func gated(width, context int) *nn.Model {
	net := small(width, context)
	net.Modules = slices.Insert(net.Modules, 2, nn.Module(gate{width}))
	net.Uses = slices.Insert(net.Uses, 2, []nn.Use{{Unit: "gate", Params: 1}})
	return net
}
