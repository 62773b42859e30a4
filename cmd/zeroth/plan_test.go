//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"zeroth/forecast"
	"zeroth/internal/show"
	"zeroth/tests/nightly"
)

const someLlama = `{"model_type":"llama","num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"hidden_size":4096,
	"intermediate_size":14336,"vocab_size":128256,"max_position_embeddings":131072,"rms_norm_eps":1e-5,"rope_theta":5e5}`

// smallLlama has a quarter of the layers, and takes a quarter of the time.
var smallLlama = strings.Replace(someLlama, `"num_hidden_layers":32`, `"num_hidden_layers":8`, 1)

func writeLlama(t *testing.T) {
	t.Helper()
	for _, name := range []string{"config.json", "other.json"} {
		if err := os.WriteFile(name, []byte(someLlama), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

// TestPlan checks that plan does not need the data, and that it prints the memory that training
// then uses.
func TestPlan(t *testing.T) {
	inFolder(t)
	run, _ := zeroth(t, 0, "train", "tiny.yaml", "--out", "run1")
	if err := os.Remove("a.txt"); err != nil {
		t.Fatal(err)
	}
	out, _ := zeroth(t, 0, "plan", "tiny.yaml")
	contains(t, out, "2 = shard 2 × replicate 1, stage 3, bf16", "float32 master copy", "of which padding", "peak    reduce-scatter of root", " of a rank's device, all of it allocated before step 1")
	_, needs, _ := strings.Cut(out, "needs   ")
	needs, _, _ = strings.Cut(needs, " (")
	contains(t, run, "memory  "+needs+" a rank", "memory: "+needs+" per rank, exactly as planned")
	wider, _ := zeroth(t, 0, "plan", "tiny.yaml", "--world", "64", "--stage", "1", "--set", "train.micro_batch=2")
	contains(t, wider, "64 = shard 64 × replicate 1, stage 1", "micro-batches of 2 × accumulate 1 × 64 ranks")
}

func TestPlanOfAModel(t *testing.T) {
	inFolder(t)
	writeLlama(t)
	args := []string{"--stage", "3", "--gpus", "64", "--gpu-memory", "80GiB", "--micro-batch", "1", "--seq", "8192", "--recompute", "block"}
	out, _ := zeroth(t, 0, append([]string{"plan", "--model", "."}, args...)...)
	contains(t, out, "Llama 8.0B, 8,030,261,248 parameters", "outside CUDA context", "device  80.0 GiB (85.90 GB)", ": fits\n",
		"next    zeroth fit --model . --gpus 64 --gpu-memory 80GiB --set train.micro_batch=1 --set zero.recompute=block --set model.context=8192 --set zero.stage=3\n")
	same, _ := zeroth(t, 0, append([]string{"plan", "--model", "other.json", "--json"}, args...)...)
	var plan struct {
		Parameters, Allocated, Ranks int64
		AtPeak                       int64 `json:"at_peak"`
		Verdict                      string
		Categories                   []struct {
			Category  string
			Allocated int64
		}
	}
	if err := json.Unmarshal([]byte(same), &plan); err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, c := range plan.Categories {
		sum += c.Allocated
	}
	if plan.Parameters != 8030261248 || plan.Ranks != 64 || plan.Verdict != "fits" || sum != plan.Allocated || plan.AtPeak > sum || plan.AtPeak == 0 {
		t.Errorf("categories add up to %d: %+v", sum, plan)
	}
	for _, file := range []string{"p.html", "p.svg", "p.csv"} {
		zeroth(t, 0, "plan", "tiny.yaml", "--timeline", file)
		if info, err := os.Stat(file); err != nil || info.Size() < 1000 {
			t.Errorf("%s: %v", file, err)
		}
	}
	zeroth(t, 2, "plan", "tiny.yaml", "--timeline", "no/folder.csv")
}

// TestPlanOfStages checks that --stages draws and prints every ZeRO stage, with the reason for
// each one the job cannot use.
func TestPlanOfStages(t *testing.T) {
	inFolder(t)
	out, _ := zeroth(t, 0, "plan", "tiny.yaml", "--stages", "s.svg")
	contains(t, out, "\nstage 0 ", "\nstage 1 ", "\nstage 2 ", "\nstage 3 ", " of a rank's device\n")
	drawing, err := os.ReadFile("s.svg")
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(drawing), ">Memory of a rank at each stage of ZeRO: ", ">float32 master copy<")
	out, _ = zeroth(t, 0, "plan", "tiny.yaml", "--stages", "s.svg", "--set", "zero.offload={optimizer: host, parameters: host}")
	contains(t, out, "\nstage 0 is not possible for this job: ", "\nstage 3 ")
}

// TestUsualSettings checks what plan assumes for a model that no job file describes, that it says so, and
// that flags replace it.
func TestUsualSettings(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	writeLlama(t)
	for _, c := range []struct{ args, want []string }{
		{[]string{"--gpus", "8"}, []string{"assumed micro-batches of 1 sequence (--micro-batch), blocks recomputed (--recompute), sequences of 8,192 tokens (--seq), 4.2M tokens a step (--batch-tokens), stage 1 (--stage), GPUs of 79.6 GiB, those of h100",
			"512 sequences of 8,192 tokens a step: micro-batches of 1 × accumulate 64 × 8 ranks", "stage 1, bf16", ": fits\n"}},
		{[]string{"--gpus", "8", "--gpu-memory", "40GiB"}, []string{"stage 3, because stage 1 does not fit (--stage)\n", "stage 3, bf16", ": fits\n"}},
		{[]string{"--gpus", "8", "--gpu-memory", "80GiB", "--stage", "2", "--micro-batch", "2", "--recompute", "none", "--seq", "1024", "--batch-tokens", "1M"},
			[]string{"ranks   8 = shard 8 × replicate 1, stage 2", "976 sequences of 1,024 tokens a step: micro-batches of 2 × accumulate 61 × 8 ranks"}},
		{[]string{"--gpus", "8", "--set", "train={batch: 16}"}, []string{"16 sequences of 8,192 tokens a step: micro-batches of 1 × accumulate 2 × 8 ranks"}},
		{[]string{"--gpus", "auto", "--machine", "H200"}, []string{"assumed 1 GPU (--gpus), ", "GPUs of 140.4 GiB, those of h200", " on h200: computing ", "overlap Ranks compute while they gather", ": fits\n", "next    zeroth fit --model . --gpus 1 --machine H200\n"}},
		{[]string{"--gpus", "auto", "--gpu-memory", "40GiB", "--machine", "h100", "--tokens", "1T"}, []string{"assumed 8 GPUs (--gpus), ", "costs   1.0T tokens are 238,419 steps: ", " GPU-hours\n"}},
	} {
		out, _ := zeroth(t, 0, append([]string{"plan", "--model", "."}, c.args...)...)
		contains(t, out, c.want...)
	}
	out, errs := zeroth(t, 2, "plan", "--model", ".", "--set", "parallel.memory=20MiB")
	if contains(t, out, "\nnext    zeroth plan --model . --gpus auto --set parallel.memory=20MiB\n"); !strings.HasPrefix(errs, "--set parallel.memory=20MiB: parallel.memory: the budget is ") {
		t.Error(errs)
	}
	if out, _ := zeroth(t, 0, "plan", "tiny.yaml", "--gpus", "2", "--batch-tokens", "1K"); strings.Contains(out, "assumed ") || !strings.Contains(out, "a step: micro-batches of 1 × accumulate 62 × 2 ranks") {
		t.Error(out)
	}
}

// TestUsualSearch checks that fit says what it assumes, which GPUs it simulates and what a run costs, and
// that the command that it prints plans the best setting.
func TestUsualSearch(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	write(t, "config.json", smallLlama)
	out, _ := zeroth(t, 0, "fit", "--model", ".", "--tokens", "15T")
	contains(t, out, "assumed sequences of 8,192 tokens (--seq), 4.2M tokens a step (--batch-tokens), 8 GPUs (--gpus), GPUs of 79.6 GiB, those of h100", "costs   15.0T tokens are ", "MFU is the model's arithmetic")
	_, command, _ := strings.Cut(out, "The fastest: zeroth ")
	command, _, _ = strings.Cut(command, "\n")
	again, _ := zeroth(t, 0, strings.Fields(command)...)
	asJSON, _ := zeroth(t, 0, "fit", "--model", ".", "--tokens", "15T", "--json")
	var fit struct {
		Command string
		Fits    []struct {
			Simulated struct{ Training forecast.Training }
		}
	}
	if err := json.Unmarshal([]byte(asJSON), &fit); err != nil || fit.Command != "zeroth "+command {
		t.Errorf("%v: --json has the command %q, not %q", err, fit.Command, command)
	}
	x := fit.Fits[0].Simulated.Training
	contains(t, out, fmt.Sprintf("costs   15.0T tokens are %s steps: %.1f days, %s GPU-hours", show.Grouped(x.Steps), x.Days, show.Grouped(int64(math.Ceil(x.GPUHours)))))
	contains(t, again, "needs   "+regexp.MustCompile(`fits, fastest.*?([0-9.]+ GiB)`).FindStringSubmatch(out)[1], ": fits\n")
	out, _ = zeroth(t, 0, "fit", "tiny.yaml", "--gpu-memory", "33GiB", "--set", "zero.recompute=block")
	contains(t, out, "assumed 2 GPUs (--gpus), the speed of h100, as no known machine has GPUs of 33.0 GiB", "The fastest: zeroth train tiny.yaml --set ")
	out, _ = zeroth(t, 0, "fit", "--model", ".", "--gpus", "auto", "--gpu-memory", "140GiB", "--seq", "1024")
	contains(t, out, "1 GPU (--gpus)", "limits  1 ranks of 140.0 GiB", "on      h200: ")
}

// TestPublishedPlans checks that the first answer for every published model fits.
func TestPublishedPlans(t *testing.T) {
	nightly.Long(t)
	for i, name := range publishedNames() {
		if !nightly.Every(14, i) {
			continue
		}
		out, _ := zeroth(t, 0, "plan", "--model", name, "--gpus", "auto", "--machine", "h100")
		contains(t, out, "assumed ", ": fits\n", "step    ")
	}
}

func TestFit(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	write(t, "config.json", smallLlama)
	args := []string{"fit", "--model", ".", "--gpus", "8", "--gpu-memory", "80GiB", "--micro-batch", "2", "--seq", "32768"}
	out, _ := zeroth(t, 0, args...)
	contains(t, out, "8 ranks of 80.0 GiB (85.90 GB)", "fits, fastest", "does not fit", "your job", "The fastest: zeroth plan --model . --gpus 8 --gpu-memory 80GiB --machine h100 --set ")
	asJSON, _ := zeroth(t, 0, append(args, "--json", "--host-memory", "1TiB")...)
	var fit struct {
		Fits []struct {
			Fits                bool
			Allocated, FreeLow  int64
			Set                 []string
			OffloadOptimizer    string `json:"offload_optimizer"`
			Stage, ShardOfRanks int
		}
		Misfits []struct{ Binding string }
	}
	if err := json.Unmarshal([]byte(asJSON), &fit); err != nil || len(fit.Fits) == 0 || len(fit.Misfits) == 0 {
		t.Fatalf("%v\n%s", err, asJSON)
	}
	for i, f := range fit.Fits {
		if !f.Fits || f.Allocated > 80<<30 {
			t.Errorf("%+v", f)
		}
		if !nightly.Every(4, i) {
			continue
		}
		again := append([]string{"plan", "--model", "."}, args[3:]...)
		for _, s := range f.Set {
			again = append(again, "--set", s)
		}
		// The flags are part of f.Set as well; the later --set wins.
		if out, _ := zeroth(t, 0, again...); !strings.Contains(out, ": fits\n") {
			t.Errorf("%v:\n%s", f.Set, out)
		}
	}
	args = args[:7:7]
	for i, of := range []string{"model", "seq", "micro_batch"} {
		if !nightly.Every(3, i) { // one of each kind is in forecast's TestLargest
			continue
		}
		out, _ := zeroth(t, 0, append(args, "--largest", of)...)
		contains(t, out, "the largest "+of+" on 8 ranks", "with any")
		out, _ = zeroth(t, 0, append(args, "--largest", of, "--json")...)
		contains(t, out, `"of": "`+of+`"`)
	}
	out, _ = zeroth(t, 0, append(args, "--longest")...)
	contains(t, out, "the largest seq on 8 ranks", "limited by activations; a token needs ", " saved activations")
}

// TestSimulatedStep checks that a simulated step is printed and written, for this machine, for a
// named one and for one described by a file.
func TestSimulatedStep(t *testing.T) {
	nightly.Long(t)
	example, err := os.ReadFile("../../examples/machine.json")
	if err != nil {
		t.Fatal(err)
	}
	inFolder(t)
	write(t, "config.json", smallLlama)
	if err := os.WriteFile("machine.json", example, 0o644); err != nil {
		t.Fatal(err)
	}
	out, _ := zeroth(t, 0, "plan", "tiny.yaml", "--machine", "here")
	contains(t, out, "step    ", " on this machine: computing ", "speed   ", ", MFU ", "rates   measured: ")
	args := []string{"plan", "--model", ".", "--gpus", "1024", "--micro-batch", "1", "--seq", "8192", "--recompute", "block", "--trace", "t.json"}
	for i, machine := range []string{"h100", "h200", "machine.json"} {
		if !nightly.Every(2, i) {
			continue
		}
		asJSON, _ := zeroth(t, 0, append(args, "--json", "--machine", machine)...)
		var plan struct {
			Simulated struct {
				Ranks       int
				Seconds     float64 `json:"step_seconds"`
				Exposed     float64 `json:"exposed_communication_seconds"`
				Tokens      float64 `json:"tokens_per_second"`
				Utilisation float64
			}
		}
		if err := json.Unmarshal([]byte(asJSON), &plan); err != nil {
			t.Fatal(err)
		}
		f := plan.Simulated
		if off := f.Tokens*f.Seconds/(1024*8192) - 1; f.Ranks != 1024 || off*off > 1e-12 || f.Utilisation < 0.2 || f.Utilisation > 0.6 || f.Exposed < 0 || f.Exposed > f.Seconds {
			t.Errorf("%s: %+v", machine, f)
		}
		trace, err := os.ReadFile("t.json")
		if err != nil || !json.Valid(trace) {
			t.Fatalf("the trace is no JSON (%v)", err)
		}
		contains(t, string(trace), `"name":"matmul"`, `"name":"all-gather"`, `"name":"memory in use","ph":"C"`, `"saved_activations":`)
	}
	fit, _ := zeroth(t, 0, "fit", "--model", ".", "--gpus", "8", "--gpu-memory", "80GiB", "--micro-batch", "2", "--seq", "8192", "--machine", "machine.json")
	contains(t, fit, "on      4 GPUs a machine", "MFU", " % ")
	slow, _ := zeroth(t, 0, "fit", "--model", ".", "--gpus", "4", "--gpu-memory", "80GiB", "--micro-batch", "2", "--seq", "8192", "--link", "1GB", "--flops", "1e14", "--set", "train.batch=16")
	contains(t, slow, "100 TFLOP/s of bf16", "1.00 GB/s to all", " % waiting")
	zeroth(t, 0, "train", "tiny.yaml", "--out", "run1", "--timeline", "t.csv")
	table, err := os.ReadFile("t.csv")
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(table), "measured_in_use")
}

// TestPlanMistakes checks that errors in the command line suggest a correction.
func TestPlanMistakes(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	if err := os.WriteFile("small.json", []byte(`{"flops": {"bf16": 1e14}, "memory": 1e12, "links": [{"bandwidth": 1e10}], "gpu": true}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"nothing to plan; want a job file":                                             {"plan"},
		"want only one of them":                                                        {"plan", "tiny.yaml", "--model", "."},
		`--gpu-memory: "80G" is not a size; want`:                                      {"plan", "tiny.yaml", "--gpu-memory", "80G"},
		"--world -3; want 1 to 65536":                                                  {"plan", "tiny.yaml", "--world", "-3"},
		"--gpus 0; want 1 to 65536":                                                    {"plan", "tiny.yaml", "--gpus", "0"},
		"--gpus 65537; want 1 to 65536":                                                {"fit", "tiny.yaml", "--gpus", "65537", "--gpu-memory", "1GiB"},
		"--world 0; want 1 to 65536":                                                   {"plan", "tiny.yaml", "--world", "0"},
		"exclude each other; drop one of them":                                         {"plan", "tiny.yaml", "--world", "2", "--gpus", "4"},
		"--gpus-per-node -1; want at least 1":                                          {"fit", "tiny.yaml", "--gpu-memory", "1GiB", "--gpus-per-node", "-1"},
		"--machine is empty; give it a value":                                          {"plan", "tiny.yaml", "--machine", ""},
		"leave it out\n--stage is empty; give it a value":                              {"plan", "tiny.yaml", "--gpu-memory=", "--stage="},
		"--resume is empty; give it a value":                                           {"train", "tiny.yaml", "--resume", ""},
		"--out is empty; give it a value":                                              {"train", "tiny.yaml", "--out", ""},
		`"0x1p3GiB" is not a size`:                                                     {"plan", "tiny.yaml", "--gpu-memory", "0x1p3GiB"},
		"no.json: no such file or directory; want here":                                {"plan", "tiny.yaml", "--machine", "no.json"},
		"open /dev/zero: it is a device, not a regular":                                {"fit", "tiny.yaml", "--gpu-memory", "1GiB", "--machine", "/dev/zero"},
		`--set \x1b[31m: there is no key=value here`:                                   {"plan", "tiny.yaml", "--set", "\x1b[31m"},
		"tokens in all steps are more than 4.61e+18":                                   {"plan", "tiny.yaml", "--set", "train={steps: 1000000000, batch: 1073741824, micro_batch: 4096}", "--set", "model.context=1024"},
		"config.json cannot be read":                                                   {"plan", "--model", "nowhere"},
		"there is no stage 4":                                                          {"plan", "tiny.yaml", "--stage", "4"},
		"--gpu-memory is missing":                                                      {"fit", "tiny.yaml", "--gpus", "2", "--machine", "small.json"},
		"--gpus\" flag: want a whole number":                                           {"plan", "tiny.yaml", "--gpus", "all"},
		`--tokens: "15X" is not a number of tokens`:                                    {"fit", "tiny.yaml", "--tokens", "15X"},
		`--batch-tokens: "0" is not a number of tokens`:                                {"plan", "tiny.yaml", "--batch-tokens", "0"},
		"--tokens needs the speed of some hardware":                                    {"plan", "tiny.yaml", "--tokens", "15T"},
		"--gpus auto: no number of GPUs up to 65536 suffices":                          {"plan", "tiny.yaml", "--gpus", "auto", "--gpu-memory", "1MiB"},
		"--disk needs --host-memory":                                                   {"fit", "tiny.yaml", "--gpu-memory", "1GiB", "--disk", "1TB"},
		"--flops 0; want a number from 1 to 1e24":                                      {"fit", "tiny.yaml", "--gpu-memory", "1GiB", "--flops", "0"},
		`--link: "fast" is not a size`:                                                 {"fit", "tiny.yaml", "--gpu-memory", "1GiB", "--link", "fast"},
		"--machine here measures processors, not GPUs":                                 {"plan", "tiny.yaml", "--gpus", "2", "--machine", "here"},
		"want here, one of h100, h200, a100, b200, l40s, rtx4090, or a file that desc": {"plan", "tiny.yaml", "--machine", "b300"},
		"want here, one of h100, h200, a100, b200, l40s, rtx4090, or a file":           {"fit", "tiny.yaml", "--gpu-memory", "1GiB", "--machine", "h99"},
		"--gpus\" flag: a leading 0 could mean":                                        {"plan", "tiny.yaml", "--gpus", "010"},
		"--world\" flag: want a whole number":                                          {"plan", "tiny.yaml", "--world", "1e3"},
		"write hf://a/b to download it":                                                {"plan", "--model", "a/b"},
		"--trace needs the speed of some hardware":                                     {"plan", "tiny.yaml", "--trace", "t.json"},
		"--timeline t.png: want a file name that ends in .html":                        {"train", "tiny.yaml", "--timeline", "t.png"},
		"--timeline p.png: want a file name that ends in .html, .svg or .csv\n--stages s.html: want a file name that ends in .svg": {"plan", "tiny.yaml", "--timeline", "p.png", "--stages", "s.html"},
		"--link is empty; give it a value or leave it out":                                                                         {"fit", "tiny.yaml", "--gpu-memory", "1GiB", "--link", ""},
		"--largest head; want model, seq or micro_batch":                                                                           {"fit", "tiny.yaml", "--gpu-memory", "1GiB", "--largest", "head"},
		"no.yaml: the job file cannot be read: no such":                                                                            {"plan", "no.yaml"},
		"parallel.memory: the budget is 20.0 KiB per rank, but":                                                                    {"train", "tiny.yaml", "--set", "parallel.memory=20KiB"},
	} {
		out, errs := zeroth(t, 2, args...)
		if !strings.Contains(errs, want) || out != "" {
			t.Errorf("zeroth %v: %s%s\nwant %s", args, out, errs, want)
		}
	}
	if left, err := os.ReadDir("."); err != nil || len(left) != 3 {
		t.Errorf("files are left behind: %v, %v", left, err)
	}
}

// terabytes makes tiny.yaml need 4 TiB per rank, for activations. With as many parameters, the search for what
// fits would go through 100,000 pieces of them.
var terabytes = []string{"--set", "model={layers: 8, heads: 16, width: 2048}", "--set", "train={micro_batch: 32768, loss_chunk: 8192}"}

// TestPlanThatDoesNotFit checks that a plan that does not fit is printed and gives the exit code
// and the reason that train would give.
func TestPlanThatDoesNotFit(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	for i, c := range []struct {
		code    int
		verdict string
		args    []string
	}{
		{0, "", []string{}},
		{0, "fits", []string{"--set", "parallel.memory=1GiB"}},
		{2, "does not fit", []string{"--set", "parallel.memory=20KiB"}},
		{2, "does not fit", terabytes},
		{0, "", append([]string{"--world", "2"}, terabytes...)},
		{2, "does not fit", []string{"--world", "4", "--set", "parallel.memory=20KiB"}},
		{0, "fits", []string{"--gpus", "2", "--gpu-memory", "80GiB"}},
		{0, "fits if memory outside zeroth is small", []string{"--gpus", "2", "--gpu-memory", "1.5GiB"}},
		{2, "does not fit", []string{"--gpus", "2", "--gpu-memory", "256MiB"}},
	} {
		out, errs := zeroth(t, c.code, append([]string{"plan", "tiny.yaml"}, c.args...)...)
		contains(t, out, " of a rank's device, all of it allocated before step 1", c.verdict)
		if said := regexp.MustCompile(`the job does not fit: a rank needs |parallel.memory: (the budget is .* per rank, but a rank needs|2 ranks need) `).MatchString(errs); said != (c.code == 2) {
			t.Errorf("%v: %s", c.args, errs)
		}
		if nightly.Every(2, i) {
			asJSON, _ := zeroth(t, c.code, append([]string{"plan", "tiny.yaml", "--json"}, c.args...)...)
			var plan struct{ Verdict string }
			if err := json.Unmarshal([]byte(asJSON), &plan); err != nil || plan.Verdict != c.verdict {
				t.Errorf("%v: verdict %q, %v", c.args, plan.Verdict, err)
			}
		}
		if c.code == 2 && c.args[0] == "--set" { // train gives the same reason, except for the free memory
			_, train := zeroth(t, 2, append([]string{"train", "tiny.yaml"}, c.args...)...)
			if words, _, _ := strings.Cut(train, ";"); !strings.HasPrefix(errs, words) {
				t.Errorf("plan says %s\ntrain says %s", errs, train)
			}
		}
	}
}

// TestTimelineRefusesOtherFiles checks that --timeline does not change a file that is not a timeline.
func TestTimelineRefusesOtherFiles(t *testing.T) {
	inFolder(t)
	before, err := os.ReadFile("a.txt")
	if err != nil {
		t.Fatal(err)
	}
	zeroth(t, 2, "train", "tiny.yaml", "--timeline", "a.txt")
	if after, err := os.ReadFile("a.txt"); err != nil || string(after) != string(before) {
		t.Errorf("a.txt: %v, %q", err, after)
	}
}
