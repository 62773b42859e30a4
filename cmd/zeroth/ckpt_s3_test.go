//go:build unix

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"zeroth/internal/input/s3/s3test"
	"zeroth/tests/nightly"
)

// TestObjectStorage checks that a run with its checkpoints in object storage continues on another
// host, without any of them on its disk, with the bits of a run on disk, and that commands treat
// such a folder like one on disk.
func TestObjectStorage(t *testing.T) {
	nightly.Long(t)
	server := s3test.Serve(t)
	inFolder(t)
	train := func(out, steps string, args ...string) {
		zeroth(t, 0, append([]string{"train", "tiny.yaml", "--out", out, "--set", "train.steps=" + steps, "--set", "checkpoint.every=2", "--set", "parallel.ranks=3"}, args...)...)
	}
	far := []string{"--set", "checkpoint.dir=s3://runs/a"}
	train("disk", "4")
	train("disk", "6", "--resume", "latest")
	train("r", "4", far...)
	train("other", "6", append(far, "--resume", "latest", "--set", "checkpoint.local=scratch")...)
	same := func(a, b string) {
		t.Helper()
		x, err := os.ReadFile(a)
		y, wrong := os.ReadFile(b)
		if err != nil || wrong != nil || string(x) != string(y) {
			t.Errorf("%s and %s differ (%v, %v)", a, b, err, wrong)
		}
	}
	same("disk/model/model.safetensors", "other/model/model.safetensors")
	if in, err := os.ReadDir("scratch"); err != nil || slices.ContainsFunc(in, func(e os.DirEntry) bool { return e.Name() == "step-00000004" }) {
		t.Errorf("%v, %v", in, err)
	}
	out, _ := zeroth(t, 0, "ckpt", "ls", "s3://runs/a")
	matches(t, out, "complete step-00000002", "complete, latest, best step-00000006")
	out, _ = zeroth(t, 0, "ckpt", "ls", "other")
	matches(t, out, "complete, latest, best step-00000006")
	zeroth(t, 0, "ckpt", "verify", "s3://runs/a/step-00000004")
	zeroth(t, 0, "ckpt", "diff", "s3://runs/a", "disk/ckpt")
	zeroth(t, 0, "ckpt", "export", "s3://runs/a", "--to", "exported")
	zeroth(t, 0, "ckpt", "export", "disk", "--to", "expected")
	same("expected/model.safetensors", "exported/model.safetensors")
	zeroth(t, 0, "ckpt", "import", "exported", "--to", "s3://runs/start")
	zeroth(t, 0, "ckpt", "verify", "s3://runs/start")
	zeroth(t, 0, "ckpt", "prune", "s3://runs/a", "--keep", "1")
	zeroth(t, 0, "ckpt", "verify", "s3://runs/a")
	if keys := server.Keys(t); slices.ContainsFunc(keys, func(k string) bool {
		return strings.HasPrefix(k, "a/step-") && !strings.HasPrefix(k, "a/step-00000006/")
	}) {
		t.Errorf("%q", keys)
	}
	if _, wrong := zeroth(t, 2, "ckpt", "ls", "s3://runs/none"); !strings.Contains(wrong, "s3://runs/none") {
		t.Error(wrong)
	}
	if _, wrong := zeroth(t, 2, "train", "tiny.yaml", "--out", "new", "--set", "checkpoint.every=2", "--set", "checkpoint.dir=s3://runs/a"); !strings.Contains(wrong, "has checkpoints of another run") {
		t.Error(wrong)
	}
}
