package job

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/job/state"
	"zeroth/tests/nightly"
)

// TestEarlyStop checks that a run ends as done after the given number of evaluations without
// improvement, and after the same step if it is interrupted anywhere.
func TestEarlyStop(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	// A learning rate that high is worse from some step on.
	sets := []string{"train.steps=60", "train.eval_every=2", "optimizer.lr=0.3", "schedule={type: constant, warmup: 6}", "train.early_stop={metric: val_loss, patience: 3}", "checkpoint.every=2", "checkpoint.keep={best: val_loss}"}
	run := func(out string, sets ...string) *heard {
		t.Helper()
		h := &heard{}
		if err := Run(t.Context(), spectest.MustLoad(t, sets...), Options{Out: out, Resume: "latest", Observer: h}); err != nil {
			t.Fatal(err)
		}
		return h
	}
	whole := run("whole", sets...)
	best, last := slices.MinFunc(whole.evals, func(a, b report.Eval) int {
		if a.ValLoss < b.ValLoss {
			return -1
		}
		return 1
	}), whole.evals[len(whole.evals)-1]
	told := fmt.Sprintf("stopped early: the last 3 evaluations did not improve; the best is step %d, with a validation loss of %.4f", best.Step, best.ValLoss)
	if sum := whole.sums[0]; sum.Steps != last.Step || sum.Stopped || last.Step >= 60 || last.Step != best.Step+6 || !slices.Contains(whole.notes, told) {
		t.Fatalf("%+v, best %+v, last %+v\n%s", sum, best, last, strings.Join(whole.notes, "\n"))
	}

	h := run("parts", append(sets, fmt.Sprintf("train.steps=%d", best.Step+3))...)
	if len(h.sums) != 1 || slices.ContainsFunc(h.notes, func(n string) bool { return strings.HasPrefix(n, "ended early") }) {
		t.Fatalf("the first part: %v", h.notes)
	}
	// The end of that part was a step with an evaluation of its own: of an odd step.
	h = run("parts", sets...)
	if want := last.Step - 2; h.sums[0].Steps != want || !slices.Contains(h.notes, told) {
		t.Errorf("the second part ends at step %d, want %d\n%s", h.sums[0].Steps, want, strings.Join(h.notes, "\n"))
	}

	if _, err := checkpoint.Resolve("whole/ckpt", fmt.Sprint(best.Step)); err != nil {
		t.Errorf("the best checkpoint: %v", err)
	}
	h = run("whole", sets...)
	if len(h.steps) > 0 || len(h.notes) == 0 || !strings.Contains(h.notes[len(h.notes)-1], "nothing to do: "+told) {
		t.Errorf("a run that has ended early does %d steps more: %v", len(h.steps), h.notes)
	}
	h = run("whole", append(sets, "train.early_stop.patience=4")...)
	if len(h.steps) < 2 {
		t.Errorf("with more patience it does %d steps more, want 2 at least", len(h.steps))
	}
}

// TestEarlyStopOfPipelines checks that a pipeline ends after the same evaluations as the same job
// without one.
func TestEarlyStopOfPipelines(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	var whole *heard
	for name, way := range map[string][]string{"1F1B": {"parallel.pipeline=2", "parallel.ranks=4"}, "ZBH1": {"parallel.pipeline=2", "parallel.ranks=4", "pipeline.schedule=ZBH1"}} {
		sets := []string{"model.family=llama", "model.layers=2", "parallel.shard=2", "train.steps=60", "train.accumulate=2", "train.eval_every=2", "optimizer.lr=0.3", "schedule={type: constant, warmup: 6}",
			"train.early_stop={metric: val_loss, patience: 2}", "checkpoint.every=2"}
		run := func(out string, sets ...string) *heard {
			h := &heard{}
			if err := Run(t.Context(), spectest.MustLoad(t, sets...), Options{Out: out, Observer: h}); err != nil {
				t.Fatal(err)
			}
			return h
		}
		if whole == nil {
			whole = run("whole", append(sets, "parallel.ranks=2")...)
		}
		h := run(name, append(sets, way...)...)
		if len(whole.evals) < 3 || whole.sums[0].Steps >= 60 || h.sums[0].Steps != whole.sums[0].Steps || len(h.evals) != len(whole.evals) {
			t.Fatalf("%s: %+v after evaluations %v, want %+v after %v", name, h.sums[0], h.evals, whole.sums[0], whole.evals)
		}
		for i, e := range whole.evals {
			if h.evals[i].ValLoss != e.ValLoss {
				t.Errorf("%s: validation loss %v after step %d, want %v", name, h.evals[i].ValLoss, e.Step, e.ValLoss)
			}
		}
	}
}

// TestStaleEvaluations checks that a loss that is not a number is no improvement.
func TestStaleEvaluations(t *testing.T) {
	var e state.Early
	for i, loss := range []float64{math.NaN(), 3, 3, 2, math.Inf(1), math.NaN(), 2.5} {
		e.Add(i+1, loss, 0)
	}
	if want := (state.Early{Best: 2, Step: 4, Stale: 3}); e != want {
		t.Errorf("%+v, want %+v", e, want)
	}
	slow := state.Early{} // improves by half as much as it must, but its last value is the best
	for i, loss := range []float64{4, 3, 2.75, 2.5, 2.25} {
		slow.Add(i+1, loss, 0.5)
	}
	if want := (state.Early{Best: 2.25, Step: 5, Stale: 3}); slow != want {
		t.Errorf("with min_delta %+v, want %+v", slow, want)
	}
	higher := state.Early{Metric: "recall", Max: true}
	for i, x := range []float64{0.2, 0.1, 0.4, 0.4, math.Inf(1)} {
		higher.Add(i+1, x, 0)
	}
	if want := (state.Early{Metric: "recall", Max: true, Best: 0.4, Step: 3, Stale: 2}); higher != want {
		t.Errorf("%+v, want %+v", higher, want)
	}
}

func TestEarlyStopProblems(t *testing.T) {
	jobtest.InTinyFolder(t)
	for set, want := range map[string]string{
		"train.early_stop={metric: loss, patience: 3}":     "train.early_stop.metric: loss is not a metric of the job's evaluations; want val_loss",
		"train.early_stop={metric: Top-1, patience: 3}":    "train.early_stop.metric: Top-1 is not the name of a metric; want val_loss, or a metric of the program's network",
		"train.early_stop={mode: max, patience: 3}":        "train.early_stop.mode: a higher validation loss is not better; want mode: min",
		"train.early_stop={mode: max}":                     "train.early_stop.mode: not used: train.early_stop.patience is 0",
		"train.early_stop={metric: val_loss}":              "train.early_stop.metric: not used: train.early_stop.patience is 0",
		"train={early_stop: {patience: 3}, eval_every: 0}": "train.early_stop.patience: early stopping needs evaluations, but the job has none",
	} {
		if _, err := spec.Load("job.yaml", []string{set}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", set, err, want)
		}
	}
}
