//go:build cuda && linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"zeroth/job/report"
	"zeroth/tests/nightly"
)

// gpuLosses are the ways in which ranks on GPUs reach each other and what they store elsewhere, and what befalls the first process
// that is lost.
var gpuLosses = []struct {
	name, collective, library, fault string
	shard, pipeline                  int
	offload, optimizer               string
}{
	{"rank order, and NCCL hangs", "exact", "", "stuck", 1, 1, "{}", "adamw"}, {"shards", "exact", "", "", 2, 1, "{}", "adamw"},
	{"own order", "nccl", "", "", 1, 1, "{}", "adamw"}, {"through the host", "exact", "/nowhere", "", 1, 1, "{}", "adamw"}, {"a pipeline", "exact", "", "", 1, 2, "{}", "adamw"},
	{"all on the host", "exact", "", "", 2, 1, "{optimizer: host, parameters: host, activations: host}", "adamw"},
	{"some on the host, and through it", "exact", "/nowhere", "", 1, 1, "{optimizer: host, ratio: 0.6, activations: host}", "adamw"},
	{"on the disk", "nccl", "", "", 1, 1, "{optimizer: disk, parameters: disk, path: ., buffers: 2}", "adamw"},
	{"on the disk, and NCCL hangs", "exact", "", "stuck", 1, 1, "{optimizer: disk, path: .}", "adamw"},
	{"parameters on the disk", "exact", "", "", 1, 1, "{parameters: disk, path: .}", "adamw"},
	{"Muon", "nccl", "", "", 2, 1, "{}", "muon"}, {"Muon in a pipeline", "exact", "", "", 1, 2, "{}", "muon"}, {"Muon through the host", "exact", "/nowhere", "", 1, 1, "{}", "muon"},
	{"Muon on the host", "exact", "", "", 2, 1, "{optimizer: host, parameters: host}", "muon"}, {"Muon on the disk", "nccl", "", "", 1, 1, "{optimizer: disk, path: .}", "muon"},
}

// TestGPUSurvives kills processes of a job on GPUs, process 0 among them, upon which NCCL may hang in another one, which has
// to end then, and checks that the others replace their communicators, that those who come back join, and that the result has the bits
// of runs of one process that continue from each other's checkpoints with as many replicas. The fake NCCL sums in rank order.
func TestGPUSurvives(t *testing.T) {
	for i, c := range gpuLosses[:nightly.Of(1, len(gpuLosses))] {
		t.Run(c.name, func(t *testing.T) {
			inFolder(t)
			withNCCL(t, 4)
			dir, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			s, strike := shell{T: t, dir: dir}, filepath.Join(dir, "strike")
			t.Setenv("FAKENCCL_FAULT", "1 "+c.fault+" "+strike)
			if c.library != "" {
				t.Setenv("ZEROTH_NCCL_PATH", c.library)
			}
			const steps = 30
			replicas, layers := 4/c.shard/c.pipeline, map[string]string{"adamw": "2", "muon": "3"}[c.optimizer] // three units of matrices are in progress at once
			job := func(out string, n, steps int, collective string, more ...string) []string {
				args := []string{"train", "tiny.yaml", "--out", out, "--set", "device=cuda", "--set", "train.steps=" + strconv.Itoa(steps), "--set", "schedule={type: constant, warmup: 0}"}
				for _, set := range append([]string{"zero.stage=" + strconv.Itoa(1+2*(i%2)), "model.layers=" + layers, "optimizer.type=" + c.optimizer, "zero.recompute=linear", "zero.offload=" + c.offload, "sample.tokens=0", "train.eval_every=0", "train.batch=12", "train.micro_batch=2", "train.accumulate=null", "checkpoint={every: 0, save_on_exit: true}",
					fmt.Sprintf("parallel={ranks: %d, pipeline: %d, shard: %d, replicate: %d, collective: %s, heartbeat: 300ms, dead_after: 3s}", n*c.shard*c.pipeline, c.pipeline, c.shard, n, collective)}, more...) {
					args = append(args, "--set", set)
				}
				return args
			}
			metrics := s.path("r", "metrics.jsonl")
			lost := c.shard * c.pipeline // ranks, with the first process
			if c.fault != "" {
				lost++
			}
			disturb := func([]int) {
				for k, victim := range []int{3, 0} {
					for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
						if l, err := report.ReadLog(metrics); err == nil && len(l.Steps) > 3 && joinedIn(l) >= k*lost {
							break
						}
					}
					if k == 0 && c.fault != "" {
						if err := os.WriteFile(strike, nil, 0o600); err != nil {
							t.Fatal(err)
						}
					}
					signalTo(t, syscall.SIGKILL, victim)(launchedIn(t, s.dir))
				}
			}
			code, said, errs, _ := s.with("ZEROTH_FAULT=0 clock 40ms").disturb("", 0, disturb,
				append([]string{"launch", "-n", "4", "--"}, job("r", replicas, steps, c.collective, "faults={survive: true, join: true}")...)...)
			l, err := report.ReadLog(metrics)
			if code != 0 || err != nil || joinedIn(l) < lost || len(l.Steps) != steps {
				t.Fatalf("exit code %d, %v, %d steps, changes %+v\n%s%s", code, err, len(l.Steps), l.Changes, said, errs)
			}
			n, done := replicas, 0
			for _, to := range append(l.Changes, report.Change{Step: steps}) {
				if to.Step > done {
					args := job("again", n, to.Step, "exact")
					if done > 0 {
						args = append(args, "--resume", "latest")
					}
					s.process(0, args...)
				}
				n, done = to.Replicas, to.Step
			}
			got, err := os.ReadFile(s.path("r", "model", "model.safetensors"))
			want, wrong := os.ReadFile(s.path("again", "model", "model.safetensors"))
			if err != nil || wrong != nil || !bytes.Equal(got, want) {
				t.Errorf("other parameters (%v, %v), changes %+v", err, wrong, l.Changes)
			}
		})
	}
}
