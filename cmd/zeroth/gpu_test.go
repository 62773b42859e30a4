//go:build cuda

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/device/cuda/fake"
)

// onFakes has the processes that a test starts find the fake CUDA libraries.
func onFakes(t *testing.T, more ...string) {
	t.Helper()
	env, err := fake.Environment()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range append(env, more...) {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	fake.Need(t)
}

// gpus4 is tiny.yaml with four ranks on GPUs.
var gpus4 = slices.Concat(launched4, []string{"--set", "device=cuda", "--set", "train.steps=3"})

// launchOnGPUs runs a job in so many processes and returns what it said and computed.
func launchOnGPUs(t *testing.T, name, processes string, job ...string) (said, outcome string) {
	t.Helper()
	said, _ = process(t, 0, slices.Concat([]string{"launch", "-n", processes, "--"}, job, []string{"--out", name})...)
	return said, outcomeOf(t, name)
}

// Ranks on GPUs give the same bits in one process and in several, whatever carries
// them: what the host cannot address passes through memory that it can.
func TestGPULaunchGivesTheSameBits(t *testing.T) {
	inFolder(t)
	onFakes(t, "FAKECUDA_DEVICES=3")
	for stage, over := range map[string][][]string{
		"0": {{"2", "unix"}}, "1": {{"4", "tcp"}}, "2": {{"2", "tcp"}}, "3": {{"2", "auto"}, {"4", "unix"}},
	} {
		job := slices.Concat(gpus4, []string{"--set", "zero.stage=" + stage, "--set", "train.accumulate=2"})
		process(t, 0, append(job, "--out", "one"+stage)...)
		want := outcomeOf(t, "one"+stage)
		for _, o := range over {
			said, got := launchOnGPUs(t, stage+o[0]+o[1], o[0], append(job, "--set", "parallel.transport="+o[1])...)
			if got != want {
				t.Errorf("stage %s, %s processes over %s: other bits than one process has", stage, o[0], o[1])
			}
			if !strings.Contains(said, "as planned to the byte") || strings.Count(said, "done: 3 steps") != 1 {
				t.Errorf("stage %s, %s processes over %s:\n%s", stage, o[0], o[1], said)
			}
		}
	}
}

// So do hybrid sharding and offload, in every order in which streams may run.
func TestGPULaunchHoldsInEveryOrder(t *testing.T) {
	inFolder(t)
	onFakes(t)
	for i, sets := range [][]string{
		{"parallel.shard=2", "parallel.replicate=2", "zero.stage=2"},
		{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host", "zero.prefetch=0"},
	} {
		job := slices.Clone(gpus4)
		for _, s := range sets {
			job = append(job, "--set", s)
		}
		name := "one" + string(rune('a'+i))
		process(t, 0, append(job, "--out", name)...)
		want := outcomeOf(t, name)
		for _, mode := range []string{"lazy:1", "lazy:2", "threads:50"} {
			t.Setenv("FAKECUDA_MODE", mode)
			if _, got := launchOnGPUs(t, name+strings.ReplaceAll(mode, ":", ""), "2", job...); got != want {
				t.Errorf("%v, %s: other bits than one process has", sets, mode)
			}
		}
		t.Setenv("FAKECUDA_MODE", "")
	}
}

// Each process takes the GPU of its place among those of the machine, of all there
// are or of those the job names; a checkpoint of several goes on in one.
func TestGPULaunchTakesAGPUEach(t *testing.T) {
	inFolder(t)
	onFakes(t, "FAKECUDA_DEVICES=4")
	job := []string{"train", "tiny.yaml", "--log-all-ranks", "--set", "device=cuda", "--set", "parallel.ranks=2", "--set", "train.steps=4", "--set", "checkpoint.every=2", "--set", "sample.tokens=0"}
	for _, c := range []struct{ gpus, first, second string }{{"auto", "GPU 0", "GPU 1"}, {"[3, 1]", "GPU 3", "GPU 1"}, {"[2]", "GPU 2", "GPU 2"}} {
		said, _ := launchOnGPUs(t, "on"+c.gpus, "2", append(job, "--set", "parallel.gpus="+c.gpus)...)
		for _, g := range []string{c.first, c.second} {
			if !strings.Contains(said, "device  cuda: "+g+" (Emulated GPU)\n") {
				t.Errorf("parallel.gpus=%s: no process on %s:\n%s", c.gpus, g, said)
			}
		}
	}
	want := outcomeOf(t, "onauto")
	process(t, 0, append(job, "--out", "resumed", "--resume", filepath.Join("onauto", "ckpt", "step-00000002"))...)
	a, err := os.ReadFile(filepath.Join("resumed", "model", "model.safetensors"))
	if err != nil || !strings.HasSuffix(want, string(a)) {
		t.Errorf("going on in one process: other parameters (%v)", err)
	}
}
