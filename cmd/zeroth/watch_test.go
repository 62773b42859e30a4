//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/tests/nightly"
)

// TestKilledRunHasEveryStepOnce checks that a run killed at random instants and resumed has every
// step once, with equal numbers, in metrics.jsonl and in TensorBoard's events. The nightly test
// kills 100 times.
func TestKilledRunHasEveryStepOnce(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	const steps = 120
	args := []string{"train", "tiny.yaml", "--out", "r", "--resume", "latest", "--set", fmt.Sprint("train.steps=", steps), "--set", "checkpoint={every: 3, keep: 2}",
		"--set", "train.eval_every=10", "--set", "report={tensorboard: true, every: 7, listen: '127.0.0.1:0'}", "--set", "sample.tokens=0"}
	from := time.Now()
	_ = begin(t, args...).Wait()
	took := time.Since(from)
	rng := rand.New(rand.NewPCG(100, 7))
	for left := nightly.Of(2, 100); left > 0; {
		if err := os.RemoveAll("r"); err != nil {
			t.Fatal(err)
		}
		for killed := true; killed && left > 0; {
			cmd := begin(t, args...)
			time.Sleep(time.Duration(rng.Int64N(int64(took))))
			_ = cmd.Process.Kill() // fails if it has ended
			_ = cmd.Wait()
			if killed = !cmd.ProcessState.Exited(); killed {
				left--
			}
		}
		zeroth(t, 0, args...)
		everyStepOnce(t, steps)
	}
}

// begin starts the command. Its output is appended to the file that said reads.
func begin(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile("said", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(exe, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "ZEROTH_MAIN=main"), out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func said(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("said")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func everyStepOnce(t *testing.T, steps int) {
	t.Helper()
	l, err := report.ReadLog("r/metrics.jsonl")
	if err != nil || l.Damage != nil || len(l.Steps) != steps || l.End == nil || l.End.State != "done" || l.Run() == "" {
		t.Fatalf("%d steps, %v %v, end %v\n%s", len(l.Steps), err, l.Damage, l.End, said(t))
	}
	want := map[string]int{}
	for i, s := range l.Steps {
		if s.Step != i+1 {
			t.Fatalf("step %d follows step %d", s.Step, i)
		}
		want[fmt.Sprint(s.Step, " loss=", float32(s.Loss))]++
	}
	for _, e := range l.Evals {
		want[fmt.Sprint(e.Step, " val_loss=", float32(e.ValLoss))]++
	}
	if len(l.Evals) != steps/10 || len(want) != steps+steps/10 {
		t.Fatalf("%d evaluations, %d numbers", len(l.Evals), len(want))
	}
	for _, got := range jobtest.Events(t, "r") {
		if strings.Contains(got, "loss=") {
			want[got]--
		}
	}
	for of, n := range want {
		if n != 0 {
			t.Errorf("%s: %d more than events", of, n)
		}
	}
	if left, _ := filepath.Glob("r/watch.token"); left != nil {
		t.Error("the token is left behind")
	}
}

// find waits until the command that begin started has printed a pattern, and returns its group.
func find(t *testing.T, pattern string) string {
	t.Helper()
	for range 2000 {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(said(t)); m != nil {
			return m[1]
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no %s in\n%s", pattern, said(t))
	return ""
}

// watched is a run r that trains.
type watched struct{ base, token string }

func watchedRun(t *testing.T) (w watched) {
	t.Helper()
	w.base = find(t, `live page: (http://127\.0\.0\.1:\d+/)`)
	find(t, `(step \d+/)`)
	token, err := os.ReadFile("r/watch.token")
	if err != nil {
		t.Fatal(err)
	}
	w.token = strings.TrimSpace(string(token))
	return w
}

func (w watched) post(t *testing.T, path string) (int, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", w.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+w.token)
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	return got.StatusCode, text
}

// traceOf checks a trace of two steps of the given number of ranks.
func (w watched) traceOf(t *testing.T, ranks int) {
	t.Helper()
	code, text := w.post(t, "api/trace?steps=2")
	if code != 200 {
		t.Fatalf("%d %.300s", code, text)
	}
	checkSteps(t, text, ranks, 2)
}

// checkSteps checks that a trace has the same steps of each of the given number of ranks, at the same
// time.
func checkSteps(t *testing.T, text []byte, ranks, count int) {
	t.Helper()
	type event struct {
		Name, Cat string
		Pid       int
		Ts, Dur   float64
	}
	var trace struct{ TraceEvents []event }
	if err := json.Unmarshal(text, &trace); err != nil {
		t.Fatalf("%v %.300s", err, text)
	}
	steps, queues := make([][]event, ranks), make([]map[string]int, ranks)
	for _, e := range trace.TraceEvents {
		switch {
		case e.Ts < 0 || e.Pid >= ranks:
			t.Fatalf("%+v", e)
		case e.Cat == "step":
			steps[e.Pid] = append(steps[e.Pid], e)
		case e.Cat != "":
			if queues[e.Pid] == nil {
				queues[e.Pid] = map[string]int{}
			}
			queues[e.Pid][e.Cat]++
		}
	}
	for rank, own := range steps {
		if len(own) != count || queues[rank]["compute"] == 0 || queues[rank]["comm"] == 0 {
			t.Fatalf("rank %d has the steps %v, queues %v", rank, own, queues[rank])
		}
		for i, s := range own { // a step ends on no rank before all have begun it
			if first := steps[0][i]; s.Name != first.Name || s.Ts > first.Ts+first.Dur || first.Ts > s.Ts+s.Dur {
				t.Errorf("rank %d: %+v, rank 0: %+v", rank, s, first)
			}
		}
	}
}

// TestTraceOfProcesses checks that a trace has the ranks of all processes, also a second one.
func TestTraceOfProcesses(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	traceRun(t, "2")
	process(t, 0, "launch", "-n", "2", "--", "train", "tiny.yaml", "--out", "s", "--set", "parallel.ranks=4", "--trace", "trace.json")
	text, err := os.ReadFile("trace.json")
	if err != nil {
		t.Fatal(err)
	}
	checkSteps(t, text, 4, 2)
	if n := strings.Count(string(text), `"name":"memory in use","ph":"C","pid":3`); n < 6 {
		t.Errorf("the memory of rank 3 is there %d times", n)
	}
}

// traceRun traces a run of four ranks twice.
func traceRun(t *testing.T, processes string, sets ...string) {
	t.Helper()
	args := []string{"launch", "-n", processes, "--", "train", "tiny.yaml", "--out", "r", "--set", "train.steps=1000000", "--set", "parallel.ranks=4", "--set", "report={listen: '127.0.0.1:0', every: 2}"}
	cmd := begin(t, append(args, sets...)...)
	w := watchedRun(t)
	w.traceOf(t, 4)
	w.traceOf(t, 4)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	contains(t, said(t), "stopped after ")
}

// TestWatchedRun checks that a run prints the address of its page, saves and traces steps on
// request, and prints the state of each rank on SIGUSR1.
func TestWatchedRun(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	cmd := begin(t, "train", "tiny.yaml", "--out", "r", "--set", "train.steps=1000000", "--set", "checkpoint.save_on_exit=true", "--set", "report={listen: '127.0.0.1:0', every: 5}")
	w := watchedRun(t)
	if code, text := w.post(t, "api/checkpoint"); code != 202 {
		t.Fatalf("%d %s", code, text)
	}
	find(t, `checkpoint \S*(step-\d+) written`)
	w.traceOf(t, 2)
	if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	find(t, `(rank 1: operation \d+ of \S+ \([a-z-]+ of \d+ .*, step \d+\), \w+ \S+ ago)`)
	if strings.Contains(said(t), w.token) {
		t.Error("the token is printed")
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	l, err := report.ReadLog("r/metrics.jsonl")
	if err != nil || l.End == nil || l.End.State != "stopped" {
		t.Errorf("%v, end %+v", err, l.End)
	}
	n := 0
	for _, s := range l.Steps {
		if s.Parts.Steps > 0 {
			if p := s.Parts; s.Step%5 != 0 || p.Compute <= 0 || p.Compute+p.Exposed+p.Idle > p.Seconds*1.001 {
				t.Errorf("step %d: %+v", s.Step, p)
			}
			n++
		}
	}
	if n == 0 {
		t.Error("no step was measured in parts")
	}
	out1, _ := zeroth(t, 0, "runs", ".")
	contains(t, out1, "\nr ", "stopped: stopped by Ctrl-C")
	zeroth(t, 0, "train", "tiny.yaml", "--out", "s", "--set", "optimizer.lr=1e-3")
	out2, _ := zeroth(t, 0, "compare", "r", "s", "--out", "both.svg")
	contains(t, out2, "optimizer.lr", "train.steps", "difference")
	page, _ := zeroth(t, 0, "report", "s")
	contains(t, page, "<!DOCTYPE html>", `"state":"done"`, `optimizer:`)
	zeroth(t, 2, "runs", "nowhere")
	zeroth(t, 2, "compare", "r", "nowhere")
	zeroth(t, 2, "report", "nowhere")
	if _, errs := zeroth(t, 2, "train", "tiny.yaml", "--out", "u", "--set", "report.listen=9400"); !strings.Contains(errs, "report.listen") {
		t.Error(errs)
	}
}
