package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
	"zeroth/internal/input"
	"zeroth/tests/nightly"
)

// fullPipe returns the write end of a full pipe that nobody reads.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	for one := make([]byte, 1<<16); len(one) > 0; {
		if _, err := syscall.Write(p[1], one); err == syscall.EAGAIN {
			one = one[:len(one)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.SetNonblock(p[1], false); err != nil {
		t.Fatal(err)
	}
	r, w := os.NewFile(uintptr(p[0]), "reader"), os.NewFile(uintptr(p[1]), "writer")
	t.Cleanup(func() { r.Close(); w.Close() })
	return w
}

// interrupted sends a signal to a command while it is blocked on its output and returns the exit
// code. If the signal came before the command handled signals, it tries again with a longer wait.
func (s shell) interrupted(by syscall.Signal, args ...string) (code int, errs string) {
	t := s.T
	t.Helper()
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		cmd := s.command(args...)
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = fullPipe(t), &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(wait)
		_ = cmd.Process.Signal(by)
		hangs := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
		_ = cmd.Wait()
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !hangs.Stop() || !status.Signaled() || wait > 10*time.Second {
			return cmd.ProcessState.ExitCode(), fmt.Sprintf("%v\n%s", cmd.ProcessState, &said)
		}
	}
}

// TestEveryCommandEndsOnASignal checks that every command ends with exit code 130 on Ctrl-C,
// SIGTERM and SIGHUP, even while its output is blocked, and leaves no partial files.
func TestEveryCommandEndsOnASignal(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	s.process(0, "train", "tiny.yaml", "--out", "r", "--set", "checkpoint={every: 1, keep: 9}")
	s.process(0, "ckpt", "export", "r", "--to", "m")
	all := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	for i, args := range []string{
		"plan tiny.yaml", "plan tiny.yaml --json", "fit tiny.yaml --gpus 2 --gpu-memory 1GiB", "plot r --out p.svg", "model m", "doctor", "schema", "version", "help", "help job", "init", "init quickstart -",
		"ckpt ls r", "ckpt inspect r", "ckpt verify r", "ckpt diff r r", "ckpt export r --to e", "ckpt import m --to i", "ckpt prune r --keep 9",
		"sample --run r --tokens 5", "eval tiny.yaml --run r", "tokenize tiny.yaml --tokenizer bytes --out t.bin", "bench collective --seconds 3600", "bench parallel tiny.yaml --steps 1000",
	} {
		if !nightly.Every(5, i) {
			continue
		}
		words := strings.Fields(args)
		by := all[i%3]
		if code, errs := s.interrupted(by, words...); code != 130 {
			t.Errorf("zeroth %s: %v ends it with %s", args, by, errs)
		}
		for _, path := range []string{"e", "t.bin", "i"} {
			if err := os.RemoveAll(s.path(path)); err != nil {
				t.Fatal(err)
			}
		}
		for _, dir := range []string{s.dir, s.temp} {
			left, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(left, func(e os.DirEntry) bool { return dir == s.temp || input.IsTemp(e.Name()) }) {
				t.Errorf("zeroth %s: left %v", args, left)
			}
		}
	}
}

// TestTrainEndsThoughItsOutputBlocks checks that a run stops on a signal even if nobody reads its
// output.
func TestTrainEndsThoughItsOutputBlocks(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	for i, by := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}[:nightly.Of(2, 3)] {
		for _, args := range [][]string{long, append([]string{"launch", "-n", "2", "--"}, append(slices.Clone(long), "--set", "parallel.ranks=2")...)} {
			out := fmt.Sprint("r", i, len(args))
			code, errs := s.interrupted(by, append(slices.Clone(args), "--out", out)...)
			_, none := checkpoint.Resolve(s.path(out, "ckpt"), "latest")
			want := 1
			if none == nil || code == 75 && args[0] == "launch" { // not all processes had joined
				want = 75
			}
			if by == syscall.SIGINT {
				want = 130
			}
			_, began := os.Stat(s.path(out))
			if code != want && !(code == 130 && began != nil) { // a signal before the run begins gives 130
				t.Errorf("%v: exit code %d, want %d: %s", by, code, want, errs)
			}
		}
	}
}
