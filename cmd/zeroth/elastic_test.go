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
)

// TestLaunchGoesOnWithFewer checks that a process that fails at every start is left out: the
// others resume from the last checkpoint with the same batch, and end bit-identical to a run
// resumed by hand with as many ranks.
func TestLaunchGoesOnWithFewer(t *testing.T) {
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

// TestAble checks how many of the remaining processes a job can use, and the error if it can use
// none.
func TestAble(t *testing.T) {
	inFolder(t)
	for _, c := range []struct {
		sets  []string
		least int
		left  []int
		want  []int
		wrong string
	}{
		{[]string{"parallel.ranks=null", "train.batch=12"}, 1, []int{0, 1, 3}, []int{0, 1, 3}, ""},
		{[]string{"parallel.ranks=null", "train.batch=8"}, 1, []int{0, 1, 3}, []int{0, 1}, ""},
		{[]string{"parallel.ranks=null", "train.batch=8"}, 3, []int{0, 1, 3}, nil, "the remaining 2 processes have 2 ranks, fewer than --min-ranks 3\ntrain.batch: batch 8 = micro_batch 1 × accumulate ? × ranks 3 has no whole solution"},
		{[]string{"parallel.ranks=4"}, 4, []int{0, 1, 3}, []int{0, 1}, ""},
		{[]string{"parallel.ranks=7"}, 1, []int{}, nil, "the job cannot use fewer processes"},
		{nil, 0, []int{0, 1, 2, 3}, []int{0, 1, 2, 3}, ""},
	} {
		s := newSupervisor(4, command{file: "tiny.yaml", sets: c.sets})
		s.minRanks = c.least
		got, err := s.usable(c.left)
		if !slices.Equal(got, c.want) || c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(tail(err.Error()), c.wrong)) {
			t.Errorf("%v: slots %v, want %v (%v)", c, got, c.want, err)
		}
	}
}

// tail removes the file and flag prefixes from the lines of a message.
func tail(s string) string {
	return regexp.MustCompile(`(?m)^[^ ]*tiny.yaml[^ ]* |^--set[^:]*: `).ReplaceAllString(s, "")
}

// TestBlamed checks that the process that ended first of its own accord is blamed for the end of
// a world.
func TestBlamed(t *testing.T) {
	for _, c := range []struct {
		codes, order []int
		want         int
	}{
		{[]int{75, -1, 75}, []int{1, 0, 2}, 11}, {[]int{75, 75, 1}, []int{0, 1, 2}, 12}, {[]int{1, -1, 1}, []int{2, 0, 1}, 11},
		{[]int{75, 75, 75}, []int{0, 1, 2}, -1}, {[]int{0, 0, 134}, []int{0, 1, 2}, 12},
	} {
		s := &supervisor{slots: []int{10, 11, 12}}
		for i, code := range c.codes {
			s.children = append(s.children, &child{code: code, ended: c.order[i]})
		}
		if got := s.culprit(); got != c.want {
			t.Errorf("%v in order %v: slot %d, want %d", c.codes, c.order, got, c.want)
		}
	}
}
