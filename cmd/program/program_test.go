package program_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint/safetensors"
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

	predict(t, said)

	twice, wide := regression(), regression()
	wider := regression()
	wider.Model.Width = 32
	wider.Model.Modules = []nn.Module{nn.Linear{Name: "hidden", In: 2, Out: 32, First: true}, nn.SquaredError{Width: 32, Outputs: 1, Field: 1}}
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
		{regression(), []string{"eval", "job.yaml"}, "--run is missing"},
		{regression(), []string{"eval", "job.yaml", "--run", "run", "--step", "7"}, "--step 7: "},
		{regression(), []string{"eval", "job.yaml", "--run", "nowhere"}, "--run nowhere: "},
		{wider, []string{"eval", "job.yaml", "--run", "run"}, "run/model: it has hidden.weight with the shape [16 2]; want [32 2], as in the program's network"},
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

// predict compares predictions of the trained model with a slow loop over its parameters, their errors with eval, and
// predictions of a checkpoint with those of the final model.
func predict(t *testing.T, said func(job.Options, ...string) (string, error)) {
	t.Helper()
	predictions := func(step string) (y []float32) {
		err := job.Predict(t.Context(), "job.yaml", []string{"zero.stage=3"}, regression(), "run", step, func(sample int64, out []float32) error {
			if int64(len(y)) != sample || len(out) != 1 {
				t.Errorf("sample %d after %d others: %v", sample, len(y), out)
			}
			y = append(y, out...)
			return nil
		})
		if err != nil || len(y) != 256 {
			t.Fatalf("step %q: %v, %d predictions", step, err, len(y))
		}
		return y
	}
	final, r := predictions(""), parameters(t, "run/model")
	loss := 0.0
	for i, y := range final {
		x := [][]float32{make([]float32, 2), make([]float32, 1)}
		_ = plane{}.Read(int64(i), []data.Values{{F32: x[0]}, {F32: x[1]}})
		want := r.layer("output", r.layer("second", r.relu(r.layer("hidden", x[0]))))[0]
		if math.Abs(float64(y-want)) > 1e-5 { // sums of 16 products of about 1 in float32
			t.Fatalf("sample %d: %v, want %v", i, y, want)
		}
		loss += math.Pow(float64(y-x[1][0]), 2) / 256
	}
	if slices.Equal(predictions("100"), final) || !slices.Equal(predictions("latest"), final) {
		t.Error("the checkpoint of step 100 predicts like the last, or the last unlike the final model")
	}
	out, err := said(regression(), "eval", "job.yaml", "--run", "run")
	if want := fmt.Sprintf("loss %.6f\n", loss); err != nil || !strings.HasSuffix(out, want) {
		t.Errorf("eval: %v, %q; want %q", err, out, want)
	}
	failed := errors.New("full")
	if err := job.Predict(t.Context(), "job.yaml", nil, regression(), "run", "", func(int64, []float32) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("after an error of the program: %v", err)
	}
}

// reader reads parameters.
type reader struct{ *safetensors.Reader }

func parameters(t *testing.T, folder string) reader {
	t.Helper()
	r, err := safetensors.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return reader{r}
}

// layer returns the output of a linear layer.
func (r reader) layer(name string, x []float32) []float32 {
	t, _ := r.Tensor(name + ".bias")
	y, w := make([]float32, t.Numel()), make([]float32, t.Numel()*len(x))
	_ = r.ReadF32(name+".bias", 0, len(y), y)
	_ = r.ReadF32(name+".weight", 0, len(w), w)
	for i := range y {
		for j := range x {
			y[i] += w[i*len(x)+j] * x[j]
		}
	}
	return y
}

func (reader) relu(x []float32) []float32 {
	for i := range x {
		x[i] = max(x[i], 0)
	}
	return x
}
