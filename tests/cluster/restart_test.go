//go:build faults && linux

package cluster

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
)

// TestRestart measures the time from killing a process until the first step after the restart by
// zeroth launch on this machine.
func TestRestart(t *testing.T) {
	runtime.LockOSThread()
	exe, rng := program(t), rand.New(rand.NewPCG(15, 2))
	var took []time.Duration
	for range 15 {
		dir := folder(t)
		p, err := run(dir, nil, exe, "launch", "-n", "3", "--restarts", "1", "--", "train", "job.yaml", "--out", "run", "--set", "parallel.transport=auto")
		if err != nil {
			t.Fatal(err)
		}
		until(t, p, "a checkpoint", func() bool {
			_, err := checkpoint.Resolve(filepath.Join(dir, "run", "ckpt"), "latest")
			return err == nil
		})
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		begin := time.Now()
		if err := syscall.Kill(child(t, p.cmd.Process.Pid, rng.IntN(3)), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		until(t, p, "a step after the restart", func() bool { return again.MatchString(p.said.String()) })
		took = append(took, time.Since(begin))
		p.signal(syscall.SIGTERM)
		if !p.wait(patience) {
			t.Error("it does not end")
		}
	}
	slices.Sort(took)
	t.Logf("from SIGKILL to the first step after the restart: %v to %v, median %v of %d", short(took[0]), short(took[len(took)-1]), short(took[len(took)/2]), len(took))
	if *strict && took[len(took)/2] > 2*time.Second {
		t.Error("want 2s")
	}
}

var again = regexp.MustCompile(`(?s)restarting.*\nstep \d+/`)

// until waits until a condition of a process holds.
func until(t *testing.T, p *process, what string, is func() bool) {
	t.Helper()
	for stop := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(stop) {
			p.signal(syscall.SIGKILL)
			t.Fatalf("no %s\n%s", what, &p.said)
		}
	}
}

// child returns the process of a rank that a launcher has started.
func child(t *testing.T, launcher, rank int) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		env, err := os.ReadFile(name)
		stat, wrong := os.ReadFile(filepath.Join(filepath.Dir(name), "stat"))
		if err != nil || wrong != nil {
			continue // it has ended meanwhile
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); f[1] == strconv.Itoa(launcher) && bytes.Contains(env, []byte(fmt.Sprintf("\x00ZEROTH_RANK=%d\x00", rank))) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			return pid
		}
	}
	t.Fatalf("there is no process of rank %d", rank)
	return 0
}
