//go:build unix

package main

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
	"zeroth/tests/nightly"
)

// process runs the command to its end in a process of its own and checks its exit code.
func process(t *testing.T, code int, args ...string) (out, errs string) {
	t.Helper()
	return shell{T: t}.process(code, args...)
}

// launched4 trains tiny.yaml on four ranks, with evaluations and checkpoints.
var launched4 = []string{"train", "tiny.yaml", "--set", "parallel.ranks=4", "--set", "train.eval_every=2", "--set", "sample.tokens=0"}

// outcomeOf returns the results of a run: its parameters, and its metrics without times and
// memory.
func outcomeOf(t *testing.T, out string) string {
	t.Helper()
	model, err := os.ReadFile(filepath.Join(out, "model", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := os.ReadFile(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range bytes.Lines(lines) {
		if bytes.Contains(line, []byte(`loss":`)) { // leaves out the memory of each start
			b.Write(bytes.Join(regexp.MustCompile(`"(step|loss|val_loss|lr|grad_norm|tokens)":[^,}]*`).FindAll(line, -1), nil))
		}
	}
	return b.String() + string(model)
}

// TestLaunchGivesTheSameBits checks that a job gives the same bits in one process and in several,
// over every transport.
func TestLaunchGivesTheSameBits(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	for name, job := range map[string][]string{
		"0bf16": {"zero.stage=0"}, "3bf16": {"zero.stage=3"}, "0fp32": {"zero.stage=0", "precision=fp32"}, "3fp32": {"zero.stage=3", "precision=fp32"},
		"1": {"zero.stage=1"}, "2": {"zero.stage=2"}, "context": {"zero.stage=3", "parallel.context=2"}, "tensor": {"zero.stage=2", "parallel.tensor=2", "model.heads=2"},
	} {
		if !nightly.All() && !slices.Contains([]string{"0bf16", "3bf16", "context"}, name) {
			continue
		}
		sets := append(slices.Clone(launched4), "--set", "train.steps=4")
		for _, set := range job {
			sets = append(sets, "--set", set)
		}
		zeroth(t, 0, append(slices.Clone(sets), "--out", name)...)
		want := outcomeOf(t, name)
		for _, c := range [][]string{{"2", "unix"}, {"4", "tcp"}, {"4", "auto"}, {"1", "auto"}} {
			in := name + c[0] + c[1]
			out, _ := process(t, 0, append(append([]string{"launch", "-n", c[0], "--"}, sets...), "--set", "parallel.transport="+c[1], "--out", in)...)
			if got := outcomeOf(t, in); got != want {
				t.Errorf("%v: %s processes over %s differ from one process", job, c[0], c[1])
			}
			if n := strings.Count(out, "done: 4 steps"); n != 1 {
				t.Errorf("%v: %d lines report the end", job, n)
			}
		}
	}
}

// TestLaunchResumes checks that a job without parallel.ranks gets one rank per process, and that
// a checkpoint of several processes resumes in one and vice versa.
func TestLaunchResumes(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	sets := []string{"train", "tiny.yaml", "--set", "parallel.ranks=2", "--set", "train.steps=6", "--set", "checkpoint.every=3", "--set", "sample.tokens=0"}
	zeroth(t, 0, append(sets, "--out", "whole")...)
	want := outcomeOf(t, "whole")
	process(t, 0, append(append([]string{"launch", "-n", "2", "--"}, sets...), "--out", "several")...)
	if outcomeOf(t, "several") != want {
		t.Error("other bits with checkpoints")
	}
	for from, how := range map[string][]string{"whole": {"launch", "-n", "2", "--"}, "several": nil} {
		out := "from" + from
		process(t, 0, append(append(how, sets...), "--out", out, "--resume", filepath.Join(from, "ckpt", "step-00000003"))...)
		a, err := os.ReadFile(filepath.Join(out, "model", "model.safetensors"))
		if err != nil || !strings.HasSuffix(want, string(a)) {
			t.Errorf("going on from the checkpoint of %s: other parameters (%v)", from, err)
		}
	}
	out, _ := process(t, 0, "launch", "-n", "3", "train", "tiny.yaml", "--set", "parallel.ranks=null", "--set", "train.steps=1", "--out", "three") // also without --
	if !strings.Contains(out, "ranks   3") || !strings.Contains(out, "process 0 of 3, by zeroth") && !strings.Contains(out, "3") {
		t.Errorf("three processes:\n%s", out)
	}
}

// TestLaunchOverTLS checks that mutual TLS changes no bit, and that errors in its files are
// reported before anything starts.
func TestLaunchOverTLS(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true} // self-signed
	cert, err := x509.CreateCertificate(crand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: cert}, "tls.key": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sets := append(launched4, "--set", "train.steps=2")
	zeroth(t, 0, append(sets, "--out", "one")...)
	process(t, 0, append(append([]string{"launch", "-n", "2", "--"}, sets...), "--set", "parallel.transport=tcp", "--set", "parallel.tls={cert: tls.crt, key: tls.key, ca: tls.crt}", "--out", "tls")...)
	if outcomeOf(t, "tls") != outcomeOf(t, "one") {
		t.Error("other bits than one process has")
	}
	for tls, want := range map[string]string{"{cert: tls.crt}": "cert, key and ca are only used together", "{cert: tls.crt, key: tls.crt, ca: tls.crt}": "tls.crt and tls.crt: tls: ", "{cert: tls.crt, key: tls.key, ca: none}": "open none"} {
		if _, errs := process(t, 2, append(append([]string{"launch", "-n", "2", "--"}, sets...), "--set", "parallel.tls="+tls, "--out", "none")...); !strings.Contains(errs, want) {
			t.Errorf("%s: %s\nwant %s", tls, errs, want)
		}
	}
	if _, err := os.Stat("none"); err == nil {
		t.Error("a folder is made for a run that does not begin")
	}
}

// TestMissingProcesses checks that a world that does not form ends with the exit code for a restart.
func TestMissingProcesses(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	_, errs := process(t, 75, "train", "tiny.yaml", "--world", "2", "--rank", "1", "--addr", "127.0.0.1:1", "--set", "parallel={ranks: 2, join: 100ms}")
	if !strings.Contains(errs, "rank 0 at 127.0.0.1:1") || !strings.Contains(errs, "no answer within 100ms") {
		t.Errorf("it says\n%s", errs)
	}
	if made, err := filepath.Glob("runs/*"); err != nil || made != nil {
		t.Errorf("made %v (%v)", made, err)
	}
}

// TestLaunchNamesWhoWasKilled checks that launch names a process killed by a signal even if no
// other process notices.
func TestLaunchNamesWhoWasKilled(t *testing.T) {
	inFolder(t)
	t.Setenv("ZEROTH_FAULT", "0 killed-at-once 0")
	_, errs := process(t, 1, "launch", "-n", "1", "train", "tiny.yaml", "--out", "r")
	if want := "zeroth: process 0 of 1 ended by signal: killed"; !strings.Contains(errs, want) {
		t.Errorf("it says %q, want %q", errs, want)
	}
}

// TestLaunchRefuses checks that each error is printed once.
func TestLaunchRefuses(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	for want, args := range map[string][]string{
		"3 ranks cannot be split evenly over 2 processes":             {"launch", "-n", "2", "--", "train", "tiny.yaml", "--set", "parallel.ranks=3"},
		"local works only within one process":                         {"launch", "-n", "2", "--", "train", "tiny.yaml", "--set", "parallel.ranks=2", "--set", "parallel.transport=local"},
		"want train, bench or doctor to launch":                       {"launch", "--", "plan", "tiny.yaml"},
		"bench has no checkpoint to continue from":                    {"launch", "--restarts", "1", "--", "bench", "collective"},
		"want bench collective\n":                                     {"launch", "--", "bench", "disk"},
		"--transport local; want auto":                                {"launch", "--", "doctor", "--cluster", "--transport", "local"},
		"want 1 to 4096 processes":                                    {"launch", "-n", "0", "--", "train", "tiny.yaml"},
		"so it cannot be standard input; want a file":                 {"launch", "--", "train", "-"},
		"--rank 2 in a world of 2 processes":                          {"train", "tiny.yaml", "--world", "2", "--rank", "2", "--addr", "127.0.0.1:1"},
		"can be reached from other hosts, but the job has no":         {"train", "tiny.yaml", "--world", "2", "--rank", "0", "--addr", "192.0.2.1:29400"},
		"\"a b\"; want names separated by commas":                     {"launch", "--hosts", "a,a b", "--", "train", "tiny.yaml"},
		"\"-oProxyCommand=x\"; want names":                            {"launch", "--hosts", "-oProxyCommand=x", "--", "train", "tiny.yaml"},
		"\"a:0\"; want names":                                         {"launch", "--hosts", "a:0", "--", "train", "tiny.yaml"},
		"host a is named twice":                                       {"launch", "--hosts", "a:2,a", "--", "train", "tiny.yaml"},
		"hosts:3: \"cores=4\"; want a host and its processes":         {"launch", "--hostfile", "hosts", "--", "train", "tiny.yaml"},
		"want --hosts or --hostfile, too":                             {"launch", "--copy", "--", "train", "tiny.yaml"},
		"want --ssh=\"./s\"":                                          {"launch", "--hosts", "a", "--ssh", "./s", "--", "train", "tiny.yaml"},
		"unknown flag: --nonsense":                                    {"launch", "--", "train", "tiny.yaml", "--nonsense"},
		"unknown flag: --restarts; write launch's own flags before":   {"launch", "-n", "2", "train", "tiny.yaml", "--out", "y", "--restarts", "2"},
		"unknown shorthand flag: 'n' in -n; write launch's own flags": {"launch", "train", "tiny.yaml", "-n", "2"},
		"parallel.dead_after":                                         {"launch", "-n", "2", "--", "train", "tiny.yaml", "--set", "parallel={ranks: 2, dead_after: 1s}"},
		"the job's token: none is empty; want at least 16":            {"train", "tiny.yaml", "--world", "2", "--addr", "127.0.0.1:1", "--set", "parallel.token_file=none"},
	} {
		for file, text := range map[string]string{"none": "", "hosts": "# hosts\nnode1 slots=4\nnode2 cores=4\n"} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, errs := process(t, 2, args...)
		if strings.Count(errs, want) != 1 {
			t.Errorf("%q: %s\nwant once: %s", args, errs, want)
		}
	}
	if made, err := filepath.Glob("runs/*"); err != nil || made != nil {
		t.Errorf("made %v (%v)", made, err)
	}
}

// children returns the running child processes of a process.
func children(t *testing.T, parent int) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended meanwhile
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[0] != "Z" && f[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// environ returns an environment variable of a process.
func environ(pid int, name string) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	for _, v := range strings.Split(string(b), "\x00") {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// steady returns the arguments that train tiny.yaml on three ranks with a schedule independent of
// the number of steps.
func steady(steps int, out string) []string {
	return []string{"train", "tiny.yaml", "--set", "parallel={ranks: 3, heartbeat: 200ms, dead_after: 4s}", "--set", "schedule={type: constant, warmup: 0}",
		"--set", fmt.Sprint("train.steps=", steps), "--set", "checkpoint.every=20", "--set", "sample.tokens=0", "--out", out}
}

// endless is more steps than any test runs.
const endless = 1_000_000

// fault launches three processes and sends a signal to one of them some time after the first
// checkpoint.
func (s shell) fault(out string, steps int, sig syscall.Signal, victim int, after time.Duration, launch ...string) (code int, errs string) {
	s.Helper()
	code, _, errs = s.signalOne(out, sig, victim, after, append(append(append([]string{"launch", "-n", "3"}, launch...), "--"), steady(steps, out)...)...)
	return code, errs
}

// signalOne is like fault, for any command.
func (s shell) signalOne(out string, sig syscall.Signal, victim int, after time.Duration, args ...string) (code int, said, errs string) {
	s.Helper()
	code, said, errs, took := s.disturb(out, after, signalTo(s.T, sig, victim), args...)
	s.Logf("%v to rank %d, %v after the first checkpoint: over after %v", sig, victim, after, took)
	return code, said, errs
}

// signalTo returns a function that sends a signal to the process of a rank.
func signalTo(t *testing.T, sig syscall.Signal, victim int) func(pids []int) {
	return func(pids []int) {
		for _, pid := range pids {
			if environ(pid, "ZEROTH_RANK") == strconv.Itoa(victim) {
				if err := syscall.Kill(pid, sig); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// disturb launches a job and calls strike with its processes some time after its first
// checkpoint, or after its first step if out is empty. It returns once the job has ended, with
// the time that took.
func (s shell) disturb(out string, after time.Duration, strike func(pids []int), args ...string) (code int, said, errs string, took time.Duration) {
	t := s.T
	t.Helper()
	cmd, rest, e := s.start(args...)
	for out != "" {
		if _, err := checkpoint.Resolve(s.path(out, "ckpt"), "latest"); err == nil {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	time.Sleep(after)
	pids := children(t, cmd.Process.Pid)
	begin := time.Now()
	strike(pids)
	var o bytes.Buffer
	if _, err := rest.WriteTo(&o); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the exit code is checked below
	took = time.Since(begin)
	for _, pid := range pids {
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("process %d is left", pid)
		}
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String(), took
}

// namedBy returns the processes that reported that a rank was lost, and why.
func namedBy(victim int, why, errs string) (by []string) {
	named := regexp.MustCompile(fmt.Sprintf(`(?m)^(?:\[([\d,]+)\] )?zeroth: .*peer %d lost: rank %d \(.*\): %s`, victim, victim, why))
	for _, m := range named.FindAllStringSubmatch(errs, -1) {
		by = append(by, strings.Split(cmp.Or(m[1], "0"), ",")...) // process 0's lines have no prefix
	}
	slices.Sort(by)
	return by
}

// TestLaunchSurvivesFaults checks that every other process names a process that is killed or
// stopped at a random instant, and that the run resumes from its last checkpoint with the bits of
// an undisturbed run.
func TestLaunchSurvivesFaults(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	rng, runs := rand.New(rand.NewPCG(15, 1)), 8
	if !nightly.All() {
		runs = 2
	}
	for i := range runs {
		sig, why := syscall.SIGKILL, "connection lost"
		if i%2 == 1 {
			sig, why = syscall.SIGSTOP, "silent for 4s"
		}
		out, victim := fmt.Sprint("run", i), rng.IntN(3)
		code, errs := s.fault(out, endless, sig, victim, time.Duration(rng.IntN(200))*time.Millisecond)
		by := namedBy(victim, why, errs)
		if want := slices.Delete([]string{"0", "1", "2"}, victim, victim+1); code != 75 || !slices.Equal(by, want) {
			t.Errorf("run %d: exit code %d, rank %d named by %v, want %v:\n%s", i, code, victim, by, want, errs)
			continue
		}
		list, err := checkpoint.List(s.path(out, "ckpt"))
		newest, ok := checkpoint.Newest(list)
		if err != nil || !ok {
			t.Fatal(err)
		}
		steps, whole := int(newest.Step)+10, fmt.Sprint("whole", i)
		s.process(0, append(append([]string{"launch", "-n", "3", "--"}, steady(steps, out)...), "--resume", "latest")...)
		s.process(0, steady(steps, whole)...)
		if outcomeOf(t, s.path(out)) != outcomeOf(t, s.path(whole)) {
			t.Errorf("run %d: other bits than without the fault", i)
		}
	}
}

// TestLaunchSuspended checks that a launch goes on whose processes are all stopped for longer than a
// silent one may live, as by Ctrl-Z or docker pause.
func TestLaunchSuspended(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	code, _, errs, _ := s.disturb("r", 0, func(pids []int) {
		for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
			for _, pid := range pids {
				if err := syscall.Kill(pid, sig); err != nil {
					t.Fatal(err)
				}
				time.Sleep(50 * time.Millisecond)
			}
			if sig == syscall.SIGSTOP {
				time.Sleep(6 * time.Second)
			}
		}
	}, append([]string{"launch", "-n", "3", "--"}, steady(400, "r")...)...)
	if code != 0 {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

// TestLaunchRestarts checks that --restarts resumes a failed run.
func TestLaunchRestarts(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	s.process(0, steady(400, "whole")...)
	code, errs := s.fault("r", 400, syscall.SIGKILL, 1, 0, "--restarts", "2")
	if code != 0 || !strings.Contains(errs, "zeroth: restarting from the last checkpoint, restart 1 of 2") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	if outcomeOf(t, s.path("r")) != outcomeOf(t, s.path("whole")) {
		t.Error("other bits than without the fault")
	}
}

// TestLaunchStopsTogether checks that SIGTERM to any process stops all of them, with a
// checkpoint.
func TestLaunchStopsTogether(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	for rank := range 3 {
		code, errs := s.fault(fmt.Sprint("r", rank), endless, syscall.SIGTERM, rank, 0)
		asked, others := regexp.MustCompile(`(?m)^(?:\[(\d)\] )?zeroth: stopped by SIGTERM`), "another process of the run was asked to stop after step "
		if m := asked.FindStringSubmatch(errs); code != 75 || m == nil || cmp.Or(m[1], "0") != fmt.Sprint(rank) || !strings.Contains(errs, others) {
			t.Errorf("rank %d: exit code %d\n%s", rank, code, errs)
		}
		if _, err := os.Stat(s.path(fmt.Sprint("r", rank), "flight")); err == nil {
			t.Errorf("rank %d: a run that was asked to stop has dumped what it did", rank)
		}
	}
}

// TestLaunchLogsOfAllRanks checks that only the process of rank 0 prints unless all are asked to,
// and that the run folder has the files of a single process.
func TestLaunchLogsOfAllRanks(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	sets := []string{"train", "tiny.yaml", "--set", "parallel.ranks=3", "--set", "sample.tokens=0"}
	zeroth(t, 0, append(slices.Clone(sets), "--out", "one")...)
	want := listing(t, "one")
	for times, more := range map[int][]string{1: nil, 3: {"--log-all-ranks"}} {
		out := fmt.Sprint("r", times)
		said, _ := process(t, 0, append(append(append([]string{"launch", "-n", "3", "--"}, sets...), "--out", out), more...)...)
		if n := strings.Count(said, "ranks   3, stage"); n != times {
			t.Errorf("%v: the header is told %d times, want %d\n%s", more, n, times, said)
		}
		if times == 3 && (!strings.Contains(said, "\n[1] ranks   3") || !strings.Contains(said, "\n[2] ranks   3")) {
			t.Errorf("no processes before their lines:\n%s", said)
		}
		if n := strings.Count(said, "done: 2 steps"); n != 1 {
			t.Errorf("%v: the end is told %d times\n%s", more, n, said)
		}
		if got := listing(t, out); got != want {
			t.Errorf("%v: files %s, want %s", more, got, want)
		}
		if lines, err := os.ReadFile(filepath.Join(out, "metrics.jsonl")); err != nil || bytes.Count(lines, []byte(`{"step":1,"loss"`)) != 1 {
			t.Errorf("%v: %v\n%s", more, err, lines)
		}
	}
}

// TestLaunchesHaveFoldersOfTheirOwn checks that launches started in the same second get separate
// folders, each shared by all processes, and that a refused launch leaves none.
func TestLaunchesHaveFoldersOfTheirOwn(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { process(t, 0, "launch", "-n", "2", "--", "train", "tiny.yaml") })
	}
	both.Wait()
	runs, err := filepath.Glob("runs/tiny-*/model/model.safetensors")
	if all, _ := filepath.Glob("runs/*"); err != nil || len(runs) != 2 || len(all) != 2 {
		t.Errorf("runs %v of %v, %v", runs, all, err)
	}
	if err := os.RemoveAll("runs"); err != nil {
		t.Fatal(err)
	}
	process(t, 2, "launch", "-n", "2", "--", "train", "tiny.yaml", "--set", "data.text=[none.txt]")
	if _, err := os.Stat("runs"); err == nil {
		t.Error("a launch that was refused left its folder")
	}
}

// listing returns the names of the files in a folder.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		names = append(names, strings.TrimPrefix(path, dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}
