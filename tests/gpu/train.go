package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zeroth/checkpoint"
	"zeroth/job/report"
)

// outcome contains the results of a training run.
type outcome struct {
	steps  []report.Step
	digest string // of all saved state; "" if nothing was saved
	memory memory
	norm   string // the host's wait, from the trace's summary
}

// memory contains the GPU memory of all ranks in bytes: planned, held by ranks, and counted by
// the driver for the process (0 if it reports none).
type memory struct{ planned, held, counted int64 }

// traced is like train, with a trace, whose summary contains the host's wait.
func (s *session) traced(ctx context.Context, job string, sets ...string) (outcome, error) {
	return s.run(ctx, job, []string{"--trace", filepath.Join(s.dir, "trace.json"), "--set", "checkpoint.save_on_exit=false"}, sets)
}

// train runs a job and deletes its files.
func (s *session) train(ctx context.Context, job string, save bool, sets ...string) (r outcome, err error) {
	return s.run(ctx, job, []string{"--set", fmt.Sprintf("checkpoint.save_on_exit=%v", save)}, sets)
}

func (s *session) run(ctx context.Context, job string, flags, sets []string) (r outcome, err error) {
	out, err := os.MkdirTemp(s.dir, "run-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(out)
	run := filepath.Join(out, "run")
	args := append([]string{"train", job, "--out", run}, flags...)
	for _, set := range sets {
		args = append(args, "--set", set)
	}
	said, err := s.output(ctx, "zeroth", args...)
	if err != nil {
		return r, err
	}
	if _, after, found := strings.Cut(said, " steps); "); found {
		r.norm, _, _ = strings.Cut(after, "\n")
	}
	metrics := filepath.Join(run, "metrics.jsonl")
	if r.steps, _, err = report.ReadMetrics(metrics); err != nil {
		return r, err
	}
	if r.memory, err = readMemory(metrics); err != nil {
		return r, err
	}
	if saved := filepath.Join(run, "ckpt"); isFolder(saved) {
		r.digest, err = digest(saved)
	}
	return r, err
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func digest(dir string) (string, error) {
	path, err := checkpoint.Resolve(dir, "latest")
	if err != nil {
		return "", err
	}
	c, err := checkpoint.Open(path)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.Digest()
}

// readMemory returns the last memory record of a run.
func readMemory(file string) (m memory, err error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(raw)) {
		var x struct {
			Memory *struct {
				Planned struct{ Device map[string]int64 }
				Process struct {
					GPU     int64 `json:"gpu"`
					GPUHeld int64 `json:"gpu_held_by_ranks"`
				}
			}
		}
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			return m, err
		}
		if x.Memory != nil {
			m = memory{held: x.Memory.Process.GPUHeld, counted: x.Memory.Process.GPU}
			for _, n := range x.Memory.Planned.Device {
				m.planned += n
			}
		}
	}
	return m, nil
}

// curve returns the losses and norms of the steps with all digits.
func (r outcome) curve() string {
	var b strings.Builder
	for _, x := range r.steps {
		fmt.Fprintf(&b, "%d %x %x\n", x.Step, x.Loss, x.GradNorm)
	}
	return b.String()
}

// apart returns the maximum relative difference between the losses of two runs.
func apart(a, b outcome) float64 {
	if len(a.steps) != len(b.steps) {
		return math.Inf(1)
	}
	far := 0.0
	for i := range a.steps {
		far = max(far, math.Abs(a.steps[i].Loss-b.steps[i].Loss)/b.steps[i].Loss)
	}
	return far
}

// seconds returns the median step time of the second half of the steps.
func (r outcome) seconds() float64 {
	var all []float64
	for _, x := range r.steps[len(r.steps)/2:] {
		all = append(all, x.StepSeconds)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// tokens returns the number of tokens per step.
func (r outcome) tokens() float64 { return float64(r.steps[0].Tokens) }
