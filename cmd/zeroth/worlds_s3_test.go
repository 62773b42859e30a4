//go:build linux

package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/internal/input/s3/s3test"
	"zeroth/tests/nightly"
)

// Two hosts that share nothing but object storage save, are killed, and continue, one of them with an empty
// disk, with the bits of one process. A third run is refused meanwhile.
func TestHostsShareNothing(t *testing.T) {
	nightly.Long(t)
	server := s3test.Serve(t)
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--out", "whole", "--set", "train.steps=12", "--set", "parallel.ranks=2", "--set", "sample.tokens=0", "--set", "schedule={type: constant, warmup: 0}")
	hosts := []string{t.TempDir(), t.TempDir()}
	fill := func(dir string) {
		for _, name := range []string{"tiny.yaml", "a.txt"} {
			b, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), b, 0o666)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(hosts[0])
	fill(hosts[1])
	start := func(args ...string) (both [2]*joiner) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		for i, dir := range hosts {
			both[i] = joins(t, ln, i, 2, as{dir: dir, args: append([]string{"--set", "checkpoint.dir=s3://runs/a", "--set", "checkpoint.local=local", "--set", "parallel.ranks=2", "--set", "schedule={type: constant, warmup: 0}"}, args...)})
		}
		return both
	}
	first := start("--set", "train.steps=1000000", "--set", "checkpoint.keep=1000")
	for committed := 0; committed < 3; {
		committed = 0
		for _, key := range server.Keys(t) {
			if strings.HasSuffix(key, "/COMMIT") {
				committed++
			}
		}
		select {
		case <-first[0].done:
			t.Fatal(first[0].said.String())
		default:
		}
	}
	for _, j := range first {
		_ = j.cmd.Process.Kill()
		<-j.done
		if strings.Contains(j.said.String(), "damaged") {
			t.Errorf("a checkpoint whose upload is not finished is reported:\n%s", j.said.String())
		}
	}
	out, _ := zeroth(t, 0, "ckpt", "ls", "s3://runs/a")
	matches(t, out, "complete step-00000002")
	for _, name := range []string{"step-00000001", "step-00000002"} {
		zeroth(t, 0, "ckpt", "verify", "s3://runs/a/"+name)
	}
	hosts[1] = t.TempDir()
	fill(hosts[1])
	second := start("--set", "train.steps=12", "--resume", "2", "--set", "checkpoint.keep=2")
	for i, j := range second {
		j.ends(t, hosts[i], 0)
	}
	a, err := os.ReadFile("whole/model/model.safetensors")
	b, wrong := os.ReadFile(filepath.Join(hosts[0], "r/model/model.safetensors"))
	if err != nil || wrong != nil || string(a) != string(b) {
		t.Errorf("other parameters (%v, %v)", err, wrong)
	}
	zeroth(t, 0, "ckpt", "verify", "s3://runs/a")
	zeroth(t, 0, "ckpt", "export", "s3://runs/a/step-00000012", "--to", "exported")
}
