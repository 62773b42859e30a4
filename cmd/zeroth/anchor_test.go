//go:build unix

package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/fsdp"
	"zeroth/job/report"
	"zeroth/tests/nightly"
)

// TestFailedProcessEndsByItself checks that a process 0 that fails, and takes long to end because of a client of its page,
// reports why: the others do not kill it.
func TestFailedProcessEndsByItself(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at, fault := ln.Addr().String(), s.path("fault")
	_ = ln.Close()
	cmd, out, errs := s.with("ZEROTH_FAULT=0 fails "+fault).start("launch", "-n", "3", "--", "train", "tiny.yaml", "--out", "r", "--set", "train.steps=300", "--set", "sample.tokens=0",
		"--set", "parallel={ranks: 3, replicate: 3}", "--set", "train.batch=6", "--set", "train.micro_batch=1", "--set", "train.accumulate=null", "--set", "faults.survive=true", "--set", "report.listen="+at)
	idle, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	if err := os.WriteFile(fault, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait() // those that become rank 0 fail, too
	if !strings.Contains(errs.String(), "\nzeroth: step ") || strings.Contains(errs.String(), "killed") {
		t.Error(errs)
	}
}

// TestLaunchEndsWithTheRun checks that the launch ends with the exit code of the run, and starts nobody again, once all have
// failed for the same reason.
func TestLaunchEndsWithTheRun(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	_, errs := s.process(1, "launch", "-n", "2", "--", "train", "tiny.yaml", "--out", "r", "--set", "parallel={ranks: 2, replicate: 2, join: 1s}", "--set", "faults={survive: true, join: true}",
		"--set", "optimizer.lr=1e30", "--set", "schedule={type: constant, warmup: 0}", "--set", "train.clip=0")
	if !strings.Contains(errs, "is not finite") || strings.Contains(errs, "starting it again") {
		t.Error(errs)
	}
}

// clock makes every micro-batch take a time without a processor, as on an accelerator.
type clock struct {
	micro time.Duration
	last  int
}

// Event implements fsdp.Listener.
func (c *clock) Event(e fsdp.Event) {
	if e.Micro >= 0 && e.Micro != c.last {
		time.Sleep(c.micro)
	}
	c.last = e.Micro
}

// Arena implements fsdp.Listener.
func (*clock) Arena(int, string, int) {}

// TestThroughputUnderFaults measures a run of 32 replicas of 8 micro-batches, which all wait for a clock, for the time
// ZEROTH_ANCHOR, such as 30m, in which it disturbs 62 processes at random, and prints what is left of the throughput. All
// steps must be done, with the parameters of a run in one process. The first tenth of the steps is not disturbed.
func TestThroughputUnderFaults(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv("ZEROTH_ANCHOR"))
	if err != nil {
		t.Skip("ZEROTH_ANCHOR does not say how long")
	}
	const replicas, micros, faults, each = 32, 8, 62, 80 * time.Millisecond
	s := inShell(t, "GOMAXPROCS=1")
	steps := int(lasts / (micros * each * 5 / 4))
	job := func(out string, sets ...string) (args []string) {
		args = []string{"train", "tiny.yaml", "--out", out}
		for _, set := range append([]string{"model={layers: 1, heads: 2, width: 32, context: 16}", "data.validation=0", "train.eval_every=0", "sample.tokens=0", "train.sums=tree", "train.accumulate=null",
			"train.micro_batch=1", fmt.Sprint("train.batch=", replicas*micros), fmt.Sprint("train.steps=", steps), "zero.stage=0"}, sets...) {
			args = append(args, "--set", set)
		}
		return args
	}
	cmd, out, errs := s.with(fmt.Sprint("ZEROTH_FAULT=0 clock ", each)).start(append([]string{"launch", "-n", strconv.Itoa(replicas), "--"},
		job("r", fmt.Sprintf("parallel={ranks: %d, heartbeat: 300ms, dead_after: 1500ms, join: 30s}", replicas), "faults={survive: true, join: true, min_replicas: 2}")...)...)
	go io.Copy(io.Discard, out)
	ends := make(chan error, 1)
	go func() { ends <- cmd.Wait() }()
	read := func() *report.Log {
		l, err := report.ReadLog(s.path("r", "metrics.jsonl"))
		if err != nil {
			return &report.Log{}
		}
		return l
	}
	quiet := max(5, steps/10)
	for begin := time.Now(); len(read().Steps) < quiet; time.Sleep(time.Second) {
		if time.Since(begin) > lasts {
			t.Fatalf("%d steps within %v\n%s", len(read().Steps), lasts, errs)
		}
	}
	rng, done := rand.New(rand.NewPCG(49, 1)), map[string]int{}
	for range faults {
		select {
		case <-time.After(time.Duration(rng.Int64N(int64(lasts) * 2 * 8 / 10 / faults))):
		case err := <-ends:
			t.Fatalf("it has ended early: %v\n%s", err, errs)
		}
		pids := children(t, cmd.Process.Pid)
		pid, kind := pids[rng.IntN(len(pids))], []string{"killed", "killed", "killed", "killed", "killed", "killed", "process 0 killed", "stopped for 1s", "stopped for 5s"}[rng.IntN(9)]
		done[kind]++
		switch kind {
		case "killed":
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		case "process 0 killed":
			signalTo(t, syscall.SIGKILL, 0)(pids)
		default:
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			time.AfterFunc(map[string]time.Duration{"stopped for 1s": time.Second, "stopped for 5s": 5 * time.Second}[kind], func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		}
	}
	if err := <-ends; err != nil {
		t.Errorf("%v\n%s", err, errs)
	}
	l := read()
	if len(l.Steps) != steps {
		t.Errorf("%d steps, want %d", len(l.Steps), steps)
	}
	mean := func(from float64, all []report.Step, when func(i int) bool) (seconds float64) {
		n := 0
		for i, s := range all {
			if when(i) {
				n, seconds = n+1, seconds+s.Time-from
			}
			from = s.Time
		}
		return seconds / float64(n)
	}
	var stalls []float64
	full, lost, joined := make([]bool, len(l.Steps)), 0, 0 // full: all replicas did the step, and nothing happened before it
	now, changes := replicas, l.Changes
	for i, s := range l.Steps {
		full[i] = now == replicas
		for ; len(changes) > 0 && changes[0].Step < s.Step; changes = changes[1:] {
			c := changes[0]
			now, lost, joined, full[i] = c.Replicas, lost+len(c.Lost), joined+len(c.Joined), false
			if len(c.Lost) > 0 && i > 0 {
				stalls = append(stalls, s.Time-l.Steps[i-1].Time)
			}
		}
	}
	rest, from := l.Steps[quiet:], l.Steps[quiet-1].Time
	under, whole := mean(from, rest, func(int) bool { return true }), mean(from, rest, func(i int) bool { return full[quiet+i] })
	before := mean(l.Steps[0].Time, l.Steps[1:quiet], func(int) bool { return true })
	slices.Sort(stalls)
	t.Logf("%v: %d changes, ranks lost %d, joined %d; a step takes %.3f s before the faults, %.3f s with all replicas between them, %.3f s with faults: %.2f %% and %.2f %% of the throughput; "+
		"steps with losses take %.2f s, median %.2f s", done, len(l.Changes), lost, joined, before, whole, under, 100*before/under, 100*whole/under, stalls, append(stalls, 0)[len(stalls)/2])
	if keep := os.Getenv("ZEROTH_ANCHOR_LOG"); keep != "" {
		b, _ := os.ReadFile(s.path("r", "metrics.jsonl"))
		_ = os.WriteFile(keep, b, 0o644)
	}
	if _, wrong := s.process(0, job("plain", "parallel.ranks=1")...); wrong != "" {
		t.Log(wrong)
	}
	if got, want := outcomeOf(t, s.path("r")), outcomeOf(t, s.path("plain")); got != want {
		t.Error("losses or parameters differ from those of one process")
	}
}
