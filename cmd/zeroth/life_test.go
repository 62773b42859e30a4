//go:build unix

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
	"zeroth/job/report"
	"zeroth/tests/nightly"
)

// long trains tiny.yaml without end and saves every step.
var long = []string{"train", "tiny.yaml", "--set", "train.steps=1000000", "--set", "checkpoint={every: 1, keep: 2}"}

// tree returns the contents of the files in a folder, by name.
func everything(t *testing.T, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(folder, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(name)
		all[name] = string(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRunHasItsFolders checks that no other process can write to the folders of a running run,
// that the error names the process, and that a killed run holds no lock.
func TestRunHasItsFolders(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--out", "other", "--set", "checkpoint.every=1")
	cmd, _, _ := start(t, "main", append(long, "--out", "r")...)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, err := checkpoint.Resolve("r/ckpt", "latest"); err != nil; _, err = checkpoint.Resolve("r/ckpt", "latest") {
		time.Sleep(10 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil { // so that its files do not change
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(cmd.Process.Pid, nil, syscall.WUNTRACED, nil); err != nil { // all its threads are stopped
		t.Fatal(err)
	}
	before := everything(t, "r")
	in := []string{"--set", "checkpoint={every: 1, dir: r/ckpt}"}
	for _, args := range [][]string{
		{"train", "tiny.yaml", "--out", "r"},
		{"train", "tiny.yaml", "--out", "r", "--resume", "latest"},
		append([]string{"train", "tiny.yaml", "--out", "new"}, in...),
		append([]string{"train", "tiny.yaml", "--out", "new", "--resume", "other/ckpt/step-00000002"}, in...),
		{"ckpt", "prune", "r", "--keep", "1"},
		{"ckpt", "prune", "r/ckpt", "--keep", "1"},
	} {
		_, errs := zeroth(t, 1, args...)
		if want := fmt.Sprintf("process %d on host %q", cmd.Process.Pid, host); !strings.Contains(errs, want) {
			t.Errorf("%v: %s", args, errs)
		}
	}
	if after := everything(t, "r"); len(after) != len(before) {
		t.Errorf("files were %d and are %d", len(before), len(after))
	} else {
		for name, was := range before {
			if after[name] != was {
				t.Errorf("%s has changed", name)
			}
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	zeroth(t, 0, "ckpt", "prune", "r", "--keep", "1")
	list, err := checkpoint.List("r/ckpt")
	if err != nil || len(list) != 1 {
		t.Fatalf("%v %v", list, err)
	}
	zeroth(t, 0, "train", "tiny.yaml", "--out", "r", "--resume", "latest", "--set", fmt.Sprintf("train.steps=%d", list[0].Step+2))
}

// TestSignalsInPairs checks that a second signal, as supervisors and closing terminals send, does
// not cut the save short, nor does an output that nobody reads.
func TestSignalsInPairs(t *testing.T) {
	nightly.Long(t)
	for _, all := range [][]syscall.Signal{{syscall.SIGTERM, syscall.SIGTERM}, {syscall.SIGTERM, syscall.SIGHUP}, {syscall.SIGHUP, syscall.SIGTERM, syscall.SIGHUP}} {
		inFolder(t)
		cmd, _, errs := start(t, "main", append(long, "--out", "r")...)
		for i, s := range all {
			if i > 0 {
				time.Sleep(2 * time.Millisecond)
			}
			if err := cmd.Process.Signal(s); err != nil {
				break // the process has ended
			}
		}
		cmd.Wait() // closes the pipe
		if code := cmd.ProcessState.ExitCode(); code != 75 || !strings.Contains(errs.String(), "; continue with --resume latest, from r/ckpt/step-") {
			t.Errorf("%v: ended with %v\n%s", all, cmd.ProcessState, errs)
		}
		if _, err := checkpoint.Resolve("r/ckpt", "latest"); err != nil {
			t.Errorf("%v: %v", all, err)
		}
	}
}

// TestSignalDuringEvaluation checks that a run in one or several processes leaves an evaluation that would take
// minutes, saves, and evaluates when it is resumed.
func TestSignalDuringEvaluation(t *testing.T) {
	nightly.Long(t)
	for _, launch := range [][]string{nil, {"launch", "-n", "2", "--"}} {
		inFolder(t)
		write(t, "big.txt", strings.Repeat("to be, or not to be; ", 1<<18)) // 344,064 windows to evaluate on
		args := append(append(launch, long...), "--out", "r", "--set", "train.eval_every=1", "--set", "data={text: [big.txt], validation: 0.5}",
			"--set", "model={layers: 16, heads: 1, width: 64, context: 8}")
		cmd, _, errs := start(t, "main", append(slices.Clone(args), "--set", "train.eval_batches=1048576")...)
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != exitAgain || !strings.Contains(errs.String(), "after step 1; continue with --resume latest, from r/ckpt/step-00000001") {
			t.Errorf("%v: ended with %v\n%s", launch, cmd.ProcessState, errs)
		}
		zeroth(t, 0, append(args[len(launch):], "--set", "train.eval_batches=2", "--set", "train.steps=2", "--resume", "latest")...)
		if _, evals, err := report.ReadMetrics("r/metrics.jsonl"); err != nil || len(evals) != 2 || evals[0].Step != 1 {
			t.Errorf("%v: evaluations %v, %v", launch, evals, err)
		}
	}
}

// TestNohup checks that a run under nohup survives the closing of its terminal.
func TestNohup(t *testing.T) {
	inFolder(t)
	cmd, _, errs := start(t, "nohup", append(long, "--out", "r")...)
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	cmd.Wait()
	if !strings.Contains(errs.String(), "stopped by SIGTERM") {
		t.Errorf("ended with %v\n%s", cmd.ProcessState, errs)
	}
}

// TestSignalAtAnyInstant checks that after a signal at a random instant the exit code is 75
// exactly if there is a checkpoint to resume from, and that the same command then resumes or
// starts afresh.
func TestSignalAtAnyInstant(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	if err := os.WriteFile("big.txt", bytes.Repeat([]byte("to be, or not to be; "), 1<<22), 0o644); err != nil { // slow to read
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append(slices.Clone(long), "--set", "data.text=[big.txt]", "--resume", "latest", "--out", "r")
	seen := map[string]int{}
	n := 40
	if !nightly.All() {
		n = 12
	}
	for i := range n {
		if i%4 == 0 {
			if err := os.RemoveAll("r"); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(exe, args...)
		cmd.Env = append(os.Environ(), "ZEROTH_MAIN=main")
		var errs bytes.Buffer
		cmd.Stderr, cmd.Stdout = &errs, io.Discard
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(6*i) * time.Millisecond)
		if err := cmd.Process.Signal([]os.Signal{syscall.SIGTERM, syscall.SIGHUP}[i%2]); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		_, none := checkpoint.Resolve("r/ckpt", "latest")
		state := cmd.ProcessState.String()
		seen[state]++
		switch code := cmd.ProcessState.ExitCode(); {
		case code == 75 && none == nil, code == 1 && none != nil:
		case code == -1, code == 130: // before the command handled signals
			if _, err := os.Stat("r"); err == nil && i%4 == 0 {
				t.Errorf("%s, and the run folder is there", state)
			}
		default:
			t.Errorf("run %d: %s, checkpoint: %v\n%s", i, state, none, &errs)
		}
	}
	t.Log(seen)
}

// TestMoreMemoryThanThereIs checks that a job that needs more memory than the machine has is
// refused before it allocates or writes anything.
func TestMoreMemoryThanThereIs(t *testing.T) {
	nightly.Long(t)
	if runtime.GOOS != "linux" {
		t.Skip("this system does not tell what memory it has")
	}
	inFolder(t)
	huge := append([]string{"train", "tiny.yaml", "--out", "r", "--set", "checkpoint.every=1"}, terabytes...)
	_, errs := zeroth(t, 2, huge...)
	if !strings.HasPrefix(errs, "tiny.yaml") || !strings.Contains(errs, ": parallel.memory: 2 ranks need ") || !strings.Contains(errs, " free; ") || strings.Count(errs, "\n") != 1 {
		t.Errorf("got %s", errs)
	}
	if _, errs = zeroth(t, 2, append(huge, "--set", "parallel.memory=900TiB")...); !strings.Contains(errs, " in all; ") {
		t.Errorf("got %s", errs)
	}
	if _, err := os.Stat("r"); err == nil {
		t.Error("the run folder is there")
	}
}
