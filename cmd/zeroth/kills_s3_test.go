//go:build unix

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zeroth/internal/input"
	"zeroth/internal/input/s3/s3test"
	"zeroth/tests/nightly"
)

// TestKilledAmongFaults checks that runs whose requests to object storage fail, and that are killed
// repeatedly, end with the bits of an undisturbed run. Half a checkpoint is never visible, even if
// the copies on disk are lost.
func TestKilledAmongFaults(t *testing.T) {
	nightly.Long(t)
	server := s3test.Serve(t)
	inFolder(t)
	args := func(out string) []string {
		return []string{"train", "tiny.yaml", "--out", out, "--resume", "latest", "--set", "train.steps=60", "--set", "train.eval_every=0", "--set", "sample.tokens=0", "--set", "parallel.ranks=2",
			"--set", "checkpoint={every: 3, keep: 2, local: local, dir: 's3://runs/" + out + "'}"}
	}
	from := time.Now()
	_ = begin(t, args("whole")...).Wait()
	took := time.Since(from)
	want, err := os.ReadFile("whole/model/model.safetensors")
	if err != nil {
		t.Fatal(err, said(t))
	}
	rng := rand.New(rand.NewPCG(30, 32))
	left := nightly.Of(1, 100)
	for i := 0; left > 0; i++ {
		kind, out := s3test.Kinds[i%len(s3test.Kinds)], fmt.Sprint("run", i)
		model := filepath.Join(out, "model/model.safetensors")
		t.Run(fmt.Sprint(i, "-", kind), func(t *testing.T) {
			if err := os.RemoveAll("local"); err != nil {
				t.Fatal(err)
			}
			faults := server.Disturb(kind, uint64(i))
			defer server.Watch(t)()
			for kills := min(left, 4); kills > 0; {
				cmd := begin(t, args(out)...)
				time.Sleep(time.Duration(rng.Int64N(int64(took))))
				_ = cmd.Process.Kill() // fails if it has ended
				if _ = cmd.Wait(); !cmd.ProcessState.Exited() {
					kills, left = kills-1, left-1
				} else if cmd.ProcessState.Success() {
					break
				}
				if rng.IntN(2) == 0 && !input.Exists(model) { // otherwise the only checkpoint may be lost, and step 0 is refused
					loseCopies(t)
				}
			}
			faults.End()
			zeroth(t, 0, args(out)...)
			got, err := os.ReadFile(model)
			if err != nil || string(got) != string(want) {
				t.Errorf("other parameters (%v)\n%s", err, said(t))
			}
			zeroth(t, 0, "ckpt", "verify", "s3://runs/"+out+"/step-00000060")
		})
	}
}

// loseCopies removes the checkpoints on the disk.
func loseCopies(t *testing.T) {
	t.Helper()
	steps, err := filepath.Glob("local/step-*")
	for _, s := range steps {
		if err == nil {
			err = os.RemoveAll(s)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
