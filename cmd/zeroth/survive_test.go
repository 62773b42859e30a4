//go:build linux

package main

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"zeroth/internal/input/s3/s3test"
	"zeroth/job/report"
	"zeroth/tests/nightly"
)

// TestSurvive kills and stops processes of a job that goes on without them, process 0 among them, and
// checks that the others end with 0, that no step is lost, and that the loss is recorded; also if the disk is full when
// process 1 takes the run folder over, and the job continues without files.
func TestSurvive(t *testing.T) {
	nightly.Parallel(t)
	const steps = 100
	for _, c := range []struct {
		ranks, victim int
		signal        syscall.Signal
		full          bool
	}{{3, 2, syscall.SIGKILL, false}, {3, 0, syscall.SIGSTOP, false}, {2, 0, syscall.SIGKILL, true}, {3, 0, syscall.SIGKILL, false}, {2, 0, syscall.SIGKILL, false}}[:nightly.Of(3, 5)] {
		t.Run(fmt.Sprint(c.ranks, " ", c.victim, " ", c.signal), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			text := strings.Repeat("Some text to train on. ", 200)
			job := "model: {layers: 1, heads: 2, width: 16, context: 16}\ndata: {text: [a.txt], validation: 0}\ntrain: {batch: 12, micro_batch: 2}\n" +
				fmt.Sprintf("parallel: {ranks: %d}\nzero: {stage: 0}\nfaults: {survive: true}\n", c.ranks)
			for name, content := range map[string]string{"a.txt": text, "tiny.yaml": job} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			ln := door(t, "127.0.0.1")
			var all []*joiner
			for rank := range c.ranks {
				all = append(all, joins(t, ln, rank, c.ranks, as{dir: dir, env: []string{"ZEROTH_FAULT=0 clock 10ms"}, args: []string{"--set", "parallel.dead_after=3s", "--set", fmt.Sprint("train.steps=", steps),
					"--set", "checkpoint.every=20", "--set", "report.tensorboard=true", "--set", "checkpoint.on_error=" + map[bool]string{false: "stop", true: "continue"}[c.full]}}))
			}
			metrics := filepath.Join(dir, "r", "metrics.jsonl")
			for {
				if l, err := report.ReadLog(metrics); err == nil && len(l.Steps) > 3 {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			if c.full {
				limitFiles(t, all[1].cmd.Process.Pid, 100)
			}
			if err := all[c.victim].cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			if c.full {
				for !strings.Contains(all[1].said.String(), "training continues; the lines") {
					time.Sleep(20 * time.Millisecond)
				}
				limitFiles(t, all[1].cmd.Process.Pid, math.MaxInt64)
			}
			for rank, j := range all {
				if rank != c.victim {
					var says []string
					if rank == 1 && c.victim == 0 || rank == 0 { // who reports
						says = []string{fmt.Sprintf("lost rank %d, going on with %s", c.victim, report.Change{Replicas: c.ranks - 1}.Left()), fmt.Sprintf("step %[1]d/%[1]d", steps)}
					}
					if c.full {
						says = append(says, "training continues without TensorBoard events", "metrics.jsonl is complete again")
					}
					j.ends(t, fmt.Sprint("process ", rank), 0, says...)
				}
			}
			l, err := report.ReadLog(metrics)
			var lost []int
			for _, x := range l.Changes { // one of them, if the others meet twice
				lost = append(lost, x.Lost...)
			}
			if err != nil || !slices.Equal(lost, []int{c.victim}) || l.Changed().Replicas != c.ranks-1 {
				t.Fatalf("changes %+v (%v)", l.Changes, err)
			}
			for i, s := range l.Steps {
				if s.Step != i+1 {
					t.Fatalf("line %d is of step %d", i+1, s.Step)
				}
			}
			if row := listed(filepath.Join(dir, "r"), l); !strings.Contains(row[len(row)-1], fmt.Sprintf("done; %s since step", l.Changed().Left())) {
				t.Errorf("listed as %q", row)
			}
			if len(l.Steps) != steps {
				t.Errorf("%d steps", len(l.Steps))
			}
		})
	}
}

// limitFiles limits the size of files that a process can write.
func limitFiles(t *testing.T, pid int, most uint64) {
	limit := syscall.Rlimit{Cur: most, Max: math.MaxInt64}
	if _, _, err := syscall.Syscall6(syscall.SYS_PRLIMIT64, uintptr(pid), syscall.RLIMIT_FSIZE, uintptr(unsafe.Pointer(&limit)), 0, 0, 0); err != 0 {
		t.Fatal(err)
	}
}

// TestLaunchJoins kills processes of a launch, process 0 first, and checks that they are started again and join, and that the
// result has the bytes of a run that nobody has left; so do its checkpoints in object storage, which are all complete.
func TestLaunchJoins(t *testing.T) {
	nightly.Parallel(t)
	dir := t.TempDir()
	job := "model: {layers: 1, heads: 2, width: 16, context: 16}\ndata: {text: [a.txt], validation: 0}\ntrain: {steps: 300, batch: 12, micro_batch: 2, sums: tree}\n" +
		"parallel: {ranks: 3}\nzero: {stage: 0}\nsample: {tokens: 0}\n"
	for name, content := range map[string]string{"a.txt": strings.Repeat("Some text to train on. ", 200), "tiny.yaml": job} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	s := shell{T: t, dir: dir}
	s.process(0, "train", "tiny.yaml", "--out", "plain")
	metrics := filepath.Join(dir, "r", "metrics.jsonl")
	strike := func([]int) {
		for victim := range 2 {
			for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
				if l, err := report.ReadLog(metrics); err == nil && len(l.Steps) > 12 && joinedIn(l) == victim {
					break
				}
			}
			signalTo(t, syscall.SIGKILL, victim)(launchedIn(t, dir))
		}
	}
	server := s3test.Start(t)
	s = s.with(s3test.Environment(server.URL, t.TempDir())...)
	code, said, errs, _ := s.with("ZEROTH_FAULT=0 clock 8ms").disturb("", 0, strike, "launch", "-n", "3", "--", "train", "tiny.yaml", "--set", "faults={survive: true, join: true}", "--out", "r",
		"--set", "checkpoint={every: 10, keep: 3, dir: 's3://runs/a'}")
	l, err := report.ReadLog(metrics)
	if code != 0 || err != nil || joinedIn(l) == 0 || len(l.Steps) != 300 {
		t.Fatalf("exit code %d, %v, %d steps, changes %+v\n%s%s", code, err, len(l.Steps), l.Changes, said, errs)
	}
	got, err := os.ReadFile(filepath.Join(dir, "r", "model", "model.safetensors"))
	want, wrong := os.ReadFile(filepath.Join(dir, "plain", "model", "model.safetensors"))
	if err != nil || wrong != nil || !bytes.Equal(got, want) {
		t.Errorf("other parameters (%v, %v), changes %+v", err, wrong, l.Changes)
	}
	s.process(0, "ckpt", "verify", "s3://runs/a")
	out, _ := s.process(0, "ckpt", "ls", "s3://runs/a")
	matches(t, out, "complete step-00000280", "complete step-00000290", "complete, latest step-00000300")
}

// TestHostsAreLost kills the processes of two of four hosts that share nothing but object storage, the second one the leader, whose
// lease has to expire, while the server does not answer: the others go on, and their checkpoints are complete.
func TestHostsAreLost(t *testing.T) {
	if !nightly.All() || os.Getuid() != 0 {
		t.Skip("it takes a minute, and needs root to name hosts")
	}
	server := s3test.Serve(t)
	defer server.Watch(t)()
	ln := door(t, "127.0.0.1")
	var all []*joiner
	var dirs []string
	for rank := range 4 {
		dirs = append(dirs, t.TempDir())
		for name, content := range tinyFiles {
			if err := os.WriteFile(filepath.Join(dirs[rank], name), []byte(content), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, joins(t, ln, rank, 4, as{dir: dirs[rank], host: fmt.Sprint("host", rank), env: []string{"ZEROTH_FAULT=0 clock 20ms"}, args: []string{"--set", "parallel.ranks=4", "--set", "parallel.dead_after=3s", "--set", "zero.stage=0",
			"--set", "faults={survive: true}", "--set", "train={steps: 150, batch: 12, micro_batch: 1}", "--set", "checkpoint={every: 2, keep: 3, local: local, dir: 's3://runs/a'}"}}))
	}
	for i, victim := range []int{3, 0} {
		for {
			if l, err := report.ReadLog(filepath.Join(dirs[0], "r", "metrics.jsonl")); err == nil && len(l.Steps) > 20*(i+1) && len(l.Changes) == i {
				break
			}
			select {
			case <-all[0].done:
				t.Fatal(&all[0].said)
			case <-time.After(20 * time.Millisecond):
			}
		}
		if victim == 0 {
			server.Fail(func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			})
			time.AfterFunc(20*time.Second, func() { server.Fail(nil) })
		}
		_ = all[victim].cmd.Process.Kill()
	}
	all[1].ends(t, "process 1", 0, "lost rank 0, going on with 2 replicas", "training waits until it answers", "is locked by process", "step 150/150")
	all[2].ends(t, "process 2", 0)
	zeroth(t, 0, "ckpt", "verify", "s3://runs/a")
	out, _ := zeroth(t, 0, "ckpt", "ls", "s3://runs/a")
	matches(t, out, "complete step-00000146", "complete step-00000148", "complete, latest, best step-00000150")
	if strings.Contains(out, "partial") {
		t.Error(out)
	}
}

// joinedIn returns how many ranks have joined.
func joinedIn(l *report.Log) (n int) {
	for _, c := range l.Changes {
		n += len(c.Joined)
	}
	return n
}

// launchedIn returns the processes of a launch in a folder.
func launchedIn(t *testing.T, dir string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, name := range all {
		if at, err := os.Readlink(name); err == nil && at == dir {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}
