//go:build unix

// The tests of this package need Unix: most of them train, which locks folders, and send signals
// to processes.

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"zeroth/config"

	"zeroth/internal/input"
	"zeroth/job/hf"
	"zeroth/job/report"
	"zeroth/job/state"
	"zeroth/nn"
	"zeroth/tests/nightly"
)

// tiny is a job with steps of a few milliseconds.
const tiny = `data: {text: [a.txt]}
model: {layers: 1, heads: 1, width: 8, context: 8}
train: {steps: 2, micro_batch: 1}
parallel: {ranks: 2}
`

// inFolder changes to a new folder with tiny.yaml and its text.
func inFolder(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, content := range tinyFiles {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// zeroth runs the command in this process and checks its exit code.
func zeroth(t *testing.T, code int, args ...string) (out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	if got := run(args, &o, &e); got != code {
		t.Fatalf("zeroth %q: exit code %d, want %d\n%s%s", args, got, code, &o, &e)
	}
	return o.String(), e.String()
}

func TestTrainThenSample(t *testing.T) {
	inFolder(t)
	out, errs := zeroth(t, 0, "train", "tiny.yaml", "--set", "train.steps=3", "--set", "data.text=[a.txt, a.txt]", "--out", "run1")
	for _, want := range []string{"step 1/3  loss ", "step 3/3  loss ", "done: 3 steps", "saved to run1"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if errs != "" {
		t.Errorf("stderr: %s", errs)
	}
	job, err := os.ReadFile("run1/job.yaml")
	if err != nil || !strings.Contains(string(job), "steps: 3\n") || !strings.Contains(string(job), `text: ["a.txt", "a.txt"]`) {
		t.Errorf("job.yaml: %v\n%s", err, job)
	}
	if raw, err := os.ReadFile("run1/metrics.jsonl"); err != nil || strings.Count(string(raw), `"loss"`) != 3 {
		t.Errorf("metrics.jsonl: %v\n%s", err, raw)
	}
	if out, _ := zeroth(t, 0, "sample", "--run", "run1", "--prompt", "to be", "--tokens", "5", "--temperature", "0", "--top-k", "3", "--seed", "4"); !strings.HasPrefix(out, "to be") {
		t.Errorf("sample: %q", out)
	}
}

// TestProfiles checks that profiles and traces are written at the end of a run, and that a run is
// refused if they cannot be created.
func TestProfiles(t *testing.T) {
	inFolder(t)
	out, _ := zeroth(t, 0, "train", "tiny.yaml", "--out", "r", "--cpuprofile", "cpu.prof", "--trace", "trace.json")
	if !strings.Contains(out, "exposed communication") {
		t.Errorf("no word on communication in\n%s", out)
	}
	var trace struct{ TraceEvents []any }
	if raw, err := os.ReadFile("trace.json"); err != nil || json.Unmarshal(raw, &trace) != nil || len(trace.TraceEvents) < 100 {
		t.Errorf("trace.json: %v, %d events", err, len(trace.TraceEvents))
	}
	if raw, err := os.ReadFile("cpu.prof"); err != nil || !bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) { // gzip magic
		t.Errorf("cpu.prof: %v, %d bytes", err, len(raw))
	}
	for _, flag := range []string{"--cpuprofile", "--trace"} {
		if _, errs := zeroth(t, 2, "train", "tiny.yaml", flag, "no/such/file"); !strings.HasPrefix(errs, flag+": open no/such/file: ") {
			t.Errorf("%s: %s", flag, errs)
		}
	}
}

func TestDefaultFolder(t *testing.T) {
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml")
	runs, err := filepath.Glob("runs/tiny-2*/job.yaml")
	if err != nil || len(runs) != 1 {
		t.Errorf("runs: %v %v", runs, err)
	}
	at := time.Date(2026, 11, 21, 9, 38, 12, 0, time.UTC)
	if got := defaultFolder("examples/my.job.yaml", at); got != filepath.Join("runs", "my.job-20261121-093812") {
		t.Errorf("defaultFolder: %s", got)
	}
}

// TestOwnFolder checks that runs started in the same second get separate folders, and that a
// refused run leaves none.
func TestOwnFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	var undo [3]func()
	for i, want := range []string{"runs/a", "runs/a-2", "runs/a-3"} {
		var got string
		if got, undo[i] = ownFolder(filepath.Join("runs", "a")); got != filepath.FromSlash(want) {
			t.Errorf("folder %d is %s, want %s", i, got, want)
		}
	}
	write(t, "runs/a-2/job.yaml", "x")
	for _, u := range undo {
		u()
	}
	left, err := filepath.Glob("runs/*")
	if err != nil || len(left) != 1 || left[0] != filepath.Join("runs", "a-2") {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestRunFolder checks that a run never overwrites another, but accepts an empty folder.
func TestRunFolder(t *testing.T) {
	inFolder(t)
	if err := os.MkdirAll("full/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	_, errs := zeroth(t, 2, "train", "tiny.yaml", "--out", "full")
	if want := "--out full: the folder is not empty (sub), and runs are never overwritten; name a new folder, remove this one, or continue from its checkpoints with --resume latest\n"; errs != want {
		t.Errorf("got %s", errs)
	}
	_, errs = zeroth(t, 2, "train", "tiny.yaml", "--out", ".")
	if !strings.Contains(errs, "(a.txt, full, tiny.yaml)") {
		t.Errorf("got %s", errs)
	}
	_, errs = zeroth(t, 2, "train", "tiny.yaml", "--out", "a.txt/run")
	if want := "--out: mkdir a.txt: not a directory; name a folder that can be created\n"; errs != want {
		t.Errorf("got %s", errs)
	}
	zeroth(t, 0, "train", "tiny.yaml", "--out", "full/sub")
}

// TestUnwritableFolder checks that a folder without write permission is refused before the data
// is read. For root, it uses a folder under /proc.
func TestUnwritableFolder(t *testing.T) {
	inFolder(t)
	if err := os.Mkdir("locked", 0o555); err != nil {
		t.Fatal(err)
	}
	path := "locked"
	if os.Geteuid() == 0 {
		path = "/proc/self/task"
		if _, err := os.Stat(path); err != nil {
			t.Skip("no folder here is closed to root")
		}
		path += "/new"
	}
	_, errs := zeroth(t, 2, "train", "tiny.yaml", "--out", path)
	if !strings.HasPrefix(errs, "--out") || strings.Count(errs, "\n") != 1 {
		t.Errorf("got %s", errs)
	}
}

// TestDataProblems checks that errors found by reading the data are reported together with those
// of the job file, and that a failed start does not block a second one.
func TestDataProblems(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	for name, content := range map[string]string{"odd.bin": "abc", "ids.bin": "\x05\x00\x7f\x00", "wide.bin": strings.Repeat("\x05\x01\x00\x00", 3),
		"zeros.txt": strings.Repeat("to be, or not to be; ", 500) + "\x00", "page.txt": "<!doctype html>\n<title>404</title>"} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ sets, errs string }{
		{"train.batch=5000", "tiny.yaml:1:14: data.text: 10500 tokens give "},
		{"model.context=6000 data.validation=0", "tiny.yaml:1:14: data.text: 10500 tokens give 1 training windows of 6001 tokens, fewer than the 2 of one global batch"},
		{"model.context=900 data.validation=0.001 train.batch=20", "--set data.validation=0.001: data.validation: 0.001 of 10500 tokens is not enough for a window of 901 tokens"},
		{"model.context=900 data.validation=0.001 train.batch=20", "tiny.yaml:1:14: data.text: 10500 tokens give "},
		{"data.text= data.tokens=[a.txt] model.vocab=100", "--set data.tokens=[a.txt]: data.tokens: a.txt is text, not token ids; give it as data.text"},
		{"data.text= data.tokens=[ids.bin] model.vocab=100", "--set data.tokens=[ids.bin]: data.tokens: ids.bin: token 1, at byte 2, has id 127, but the vocabulary has ids 0 to 99"},
		{"data.text= data.tokens=[wide.bin]", "--set data.tokens=[wide.bin]: data.tokens: wide.bin: the file has no header, and its ids also fit the vocabulary as uint32; set data.dtype: uint32, or their actual type"},
		{"data.text=[zeros.txt]", "--set data.text=[zeros.txt]: data.text: zeros.txt is a binary file, not text: byte 10500 is 0"},
		{"data.text=[page.txt]", "--set data.text=[page.txt]: data.text: page.txt is an HTML page"},
		{"data.text= data.tokens=[odd.bin]", "--set data.tokens=[odd.bin]: data.tokens: odd.bin: 3 bytes is not a whole number of uint16 ids"},
	} {
		args := []string{"train", "tiny.yaml", "--out", "new/run"}
		for _, set := range strings.Fields(c.sets) {
			args = append(args, "--set", set)
		}
		out, errs := zeroth(t, 2, args...)
		if out != "" || !strings.Contains("\n"+errs, "\n"+c.errs) {
			t.Errorf("%s:\n%s%swant %s", c.sets, out, errs, c.errs)
		}
		if _, err := os.Stat("new"); err == nil {
			t.Errorf("%s: the run folder is there", c.sets)
		}
	}
	zeroth(t, 0, "train", "tiny.yaml", "--out", "new/run")
}

// TestDiskFull checks that a failed run reports what it has saved. A limit of 2000 bytes per file
// stands for a full disk.
func TestDiskFull(t *testing.T) {
	inFolder(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "train", "tiny.yaml", "--set", "train.steps=100000", "--out", "r")
	cmd.Env = append(os.Environ(), "ZEROTH_MAIN=full", "ZEROTH_MOST=2000")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Run()
	want := "zeroth: metrics: write r/metrics.jsonl: file too large\nsaved to r: job.yaml, metrics.jsonl\na file is larger than the limit of this process (ulimit -f) or of its file system\n"
	if code := cmd.ProcessState.ExitCode(); code != 1 || errs.String() != want {
		t.Errorf("exit code %d\n%swant %s", code, &errs, want)
	}
	steps, _, err := report.ReadMetrics("r/metrics.jsonl")
	if err != nil || len(steps) < 3 || !strings.Contains(out.String(), "step 1/") {
		t.Errorf("%d steps kept, %v\n%s", len(steps), err, &out)
	}
	if got := saved("gone"); got != "nothing was written" {
		t.Errorf("saved to no folder: %s", got)
	}
}

// TestDiskFullForTheTrace checks that a trace that does not fit on the disk leaves no file and
// replaces no older one, and that the run continues.
func TestDiskFullForTheTrace(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	write(t, "trace.json", "older")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "train", "tiny.yaml", "--set", "train.steps=200", "--out", "r", "--trace", "trace.json")
	cmd.Env = append(os.Environ(), "ZEROTH_MAIN=full", "ZEROTH_MOST=150000")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	cmd.Run()
	want := regexp.MustCompile(`^zeroth: --trace: cannot write the file: write trace\.json: file too large\nsaved to r: job\.yaml, loss\.svg, metrics\.jsonl, model\n`)
	if code := cmd.ProcessState.ExitCode(); code != 1 || !want.MatchString(errs.String()) {
		t.Errorf("exit code %d\n%swant %s", code, &errs, want)
	}
	if got, err := os.ReadFile("trace.json"); err != nil || string(got) != "older" {
		t.Errorf("the older trace is %d bytes, %v", len(got), err)
	}
	if half, err := filepath.Glob(".zeroth-tmp-*"); err != nil || len(half) > 0 {
		t.Errorf("left: %v, %v", half, err)
	}
}

// TestDiskFullAtTheEnd checks that a disk that fills while the final parameters are written
// leaves no folder that looks like a model, and that the message names none.
func TestDiskFullAtTheEnd(t *testing.T) {
	inFolder(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "train", "tiny.yaml", "--set", "train.steps=3", "--out", "r")
	cmd.Env = append(os.Environ(), "ZEROTH_MAIN=full", "ZEROTH_MOST=5000")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	cmd.Run()
	want := regexp.MustCompile(`^zeroth: final parameters: .*model\.safetensors\.tmp: tensor .*: file too large\nsaved to r: job.yaml, loss.svg, metrics.jsonl\na file is larger than the limit .*\n$`)
	if code := cmd.ProcessState.ExitCode(); code != 1 || !want.MatchString(errs.String()) {
		t.Errorf("exit code %d\n%swant %s", code, &errs, want)
	}
	if _, err := os.Stat("r/model"); err == nil {
		t.Error("the folder of the model is there")
	}
}

// TestMetricsCannotGrow checks that a job that continues without checkpoints also continues
// without metrics, reports it once, and writes its final parameters.
func TestMetricsCannotGrow(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "train", "tiny.yaml", "--set", "train.steps=1200", "--set", "checkpoint.on_error=continue", "--out", "r")
	cmd.Env = append(os.Environ(), "ZEROTH_MAIN=full", "ZEROTH_MOST=150000")
	out, err := cmd.CombinedOutput()
	told := regexp.MustCompile(`(?m)^metrics: write r/metrics\.jsonl: file too large: training continues; the lines are written when possible$`)
	late := regexp.MustCompile(`(?m)^metrics: write r/metrics\.jsonl: file too large: (\d+) lines are missing from it$`).FindSubmatch(out)
	if err != nil || len(told.FindAll(out, -1)) != 1 || late == nil {
		t.Fatalf("%v\n%s", err, out)
	}
	raw, err := os.ReadFile("r/metrics.jsonl")
	lost, _ := strconv.Atoi(string(late[1]))
	if lines := bytes.Count(raw, []byte("\n")); err != nil || lines+lost < 1200 {
		t.Errorf("%d lines, and %d are said to be lost: %v", lines, lost, err)
	}
	for _, name := range []string{"r/model/model.safetensors", "r/loss.svg"} {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
}

func TestBadInput(t *testing.T) {
	inFolder(t)
	if err := os.WriteFile("a.txt.gz", []byte("\x1f\x8b\x08\x00"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("hf", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("hf/config.json", hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 1, Heads: 1, Width: 8, Context: 16, Vocab: 300, Eps: 1e-5}}.ConfigJSON(), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		errs string // beginning of a line of standard error
	}{
		{"train tiny.yaml --set zero.stage=5 --set model.heads=3", "--set model.heads=3: model.heads: 3 heads do not divide width 8; want heads 2 or 4\n"},
		{"train tiny.yaml --set zero.stage=5", "--set zero.stage=5: zero.stage: there is no stage 5; want 0 (nothing sharded), 1 "},
		{"train gone.yaml", "gone.yaml: the job file cannot be read: no such file or directory"},
		{"train", "zeroth: want one job file, such as: zeroth train examples/quickstart.yaml (0 arguments given); 'zeroth init' writes one\nSee 'zeroth train --help'.\n"},
		{"train a b", "zeroth: want one job file"},
		{"train tiny.yaml --otu x", "zeroth: unknown flag: --otu; did you mean --out?\nSee 'zeroth train --help'.\n"},
		{"trian", "zeroth: unknown command \"trian\" for \"zeroth\"\n\nDid you mean this?\n\ttrain\n"},
		{"sample r", "zeroth: sample has no arguments; did you mean: zeroth sample --run r\n"},
		{"plan tiny.yaml -gpus 2", "zeroth: unknown shorthand flag: 'g' in -gpus; did you mean --gpus?\n"},
		{"sample", "zeroth: 'zeroth sample' needs --run FOLDER, such as: zeroth sample --run run1 --prompt \"func main() {\" --tokens 200\nSee 'zeroth sample --help'.\n"},
		{"sample --run r --tokens many", "zeroth: invalid argument \"many\" for \"--tokens\" flag"},
		{"sample --run r --tokens 0 --temperature -1 --top-k -2 --prompt=", "--prompt is empty; want at least one character\n--tokens 0; want 1 to 1048576\n--temperature -1; want a number of at least 0\n--top-k -2; want at least 0, where 0 is all tokens\n"},
		{"sample --run r --top-p 0 --stop= --prompts gone", "--prompts: open gone: no such file or directory\n--top-p 0; want a number above 0 and at most 1, where 1 is all tokens\n--stop is empty or longer than 4096 bytes; want a text\n"},
		{"sample --run r --temperature NaN", "--temperature NaN; want a number of at least 0\n"},
		{"sample --run r --tokens 9999999999", "--tokens 9999999999; want 1 to 1048576\n"},
		{"train tiny.yaml --set model=null --set model.from=hf", "--set model.from=hf: model.from: text needs the tokenizer that the model of hf was trained with, but that folder has none; name "},
		{"train tiny.yaml --set data.text=[a.txt.gz]", "--set data.text=[a.txt.gz]: data.text: a.txt.gz is compressed with gzip; unpack it: gzip -dc FILE > NEW\n"},
		{"plan tiny.yaml --set data.tokenizer=none", "--set data.tokenizer=none: data.tokenizer: text needs a tokenizer, but data.tokenizer is none; want bytes or gpt2\n"},
		{"bench gem", "zeroth: unknown group \"gem\"; want one or more of collective, "},
		{"eval", "zeroth: 0 arguments given; usage: zeroth eval "},
		{"model a b", "zeroth: 2 arguments given; usage: zeroth model "},
		{"flight", "zeroth: 0 arguments given; usage: zeroth flight "},
		{"tokenize", "zeroth: 0 arguments given; usage: zeroth tokenize "},
		{"bench disk --seconds 0 --dir gone", "--seconds 0; want more than 0 and at most 3600\n--dir gone; want an existing folder\n"},
		{"bench disk --write-machine m.json", "--write-machine describes a GPU; add the group gpu"},
		{"bench --json --markdown", "zeroth: --json (print JSON, with rates in units per second) and --markdown ("},
		{"version now", "zeroth: 1 argument given; usage: zeroth version [flags]\n"},
	} {
		out, errs := zeroth(t, 2, strings.Fields(c.args)...)
		if out != "" || !strings.Contains("\n"+errs, "\n"+c.errs) {
			t.Errorf("zeroth %s:\nstdout %s\nstderr %s\n  want %s", c.args, out, errs, c.errs)
		}
	}
	if runs, _ := filepath.Glob("runs/*"); len(runs) > 0 {
		t.Errorf("a refused job left %v", runs)
	}
}

func TestHelp(t *testing.T) {
	for args, wants := range map[string][]string{
		"":             {"zeroth train examples/quickstart.yaml", "Exit codes:\n  0    done\n", "completion", "sample", "version"},
		"help train":   {"metrics.jsonl", "--set key=value", "--out folder", "Ctrl-C"},
		"sample -h":    {"--run folder", "--top-k k", "--temperature float", "(default 200)"},
		"bench --help": {"zeroth bench [collective|disk|gpu]...", "--json"},
		"help job":     {"zero.stage", "optimizer.weight_decay", "5m", "null"},
		"train --help": {"Usage:\n  zeroth train JOB.yaml [flags]"},
	} {
		out, _ := zeroth(t, 0, strings.Fields(args)...)
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("zeroth %s: no %q in\n%s", args, want, out)
			}
		}
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, _ := zeroth(t, 0, "completion", shell); !strings.Contains(out, "zeroth") {
			t.Errorf("completion %s: %q", shell, out)
		}
	}
	for args, want := range map[string]string{
		"train --set zero.":       "zero.stage=\nzero.prefetch=\nzero.recompute=\nzero.offload.optimizer=\nzero.offload.parameters=\nzero.offload.activations=\nzero.offload.path=\nzero.offload.buffers=\nzero.offload.ratio=\n:6\n",
		"train --set prec":        "precision=\n:6\n",
		"train --set zero.stage=": "zero.stage=0\nzero.stage=1\nzero.stage=2\nzero.stage=3\n:4\n",
		"train --set precision=b": "precision=bf16\n:4\n",
		"plan --recompute ":       "none\nelementwise\nmlp\nlinear\nblock\n:4\n",
		"fit --machine h":         "h100\nh200\na100\nb200\nl40s\nrtx4090\n:0\n",
		"fit --largest ":          "model\nseq\nmicro_batch\n:4\n",
		"init ":                   "chat\nfinetune\nlora\noffload\npretrain\nquickstart\n:4\n",
		"help zero.st":            "zero.stage\n:4\n",
		"train --log ":            "json\ntext\n:4\n",
		"train --resume l":        "latest\nbest\n:0\n",
		"train tiny":              "yaml\nyml\n:8\n",
		"train a.yaml x":          ":4\n",
		"tr":                      "train\tTrain a model from a job file\n:4\n",
		"sample --run r":          ":16\n",
	} {
		out, _ := zeroth(t, 0, append([]string{"__complete"}, strings.Split(args, " ")...)...)
		if out != want {
			t.Errorf("complete %q: %q, want %q", args, out, want)
		}
	}
}

func TestVersion(t *testing.T) {
	out, _ := zeroth(t, 0, "version")
	if flag, _ := zeroth(t, 0, "--version"); out != flag || !strings.HasPrefix(out, "zeroth ") || !strings.Contains(out, " go1.") {
		t.Errorf("version: %q, %q", out, flag)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		err     error
		started bool
		code    int
		message string
	}{
		{nil, true, 0, ""},
		{errors.New("step 3: rank 1: no memory"), true, 1, "zeroth: step 3: rank 1: no memory"},
		{fmt.Errorf("sample: %w", input.BadInput(errors.New("no run"))), true, 2, "sample: no run"},
		{config.Problems{{At: "j.yaml:1:2", Key: "zero.stage", Wrong: "bad"}}, true, 2, "j.yaml:1:2: zero.stage: bad"},
		{errors.New("unknown flag"), false, 2, "zeroth: unknown flag"},
		{fmt.Errorf("train: %w", errStopped), true, 130, ""},
	} {
		a := &app{started: c.started}
		if code, message := a.verdict(c.err); code != c.code || message != c.message {
			t.Errorf("%v: %d %q, want %d %q", c.err, code, message, c.code, c.message)
		}
	}
}

// TestMain runs the command instead of the tests if ZEROTH_MAIN is set, because signal handling
// needs a process of its own.
func TestMain(m *testing.M) {
	switch os.Getenv("ZEROTH_MAIN") {
	case "main":
		hooks = faults(os.Getenv("ZEROTH_FAULT"))
		state.Stamp = os.Getenv("ZEROTH_STAMP")
		main()
	case "nohup":
		signal.Ignore(syscall.SIGHUP)
		main()
	case "full", "files": // with a limit on the size of files, or on their number
		var most syscall.Rlimit
		_, _ = fmt.Sscan(os.Getenv("ZEROTH_MOST"), &most.Cur) // the type differs between systems
		most.Max = most.Cur
		if err := syscall.Setrlimit(map[string]int{"full": syscall.RLIMIT_FSIZE, "files": syscall.RLIMIT_NOFILE}[os.Getenv("ZEROTH_MAIN")], &most); err != nil {
			panic(err)
		}
		main()
	case "panic":
		debug.SetTraceback("none") // main must override this
		go func() { time.Sleep(100 * time.Millisecond); panic("a broken promise") }()
		os.Args = []string{"zeroth", "train", "tiny.yaml", "--set", "train.steps=1000000", "--out", "r"}
		main()
	case "exporting": // after its last save, for ever
		patientWork = 100 * time.Millisecond
		a, w := &app{out: os.Stdout, errs: os.Stderr}, &waiting{saved: make(chan struct{})}
		folder := filepath.Join("r", state.CheckpointFolder)
		a.saves.Store(&folder)
		w.begun.Store(true)
		defer a.begin()()
		a.untilSignal(context.Background(), func() { time.AfterFunc(5*patientWork, func() { close(w.saved) }) }, func(by signalled) { a.giveUp(w, by) })
		fmt.Println("step 1/1")
		time.Sleep(10 * time.Minute)
	case "deaf": // a step that never ends
		var s stopping
		defer s.begin()()
		_, release := s.untilSignal(context.Background(), func() { fmt.Println("told") }, nil)
		fmt.Println("step 1/1")
		time.Sleep(time.Minute)
		release()
	}
	if os.Getenv("ZEROTH_MAIN") == "stuck" { // work that ignores its context
		var s stopping
		defer s.begin()()
		s.untilSignal(context.Background(), func() {}, nil)
		if _, err := input.Create("half"); err != nil {
			panic(err)
		}
		fmt.Println("step 1/1")
		time.Sleep(10 * time.Minute)
	}
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) { // under nohup or in the background: a signal that is caught here is not ignored by child processes
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil { // tests that start processes mostly wait
		panic(err)
	}
	os.Exit(m.Run())
}

// start starts the command in a process of its own and returns after its first step.
func start(t *testing.T, as string, args ...string) (cmd *exec.Cmd, out *bufio.Reader, errs *bytes.Buffer) {
	t.Helper()
	return shell{T: t, env: []string{"ZEROTH_MAIN=" + as}}.start(args...)
}

// start is like the package's start, in the folder and environment of the shell.
func (s shell) start(args ...string) (cmd *exec.Cmd, out *bufio.Reader, errs *bytes.Buffer) {
	t := s.T
	t.Helper()
	cmd, errs = s.command(args...), new(bytes.Buffer)
	cmd.Stderr = errs
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	out = bufio.NewReader(pipe)
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatalf("no step: %v\n%s", err, errs)
		}
		if strings.HasPrefix(line, "step 1/") {
			return cmd, out, errs
		}
	}
}

// TestSignalStops checks that the first signal stops a run after the current step and saves.
// Without a checkpoint, Ctrl-C counts as a normal end, and other signals report that the run
// cannot be resumed.
func TestSignalStops(t *testing.T) {
	nightly.Long(t)
	for _, c := range []struct {
		s    syscall.Signal
		code int
	}{{syscall.SIGINT, 130}, {syscall.SIGTERM, 1}, {syscall.SIGHUP, 1}} {
		inFolder(t)
		cmd, out, errs := start(t, "main", "train", "tiny.yaml", "--set", "train.steps=1000000", "--out", "r")
		if err := cmd.Process.Signal(c.s); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(out)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != c.code {
			t.Errorf("%v: exit code %d, want %d\n%s", c.s, code, c.code, rest)
		}
		for _, want := range []string{"stopping after this step; press Ctrl-C again to quit at once\n", "stopped after ", "saved to r\n"} {
			if !strings.Contains(string(rest), want) {
				t.Errorf("%v: no %q in\n%s", c.s, want, rest)
			}
		}
		told := regexp.MustCompile(`^zeroth: stopped by SIG\w+ after step \d+; there is no checkpoint to continue from\nsaved to r: job.yaml, loss.svg, metrics.jsonl, model\n$`)
		if got := errs.String(); told.MatchString(got) != (c.code == 1) {
			t.Errorf("%v: %s", c.s, got)
		}
		raw, err := os.ReadFile("r/metrics.jsonl")
		if err != nil || !bytes.Contains(raw, []byte("\n{\"step\":1,\"loss\":")) || !bytes.HasSuffix(raw, []byte("}\n")) {
			t.Errorf("%v: metrics: %v %q", c.s, err, raw[:min(100, len(raw))])
		}
	}
}

// TestCtrlCSaysHowToContinue checks that the command that a run prints when Ctrl-C stops it continues the
// run, whatever it was started with.
func TestCtrlCSaysHowToContinue(t *testing.T) {
	nightly.Long(t)
	for _, args := range [][]string{nil, {"--out", "my run"}, {"--out", "r", "--resume", "latest"}} {
		inFolder(t)
		cmd, _, errs := start(t, "main", append(slices.Clone(long), args...)...)
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		said := regexp.MustCompile(`^zeroth: stopped by Ctrl-C after step (\d+); continue with --resume latest, from .*\ncontinue with: \S+ (.*)\n$`).FindStringSubmatch(errs.String())
		if said == nil || cmd.ProcessState.ExitCode() != exitStopped {
			t.Fatalf("%v: %v\n%s", args, cmd.ProcessState, errs)
		}
		words, err := exec.Command("sh", "-c", "printf '%s\n' "+said[2]).Output()
		if err != nil {
			t.Fatal(err)
		}
		again := append(strings.Split(strings.TrimSpace(string(words)), "\n"), "--set", "train.steps="+said[1])
		if out, _ := zeroth(t, 0, again...); !strings.Contains(out, "resuming from ") || !strings.Contains(out, "done: "+said[1]+" steps") {
			t.Errorf("%q: %s", again, out)
		}
	}
}

// TestSecondSignalQuits checks that a second signal ends the process without waiting for the
// step.
func TestSecondSignalQuits(t *testing.T) {
	cmd, out, _ := start(t, "deaf")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if line, err := out.ReadString('\n'); line != "told\n" {
		t.Fatalf("%q %v", line, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(out); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGINT {
		t.Errorf("ended with %v, want by the signal", cmd.ProcessState)
	}
}

// TestStuckCommandIsGivenUp checks that a command blocked in work that ignores signals is ended
// after a while, and its partial output removed.
func TestStuckCommandIsGivenUp(t *testing.T) {
	if !nightly.All() {
		t.Skip("it takes that while")
	}
	inFolder(t)
	cmd, _, _ := start(t, "stuck")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitStopped {
		t.Errorf("ended with %v", cmd.ProcessState)
	}
	if left, _ := filepath.Glob(".zeroth-tmp-*"); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// TestExportIsGivenUp checks that a signal ends a run that has saved its last step and still exports it.
func TestExportIsGivenUp(t *testing.T) {
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--out", "r", "--set", "checkpoint.every=1")
	cmd, _, errs := start(t, "exporting")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitAgain || errs.String() != "zeroth: stopped by SIGTERM after the last save; continue with --resume latest\n" {
		t.Errorf("ended with %v\n%s", cmd.ProcessState, errs)
	}
}

// TestPanic checks that a panic in any goroutine gives its own exit code and a stack trace.
func TestPanic(t *testing.T) {
	inFolder(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "ZEROTH_MAIN=panic")
	errs, err := cmd.CombinedOutput()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGABRT {
		t.Errorf("ended with %v (%v), want by SIGABRT", cmd.ProcessState, err)
	}
	if !bytes.Contains(errs, []byte("panic: a broken promise")) || !bytes.Contains(errs, []byte("goroutine ")) {
		t.Errorf("no trace in %s", errs)
	}
}

// TestHome checks that ~ is expanded in arguments and in flags that name files or folders, where
// the shell does not expand it.
func TestHome(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	if err := os.Rename("tiny.yaml", filepath.Join(home, "tiny.yaml")); err != nil {
		t.Fatal(err)
	}
	zeroth(t, 0, "train", "~/tiny.yaml", "--out=~/run", "--set", "checkpoint.every=1", "--set", "data.validation=0", "--cpuprofile=~/cpu")
	zeroth(t, 0, "train", "~/tiny.yaml", "--out=~/again", "--resume=~/run/ckpt/step-00000001", "--set", "data.validation=0")
	zeroth(t, 0, "ckpt", "export", "~/run", "--to=~/model")
	zeroth(t, 0, "sample", "--run=~/model", "--tokens", "1", "--prompt", "~")
	zeroth(t, 0, "plan", "--model=~/model", "--set", "data.text=null", "--timeline=~/plan.html")
	for _, name := range []string{"run/model/config.json", "again/model/config.json", "model/model.safetensors", "cpu", "plan.html"} {
		if _, err := os.Stat(filepath.Join(home, name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat("~"); err == nil {
		t.Error("a folder ~ was made")
	}
	_, errs := zeroth(t, 2, "ckpt", "export", "~you/run", "--to=~us/m")
	for _, want := range []string{`"~you/run": the home folders of other users`, `--to "~us/m": the home folders of other users`} {
		if !strings.Contains(errs, want) {
			t.Errorf("no %q in %s", want, errs)
		}
	}
}

// TestHelpOfNothing checks that help for an unknown topic is an error, and that the topic is
// escaped.
func TestHelpOfNothing(t *testing.T) {
	_, errs := zeroth(t, 2, "help", "run\u202e")
	if errs != "there is no command or key \"run\\u202e\"; 'zeroth help' lists commands, 'zeroth help job' keys\n" {
		t.Errorf("said %q", errs)
	}
	zeroth(t, 2, "help", "ckpt", "nothing")
	if out, _ := zeroth(t, 0, "help", "ckpt", "ls"); !strings.HasPrefix(out, "List the checkpoints of a folder") {
		t.Errorf("help of ckpt ls: %s", out)
	}
}

// TestTemporaryFolderIsMissing checks that a missing temporary folder is named, with what to do.
func TestTemporaryFolderIsMissing(t *testing.T) {
	nightly.Long(t)
	gone := filepath.Join(t.TempDir(), "gone")
	t.Setenv("TMPDIR", gone)
	if _, errs := zeroth(t, exitInput, "bench", "disk", "--seconds", "0.01"); !strings.Contains(errs, gone) || !strings.Contains(errs, "TMPDIR") {
		t.Error(errs)
	}
}
