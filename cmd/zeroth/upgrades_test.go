//go:build unix

package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"zeroth/device/cpu/kernel"
	"zeroth/job/report"
	"zeroth/job/state"
	"zeroth/tests/nightly"
)

// tolerance bounds the relative differences of losses and norms between instruction sets. In
// these runs they are at most 2e-4; other random numbers in GPT-2's dropout change them by 1e-2
// and more.
const tolerance = 1e-3

// TestUpgrades checks that a run folder written by an earlier commit resumes to the same end as
// that commit's uninterrupted run, and that sample, eval and ckpt export give the same results.
// See testdata/upgrades/make.sh.
func TestUpgrades(t *testing.T) {
	nightly.Long(t)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/upgrades")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	f32, bf16 := kernel.Instructions()
	exact := read(t, "kernels.txt") == f32+" "+bf16+"\n"
	runs, err := filepath.Glob("*/*.tar.gz")
	if err != nil || len(runs) == 0 {
		t.Fatalf("%d runs: %v", len(runs), err)
	}
	nightly.Needs(t, "tar", "gzip")
	for _, archive := range runs {
		if out, err := exec.Command("tar", "xzf", archive).CombinedOutput(); err != nil {
			t.Fatalf("tar: %v: %s", err, out)
		}
		run := strings.TrimSuffix(archive, ".tar.gz")
		t.Run(run, func(t *testing.T) {
			readAsThen(t, run, exact)
			resumedAsThen(t, run, exact)
		})
	}
}

// readAsThen checks what commands read from the final parameters and the checkpoint.
func readAsThen(t *testing.T, run string, exact bool) {
	out, _ := zeroth(t, 0, "sample", "--run", run, "--prompt", "line", "--tokens", "12", "--seed", "3")
	if want := read(t, run+"/want/sample.txt"); exact && out != want {
		t.Errorf("sample %q, want %q", out, want)
	}
	out, _ = zeroth(t, 0, "eval", run+"/job.yaml", "--run", run, "--json", "--set", "device=cpu")
	got, want := decoded[map[string]float64](t, out), decoded[map[string]float64](t, read(t, run+"/want/eval.json"))
	if got["tokens"] != want["tokens"] || far(got["loss"], want["loss"], exact) {
		t.Errorf("eval %v, want %v", got, want)
	}
	to := filepath.Join(t.TempDir(), "model")
	zeroth(t, 0, "ckpt", "export", filepath.Join(run, "ckpt", "step-00000004"), "--to", to)
	if got, want := sums(t, to), read(t, run+"/want/export.txt"); got != want {
		t.Errorf("exported\n%swant\n%s", got, want)
	}
	config, was := decoded[map[string]any](t, read(t, to+"/config.json")), decoded[map[string]any](t, read(t, run+"/want/config.json"))
	if strings.HasPrefix(run, "e68e9ed/gpt2") { // trained without dropout, which it did not record
		for _, key := range []string{"attn_pdrop", "embd_pdrop", "resid_pdrop"} {
			was[key] = 0.0
		}
	}
	if !reflect.DeepEqual(config, was) {
		t.Errorf("exported %v, want %v", config, was)
	}
}

// resumedAsThen resumes the run in its folder.
func resumedAsThen(t *testing.T, run string, exact bool) {
	for _, folder := range []string{"model", "adapter"} {
		if err := os.RemoveAll(filepath.Join(run, folder)); err != nil {
			t.Fatal(err)
		}
	}
	out, _ := zeroth(t, 0, "train", run+"/job.yaml", "--out", run, "--resume", "latest", "--set", "device=cpu")
	fewer := run == "e68e9ed/gpt2-accumulate" // that commit counted train.eval_batches in micro-batches
	if fewer != strings.Contains(out, "evaluations now use 16 sequences (train.eval_batches × batch); up to step 4 they used 8\n") {
		t.Errorf("fewer sequences evaluated: %v, in\n%s", fewer, out)
	}
	out, _ = zeroth(t, 0, "ckpt", "inspect", run, "--json")
	var last struct{ State state.Progress }
	if err := json.Unmarshal([]byte(out), &last); err != nil || last.State.Step != 8 || last.State.Format != state.Format {
		t.Errorf("the resumed run wrote step %d in format %d (%v)", last.State.Step, last.State.Format, err)
	}
	if err := os.RemoveAll(filepath.Join(run, "ckpt")); err != nil {
		t.Fatal(err)
	}
	got, want := measured(t, run+"/metrics.jsonl"), measured(t, run+"/want/metrics.jsonl")
	if fewer {
		got, want = got[:3*8], want[:3*8]
	}
	if !slices.EqualFunc(got, want, func(a, b float64) bool { return !far(a, b, exact) }) {
		t.Errorf("metrics.jsonl has\n%v, want\n%v", got, want)
	}
	if got, want := sums(t, run), read(t, run+"/want/sums.txt"); exact && got != want {
		t.Errorf("the resumed run ends with\n%swant\n%s", got, want)
	}
}

// far reports whether a number differs from the one that the earlier binary computed.
func far(a, b float64, exact bool) bool {
	return exact && a != b || !(math.Abs(a-b) <= tolerance*max(1, math.Abs(b)))
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// sums returns the digests of the safetensors files in a folder, as sha256sum prints them.
func sums(t *testing.T, folder string) (lines string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(folder), ".", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".safetensors") {
			lines += fmt.Sprintf("%x  ./%s\n", sha256.Sum256([]byte(read(t, filepath.Join(folder, path)))), path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// measured returns the losses, norms and learning rates of all steps, followed by the losses of
// evaluations.
func measured(t *testing.T, path string) (all []float64) {
	t.Helper()
	steps, evals, err := report.ReadMetrics(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		all = append(all, s.Loss, s.GradNorm, s.LR)
	}
	for _, e := range evals {
		all = append(all, e.ValLoss)
	}
	return all
}
