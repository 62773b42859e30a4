//go:build unix

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/job/bench"
	"zeroth/tests/nightly"
)

// divisible is a job that can be run every way.
const divisible = `data: {text: [a.txt]}
model: {layers: 4, heads: 4, width: 32, context: 16}
train: {steps: 9, micro_batch: 2, accumulate: 2}
parallel: {ranks: 4, shard: 2, replicate: 2}
pipeline: {}
checkpoint: {every: 1, keep: {last: 1, best: val_loss}}
precision: fp32
`

// compared runs bench parallel on job.yaml and returns its ways by name. It checks that the runs
// leave no files behind.
func compared(t *testing.T, code int, args ...string) map[string]bench.Compared {
	t.Helper()
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	before, _ := os.ReadDir(".")
	out, _ := zeroth(t, code, append([]string{"bench", "parallel", "job.yaml", "--steps", "1", "--json"}, args...)...)
	var x bench.Comparison
	if err := json.Unmarshal([]byte(out), &x); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	after, _ := os.ReadDir(".")
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 || len(after) != len(before) {
		t.Errorf("left %v, %v; %d files here, %d before", left, err, len(after), len(before))
	}
	ways := map[string]bench.Compared{}
	for _, y := range x.Ways {
		ways[y.Way] = y
	}
	return ways
}

// TestBenchParallel checks that every way uses the planned memory, sends the planned bytes and
// reaches the same losses as the others. A way that needs an unknown key is reported as refused.
func TestBenchParallel(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	write(t, "job.yaml", divisible)
	ways := compared(t, 0, "--machine", "h100")
	if y := ways["expert"]; y.Run != nil || !strings.Contains(y.Refused, "the model has no experts that ranks could divide") {
		t.Errorf("expert without experts: %+v", y)
	}
	ways["expert"] = compared(t, 0, "--set", "model.family=llama", "--set", "model.experts={count: 4, width: 16}", "--ways", "zero1,expert", "--machine", "h100")["expert"]
	for _, name := range bench.Ways() {
		y := ways[name]
		if y.Refused != "" || y.Run == nil || y.Predicted == nil {
			t.Errorf("%s: %s", name, y.Refused)
			continue
		}
		r, p := y.Run, y.Predicted
		if r.Memory != p.Memory || r.Sent != p.Sent || r.Memory <= 0 || r.Sent <= 0 {
			t.Errorf("%s: it has %d bytes and sends %d, planned are %d and %d", name, r.Memory, r.Sent, p.Memory, p.Sent)
		}
		if !(r.Tokens > 0) || !(p.Tokens > 0) || !(r.Waiting > 0) || r.Waiting >= 1 || !(p.Waiting >= 0) || p.Waiting >= 1 {
			t.Errorf("%s: %+v, predicted %+v", name, r, p)
		}
		if y.Difference > 1e-6 {
			t.Errorf("%s: losses differ by %v", name, y.Difference)
		}
	}
	for name, mesh := range map[string]string{"ddp": "replicate 4", "zero2": "shard 4", "hybrid": "replicate 2 × shard 2", "tensor": "tensor 4", "1f1b": "pipeline 2 × shard 2", "expert": "expert 4", "interleaved1f1b": "pipeline 2 × shard 2"} {
		if got := ways[name].Mesh; got != mesh {
			t.Errorf("%s: %s, want %s", name, got, mesh)
		}
	}
	if a, b, c := ways["zero1"], ways["zero2"], ways["zero3"]; a.Difference != 0 || b.Difference != c.Difference || a.Run.Memory <= c.Run.Memory || ways["ddp"].Run.Memory <= a.Run.Memory {
		t.Errorf("stages: %+v, %+v, %+v, %+v", ways["ddp"], a, b, c)
	}
}

// TestBenchParallelRefuses checks that ways the job cannot use are listed with the reason, and
// that the exit code is 1 if no way can be run.
func TestBenchParallelRefuses(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	write(t, "job.yaml", divisible)
	ways := compared(t, 0, "--set", "parallel={ranks: 2}", "--set", "model.layers=1", "--set", "model.heads=1", "--ways", "zbh1,hybrid,tensor,ddp")
	for name, want := range map[string]string{
		"tensor": "1 heads cannot be divided over 2 ranks; want tensor 1", "zbh1": "2 stages for 1 layers; want at most 1", "hybrid": "want parallel.ranks of 4 or more", "ddp": "",
	} {
		if y := ways[name]; !strings.Contains(y.Refused, want) || (y.Run == nil) != (want != "") || (y.Predicted == nil) != (want != "") {
			t.Errorf("%s: %+v, want %q", name, y, want)
		}
	}
	if len(ways) != 4 {
		t.Errorf("%d ways", len(ways))
	}
	if y := compared(t, 1, "--ways", "zero1", "--set", "parallel.memory=1MiB")["zero1"]; y.Run != nil || !strings.Contains(y.Refused, "the budget is 1.0 MiB per rank") {
		t.Errorf("without memory: %+v", y)
	}
	for _, bad := range []struct {
		args []string
		want string
	}{
		{[]string{"job.yaml", "--ways", "ddp,dpp", "--steps", "0"}, "--ways: unknown way \"dpp\"; want one or more of master, ddp, "},
		{[]string{"job.yaml", "--steps", "1001"}, "--steps 1001; want 1 to 1000"},
		{[]string{"job.yaml", "--set", "parallel={ranks: 1}"}, "the job has one rank, and nothing to divide"},
		{[]string{"job.yaml", "--machine", "none"}, "--machine none: no such file"},
		{[]string{"-"}, "so it cannot be standard input; want a file"},
		{[]string{"job.yaml", "--set", "model.layres=2"}, "model.layres: unknown key; did you mean layers?"},
	} {
		if _, errs := zeroth(t, 2, append([]string{"bench", "parallel"}, bad.args...)...); !strings.Contains(errs, bad.want) {
			t.Errorf("%q: %s", bad.args, errs)
		}
	}
}

// TestBenchParallelTables checks that the table has a line for each way, with the reasons for
// refusals below it, and that it can be printed for a simulated machine.
func TestBenchParallelTables(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	write(t, "job.yaml", divisible)
	for _, flags := range [][]string{nil, {"--markdown"}} {
		out, _ := zeroth(t, 0, append([]string{"bench", "parallel", "job.yaml", "--steps", "1", "--ways", "zero1,hybrid,tensor", "--set", "model.heads=1", "--machine", "h100"}, flags...)...)
		for _, want := range []string{"4 ranks, 16 sequences of 16 tokens a step, fp32", "zero1", "replicate 2 × shard 2", "losses of all ways agree within ", "- tensor: ", "1 heads cannot be divided"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q: no %q in\n%s", flags, want, out)
			}
		}
		if flags != nil && strings.Count(out, "\n| ") != 3 {
			t.Errorf("no Markdown:\n%s", out)
		}
	}
}

// TestBenchParallelEndsOnASignal checks that Ctrl-C ends a comparison during a long step and
// leaves no files behind.
func TestBenchParallelEndsOnASignal(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	temp := t.TempDir()
	write(t, "a.txt", strings.Repeat("to be, or not to be; ", 400_000))
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "bench", "parallel", "tiny.yaml", "--ways", "ddp", "--set", "train.accumulate=200000", "--machine", "h100")
	cmd.Env = append(os.Environ(), "ZEROTH_MAIN=main", "TMPDIR="+temp)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if runs, _ := filepath.Glob(temp + "/*/run/metrics.jsonl"); len(runs) > 0 {
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatal("the run has not begun")
		}
	}
	asked := time.Now()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitStopped || time.Since(asked) > time.Minute {
		t.Errorf("%v after %v", cmd.ProcessState, time.Since(asked))
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
