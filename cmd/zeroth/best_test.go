//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"zeroth/job/state"
	"zeroth/tests/nightly"
)

// TestBest checks that commands use the best step of a run with early stopping, accept best for a step, and
// evaluate a checkpoint as they do its export.
func TestBest(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	sets := []string{"train", "tiny.yaml", "--out", "run", "--set", "train={steps: 40, eval_every: 2, early_stop: {patience: 2}, lora: {rank: 2}}", "--set", "optimizer.lr=0.3", "--set", "schedule={type: constant, warmup: 0}", "--set", "checkpoint.keep=1"}
	out, _ := zeroth(t, 0, sets...)
	path, err := state.Resolve("run/ckpt", "best")
	if err != nil {
		t.Fatal(err)
	}
	var step, last int
	fmt.Sscanf(path, "run/ckpt/step-%d", &step)
	at := out[strings.Index(out, "done: ")+len("done: "):]
	fmt.Sscanf(at, "%d", &last)
	contains(t, out, fmt.Sprintf("saved to run; model/ has step %d, the best, with a validation loss of ", step))
	if step >= last || last >= 40 {
		t.Fatalf("step %d of %d: %s", step, last, out)
	}
	out, _ = zeroth(t, 0, "ckpt", "ls", "run")
	matches(t, out, fmt.Sprintf("%d .* complete, best ", step), fmt.Sprintf("%d .* complete, latest ", last))
	out, _ = zeroth(t, 0, "ckpt", "ls", "run", "--json")
	contains(t, out, `"best": true`)
	out, _ = zeroth(t, 0, "report", "run")
	matches(t, out, fmt.Sprintf(`"checkpoints":.{"step":%d,[^}]*"bytes":\d+,"best":true},{"step":%d,`, step, last))
	for to, of := range map[string][]string{"byDefault": {}, "byName": {"--step", "best"}, "byNumber": {"--step", fmt.Sprint(step)}, "latest": {"--step", "latest"}} {
		zeroth(t, 0, append([]string{"ckpt", "export", "run", "--to", to}, of...)...)
		a, _ := os.ReadFile(to + "/model.safetensors")
		b, _ := os.ReadFile("run/model/model.safetensors")
		if same := string(a) == string(b); same != (to != "latest") {
			t.Errorf("export %s is that of the best: %v", to, same)
		}
	}
	loss := func(of ...string) (e struct{ Loss float64 }) {
		out, _ := zeroth(t, 0, append([]string{"eval", "tiny.yaml", "--json", "--run"}, of...)...)
		if err := json.Unmarshal([]byte(out), &e); err != nil {
			t.Error(out, err)
		}
		return e
	}
	best := loss("run")
	if a, b, c := loss("run", "--step", "best"), loss(path, "--set", "zero.stage=3"), loss("run", "--step", "latest"); a != best || b != best || c == best || c != loss("latest") {
		t.Errorf("best %v, by name %v, by path %v, latest %v", best, a, b, c)
	}
	a, _ := zeroth(t, 0, "sample", "--run", "run", "--tokens", "20", "--temperature", "0")
	b, _ := zeroth(t, 0, "sample", "--run", "run", "--step", "best", "--tokens", "20", "--temperature", "0")
	if a != b {
		t.Errorf("sample of the best: %q, want %q", b, a)
	}
	out, _ = zeroth(t, 0, "ckpt", "inspect", "run", "--step", "best")
	contains(t, out, path)
	_, errs := zeroth(t, 2, "sample", "--run", path, "--step", "best")
	contains(t, errs, fmt.Sprintf("--step best: %s is the checkpoint of step %d; want a run folder", path, step))
	_, errs = zeroth(t, 2, "eval", "tiny.yaml", "--run", "run", "--step", "bset")
	contains(t, errs, "--step bset; want latest, best or a number")
	_, errs = zeroth(t, 2, "ckpt", "export", "run", "--step", "999", "--to", "x")
	contains(t, errs, "--step 999: run/ckpt: step 999: no checkpoint (have ")

	out, _ = zeroth(t, 0, append(sets, "--resume", "best", "--set", fmt.Sprint("train.steps=", step+1))...)
	contains(t, out, fmt.Sprintf("resuming from %s, step %d", path, step))
}
