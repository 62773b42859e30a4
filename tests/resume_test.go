package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// saving returns a job over a small file that saves every 3 of 6 steps.
func saving(t *testing.T, dir string, sets ...string) *spec.Job {
	t.Helper()
	return cfg(t, append([]string{"train.steps=6", "checkpoint.every=3", "checkpoint.dir=" + dir, "data.validation=0.2",
		"train.eval_every=2", "train.eval_batches=1", "train.batch=12", "train.micro_batch=null", "train.accumulate=1"}, sets...)...)
}

// run trains into a new run folder, from checkpoint which unless that is empty, and returns the
// folder.
func run(t *testing.T, c *spec.Job, which string) string {
	t.Helper()
	out := t.TempDir()
	if err := job.Run(context.Background(), c, job.Options{Out: out, Resume: which}); err != nil {
		t.Fatal(err)
	}
	return out
}

// digest returns the digest of all tensors in the checkpoint of a step, independent of how they
// are split into files.
func digest(t *testing.T, dir, step string) string {
	t.Helper()
	path, err := checkpoint.Resolve(dir, step)
	if err != nil {
		t.Fatal(err)
	}
	c, err := checkpoint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := c.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// losses returns the steps and evaluations of a run without their times.
func losses(t *testing.T, out string, after int) (lines []string) {
	t.Helper()
	steps, evals, err := report.ReadMetrics(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if s.Step > after {
			lines = append(lines, fmt.Sprint(s.Step, s.Loss, s.LR, s.GradNorm, s.Tokens, s.Metrics))
		}
	}
	for _, e := range evals {
		if e.Step > after {
			lines = append(lines, fmt.Sprint(e.Step, e.ValLoss))
		}
	}
	return lines
}

// TestResumeAgreesToTheBit checks that a run resumed on the same topology has the same losses and
// final state, to the bit, as if it had never stopped, even if its activations are in host memory.
func TestResumeAgreesToTheBit(t *testing.T) {
	nightly.Parallel(t)
	for _, sets := range [][]string{
		{"parallel.ranks=4", "zero.stage=3", "precision=bf16"},
		{"parallel.ranks=2", "zero.stage=1", "precision=fp32", "train.accumulate=2"},
		{"parallel.ranks=3", "zero.stage=2", "precision=fp16"},
		{"parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2", "precision=bf16", "checkpoint.async=false", "checkpoint.compress=always"},
		{"parallel.ranks=1", "zero.stage=0", "optimizer.type=lion"},
		{"parallel.ranks=2", "zero.stage=3", "model.dropout=0.3", "model.attention_dropout=0.2", "train.accumulate=2", "zero.recompute=block"},
		{"parallel.ranks=2", "zero.stage=3", "optimizer.type=sgd", "zero.recompute=linear"},
		{"parallel.ranks=3", "zero.stage=3", "optimizer.type=adamw8bit", "device=cpu"},
		{"parallel.ranks=2", "zero.stage=2", "optimizer.type=adamw8bit", "device=cpu", "checkpoint.async=false", "zero.offload.optimizer=disk", "zero.offload.path=" + t.TempDir()},
		{"parallel.ranks=4", "parallel.replicate=2", "zero.stage=3", "optimizer.type=muon"},
		{"parallel.ranks=3", "zero.stage=3", "optimizer.type=muon", "zero.offload.optimizer=disk", "zero.offload.ratio=0.6", "zero.offload.path=" + t.TempDir()},
		{"parallel.ranks=2", "zero.stage=3", "zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path=" + t.TempDir()},
		{"parallel.ranks=3", "zero.stage=2", "zero.offload.optimizer=host", "zero.offload.ratio=0.5", "checkpoint.async=false"},
	} {
		t.Run(fmt.Sprint(sets), func(t *testing.T) {
			t.Parallel()
			first, second := t.TempDir(), t.TempDir()
			whole := run(t, saving(t, first, sets...), "")
			again := run(t, hosted(saving(t, second, sets...)), filepath.Join(first, "step-00000003"))
			if got, want := losses(t, again, 0), losses(t, whole, 3); !slices.Equal(got, want) {
				t.Errorf("resumed run\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if digest(t, second, "6") != digest(t, first, "6") {
				t.Error("the state at the end differs")
			}
		})
	}
}

// TestResumeOnAnotherTopology checks that state saved by any number of ranks at any stage is
// loaded bit-identically by any other, with any compute precision and offload: saved again
// without a step in between, its digest is equal. The data continues from its position in the
// same order.
func TestResumeOnAnotherTopology(t *testing.T) {
	nightly.Parallel(t)
	topologies := [][]string{
		{"parallel.ranks=4", "zero.stage=3"},
		{"parallel.ranks=3", "zero.stage=1"},
		{"parallel.ranks=1", "zero.stage=0"},
		{"parallel.ranks=2", "zero.stage=2", "train.accumulate=3"},
		{"parallel.ranks=6", "parallel.shard=3", "parallel.replicate=2", "zero.stage=3"},
		{"parallel.ranks=6", "zero.stage=0", "precision=fp32"},
		{"parallel.ranks=5", "zero.stage=0", "train.accumulate=null"},
		{"parallel.ranks=4", "zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host"},
		{"parallel.ranks=2", "zero.stage=1", "zero.offload.optimizer=disk", "zero.offload.path=" + t.TempDir()},
		{"parallel.ranks=4", "parallel.pipeline=2", "zero.stage=3", "train.accumulate=2"},
		{"parallel.ranks=6", "parallel.pipeline=3", "zero.stage=1", "train.accumulate=3", "pipeline.schedule=ZBH1"},
	}
	resumeOn(t, topologies)
}

// TestResumeOfStateOnAnotherTopology checks the same for 8-bit state, which checkpoints store
// decoded, and for Muon, which has different state for matrices and other parameters.
func TestResumeOfStateOnAnotherTopology(t *testing.T) {
	nightly.Parallel(t)
	for _, rule := range []string{"optimizer.type=adamw8bit", "optimizer.type=muon"} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			topologies := [][]string{
				{"parallel.ranks=4", "zero.stage=3"},
				{"parallel.ranks=1", "zero.stage=0"},
				{"parallel.ranks=6", "parallel.shard=3", "parallel.replicate=2", "zero.stage=2"},
				{"parallel.ranks=3", "zero.stage=1"},
				{"parallel.ranks=4", "parallel.replicate=2", "zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host"},
				{"parallel.ranks=2", "zero.stage=1", "zero.offload.optimizer=disk", "zero.offload.path=" + t.TempDir()},
			}
			resumeOn(t, topologies[:nightly.Of(3, len(topologies))], rule, "device=cpu")
		})
	}
}

// resumeOn resumes each run of some topologies on the next one, in a nightly run on each.
func resumeOn(t *testing.T, topologies [][]string, sets ...string) {
	t.Helper()
	for i, from := range topologies {
		if !nightly.Every(2, i) {
			continue // each topology is written or read by default
		}
		first, from := t.TempDir(), slices.Concat(from, sets)
		whole := losses(t, run(t, saving(t, first, append(from, "precision=bf16")...), ""), 3)
		for j, to := range topologies {
			if !nightly.All() && j != (i+1)%len(topologies) {
				continue
			}
			to := slices.Concat(to, sets)
			second := t.TempDir()
			// A run that is at step 3 of 3 only saves.
			c := saving(t, second, append(slices.Clone(to), "train.steps=3")...)
			run(t, c, filepath.Join(first, "step-00000003"))
			if digest(t, second, "3") != digest(t, first, "3") {
				t.Errorf("state of %v loaded by %v differs", from, to)
			}
			third := t.TempDir()
			again := losses(t, run(t, saving(t, third, to...), filepath.Join(first, "step-00000003")), 0)
			for k := range whole {
				if len(strings.Fields(whole[k])) == 2 {
					continue // evaluations use samples that depend on the micro-batches
				}
				var a, b struct{ step, loss, lr, norm, tokens float64 }
				fmt.Sscan(whole[k], &a.step, &a.loss, &a.lr, &a.norm, &a.tokens)
				fmt.Sscan(again[k], &b.step, &b.loss, &b.lr, &b.norm, &b.tokens)
				// Other data would change the loss by tenths. Another order of sums, or bf16
				// instead of fp32, changes it by less than a hundredth.
				if d := a.loss - b.loss; a.step != b.step || a.lr != b.lr || a.tokens != b.tokens || d > 0.01 || d < -0.01 {
					t.Errorf("%v resumed as %v: %q, the run that went on %q", from, to, again[k], whole[k])
				}
			}
		}
	}
}

// TestAsyncIsSync checks that an asynchronous save writes the state at its step, without later
// changes.
func TestAsyncIsSync(t *testing.T) {
	t.Parallel()
	var want string
	for _, async := range []string{"false", "true"} {
		dir := t.TempDir()
		run(t, saving(t, dir, "parallel.ranks=4", "checkpoint.every=1", "checkpoint.keep=10", "checkpoint.async="+async), "")
		var all []string
		for step := 1; step <= 6; step++ {
			all = append(all, digest(t, dir, fmt.Sprint(step)))
		}
		if got := strings.Join(all, " "); want == "" {
			want = got
		} else if got != want {
			t.Errorf("digests of the six checkpoints:\n%s, without async\n%s", got, want)
		}
	}
}

// TestResumeInTheSameFolder checks that resuming in the same run folder gives the metrics of an
// uninterrupted run, even if the run had progressed beyond its checkpoint.
func TestResumeInTheSameFolder(t *testing.T) {
	out := t.TempDir()
	sets := []string{"parallel.ranks=2", "checkpoint.save_on_exit=false"}
	c := saving(t, filepath.Join(out, "ckpt"), append(sets, "train.steps=5", "schedule.type=constant")...)
	if err := job.Run(context.Background(), c, job.Options{Out: out, Resume: "latest"}); err != nil { // no checkpoint yet: begins at step 0
		t.Fatal(err)
	}
	c = saving(t, filepath.Join(out, "ckpt"), append(sets, "schedule.type=constant")...)
	if err := job.Run(context.Background(), c, job.Options{Out: out, Resume: "latest"}); err != nil {
		t.Fatal(err)
	}
	whole := run(t, saving(t, t.TempDir(), append(sets, "schedule.type=constant")...), "")
	got, want := losses(t, out, 0), losses(t, whole, 0)
	if !slices.Equal(got, want) {
		t.Errorf("metrics\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestResumeOfAStoppedRun checks the same for a run that was stopped at a step with other work
// due: evaluations are at steps 2, 4 and 6.
func TestResumeOfAStoppedRun(t *testing.T) {
	nightly.Parallel(t)
	whole := run(t, saving(t, t.TempDir(), "parallel.ranks=2"), "")
	for stop := 1; stop < 6; stop++ {
		out := t.TempDir()
		ctx, cancel := context.WithCancel(context.Background())
		w := &stepObserver{step: func(s int) {
			if s == stop {
				cancel()
			}
		}}
		var stopped *job.Stopped
		c := saving(t, filepath.Join(out, "ckpt"), "parallel.ranks=2")
		if err := job.Run(ctx, c, job.Options{Out: out, Resume: "latest", Observer: w}); stop < 5 && (!errors.As(err, &stopped) || stopped.Step != stop+1) {
			t.Fatalf("stopped at step %d: %v", stop, err)
		}
		cancel()
		if err := job.Run(context.Background(), c, job.Options{Out: out, Resume: "latest"}); err != nil {
			t.Fatal(err)
		}
		if got, want := losses(t, out, 0), losses(t, whole, 0); !slices.Equal(got, want) {
			t.Errorf("stopped at step %d, metrics\n%s\nwant\n%s", stop, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestResumeRefusals checks that an incompatible checkpoint is rejected with all reasons before
// anything is written.
func TestResumeRefusals(t *testing.T) {
	nightly.Parallel(t)
	dir := t.TempDir()
	run(t, saving(t, dir), "")
	for _, c := range []struct{ set, want string }{
		{"model.layers=2", "model.layers is 3 in it, 2 in the job (--set model.layers=2)"},
		{"model.layers=4", "model.layers is 3 in it, 4 in the job (--set model.layers=4)"},
		{"model.width=16", "model.width is 12 in it, 16 in the job (--set model.width=16)"},
		{"optimizer.type=sgd", "has no momentum_buffer, which optimizer sgd needs"},
		{"train.seed=2", "it was trained with train.seed 1, but the job has 2"},
		{"model.context=6", "model.context is 7 in it, 6 in the job (--set model.context=6)"},
	} {
		err := job.Run(context.Background(), saving(t, dir, c.set), job.Options{Out: t.TempDir(), Resume: "latest"})
		if err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.set, err, c.want)
		}
	}
	for which, want := range map[string]string{"7": "step 7: no checkpoint (have ", "nowhere": "no such folder; want latest"} {
		err := job.Run(context.Background(), saving(t, dir), job.Options{Out: t.TempDir(), Resume: which})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--resume %s: %v, want %q", which, err, want)
		}
	}
}

// TestSaveThatFails checks that a failed save ends the run or, if the job allows it, is reported
// while training continues. A run without a checkpoint that is then asked to stop does not claim
// to be resumable.
func TestSaveThatFails(t *testing.T) {
	nightly.Parallel(t)
	full := vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
		if o.Do == "create" {
			return syscall.ENOSPC
		}
		return nil
	}}
	for _, async := range []string{"true", "false"} {
		c := saving(t, t.TempDir(), "checkpoint.async="+async)
		err := job.Run(context.Background(), c, job.Options{Out: t.TempDir(), Hooks: setup.Hooks{Files: full}})
		if err == nil || !strings.Contains(err.Error(), "checkpoint of step 3: save: rank 0: ") {
			t.Errorf("async %s: error %v", async, err)
		}
		c = saving(t, t.TempDir(), "checkpoint.async="+async, "checkpoint.on_error=continue")
		out := t.TempDir()
		if err := job.Run(context.Background(), c, job.Options{Out: out, Hooks: setup.Hooks{Files: full}}); err != nil {
			t.Errorf("async %s, on_error continue: %v", async, err)
		}
		if n := len(losses(t, out, 5)); n == 0 {
			t.Errorf("async %s, on_error continue: training did not go on", async)
		}
		ctx, stop := context.WithCancel(context.Background())
		w := &stepObserver{step: func(s int) {
			if s == 4 {
				stop()
			}
		}}
		err = job.Run(ctx, c, job.Options{Out: t.TempDir(), Observer: w, Hooks: setup.Hooks{Files: full}})
		var stopped *job.Stopped
		if !errors.As(err, &stopped) || stopped.Checkpoint != "" || stopped.Step < 4 {
			t.Errorf("async %s, stopped: %v", async, err)
		}
	}
}

// TestSaveIsTriedAgain checks that a failed save is retried at the end of the run.
func TestSaveIsTriedAgain(t *testing.T) {
	for _, async := range []string{"true", "false"} {
		var failed atomic.Bool
		once := vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
			if o.Do == "create" && failed.CompareAndSwap(false, true) {
				return syscall.ENOSPC
			}
			return nil
		}}
		dir := t.TempDir()
		c := saving(t, dir, "checkpoint.every=6", "checkpoint.async="+async, "checkpoint.on_error=continue")
		if err := job.Run(context.Background(), c, job.Options{Out: t.TempDir(), Hooks: setup.Hooks{Files: once}}); err != nil {
			t.Errorf("async %s: %v", async, err)
		}
		if _, err := checkpoint.Resolve(dir, "6"); err != nil || !failed.Load() {
			t.Errorf("async %s: %v, failed %v", async, err, failed.Load())
		}
	}
}

// TestKilledAtAnyInstant kills a run repeatedly, each time some milliseconds after it has saved
// another checkpoint, and resumes it from the newest: it must end like a run that was never
// killed. State is offloaded to disk, and the files that killed processes leave there must be
// reclaimed. Then it checks the same with everything but adapters frozen.
func TestKilledAtAnyInstant(t *testing.T) {
	nightly.Parallel(t)
	for _, tunes := range []string{"train.freeze=[]", "train.lora.rank=2"} {
		t.Run(tunes, func(t *testing.T) { killedAtAnyInstant(t, tunes) })
	}
}

func killedAtAnyInstant(t *testing.T, tunes string) {
	t.Helper()
	kills := nightly.Of(2, 50)
	train := func(dir string, steps int, more ...string) *exec.Cmd {
		file := filepath.Join(dir, "job.yaml")
		if err := os.WriteFile(file, []byte("data: {text: [stages_test.go]}\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		sets := []string{"train.steps=" + fmt.Sprint(steps), "checkpoint.every=1", "checkpoint.keep=2", "parallel.ranks=3", "schedule.type=constant", "device=cpu", tunes}
		return trainElsewhere(t, file, slices.Concat(zerotest.Small, sets, more)...)
	}
	saves := func(dir string) string { return filepath.Join(dir, "run", "ckpt") }
	killed, whole, disk := t.TempDir(), t.TempDir(), t.TempDir()
	offload := "zero.offload={optimizer: disk, parameters: disk, path: " + disk + "}"
	rng := rand.New(rand.NewPCG(1, 2))
	const ever = 1 << 20 // steps; more than any run reaches
	for range kills {
		killAfterSave(t, train(killed, ever, offload), saves(killed), time.Duration(rng.IntN(50))*time.Millisecond)
	}
	steps := int(lastSave(t, saves(killed))) + 2
	for _, cmd := range []*exec.Cmd{train(killed, steps, offload), train(whole, steps)} {
		if msg, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, msg)
		}
	}
	if left, err := os.ReadDir(disk); err != nil || len(left) > 0 {
		t.Errorf("%v is left of what was offloaded (%v)", left, err)
	}
	if digest(t, saves(killed), "latest") != digest(t, saves(whole), "latest") {
		t.Errorf("after %d kills and %d steps the state differs from that of a run never killed", kills, steps)
	}
	got, want := losses(t, filepath.Join(killed, "run"), 0), losses(t, filepath.Join(whole, "run"), 0)
	if !slices.Equal(got, want) {
		t.Errorf("after %d kills the metrics are %d lines, want %d", kills, len(got), len(want))
	}
}

// killAfterSave starts a run and kills it some time after it has completed another checkpoint.
func killAfterSave(t *testing.T, cmd *exec.Cmd, saves string, later time.Duration) {
	t.Helper()
	before := lastSave(t, saves)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for lastSave(t, saves) == before {
		select {
		case err := <-done:
			t.Fatalf("a resume failed: %v\n%s", err, said.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
	time.Sleep(later)
	_ = cmd.Process.Kill()
	<-done
}

// lastSave returns the step of the newest complete checkpoint, 0 if there is none.
func lastSave(t *testing.T, saves string) (last int64) {
	t.Helper()
	list, err := checkpoint.List(saves)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Status == checkpoint.Complete {
			last = max(last, e.Step)
		}
	}
	return last
}

// TestAsyncSavesKeepTheirStep checks that a background save contains the state of its
// step, to the bit, although later steps change it meanwhile, wherever the state is stored. The
// reference is a save that training waits for.
func TestAsyncSavesKeepTheirStep(t *testing.T) {
	nightly.Parallel(t)
	const steps = 6
	for k, way := range [][]string{
		{"zero.stage=0", "parallel.ranks=2"},
		{"zero.stage=3", "parallel.ranks=3"},
		{"zero.stage=1", "parallel.ranks=2", "zero.offload.optimizer=host"},
		{"zero.stage=3", "parallel.ranks=2", "zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.buffers=1"},
		{"zero.stage=0", "parallel.ranks=2", "zero.offload.optimizer=disk", "zero.offload.buffers=3", "zero.offload.ratio=0.5"},
	} {
		if !nightly.Every(2, k+1) {
			continue // TestAsyncIsSync has the first
		}
		dirs := [2]string{t.TempDir(), t.TempDir()}
		for i, async := range []string{"checkpoint.async=true", "checkpoint.async=false"} {
			sets := append(way[:len(way):len(way)], async, "checkpoint.every=1", "checkpoint.keep=10", "train.eval_every=0")
			if slices.Contains(way, "zero.offload.optimizer=disk") {
				sets = append(sets, "zero.offload.path="+t.TempDir())
			}
			err := job.Run(context.Background(), saving(t, dirs[i], sets...), job.Options{Out: t.TempDir(), Hooks: setup.Hooks{Tile: 200}})
			if err != nil {
				t.Fatal(err)
			}
		}
		for step := 1; step <= steps; step++ {
			if s := fmt.Sprint(step); digest(t, dirs[0], s) != digest(t, dirs[1], s) {
				t.Errorf("%v: step %d differs", way, step)
			}
		}
	}
}
