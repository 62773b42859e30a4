//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/tests/nightly"
)

// absurdMemory and absurdTime limit the memory (bytes) and processor time of a command with
// absurd input.
const (
	absurdMemory = 2e9
	absurdTime   = 10 * time.Second
)

// TestAbsurdInputs checks that small inputs cannot demand large resources: a process limited to 2
// GiB refuses or plans them within seconds.
func TestAbsurdInputs(t *testing.T) {
	nightly.Long(t)
	notRaced(t)
	s := inShell(t)
	r := strings.Repeat
	if err := syscall.Mkfifo(s.path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.path("model"), 0o755); err != nil {
		t.Fatal(err)
	}
	var keys strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&keys, "unknown%d: 1\n", i)
	}
	for name, content := range map[string]string{
		"brackets.yaml":     r("[", 45_000),
		"more.yaml":         r("[", 200_000),
		"braces.yaml":       r("{a: ", 50_000),
		"dashes.yaml":       r("- ", 100_000) + "a",
		"key.yaml":          tiny + r("k", 20_000_000) + ": 1\n",
		"keys.yaml":         tiny + keys.String(),
		"longkey.yaml":      tiny + r("k", 200_000) + ": 1\n",
		"laughs.yaml":       tiny + "a: &a [x]\nb: &b [" + r("*a,", 9) + "]\nc: &c [" + r("*b,", 9) + "]\nd: &d [" + r("*c,", 9) + "]\ne: [" + r("*d,", 9) + "]\n",
		"machine.json":      `{"links": ` + r("[", 1_000_000),
		"model/config.json": `{"model_type": "gpt2", "n_layer": 1000000}`,
	} {
		if err := os.WriteFile(s.path(name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	plan := func(sets ...string) []string {
		args := []string{"plan", "tiny.yaml", "--world", "4"} // not for this machine, which has too little memory
		for _, set := range sets {
			args = append(args, "--set", set)
		}
		return args
	}
	for i, c := range []struct {
		code int
		said string
		args []string
	}{
		{2, "2147483648 is more than 1073741824; want a whole number from 1 to 1073741824", plan("train.batch=2147483648", "train.micro_batch=null")},
		{0, "accumulate 262144 × 4 ranks", plan("train={batch: 1073741824, micro_batch: 1024}")},
		{2, "65536 is more than 10000", plan("model.layers=65536")},
		{0, "parameters", plan("model.layers=10000")},
		{2, "1000000 layers exceed the limit of 10000", []string{"plan", "--model", "model"}},
		{0, "parameters", plan("zero.prefetch=10000", "parallel.ranks=65536")},
		{0, "parameters", plan("train.micro_batch=8388608")},
		{0, "parameters", plan("model.width=1048576", "model.heads=1048576", "model.context=1048576", "train.loss_chunk=1073741824")},
		{2, "chunks of train.loss_chunk tokens in a micro-batch are more than 65536", plan("train.micro_batch=1048576", "train.loss_chunk=1")},
		{0, "step ", append(plan("train.micro_batch=8192", "train.loss_chunk=1"), "--machine", "h100")},
		{0, "step ", append(plan("model.layers=10000", "train.accumulate=1000"), "--machine", "h100")},
		{2, "offloaded pieces of 2^20 elements per rank", plan("model.width=1048576", "zero.offload.optimizer=host")},
		{2, "parameters are more than 1.76e+13", plan("model.width=1048576", "model.layers=1000")},
		{2, "tasks, but at most 4194304 are simulated", append(plan("model.layers=10000", "model.family=llama", "zero.recompute=block", "train.loss_chunk=1", "train.micro_batch=8192", "train.accumulate=4"), "--machine", "h100")},
		{0, "fits, fastest", []string{"fit", "tiny.yaml", "--gpus", "8", "--gpu-memory", "80GiB", "--set", "train.batch=16777216", "--set", "train.micro_batch=64"}},
		{2, "a step of 2097152 micro-batches is too long; want at most 262144, such as by a larger train.micro_batch", []string{"fit", "tiny.yaml", "--gpus", "8", "--set", "train.batch=16777216"}},
		{0, "fits, fastest", []string{"fit", "tiny.yaml", "--gpus", "8", "--gpu-memory", "80GiB", "--set", "train.batch=735134400", "--set", "train.micro_batch=360", "--host-memory", "1TiB", "--disk", "1TB"}},
		{0, "larger ones were not searched", []string{"fit", "tiny.yaml", "--gpus", "64", "--gpu-memory", "1000000TiB", "--largest", "model"}},
		{2, "nested more than 32 deep", []string{"plan", "brackets.yaml"}},
		{2, "more than 50000 words", []string{"train", "more.yaml"}},
		{2, "more than 50000 words", []string{"plan", "braces.yaml"}},
		{2, "more than 50000 words", []string{"plan", "dashes.yaml"}},
		{2, "it is larger than the limit of 262144 bytes", []string{"plan", "key.yaml"}},
		{2, "it is larger than the limit of 262144 bytes", []string{"train", "keys.yaml"}},
		{2, "unknown key", []string{"plan", "longkey.yaml"}},
		{2, "unknown key", []string{"plan", "laughs.yaml"}},
		{2, "it is a device, not a regular file", []string{"plan", "/dev/zero"}},
		{2, "it is a pipe, not a regular file", []string{"train", "pipe"}},
		{2, "it is a pipe, not a regular file", []string{"plan", "tiny.yaml", "--machine", "pipe"}},
		{2, "it is a device, not a regular file", []string{"plan", "tiny.yaml", "--machine", "/dev/zero"}},
		{2, "it is larger than the limit of 65536 bytes", []string{"fit", "tiny.yaml", "--gpu-memory", "1GiB", "--machine", "machine.json"}},
	} {
		if !nightly.Every(4, i) {
			continue
		}
		t.Run(fmt.Sprintf("%.60q", c.args), func(t *testing.T) {
			code, said, used := s.confined(c.args)
			if code != c.code || !strings.Contains(said, c.said) || len(said) > 30_000 {
				t.Errorf("exit code %d, want %d with %q:\n%.3000s", code, c.code, c.said, said)
			}
			if took := time.Duration(used.Utime.Nano() + used.Stime.Nano()); took > absurdTime || used.Maxrss<<10 > absurdMemory {
				t.Errorf("took %v and %d kB", took, used.Maxrss)
			}
		})
	}
	if _, err := os.Stat(s.path("runs")); err == nil {
		t.Error("a run folder is left behind")
	}
}

// notRaced skips a test of memory under the race detector, which takes several times as much.
func notRaced(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector needs more memory than this test allows")
	}
}

// confined runs the command in a process with limited memory and returns its exit code, its
// output and its resource usage.
func (s shell) confined(args []string) (code int, said string, used *syscall.Rusage) {
	s.Helper()
	nightly.Needs(s, "sh")
	exe, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.Context(), 10*absurdTime) // generous, because the machine may be busy
	defer cancel()
	limited := fmt.Sprintf(`ulimit -d %d && exec "$0" "$@"`, int(absurdMemory)>>10)
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", limited, exe}, args...)...)
	cmd.Dir, cmd.Env = s.dir, append(append(os.Environ(), "ZEROTH_MAIN=main"), s.env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		s.Fatal(err)
	}
	state := cmd.ProcessState
	used, own := state.SysUsage().(*syscall.Rusage), syscall.Rusage{}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		s.Fatal(err)
	}
	if used.Maxrss <= own.Maxrss { // until it starts another program, a child counts the memory of its parent as its own
		used.Maxrss = 0
	}
	return state.ExitCode(), out.String(), used
}
