//go:build linux

package main

import (
	"bytes"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"zeroth/internal/input/hub/hubtest"
	"zeroth/tests/nightly"
)

// onHub serves a tiny model with a tokenizer as hf://org/tiny and puts tiny.yaml into the current
// folder.
func onHub(t *testing.T) *hubtest.Hub {
	t.Helper()
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--set", "train.steps=1", "--set", "sample.tokens=0", "--out", "made", "--quiet")
	return hubtest.Serve(t, hubtest.Folder(t, "made/model"))
}

// fromHub is a job that starts from hf://org/tiny.
var fromHub = []string{"--set", "model={from: hf://org/tiny}", "--set", "sample.tokens=0", "--set", "checkpoint.every=1"}

// TestTrainFromHub checks that a run from a model on the Hub equals one from its folder and
// records the commit, and that it resumes from that commit offline and after the branch has
// moved.
func TestTrainFromHub(t *testing.T) {
	nightly.Long(t)
	h := onHub(t)
	args := append([]string{"train", "tiny.yaml", "--out"}, "hub")
	_, errs := zeroth(t, 0, append(args, fromHub...)...)
	contains(t, errs, "")
	zeroth(t, 0, "train", "tiny.yaml", "--out", "folder", "--set", "model={from: made/model}", "--set", "sample.tokens=0")
	a, wrong := os.ReadFile("hub/model/model.safetensors")
	b, err := os.ReadFile("folder/model/model.safetensors")
	if err != nil || wrong != nil || !bytes.Equal(a, b) {
		t.Errorf("the models differ: %v, %v", err, wrong)
	}
	job, err := os.ReadFile("hub/job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(job), "from: \"hf://org/tiny@"+h.Commit+"\"")
	h.Commit = strings.Repeat("d", 40)
	h.Requests()
	zeroth(t, 0, "train", "hub/job.yaml", "--out", "hub", "--resume", "latest", "--set", "train.steps=3")
	zeroth(t, 0, "train", "hub/job.yaml", "--out", "again")
	if got := h.Requests(); len(got) > 0 {
		t.Errorf("requests %q", got)
	}
	t.Setenv("HF_HUB_OFFLINE", "1")
	zeroth(t, 0, append([]string{"train", "tiny.yaml", "--out", "offline"}, fromHub...)...)
}

// TestCommandsOnHub checks that every command that reads a model accepts one on the Hub and
// downloads only what it needs.
func TestCommandsOnHub(t *testing.T) {
	nightly.Long(t)
	h := onHub(t)
	out, _ := zeroth(t, 0, "plan", "--model", "hf://org/tiny")
	contains(t, out, "GPT-2")
	if got := h.Requests(); len(got) == 0 || slices.ContainsFunc(got, func(r string) bool { return strings.Contains(r, "safetensors") || strings.Contains(r, "vocab.json") }) {
		t.Errorf("plan requests %q", got)
	}
	zeroth(t, 0, "fit", "--model", "hf://org/tiny", "--gpus", "2", "--gpu-memory", "80GiB", "--batch-tokens", "1024")
	zeroth(t, 0, "tokenize", "--tokenizer", "hf://org/tiny", "a.txt", "--out", "a.bin")
	if got := h.Requests(); len(got) == 0 || slices.ContainsFunc(got, func(r string) bool { return strings.Contains(r, "safetensors") }) {
		t.Errorf("tokenize requests %q", got)
	}
	out, _ = zeroth(t, 0, "model", "hf://org/tiny")
	contains(t, out, `trains     with model: {from: "hf://org/tiny"}`)
	zeroth(t, 0, "sample", "--run", "hf://org/tiny", "--tokens", "2", "--tokenizer", "hf://org/tiny")
	zeroth(t, 0, "eval", "tiny.yaml", "--run", "hf://org/tiny", "--all")
	zeroth(t, 0, "ckpt", "import", "hf://org/tiny", "--to", "c")
	zeroth(t, 0, "train", "tiny.yaml", "--set", "data={text: [a.txt], vocab: hf://org/tiny}", "--set", "sample.tokens=0", "--out", "tokens")
	zeroth(t, 0, "init", "lora", "lora.yaml", "--model", "hf://org/tiny")
	if text, err := os.ReadFile("lora.yaml"); err != nil || !strings.Contains(string(text), "from: hf://org/tiny ") {
		t.Errorf("%v\n%s", err, text)
	}
	_, errs := zeroth(t, 2, "train", "lora.yaml", "--set", "model.from=hf://org/none")
	contains(t, errs, "model.from: hf://org/none: no such model, or a private one")
}

// TestProcessesOnHub checks that all processes use the commit that process 0 found, and that each
// file is downloaded once.
func TestProcessesOnHub(t *testing.T) {
	h := onHub(t)
	old := h.Commit
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	last := joins(t, ln, 1, 2, as{dir: dir, args: append([]string{"--log-all-ranks"}, fromHub...)})
	last.says("process 1 of 2")
	h.Move(strings.Repeat("d", 40))
	zero := joins(t, ln, 0, 2, as{dir: dir, args: fromHub})
	zero.ends(t, "process 0", 0)
	last.ends(t, "process 1", 0)
	job, err := os.ReadFile("r/job.yaml")
	if err != nil || !strings.Contains(string(job), h.Commit) || strings.Contains(string(job), old) {
		t.Errorf("%v\n%s", err, job)
	}
	got := slices.DeleteFunc(h.Requests(), func(r string) bool { return strings.Contains(r, "/revision/") })
	if once := slices.Compact(slices.Sorted(slices.Values(got))); len(once) != len(got) {
		t.Errorf("requests %q", got)
	}
}
