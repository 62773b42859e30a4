package job

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/job/spec/spectest"
	"zeroth/job/state"
	"zeroth/tests/nightly"
)

// diverging are settings of a job whose validation loss is lowest some steps before its early stop.
var diverging = []string{"train.steps=60", "train.eval_every=2", "optimizer.lr=0.3", "schedule={type: constant, warmup: 6}", "train.early_stop.patience=3"}

// runs runs a job and returns what it reported.
func runs(t *testing.T, out, resume string, sets ...string) *heard {
	t.Helper()
	h := &heard{}
	if err := Run(t.Context(), spectest.MustLoad(t, sets...), Options{Out: out, Resume: resume, Observer: h}); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	return h
}

// bestOf returns the first evaluation with the lowest loss.
func bestOf(h *heard) report.Eval {
	return slices.MinFunc(h.evals, func(a, b report.Eval) int {
		if a.ValLoss < b.ValLoss {
			return -1
		}
		return 1
	})
}

// sameFile fails the test unless two run folders have a file with the same bytes.
func sameFile(t *testing.T, a, b, name string) {
	t.Helper()
	x, err := os.ReadFile(filepath.Join(a, name))
	y, wrong := os.ReadFile(filepath.Join(b, name))
	if err != nil || wrong != nil || !bytes.Equal(x, y) {
		t.Errorf("%s of %s and %s differ: %v %v", name, a, b, err, wrong)
	}
}

// TestFinalModelIsTheBest checks that a run with early stopping ends with the model of a run that ended at its
// best step, on every mesh and stage, though the job asks for no checkpoints.
func TestFinalModelIsTheBest(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	llama := []string{"model.family=llama", "model.layers=2", "train.accumulate=2"}
	for name, way := range map[string][]string{
		"stage0":   {"zero.stage=0"},
		"replicas": {"parallel={ranks: 4, shard: 2, replicate: 2}", "zero.stage=3", "precision=fp16"},
		"delayed":  {"train.delayed_update=true"},
		"offload":  {"zero.offload.optimizer=disk", "zero.offload.path=.", "zero.offload.parameters=host"},
		"master":   {"parallel.master=true"},
		"sync":     {"checkpoint.async=false", "checkpoint.keep=1", "checkpoint.every=1"},
		"pipeline": append(llama, "parallel={pipeline: 2, ranks: 4}"),
		"tensor":   append(llama, "parallel={tensor: 2, ranks: 4}"),
		"context":  append(llama, "parallel={context: 2, ranks: 4}"),
		"lora":     {"train.lora={rank: 2, targets: [c_attn]}", "optimizer.lr=3"},
	} {
		if !nightly.All() && !slices.Contains([]string{"replicas", "offload", "pipeline", "tensor", "lora"}, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			sets := append(slices.Clone(diverging), way...)
			h := runs(t, name, "", sets...)
			best := bestOf(h)
			if end := h.sums[0]; end.Steps != min(60, best.Step+6) || !strings.Contains(end.Model, fmt.Sprintf("model/ has step %d, the best", best.Step)) {
				t.Fatalf("best %+v, end %+v", best, end)
			}
			runs(t, name+"-last", "", append(sets, fmt.Sprint("train.steps=", best.Step), "train.final_model=last")...)
			sameFile(t, name, name+"-last", "model/model.safetensors")
			if name == "lora" {
				sameFile(t, name, name+"-last", "adapter/adapter_model.safetensors")
			}
			if path, err := state.Resolve(name+"/ckpt", "best"); err != nil || !strings.HasSuffix(path, fmt.Sprintf("step-%08d", best.Step)) {
				t.Errorf("the best checkpoint: %s, %v; want step %d", path, err, best.Step)
			}
		})
	}
}

// TestBestAfterLosses checks that a run that lost its last files ends with the same model: the final model, the
// last checkpoint, or all after the best. Without the best itself it says so and keeps the last.
func TestBestAfterLosses(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	sets := append(slices.Clone(diverging), "checkpoint={every: 1, keep: 100}")
	h := runs(t, "whole", "", sets...)
	best, last := bestOf(h), h.sums[0].Steps
	lose := func(out string, steps ...int) {
		if err := os.CopyFS(out, os.DirFS("whole")); err != nil {
			t.Fatal(err)
		}
		for _, step := range steps {
			if err := os.RemoveAll(fmt.Sprintf("%s/ckpt/step-%08d", out, step)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.RemoveAll(out + "/model"); err != nil {
			t.Fatal(err)
		}
	}
	var after []int
	for step := best.Step + 1; step <= last; step++ {
		after = append(after, step)
	}
	for name, steps := range map[string][]int{"model": nil, "last": {last}, "after": after, "from": append([]int{best.Step}, after...)} {
		lose(name, steps...)
		runs(t, name, "latest", sets...)
		sameFile(t, "whole", name, "model/model.safetensors")
	}
	lose("other", last)
	runs(t, "elsewhere", "other/ckpt/"+fmt.Sprintf("step-%08d", last-1), append(sets, "checkpoint.every=100")...)
	sameFile(t, "whole", "elsewhere", "model/model.safetensors")

	lose("lost", best.Step)
	h = runs(t, "lost", "latest", sets...)
	want := fmt.Sprintf("the checkpoint of step %d, the best, is missing or damaged: the final model is that of step %d, the last", best.Step, last)
	if !slices.Contains(h.notes, want) || !strings.Contains(h.sums[0].Model, fmt.Sprintf("model/ has step %d, the last", last)) {
		t.Errorf("%v, %+v; want %s", h.notes, h.sums[0], want)
	}
	h = runs(t, "model", "best", append(sets, fmt.Sprint("train.steps=", best.Step+1))...)
	if len(h.steps) != 1 || h.steps[0].Step != best.Step+1 {
		t.Errorf("from the best, step %d, it does the steps %v", best.Step, h.steps)
	}
}

// TestBestIsKept checks that retention keeps the best checkpoint of this history, though an abandoned one has a lower loss.
func TestBestIsKept(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	sets := append(slices.Clone(diverging), "checkpoint={every: 1, keep: 1}")
	best := bestOf(runs(t, "run", "", sets...))
	list, err := checkpoint.List("run/ckpt")
	if err != nil || len(list) != 2 || list[0].Step != int64(best.Step) {
		t.Fatalf("best %d: %+v, %v", best.Step, list, err)
	}
	rules, _, err := state.KeepRules("run", "run/ckpt")
	if err != nil || !slices.Contains(rules, checkpoint.Keep{Step: int64(best.Step)}) {
		t.Errorf("rules %+v, %v", rules, err)
	}
}

// TestResolveBest checks that without an early stop the lowest validation loss counts, and that a checkpoint between
// evaluations does not stand for the one before it.
func TestResolveBest(t *testing.T) {
	jobtest.InTinyFolder(t)
	runs(t, "run", "", "train.steps=6", "train.eval_every=2", "checkpoint={every: 1, keep: 10}")
	if path, err := state.Resolve("run/ckpt", "best"); err != nil || path != "run/ckpt/step-00000006" {
		t.Errorf("%s, %v", path, err)
	}
	runs(t, "none", "", "train.steps=2", "train.eval_every=0", "checkpoint.every=1")
	if _, err := state.Resolve("none/ckpt", "best"); err == nil || !strings.Contains(err.Error(), "no checkpoint with a validation loss") {
		t.Error(err)
	}
}

// TestCheckpointsByTime checks that all ranks save when the time of checkpoint.every has passed.
func TestCheckpointsByTime(t *testing.T) {
	jobtest.InTinyFolder(t)
	for every, want := range map[string]int{"1ns": 5, "1h": 1} {
		runs(t, every, "", "train.steps=5", "checkpoint={every: "+every+", keep: 10}", "zero.stage=2")
		list, err := checkpoint.List(every + "/ckpt")
		if err != nil || len(list) != want {
			t.Errorf("every %s: %d checkpoints, %v; want %d", every, len(list), err, want)
		}
	}
	c := spectest.MustLoad(t, "checkpoint.every=90m")
	if got := c.Text("checkpoint.every"); got != "1h30m0s" || c.Checkpoint.Every != 0 {
		t.Errorf("90m is %s", got)
	}
}
