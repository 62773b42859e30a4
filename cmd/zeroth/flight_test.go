//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/collective/flight"
	"zeroth/internal/setup"
	"zeroth/tests/nightly"
	"zeroth/zero"
)

// faults returns the hooks for a fault: "RANK drop N" skips operation N of the rank in its shard
// group (or its replica group, if the shard group has one rank), "RANK stuck N" never reaches it,
// and "RANK fails N" returns an error from it. If N is a file, the fault hits the first operation
// after the file exists. "LOCAL dead N" exits from the process with that local rank from start N
// on. "0 unwritable 0" makes creating checkpoint folders fail; "0 full 0" makes writes of
// checkpoints and offload fail. "0 clock 60ms" makes every micro-batch take so much longer.
func faults(what string) (h setup.Hooks) {
	var rank int
	var how, when string
	if _, err := fmt.Sscan(what, &rank, &how, &when); err != nil {
		return h
	}
	n, err := strconv.Atoi(when)
	if start, _ := strconv.Atoi(os.Getenv("ZEROTH_RESTART_COUNT")); how == "dead" {
		if os.Getenv("ZEROTH_LOCAL_RANK") == strconv.Itoa(rank) && start >= n {
			os.Exit(1)
		}
		return h
	}
	if how == "killed-at-once" && os.Getenv("ZEROTH_LOCAL_RANK") == strconv.Itoa(rank) {
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
		select {}
	}
	fails := func(what string, why error) func(vfstest.Op) error {
		return func(o vfstest.Op) error {
			if o.Do == what {
				return why
			}
			return nil
		}
	}
	switch how {
	case "clock":
		c := clock{last: -1}
		c.micro, _ = time.ParseDuration(when)
		h.WrapTrainer = func(_ int, z *zero.Config) { z.Listener = &c }
		return h
	case "unwritable":
		h.Files = vfstest.Hook{FS: vfs.OS{}, Before: fails("mkdir", syscall.EACCES)}
		return h
	case "blocked": // once a checkpoint is complete, a file takes the folder's place
		h.Files = vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
			if o.Do != "rename" {
				return nil
			}
			return errors.Join(os.MkdirAll(filepath.Dir(when), 0o755), os.WriteFile(when, nil, 0o644))
		}}
		return h
	case "full":
		h.Files = vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
			return map[string]error{"write": syscall.ENOSPC, "reserve": syscall.ENOSPC}[o.Do]
		}}
		return h
	}
	fault := map[string]collectivetest.Fault{"drop": {Drop: true}, "stuck": {Delay: time.Hour}, "fails": {Err: errors.New("it is broken")}}[how]
	plan := collectivetest.At(n, fault)
	if err != nil {
		plan = onceThere(when, fault)
	}
	h.WrapGroups = func(r int, g collective.Ranks) collective.Ranks {
		switch {
		case r == rank && g.Shard.Size() > 1:
			g.Shard = collectivetest.Faulty(g.Shard, plan)
		case r == rank:
			g.Replica = collectivetest.Faulty(g.Replica, plan)
		}
		return g
	}
	return h
}

// onceThere returns a plan that applies a fault to the first operation after a file exists.
func onceThere(file string, f collectivetest.Fault) collectivetest.Plan {
	over := false
	return func(int) collectivetest.Fault {
		if _, err := os.Stat(file); err != nil || over {
			return collectivetest.Fault{}
		}
		over = true
		return f
	}
}

// flown returns the report of "flight --json".
func flown(t *testing.T, code int, args ...string) (r flight.Report) {
	t.Helper()
	out, _ := zeroth(t, code, append([]string{"flight", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return r
}

// TestFlightFindsDivergence checks that flight names a rank that calls another operation, or that
// is stuck, from the dumps of all processes.
func TestFlightFindsDivergence(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	for _, c := range []struct {
		fault, timeout string
		want           string // pattern that the verdict must match
		parted         bool   // whether rank 1 calls another operation
	}{
		{"1 drop 40", "60s", `^rank 1 diverged from the others in operation 40 of (world|shard of ranks 0-2|shard) `, true},
		{"1 stuck 40", "8s", `^rank 1 has not reached operation 40 of shard .*in which ranks 0,2 wait: its last was operation `, false},
	} {
		if !nightly.All() && !c.parted {
			continue // slow: it waits twice for the timeout
		}
		t.Setenv("ZEROTH_FAULT", c.fault)
		out := strings.Fields(c.fault)[1]
		args := append(append([]string{"launch", "-n", "3", "--"}, steady(endless, out)...), "--set", "parallel.timeout="+c.timeout, "--set", "checkpoint.every=2")
		_, errs := process(t, 75, args...)
		r := flown(t, 1, out)
		if len(r.Dumps) != 3 || r.Absent != nil || r.World != 3 {
			t.Errorf("%s: %d dumps of %d, not of %v\n%s", c.fault, len(r.Dumps), r.World, r.Absent, errs)
		}
		if !slices.ContainsFunc(r.Verdict, regexp.MustCompile(c.want).MatchString) {
			t.Errorf("%s: verdict %q\nwant %s\n%s", c.fault, r.Verdict, c.want, errs)
		}
		text, _ := zeroth(t, 1, "flight", filepath.Join(out, "flight", "rank-0.json"), filepath.Join(out, "flight", "rank-1.json"), filepath.Join(out, "flight", "rank-2.json"))
		said := regexp.MustCompile(`(?m)^\[1\] zeroth: .*rank 1 has still not ended after 8s: not waiting any longer`)
		if stuck := !c.parted; stuck != said.MatchString(errs) {
			t.Errorf("%s: what the stuck process says of itself:\n%s", c.fault, errs)
		}
		if !strings.Contains(text, r.Verdict[0]) || !strings.Contains(text, "3 of 3 ranks have a dump") {
			t.Errorf("%s:\n%s", c.fault, text)
		}
	}
}

// TestFlightOfTheKilled checks that SIGUSR1 to any process or to the launcher makes all processes
// dump without disturbing the run, and that flight finds no fault in these dumps. After a process
// is killed, its earlier dump does not count as its last state.
func TestFlightOfTheKilled(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	const token = "a token of sixteen bytes and more"
	t.Setenv("ZEROTH_TOKEN", token)
	cmd, rest, errs := start(t, "main", append([]string{"launch", "-n", "3", "--"}, steady(endless, "r")...)...)
	go rest.WriteTo(nowhere{})
	waitFor := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no %s\n%s", what, errs)
			}
		}
	}
	victim := 0
	for _, pid := range children(t, cmd.Process.Pid) {
		if environ(pid, "ZEROTH_RANK") == "1" {
			victim = pid
		}
	}
	waitFor("dumps of all of a run in motion", func() bool {
		syscall.Kill(victim, syscall.SIGUSR1)
		var out, said bytes.Buffer
		var r flight.Report
		return run([]string{"flight", "--json", "r"}, &out, &said) == 0 && json.Unmarshal(out.Bytes(), &r) == nil && r.Absent == nil
	})
	if err := os.Rename("r/flight", "earlier"); err != nil {
		t.Fatal(err)
	}
	waitFor("dumps", func() bool {
		if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob("r/flight/rank-?.json")
		return err == nil && len(files) == 3
	})
	waitFor("checkpoint", func() bool {
		found, err := filepath.Glob("r/ckpt/step-*")
		return err == nil && len(found) > 0
	})
	syscall.Kill(victim, syscall.SIGKILL)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 75 {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	r := flown(t, 1, "r")
	if !slices.Equal(r.Absent, []int{1}) || !slices.Equal(r.Other, []string{filepath.Join("r", "flight", "rank-1.json")}) || !strings.HasPrefix(r.Verdict[0], "rank 1 has no dump, and rank") {
		t.Errorf("%+v", r)
	}
	for _, file := range append(r.Other, r.Dumps[0].File, r.Dumps[1].File) {
		if raw, err := os.ReadFile(file); err != nil || strings.Contains(string(raw), token) {
			t.Errorf("%s: %v, or the token is in it", file, err)
		}
	}
}

type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

// TestFlightRefuses checks that all files that are not dumps are refused at once, with their
// positions.
func TestFlightRefuses(t *testing.T) {
	inFolder(t)
	if err := os.WriteFile("cut.json", []byte(`{"version":1,"session":"`), 0o666); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"cut.json: not a dump of a rank: line 1, column 24: unterminated string": {"cut.json", "a.txt"},
		"a.txt: not a dump of a rank: line 1, column 1: ":                        {"cut.json", "a.txt"},
		".: no dumps in it or in its folder flight":                              {"."},
		"none.json: no such file":                                                {"none.json"},
	} {
		if _, errs := zeroth(t, 2, append([]string{"flight"}, args...)...); !strings.Contains(errs, want) {
			t.Errorf("%q: %s\nwant %s", args, errs, want)
		}
	}
}
