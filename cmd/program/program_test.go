package program_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"zeroth/cmd/program"
	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/job"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/nn"
)

// plane are samples of z = 2x - y + 0.5.
type plane struct{}

func (plane) Len() int64 { return 256 }

func (plane) Fields() []data.Field {
	return []data.Field{{Name: "at", Type: data.Float32, Len: 2}, {Name: "z", Type: data.Float32, Len: 1}}
}

func (plane) Read(sample int64, into []data.Values) error {
	x, y := float32(sample%16)/16, float32(sample/16)/16
	into[0].F32[0], into[0].F32[1], into[1].F32[0] = x, y, 2*x-y+0.5
	return nil
}

// regression returns a program's options: two layers, without Uses.
func regression() job.Options {
	return job.Options{Data: plane{}, Model: &nn.Model{Name: "plane", Width: 16, Context: 1, Modules: []nn.Module{
		nn.Linear{Name: "hidden", In: 2, Out: 16, Relu: true, First: true}, nn.Linear{Name: "second", In: 16, Out: 16}, nn.SquaredError{Width: 16, Outputs: 1, Field: 1},
	}}}
}

const planeJob = `
data: {program: true}
model: {family: program}
train: {steps: 150, batch: 32, micro_batch: 8}
parallel: {ranks: 2}
precision: fp32
device: cpu
optimizer: {lr: 3e-2, weight_decay: 0}
schedule: {type: constant, warmup: 0}
checkpoint: {every: 100}
`

// TestProgramCommand checks that a program learns a plane without Uses of its own, by its command: train with --set,
// --out and --resume, plan and fit; and that its mistakes are found before step 1.
func TestProgramCommand(t *testing.T) {
	jobtest.InFolder(t, planeJob)
	said := func(o job.Options, args ...string) (string, error) {
		var out bytes.Buffer
		err := program.Command(t.Context(), o, args, &out)
		return out.String(), err
	}
	for i, args := range [][]string{{"--set", "train.steps=100"}, {"--resume", "latest", "--set", "zero.stage=3"}} {
		out, err := said(regression(), append([]string{"train", "job.yaml", "--out", "run"}, args...)...)
		if err != nil || !strings.Contains(out, "samples/s") || !strings.Contains(out, []string{"done: 100 steps, 3,200 samples", "done: 150 steps, 4,800 samples"}[i]) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	steps, _, err := report.ReadMetrics("run/metrics.jsonl")
	if err != nil || len(steps) != 150 || !(steps[149].Loss < 0.01) {
		t.Errorf("%d steps, %v: %+v", len(steps), err, steps[len(steps)-1])
	}
	if out, err := said(regression(), "plan", "job.yaml"); err != nil || !strings.Contains(out, "plane") {
		t.Errorf("plan: %v\n%s", err, out)
	}
	if out, err := said(regression(), "fit", "job.yaml", "--memory", "64MiB"); err != nil || !strings.Contains(out, "--set ") {
		t.Errorf("fit: %v\n%s", err, out)
	}

	twice, wide := regression(), regression()
	twice.Model.Modules[1] = nn.Linear{Name: "hidden", In: 16, Out: 16}
	wide.Model.Uses = [][]nn.Use{{{Unit: "a", Params: 2}}, {{Unit: "b", Params: 1}}, {{Unit: "c", Params: 2}}}
	for _, c := range []struct {
		o    job.Options
		args []string
		want string
	}{
		{twice, []string{"train", "job.yaml", "--out", "wrong"}, "two parameters are named hidden.weight"},
		{wide, []string{"train", "job.yaml", "--out", "wrong"}, "second.bias of module 1 belongs to no unit of Uses[1]"},
		{twice, []string{"plan", "job.yaml"}, "two parameters are named hidden.weight"},
		{regression(), []string{"train", "job.yaml"}, "--out is missing"},
		{regression(), []string{"train", "job.yaml", "--steps", "3"}, "flag provided but not defined: -steps"},
		{regression(), []string{"train", "job.yaml", "--out", "wrong", "x"}, "an argument too many: x"},
		{regression(), []string{"tarin", "job.yaml"}, `there is no command "tarin"`},
		{regression(), nil, "usage: PROGRAM train JOB.yaml"},
	} {
		if _, err := said(c.o, c.args...); !input.IsInput(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.args, err, c.want)
		}
		if _, err := os.Stat("wrong"); err == nil {
			t.Errorf("%v: it wrote a folder", c.args)
		}
	}
}
