//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"zeroth/tests/nightly"
)

// TestLaunchGoesOnWithFewer checks that a process that fails at every start is left out: the
// others resume from the last checkpoint with the same batch, and end bit-identical to a run
// resumed by hand with as many ranks.
func TestLaunchGoesOnWithFewer(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	const steps = 240
	sets := []string{"train", "tiny.yaml", "--set", "train.batch=12", "--set", "schedule={type: constant, warmup: 0}", "--set", "checkpoint.every=20", "--set", "sample.tokens=0", "--set", fmt.Sprint("train.steps=", steps)}
	over := append(slices.Clone(sets), "--set", "parallel={ranks: null, heartbeat: 200ms, dead_after: 8s}", "--out", "r")
	code, said, errs := s.with("ZEROTH_FAULT=2 dead 1").signalOne("r", syscall.SIGKILL, 2, 0, append([]string{"launch", "-n", "4", "--restarts", "3", "--min-ranks", "3", "--"}, over...)...)
	if code != 0 || !strings.Contains(errs, "zeroth: continuing with 3 of 4 processes\nzeroth: restarting from the last checkpoint, restart 2 of 3\n") {
		t.Fatalf("exit code %d\n%s", code, errs)
	}
	all, err := os.ReadFile(s.path("r", "job.yaml"))
	if err != nil || !strings.Contains(string(all), "ranks: 3") || !strings.Contains(string(all), "batch: 12") || !strings.Contains(string(all), "accumulate: 4") {
		t.Errorf("%v\n%s", err, all)
	}
	from := regexp.MustCompile(`resuming from .*, step (\d+)\n(?:.*\n)*?ranks   3,`).FindStringSubmatch(said)
	if from == nil {
		t.Fatalf("nothing was resumed\n%s", said)
	}
	s.process(0, append(slices.Clone(sets), "--set", "parallel.ranks=4", "--set", "train.steps="+from[1], "--out", "whole")...)
	s.process(0, append(slices.Clone(sets), "--set", "parallel.ranks=3", "--out", "whole", "--resume", "latest")...)
	if a, b := parameters(t, s.path("r")), parameters(t, s.path("whole")); !bytes.Equal(a, b) {
		t.Error("other bits than resumed by hand")
	}
}

// parameters returns the bytes of a run's final parameter file.
func parameters(t *testing.T, out string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(out, "model", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
