//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"zeroth/config"
	"zeroth/internal/input/hub/hubtest"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
)

// stdin makes text the standard input.
func stdin(t *testing.T, text string) {
	t.Helper()
	write(t, "stdin", text)
	f, err := os.Open("stdin")
	if err != nil {
		t.Fatal(err)
	}
	was := os.Stdin
	os.Stdin = f
	t.Cleanup(func() { os.Stdin = was; f.Close() })
}

// TestJobFromStandardInput checks that a job read from standard input is saved with the run, can
// be resumed, and has errors reported with their lines.
func TestJobFromStandardInput(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	stdin(t, tiny)
	zeroth(t, 0, "train", "-", "--out", "r", "--set", "checkpoint.every=1")
	kept, err := os.ReadFile("r/job.yaml")
	if err != nil || !strings.Contains(string(kept), `text: ["a.txt"]`) {
		t.Fatalf("%v\n%s", err, kept)
	}
	zeroth(t, 0, "train", "r/job.yaml", "--out", "r", "--resume", "latest", "--set", "train.steps=3")
	stdin(t, tiny)
	out, _ := zeroth(t, 0, "train", "-", "--out", "r", "--resume", "latest", "--set", "train.steps=4")
	contains(t, out, "resuming from r/ckpt/step-00000003", "done: 4 steps")
	stdin(t, tiny)
	out, _ = zeroth(t, 0, "plan", "-")
	contains(t, out, "next    zeroth train -\n")
	stdin(t, "data: {text: [a.txt]}\ntrain: {stepz: 3}\n")
	_, errs := zeroth(t, 2, "plan", "-")
	contains(t, errs, "stdin:2:9: train.stepz: unknown key; did you mean steps?\n")
	stdin(t, tiny)
	zeroth(t, 0, "train", "-")
	if runs, err := filepath.Glob("runs/stdin-2*"); err != nil || len(runs) != 1 {
		t.Errorf("%v %v", runs, err)
	}
}

// TestInit checks that init writes a job for every goal, that the job can be planned, and that no
// file is overwritten.
func TestInit(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	list, _ := zeroth(t, 0, "init")
	for _, g := range spec.Goals() {
		contains(t, list, "  "+g.Name+" ", g.For)
		out, _ := zeroth(t, 0, "init", g.Name)
		contains(t, out, "wrote "+g.Name+".yaml. ", "zeroth plan "+g.Name+".yaml\n")
		args := []string{"plan", g.Name + ".yaml", "--gpus", "8", "--gpu-memory", "80GiB"}
		contains(t, first(zeroth(t, 0, args...)), ": fits\n")
		if _, errs := zeroth(t, 2, "init", g.Name); !strings.Contains(errs, "exists and is not overwritten") {
			t.Error(errs)
		}
		zeroth(t, 0, "init", g.Name, "my job.yaml", "--quiet")
		if raw, err := os.ReadFile("my job.yaml"); err != nil || strings.Contains(string(raw), g.Name+".yaml") || os.Remove("my job.yaml") != nil {
			t.Errorf("%v\n%s", err, raw)
		}
		if out, _ := zeroth(t, 0, "init", g.Name, "-"); out != g.Text {
			t.Errorf("got %s", out)
		}
	}
	_, errs := zeroth(t, 2, "init", "world peace")
	contains(t, errs, `unknown goal "world peace"; want one of`, "quickstart")
	zeroth(t, 2, "init", "quickstart", "no/such/folder.yaml")
	zeroth(t, 0, "init", "lora", "small.yaml", "--model", "Llama-3.2-1B")
	contains(t, first(zeroth(t, 0, "plan", "small.yaml", "--gpus", "8", "--gpu-memory", "80GiB")), "Llama 1.2B", ": fits\n")
	_, errs = zeroth(t, 2, "init", "lora", "other.yaml", "--model", "Lama")
	contains(t, errs, `"Lama" is neither a folder with config.json nor a published model`, "Llama-3.2-1B")
	write(t, "own model/config.json", "{}")
	if out, _ := zeroth(t, 0, "init", "lora", "-", "--model", "own model"); !strings.Contains(out, "from: \"own model\" ") {
		t.Error(out)
	}
	hubtest.Serve(t, nil)
	_, errs = zeroth(t, 2, "train", "small.yaml")
	contains(t, errs, "meta-llama/Llama-3.2-1B: no such model, or a private one")
	zeroth(t, 0, "train", "quickstart.yaml", "--set", "train.steps=1", "--set", "model={width: 8, heads: 1, layers: 1, context: 8}", "--set", "sample.tokens=1", "--out", "r")
}

// TestInitFromTwoFiles checks that TrainingArguments and a DeepSpeed configuration make one job, in either order.
func TestInitFromTwoFiles(t *testing.T) {
	inFolder(t)
	write(t, "args.json", `{"output_dir": "x", "learning_rate": 2e-5}`)
	write(t, "ds.json", `{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}`)
	for _, files := range [][2]string{{"args.json", "ds.json"}, {"ds.json", "args.json"}} {
		out, _ := zeroth(t, 0, "init", "--from", files[0], "--from", files[1])
		contains(t, out, "# From args.json, a configuration of TrainingArguments.", "lr: 2e-5\n", "stage: 2\n", "micro_batch: 8\n")
	}
}

func first(out, _ string) string { return out }

// TestSchemaCommand checks that schema prints JSON to standard output.
func TestSchemaCommand(t *testing.T) {
	out, _ := zeroth(t, 0, "schema")
	var s struct {
		Properties map[string]any
		Additional *bool `json:"additionalProperties"`
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Properties["zero"] == nil || s.Additional == nil || *s.Additional {
		t.Errorf("%v %v", err, s)
	}
}

func TestHelpOfKeys(t *testing.T) {
	nightly.Long(t)
	out, _ := zeroth(t, 0, "help", "zero.offload.optimizer")
	contains(t, out, "value    none, host or disk\n", "default  none\n", "--set zero.offload.optimizer=none\n")
	out, _ = zeroth(t, 0, "help", "optimizer")
	contains(t, out, "optimizer.lr", "optimizer.momentum")
	_, errs := zeroth(t, 2, "help", "optimiser.lr")
	contains(t, errs, "did you mean 'zeroth help optimizer.lr'?")
	for _, k := range config.Keys() {
		zeroth(t, 0, "help", k)
	}
}

// TestMan checks that man writes a page with the usual sections for every command.
func TestMan(t *testing.T) {
	inFolder(t)
	zeroth(t, 0, "man", "new/man1")
	for _, name := range []string{"zeroth", "zeroth-train", "zeroth-ckpt-verify", "zeroth-init"} {
		raw, err := os.ReadFile("new/man1/" + name + ".1")
		if err != nil || !bytes.Contains(raw, []byte(".SH NAME")) || !bytes.Contains(raw, []byte(".SH OPTIONS")) {
			t.Errorf("%s: %v\n%s", name, err, raw)
		}
	}
	zeroth(t, 2, "man")
	zeroth(t, 2, "man", "a.txt/x")
}

// TestWrongFlags checks that flags of other commands, keys and misspellings suggest a correction.
func TestWrongFlags(t *testing.T) {
	inFolder(t)
	for flag, want := range map[string]string{"--stage=1": "write --set zero.stage=VALUE", "--zero.stage=1": "write --set zero.stage=VALUE", "--tensor=2": "write --set parallel.tensor=VALUE", "--optimizer=lion": "write --set optimizer.type=VALUE", "--context=2": "write --set model.context=VALUE or --set parallel.context=VALUE", "--otu=r": "did you mean --out?",
		"--xyzzy": "unknown flag: --xyzzy; usage: zeroth train JOB.yaml [flags]\n", "--log=xml": "--log xml; want json or text"} {
		_, errs := zeroth(t, 2, "train", "tiny.yaml", flag)
		contains(t, errs, want)
	}
}

// TestLogRecords checks that --log writes records with time, level and named values to standard
// error, including errors with their exit code.
func TestLogRecords(t *testing.T) {
	inFolder(t)
	out, errs := zeroth(t, 0, "train", "tiny.yaml", "--out", "r", "--log", "json")
	if out != "" {
		t.Errorf("the standard output has %s", out)
	}
	var last struct {
		Time, Level, Msg string
		Steps            int
		Code             int `json:"exit_code"`
	}
	for line := range strings.Lines(errs) {
		if err := json.Unmarshal([]byte(line), &last); err != nil || last.Time == "" || last.Level != "INFO" {
			t.Fatalf("%s: %v", line, err)
		}
	}
	if last.Msg != "done" || last.Steps != 2 {
		t.Errorf("%+v", last)
	}
	_, errs = zeroth(t, 2, "train", "tiny.yaml", "--out", "r", "--log", "json")
	if err := json.Unmarshal([]byte(errs), &last); err != nil || last.Level != "ERROR" || last.Code != 2 {
		t.Errorf("%v: %s", err, errs)
	}
	for _, format := range []string{"json", "text"} {
		_, errs = zeroth(t, 2, "ckpt", "ls", "\x1b\u009b\u202e\u00ad\U000e0041", "--log", format)
		if i := strings.IndexFunc(errs, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }); i >= 0 {
			t.Errorf("--log %s: %q is written raw", format, errs[i:])
		}
	}
	_, errs = zeroth(t, 0, "train", "tiny.yaml", "--out", "r2", "--log", "text")
	contains(t, errs, "time=20", " level=INFO msg=step rank=0 step=1 ")
	if out, errs := zeroth(t, 0, "train", "tiny.yaml", "--out", "r3", "--log", "text", "--log-level", "warn"); out+errs != "" {
		t.Errorf("without a warning: %s%s", out, errs)
	}
	_, errs = zeroth(t, 2, "train", "tiny.yaml", "--out", "r3", "--log", "text", "--log-level", "error")
	contains(t, errs, " level=ERROR msg=")
	_, errs = zeroth(t, 2, "runs", "--log", "text", "--log-level", "all")
	contains(t, errs, "--log-level all; want info, warn or error")
	_, errs = zeroth(t, 2, "runs", "--log-level", "warn")
	contains(t, errs, "add --log json or --log text")
}

// TestQuiet checks that --quiet prints nothing but results and errors.
func TestQuiet(t *testing.T) {
	inFolder(t)
	for _, args := range []string{"train tiny.yaml --out r -q --set checkpoint.every=1", "train tiny.yaml --out r2 --quiet --log json"} {
		if out, errs := zeroth(t, 0, strings.Fields(args)...); out+errs != "" {
			t.Errorf("%s: %s%s", args, out, errs)
		}
	}
	if _, errs := zeroth(t, 2, "train", "tiny.yaml", "--out", "r", "-q"); errs == "" {
		t.Error("an error is not told")
	}
	if out, _ := zeroth(t, 0, "ckpt", "ls", "r", "-q"); !strings.Contains(out, "complete, latest") {
		t.Errorf("a result is not told: %s", out)
	}
}

// TestProbesOfRefusedRuns checks that a refused run neither creates the files of --trace,
// --cpuprofile and --timeline nor changes existing ones.
func TestProbesOfRefusedRuns(t *testing.T) {
	inFolder(t)
	write(t, "full/x", "")
	for _, args := range []string{"train gone.yaml", "train tiny.yaml --set zero.stage=9", "train tiny.yaml --out full"} {
		for _, flag := range []string{"--trace", "--cpuprofile", "--timeline"} {
			write(t, "old.csv", "precious")
			zeroth(t, 2, append(strings.Fields(args), flag, "old.csv")...)
			zeroth(t, 2, append(strings.Fields(args), flag, "new.csv")...)
			if raw, err := os.ReadFile("old.csv"); err != nil || string(raw) != "precious" {
				t.Errorf("%s %s: %q %v", args, flag, raw, err)
			}
			if _, err := os.Stat("new.csv"); err == nil {
				t.Errorf("%s %s: a file is left", args, flag)
			}
		}
	}
	write(t, "trace.json", strings.Repeat("x", 1<<20))
	zeroth(t, 0, "train", "tiny.yaml", "--out", "r", "--trace", "trace.json")
	if raw, err := os.ReadFile("trace.json"); err != nil || !json.Valid(raw) {
		t.Errorf("%v, %d bytes", err, len(raw))
	}
}

// TestVersionIsStamped checks that --version prints the release and the commit of the build.
func TestVersionIsStamped(t *testing.T) {
	if !nightly.All() {
		t.Skip("builds")
	}
	if info, err := os.Stat("../../.git"); err != nil || !info.IsDir() {
		t.Skip("Go notes the commit of a clone, not of a worktree")
	}
	file := filepath.Join(t.TempDir(), "zeroth")
	build := exec.Command("go", "build", "-buildvcs=true", "-ldflags", "-X zeroth/job/state.Stamp=v1.2.3", "-o", file, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(file, "--version").Output()
	if err != nil || !strings.HasPrefix(string(out), "zeroth v1.2.3 commit ") || !strings.Contains(string(out), " of 20") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestFitFindsNothing checks that fit exits with code 1 if nothing fits, and marks settings that
// are equally fast.
func TestFitFindsNothing(t *testing.T) {
	nightly.Long(t)
	example, err := filepath.Abs("../../examples/quickstart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	inFolder(t)
	out, errs := zeroth(t, 1, "fit", "tiny.yaml", "--gpus", "2", "--gpu-memory", "300MiB")
	contains(t, out, "Nothing fits; want more ranks")
	if errs != "" {
		t.Errorf("said %s", errs)
	}
	zeroth(t, 1, "fit", "tiny.yaml", "--gpus", "2", "--gpu-memory", "300MiB", "--json")
	zeroth(t, 1, "fit", "tiny.yaml", "--gpus", "2", "--gpu-memory", "300MiB", "--largest", "seq")
	out, _ = zeroth(t, 0, "fit", "tiny.yaml", "--gpus", "1", "--gpu-memory", "80GiB")
	contains(t, out, "× accumulate", "a step")
	out, _ = zeroth(t, 0, "fit", example, "--gpus", "4", "--gpu-memory", "80GiB")
	contains(t, out, "fits, fastest", "fits, equally fast", " equally fast, within half a percent.\n", "Your job has the fastest setting already.\n")
}

// TestSampleOfARunThatTrains checks that a run in progress is sampled from its newest complete
// checkpoint.
func TestSampleOfARunThatTrains(t *testing.T) {
	inFolder(t)
	cmd, _, _ := start(t, "main", append(long, "--out", "r")...)
	var errs string
	for range 600 { // wait for the first checkpoint
		var out, told bytes.Buffer
		code := run([]string{"sample", "--run", "r", "--prompt", "to be", "--tokens", "3"}, &out, &told)
		if errs = told.String(); code == 0 {
			if !strings.HasPrefix(out.String(), "to be") || !strings.Contains(errs, "from the checkpoint r/ckpt/step-") {
				t.Fatalf("%s%s", &out, errs)
			}
			errs = ""
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if errs != "" {
		t.Fatalf("not sampled: %s", errs)
	}
	cmd.Process.Kill()
	cmd.Wait()
}

func TestSampleOfACheckpoint(t *testing.T) {
	nightly.Long(t)
	t.Setenv("TMPDIR", t.TempDir())
	trained(t)
	sample := func(of string, more ...string) (out, errs string) {
		return zeroth(t, 0, append([]string{"sample", "--run", of, "--prompt", "to be", "--tokens", "9", "--temperature", "0"}, more...)...)
	}
	want, errs := sample("r")
	if errs != "" {
		t.Errorf("a run that has ended: %s", errs)
	}
	for _, of := range []string{last, "r/ckpt"} {
		if got, errs := sample(of); got != want || errs != "from the checkpoint "+last+", step 6\n" {
			t.Errorf("%s: %q %s, want %q", of, got, errs, want)
		}
	}
	if _, errs := sample(second, "--quiet"); errs != "" {
		t.Errorf("quiet: %s", errs)
	}
	zeroth(t, 0, "ckpt", "export", second, "--to", "two")
	from, _ := sample("two")
	if got, _ := sample(second); got != from {
		t.Errorf("%q, of the model made of it %q", got, from)
	}
	old := time.Now().Add(-time.Hour) // as if the run had been resumed and not finished
	if err := os.Chtimes("r/model/model.safetensors", old, old); err != nil {
		t.Fatal(err)
	}
	if _, errs := sample("r"); !strings.Contains(errs, "from the checkpoint "+last) {
		t.Errorf("the older model was taken: %s", errs)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	_, errs = zeroth(t, 2, "sample", "--run", "nothing")
	contains(t, errs, "want the folder of a run that has a model or a checkpoint")
}

// TestNoSuchCommand checks that an unknown command is reported with suggestions.
func TestNoSuchCommand(t *testing.T) {
	for word, want := range map[string]string{"trian": "train", "resume": "train", "generate": "sample", "estimate": "plan", "checkpoint": "ckpt", "export": "ckpt export\n\treport",
		"new": "init", "my.yaml": "train my.yaml\n\tplan my.yaml", "zero.stage": "help zero.stage", "env": "doctor"} {
		if _, errs := zeroth(t, 2, word, "x"); errs != fmt.Sprintf("zeroth: unknown command %q for \"zeroth\"\n\nDid you mean this?\n\t%s\n\nSee 'zeroth --help'.\n", word, want) {
			t.Errorf("%s: %s", word, errs)
		}
	}
	if _, errs := zeroth(t, 2, "xyzzy"); errs != "zeroth: unknown command \"xyzzy\" for \"zeroth\"\nSee 'zeroth --help'.\n" {
		t.Error(errs)
	}
	zeroth(t, 0)
}

// TestWrongPlaces checks that a file given in place of a folder, or vice versa, is reported with
// a suggestion.
func TestWrongPlaces(t *testing.T) {
	nightly.Long(t)
	trained(t)
	for args, want := range map[string]string{
		"train r":                          "did you mean r/job.yaml?",
		"plan tiny":                        "did you mean tiny.yaml?",
		"plan r/model":                     "a model is planned with 'zeroth plan --model r/model'",
		"sample --run r/job.yaml":          "--run r/job.yaml is a file; did you mean --run r?",
		"train tiny.yaml --resume r":       "--resume r: a folder with checkpoints; name one of them, such as the newest, r/ckpt/step-00000006",
		"plan tiny.yaml --machine B300":    "--machine B300: no such file or directory; want here, one of h100, h200, a100, b200, l40s, rtx4090, or a file",
		"plan --model nobody/nothing":      "write hf://nobody/nothing to download it",
		"ckpt prune r --keep newest=1":     `there is no rule "newest"`,
		"fit --model r/modle --gpus 2":     "r/modle/config.json cannot be read: no such file or directory\n",
		"train tiny.yaml --set stage=1":    "stage: unknown key; did you mean zero.stage?",
		"train tiny.yaml --set zero.stage": "there is no key=value here",
	} {
		_, errs := zeroth(t, 2, strings.Fields(args)...)
		contains(t, errs, want)
	}
	out, _ := zeroth(t, 0, "ckpt", "prune", "r", "--keep", "last=1,best=val_loss", "--dry-run")
	contains(t, out, "would delete step-0000000")
}
