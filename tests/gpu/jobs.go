package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// tiny shrinks a job if the GPU is emulated.
func (s *session) tiny(sets ...string) []string {
	if s.small {
		sets = append(sets, "model.layers=2", "model.heads=2", "model.width=32", "model.context=16", "model.vocab=256")
	}
	return sets
}

// steps returns n, or 3 if the steps are emulated.
func (s *session) steps(n int) string {
	if s.small {
		n = 3
	}
	return fmt.Sprintf("train.steps=%d", n)
}

// jobOf returns the file of a job and settings that make it short, with a batch of four times
// micro sequences.
func (s *session) jobOf(name string) (file string, micro int, sets []string) {
	if name == "gpt2" {
		return "gpt2.yaml", 1, s.tiny(s.steps(4))
	}
	return "quickstart.yaml", 4, s.tiny("data.validation=0", "train.eval_every=0", "sample.tokens=0", s.steps(10))
}

// firstJob trains the quickstart on one rank and generates text with it.
func (s *session) firstJob(ctx context.Context) error {
	file, _, sets := s.jobOf("quickstart")
	r, err := s.train(ctx, file, false, append(sets, "device=cuda", "parallel.ranks=1", "zero.stage=0", "sample.tokens=20")...)
	if err != nil {
		return err
	}
	first, last := r.steps[0].Loss, r.steps[len(r.steps)-1].Loss
	s.check("quickstart, one rank", fmt.Sprintf("loss %.4f after %d steps", last, len(r.steps)), fmt.Sprintf("%.4f at first", first), last < first || s.small, "the loss does not fall")
	return nil
}

// speedJob is a job for measuring speed: one rank, AdamW, bf16 with float32 master copies.
type speedJob struct {
	name, title string
	micro       int // sequences in a micro-batch, if they fit in the GPU's memory
}

var (
	gpt2  = speedJob{"gpt2", "GPT-2 124M", 64}
	llama = speedJob{"llama", "Llama 1.1B", 8}
)

func (j speedJob) file() string { return j.name + ".yaml" }

// fits returns the number of sequences in a micro-batch: as many as fit in the GPU's memory.
func (j speedJob) fits(s *session, ctx context.Context) (micro int) {
	if s.small {
		return 1
	}
	for micro = j.micro; micro > 1; micro /= 2 {
		if _, err := s.output(ctx, "zeroth", "plan", j.file(), "--set", "device=cuda", "--set", "parallel.ranks=1", "--set", fmt.Sprintf("train.micro_batch=%d", micro)); err == nil {
			break
		}
	}
	return micro
}

// sets returns the settings used to measure speed, offload and PyTorch.
func (j speedJob) sets(s *session, ctx context.Context) []string {
	sets := s.tiny("device=cuda", "parallel.ranks=1", "train.accumulate=1", fmt.Sprintf("train.micro_batch=%d", j.fits(s, ctx)), s.steps(16))
	if s.small && j == llama {
		sets = append(sets, "model.kv_heads=1", "model.ffn=64")
	}
	return sets
}

// speed measures tokens per second and compares the run's memory with the plan.
func (j speedJob) speed(s *session, ctx context.Context) error {
	sets := append(j.sets(s, ctx), "zero.stage=0")
	r, err := s.train(ctx, j.file(), false, sets...)
	if err != nil {
		return err
	}
	traced, err := s.traced(ctx, j.file(), sets...)
	if err != nil {
		return err
	}
	s.now.Speed = r.tokens() / r.seconds()
	s.row(j.title+", stage 0", s.rate(r), fmt.Sprintf("losses %.4f to %.4f", r.steps[0].Loss, r.steps[len(r.steps)-1].Loss), "")
	s.row("the same, traced", s.rate(traced), "", "")
	s.row("the host's wait", traced.norm, "", "")
	s.check("memory of the ranks", fmt.Sprintf("%d MiB", r.memory.held>>20), fmt.Sprintf("%d MiB planned", r.memory.planned>>20), r.memory.held == r.memory.planned, "not what was planned")
	if r.memory.counted == 0 {
		s.row("memory of the process", "NVML does not list it", "", "")
	} else {
		s.check("memory of the process", fmt.Sprintf("%d MiB by NVML", r.memory.counted>>20), fmt.Sprintf("%d MiB of context, kernels and libraries", (r.memory.counted-r.memory.held)>>20),
			r.memory.counted >= r.memory.held, "less than the ranks hold")
	}
	return nil
}

func (s *session) rate(r outcome) string {
	return fmt.Sprintf("%.0f tokens/s, %.4g s a step", r.tokens()/r.seconds(), r.seconds())
}

// ours returns the measurement of the job's rung as text and in tokens per second, or 0 if there
// is none.
func (j speedJob) ours(s *session) (said string, speed float64) {
	rung := "job/" + j.name
	if r := s.results[rung]; r != nil && r.Speed > 0 {
		return fmt.Sprintf("%s: %.0f tokens/s", rung, r.Speed), r.Speed
	}
	return rung + " has no result", 0
}

// simulated compares the measured speeds with simulations on the measured machine.
func (s *session) simulated(ctx context.Context) error {
	if !isFile(s.file("machine.json")) {
		return leftOut("the rung bench has written no machine.json")
	}
	for _, j := range []speedJob{gpt2, llama} {
		args := []string{"plan", j.file(), "--machine", s.file("machine.json"), "--set", "zero.stage=0"}
		for _, set := range j.sets(s, ctx) {
			args = append(args, "--set", set)
		}
		said, err := s.output(ctx, "zeroth", args...)
		if err != nil {
			return err
		}
		_, speed, _ := strings.Cut(said, "speed   ")
		ours, _ := j.ours(s)
		s.row(j.title+", stage 0, simulated", firstLine(speed), ours, "")
	}
	return nil
}

// stages returns a rung that trains a job at each stage on several ranks of the GPU. All stages
// use the same batch and must agree to the bit.
func stages(job string, ranks int) func(*session, context.Context) error {
	return func(s *session, ctx context.Context) error {
		file, micro, sets := s.jobOf(job)
		var first outcome
		for stage := range 4 {
			r, err := s.train(ctx, file, true, append(sets, "device=cuda", fmt.Sprintf("parallel.ranks=%d", ranks), fmt.Sprintf("zero.stage=%d", stage),
				fmt.Sprintf("train.micro_batch=%d", micro), fmt.Sprintf("train.accumulate=%d", 4/ranks))...)
			if err != nil {
				return fmt.Errorf("stage %d: %w", stage, err)
			}
			if stage == 0 {
				first = r
			}
			what := fmt.Sprintf("%d ranks, stage %d", ranks, stage)
			s.check(what+": state and losses", "sha256 "+r.digest[:12], "stage 0: "+first.digest[:12], r.digest == first.digest && r.curve() == first.curve(), "other bits than stage 0")
			s.check(what+": memory", fmt.Sprintf("%d MiB held", r.memory.held>>20), fmt.Sprintf("%d MiB planned for each", r.memory.planned>>20), r.memory.held == int64(ranks)*r.memory.planned, "not what was planned")
		}
		return nil
	}
}

// farthest is the maximum relative difference between losses on the GPU and on the CPU: bf16 has
// 8 bits, and sums have other orders.
const farthest = 0.02

// nearCPU returns a rung that trains a few steps of a job on the GPU and then on the CPU, with
// sequences short enough for the CPU to finish within seconds.
func nearCPU(job string) func(*session, context.Context) error {
	return func(s *session, ctx context.Context) error {
		file, _, sets := s.jobOf(job)
		sets = append(sets, "parallel.ranks=1", "train.micro_batch=2", "train.accumulate=1", "zero.stage=0", s.steps(5))
		if !s.small {
			sets = append(sets, "model.context=64")
		}
		gpu, err := s.train(ctx, file, false, append(slices.Clone(sets), "device=cuda")...)
		if err != nil {
			return err
		}
		cpu, err := s.train(ctx, file, false, append(slices.Clone(sets), "device=cpu")...)
		if err != nil {
			return fmt.Errorf("on the CPU: %w", err)
		}
		far := apart(gpu, cpu)
		s.check("losses", fmt.Sprintf("%.2g of the CPU's apart", far), fmt.Sprintf("at most %.2g", farthest), far <= farthest, "far from the CPU's")
		return nil
	}
}

// offload returns a rung that measures the cost of keeping part of the optimizer on the host.
func offload(ratio string) func(*session, context.Context) error {
	return func(s *session, ctx context.Context) error {
		sets := append(gpt2.sets(s, ctx), "zero.stage=3")
		if ratio != "none" {
			sets = append(sets, "zero.offload.optimizer=host", "zero.offload.ratio="+ratio)
		}
		r, err := s.train(ctx, gpt2.file(), false, sets...)
		if err != nil {
			return err
		}
		s.now.Speed = r.tokens() / r.seconds()
		s.row("stage 3, offloaded: "+ratio, s.rate(r), "losses and norms "+r.curve(), "")
		if none := s.results["offload/none"]; none != nil && len(none.Rows) == 1 && ratio != "none" {
			s.check("beside offload/none", fmt.Sprintf("%.2f of its speed", s.now.Speed/none.Speed), "", none.Rows[0].Beside == s.now.Rows[0].Beside, "other bits than without")
		}
		return nil
	}
}

// python returns the path of a Python with PyTorch, or "".
func (s *session) python(ctx context.Context) string {
	for _, pattern := range []string{"python3", "/opt/*/bin/python3", "/opt/*/.venv/bin/python3", "/opt/*/venv/bin/python3", "/opt/*/*/.venv/bin/python3", "/opt/*/envs/*/bin/python3", "/venv/bin/python3", "/workspace/.venv/bin/python3", filepath.Join(os.Getenv("HOME"), "*/bin/python3"), filepath.Join(os.Getenv("HOME"), "*/.venv/bin/python3"), "/usr/local/bin/python3"} {
		pythons := []string{pattern}
		if strings.Contains(pattern, "/") {
			pythons, _ = filepath.Glob(pattern) // the patterns are valid
		} else if _, err := exec.LookPath(pattern); err != nil {
			continue
		}
		for _, p := range pythons {
			if _, err := s.output(ctx, p, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"); err == nil {
				return p
			}
		}
	}
	return ""
}

// torch returns a rung that measures the same model in PyTorch, if installed.
func (j speedJob) torch(how string) func(*session, context.Context) error {
	return func(s *session, ctx context.Context) error {
		python := s.python(ctx)
		if python == "" {
			return leftOut("no Python here has PyTorch")
		}
		args := []string{"torch_model.py", "--model", j.name, "--how", how, "--batch", strconv.Itoa(j.fits(s, ctx))}
		if s.small {
			args = append(args, "--small")
		}
		said, err := s.output(ctx, python, args...)
		if err != nil {
			return err
		}
		var got struct {
			Seconds, Tokens, Loss, GiB float64
		}
		if err := json.Unmarshal([]byte(lastLine(said)), &got); err != nil {
			return errors.Join(errors.New("the last line is not JSON: "+lastLine(said)), err)
		}
		beside, ours := j.ours(s)
		verdict := ""
		if ours > 0 {
			verdict = fmt.Sprintf("zeroth is %.2f times as fast", ours/(got.Tokens/got.Seconds))
		}
		s.row(j.title+" in PyTorch, "+how, fmt.Sprintf("%.0f tokens/s, %.4g s a step, loss %.3f, %.1f GiB", got.Tokens/got.Seconds, got.Seconds, got.Loss, got.GiB), beside, verdict)
		return nil
	}
}
