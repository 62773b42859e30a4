package job_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/internal/input"
	"zeroth/job"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/tests/nightly"
)

const tiny = `
data: {text: [a.txt]}
model: {family: program}
train: {steps: 3, micro_batch: 1, batch: 2}
parallel: {ranks: 2}
precision: fp32
checkpoint: {every: 3}
`

// TestGivenNetwork checks that a program's network trains to the same losses at all stages (with
// one micro-batch a step), that its final parameters have no config.json, and that a job without it
// cannot continue from its checkpoint.
func TestGivenNetwork(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, tiny)
	jobtest.Write(t, "a.txt", strings.Repeat("to be, or not to be; ", 100))
	var want []float64
	for stage := range 4 {
		out := fmt.Sprint("run", stage)
		if err := job.Run(t.Context(), load("job.yaml", fmt.Sprint("zero.stage=", stage)), job.Options{Model: mixed(16, 8), Out: out}); err != nil {
			t.Fatal(err)
		}
		steps, _, err := report.ReadMetrics(filepath.Join(out, "metrics.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		var losses []float64
		for _, s := range steps {
			losses = append(losses, s.Loss)
		}
		if want == nil {
			want = losses
		}
		if len(losses) != 3 || !slices.Equal(losses, want) {
			t.Errorf("losses at stage %d are %v, at stage 0 %v", stage, losses, want)
		}
		if input.Exists(filepath.Join(out, "model", "config.json")) || !input.Exists(filepath.Join(out, "model", "model.safetensors")) {
			t.Error("the final parameters are not there, or with a config.json of another model")
		}
	}
	err := job.Run(t.Context(), load("job.yaml", "train.steps=4"), job.Options{Model: small(16, 8), Out: "run3", Resume: "latest"})
	if !input.IsInput(err) || !strings.Contains(err.Error(), "it contains mix.weight, which the job's model does not have") {
		t.Errorf("error %v", err)
	}
}

// TestGivenNetworkIsSearched checks that other settings are searched for a program's network, too,
// if memory is short.
func TestGivenNetworkIsSearched(t *testing.T) {
	jobtest.InFolder(t, tiny)
	err := job.Run(t.Context(), load("job.yaml", "parallel.memory=100kB"), job.Options{Model: mixed(16, 8), Out: "run"})
	if !input.IsInput(err) || !strings.Contains(err.Error(), "no other settings fit; the smallest needs ") || input.Exists("run") {
		t.Errorf("error %v", err)
	}
}
