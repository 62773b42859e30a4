package tests

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/checkpoint/checkpointtest"
	"zeroth/internal/input"
	"zeroth/job"
	"zeroth/job/generate"
	"zeroth/job/state"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// TestTuningStagesAgreeToTheBit checks that stages agree to the bit with adapters and with frozen
// parameters, and that frozen parameters do not change. With adapters, the exported model is the
// folder's plus scale·B·A as computed from PEFT's files.
func TestTuningStagesAgreeToTheBit(t *testing.T) {
	nightly.Parallel(t)
	for name, sets := range map[string][]string{
		"llama":  {"train.lora.rank=3", "train.lora.alpha=6"},
		"rslora": {"train.lora.rank=4", "train.lora.alpha=6", "train.lora.rslora=true"},
		"gpt2":   {"train.lora.rank=2", "train.lora.targets=[c_attn, mlp.c_proj]", "train.lora.dropout=0.2"},
		"layers": {"train.lora.rank=4", "train.lora.alpha=6", "train.lora.dropout=0.1", "train.lora.rank_pattern={v_proj: 2, '.*0.self_attn.q_proj': 3}", "train.lora.alpha_pattern={v_proj: 8}", "train.lora.modules_to_save=[embed_tokens, 1.input_layernorm]"},
		"frozen": {"train.freeze=[model.embed_tokens.*, model.layers.0.*]"},
	} {
		t.Run(name, func(t *testing.T) {
			from := filepath.Join(hfLlama, "llama")
			if name == "gpt2" {
				from = filepath.Join(hfModels, "tiny")
			}
			start := readModel(t, from)
			losses := map[string]string{} // by the number of ranks
			for i, way := range [][]string{{"parallel.ranks=1"}, {"parallel.ranks=1", "zero.stage=0", "zero.recompute=block"}, {"parallel.ranks=4", "zero.stage=3"},
				{"parallel.ranks=4", "zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host"}, {"parallel.ranks=4", "zero.stage=1"}} {
				if i > 2 && !nightly.Every(2, i+len(name)) {
					continue
				}
				out := t.TempDir()
				steps, end := runJobIn(t, mustHFConfig(t, from, "tokens.bin", append(append([]string{"optimizer.lr=1e-2"}, sets...), way...)...), out)
				own := ""
				for _, s := range steps {
					own += fmt.Sprintf(" %v %v", s.Loss, s.GradNorm)
				}
				if want, ok := losses[way[0]]; ok && own != want {
					t.Errorf("%v: losses and norms %s, of another stage %s", way, own, want)
				}
				losses[way[0]] = own
				if steps[len(steps)-1].Loss >= steps[0].Loss {
					t.Errorf("%v: the loss goes from %g to %g", way, steps[0].Loss, steps[len(steps)-1].Loss)
				}
				if name == "frozen" {
					sameFrozen(t, start, end)
				} else {
					sameMerged(t, start, end, readAdapters(t, filepath.Join(out, "adapter")), name == "gpt2", func(layer string, rank int) float64 {
						switch {
						case strings.HasSuffix(layer, "v_proj") && name == "layers":
							return 8 / float64(rank)
						case name == "rslora":
							return 3
						case name == "gpt2":
							return 1
						}
						return 6 / float64(rank)
					})
				}
			}
		})
	}
}

// sameFrozen fails unless exactly the frozen parameters are unchanged.
func sameFrozen(t *testing.T, start, end map[string][]float32) {
	t.Helper()
	for name, w := range start {
		frozen := strings.HasPrefix(name, "model.embed_tokens.") || strings.HasPrefix(name, "model.layers.0.")
		if same := fmt.Sprint(w) == fmt.Sprint(end[name]); same != frozen {
			t.Errorf("%s stayed: %t, frozen: %t", name, same, frozen)
		}
	}
}

// readAdapters returns the tensors of a folder in PEFT's format.
func readAdapters(t *testing.T, folder string) map[string][]float32 {
	t.Helper()
	return readModel(t, filepath.Join(folder, "adapter_model.safetensors"))
}

// sameMerged fails unless end equals start plus the adapters' products times scale, with the
// modules that were saved whole.
func sameMerged(t *testing.T, start, end, adapters map[string][]float32, transposed bool, scale func(layer string, rank int) float64) {
	t.Helper()
	moved, saved := 0, 0
	for name, w := range start {
		layer := "base_model.model." + strings.TrimSuffix(name, ".weight")
		a, b := adapters[layer+".lora_A.weight"], adapters[layer+".lora_B.weight"]
		if whole := adapters["base_model.model."+name]; whole != nil {
			saved++
			if fmt.Sprint(whole) != fmt.Sprint(end[name]) || fmt.Sprint(whole) == fmt.Sprint(w) {
				t.Errorf("%s is another one in the model than in the adapter, or has not changed", name)
			}
			continue
		}
		if a == nil {
			if fmt.Sprint(w) != fmt.Sprint(end[name]) {
				t.Errorf("%s has no adapter and has changed", name)
			}
			continue
		}
		moved++
		rank := int(math.Sqrt(float64(len(a)) * float64(len(b)) / float64(len(w))))
		in, out := len(a)/rank, len(b)/rank
		for i := range out {
			for j := range in {
				at, sum := i*in+j, 0.0
				if transposed {
					at = j*out + i
				}
				for k := range rank {
					sum += float64(b[i*rank+k]) * float64(a[k*in+j])
				}
				if want := float64(w[at]) + scale(layer, rank)*sum; math.Abs(float64(end[name][at])-want) > 1e-6 {
					t.Fatalf("%s[%d] is %g, merged %g", name, at, end[name][at], want)
				}
			}
		}
	}
	if 2*moved+saved != len(adapters) || moved == 0 {
		t.Errorf("%d adapters of %d tensors", moved, len(adapters))
	}
}

// TestTuningRefusals checks that adapters and patterns that match nothing are rejected with a
// list of what exists.
func TestTuningRefusals(t *testing.T) {
	for sets, want := range map[string]string{
		"train.lora.rank=2 train.lora.targets=[query]":               `the model has no linear layer whose name ends with "query"; want some of down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj, or all-linear alone`,
		"train.lora.rslora=true":                                     "train.lora.rank is 0: there are no adapters",
		"train.lora.alpha=2":                                         "train.lora.rank is 0: there are no adapters",
		"train.freeze=[transformer.*]":                               `"transformer.*" matches no parameter; want names such as model.embed_tokens.weight`,
		`train.freeze=["*"]`:                                         "every parameter is frozen",
		`train.freeze=["["]`:                                         `"[" is no pattern`,
		`train.lora.rank=2 train.freeze=["*.lora_A.*","*.lora_B.*"]`: "every parameter is frozen",
		"train.lora.rank=2 train.lora.targets=[all-linear,q_proj]":   `no linear layer whose name ends with "all-linear"`,
		"train.lora.dropout=0.1":                                     "train.lora.rank is 0: there are no adapters",
		"train.lora.rank=2 train.lora.dropout=1":                     "train.lora.dropout: 1 is out of range; want 0, or a number from 1/65536 to below 1",
		"train.lora.rank=2 train.lora.rank_pattern={\"o_proj\":4}":   `no layer with an adapter has a name that ends with "o_proj"`,
		"train.lora.rank=2 train.lora.rank_pattern={\"q_proj\":0.5}": "q_proj: 0.5 is out of range; want a mapping of names of layers, each to a whole number",
		"train.lora.rank=2 train.lora.alpha_pattern={\"(\":1}":       "is not a name or a regular expression",
		"train.lora.rank=2 train.lora.alpha_pattern=[q_proj]":        "is not a mapping",
		"train.lora.rank=2 train.lora.dropout=0.1 train.lora.targets=[down_proj] parallel.ranks=2 parallel.tensor=2": "dropout needs a multiple of 8 inputs on each rank, but model.layers.0.mlp.down_proj has 88 inputs on 2 ranks; want dropout: 0, or another tensor",
		"train.lora.rank=2 train.lora.modules_to_save=[heads]":                                                       `the model has no module whose name ends with "heads"`,
		"train.lora.rank=2 train.lora.modules_to_save=[self_attn]":                                                   "self_attn.q_proj would have an adapter and be trained whole; want it in only one of the two",
	} {
		_, err := hfConfig(t, filepath.Join(hfLlama, "llama"), "tokens.bin", strings.Fields(sets)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", sets, err, want)
		}
	}
	if nn.IsAdapter("model.layers.0.self_attn.q_proj.weight") {
		t.Error("a weight is called an adapter")
	}
}

// TestCheckpointWithAdapters checks that sampling from a checkpoint with adapters uses the merged
// model, and that a run that resumes from it keeps the adapters even if its job does not mention
// them.
func TestCheckpointWithAdapters(t *testing.T) {
	nightly.Parallel(t)
	from, out := filepath.Join(hfLlama, "llama"), t.TempDir()
	sets := []string{"precision=fp32", "parallel.ranks=2", "train.steps=4", "checkpoint.every=2", "optimizer.lr=1e-1"}
	c := mustHFConfig(t, from, "tokens.bin", append(sets, "train.lora.rank=3", "train.lora.alpha=12", "train.lora.targets=[all-linear]")...)
	if err := job.Run(t.Context(), c, job.Options{Out: out}); err != nil {
		t.Fatal(err)
	}
	said := func(run string) string {
		t.Helper()
		var b strings.Builder
		if err := generate.Sample(t.Context(), generate.Options{Run: run, Tokenizer: "bytes", Prompt: "\x01\x02\x03", Tokens: 20, Note: func(string) {}}, &b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	merged, base := said(filepath.Join(out, "model")), said(from)
	if got := said(filepath.Join(out, "ckpt", "step-00000004")); got != merged || got == base {
		t.Errorf("of the checkpoint %q, merged %q, without adapters %q", got, merged, base)
	}
	again := mustHFConfig(t, from, "tokens.bin", append(sets, "train.steps=5")...)
	if err := job.Run(t.Context(), again, job.Options{Out: out, Resume: "latest"}); err != nil {
		t.Fatal(err)
	}
	if n := len(readAdapters(t, filepath.Join(out, "adapter"))); n != 2*7*c.Model.Layers {
		t.Errorf("%d tensors of adapters after going on", n)
	}
}

// TestFrozenParametersAreSavedOnce checks that the checkpoints of a run share one base folder
// with the frozen parameters, which are the folder's to the bit, and the files; that a resumed
// run continues to use it; and that a run can resume from a checkpoint without a base, as earlier
// versions wrote them.
func TestFrozenParametersAreSavedOnce(t *testing.T) {
	nightly.Parallel(t)
	from := filepath.Join(hfLlama, "llama")
	start := readModel(t, from)
	for _, way := range [][]string{{"parallel.ranks=2"}, {"parallel.ranks=2", "checkpoint.async=false", "zero.stage=1"}, {"parallel.ranks=2", "parallel.tensor=2"},
		{"parallel.ranks=2", "parallel.pipeline=2", "checkpoint.compress=always"}, {"zero.offload.optimizer=host", "zero.offload.parameters=host"}} {
		out := t.TempDir()
		dir := filepath.Join(out, "ckpt")
		run := func(resume string, steps int) {
			t.Helper()
			c := mustHFConfig(t, from, "tokens.bin", append(way, "train.lora.rank=2", "checkpoint.every=2", "checkpoint.keep=9", fmt.Sprintf("train.steps=%d", steps))...)
			if err := job.Run(t.Context(), c, job.Options{Out: out, Resume: resume}); err != nil {
				t.Fatal(way, err)
			}
		}
		base := func(checkpoints int) string {
			t.Helper()
			list, err := checkpoint.List(dir)
			if err != nil || len(list) != checkpoints {
				t.Fatal(way, list, err)
			}
			for _, e := range list {
				if e.Status != checkpoint.Complete || e.Base != list[0].Base || e.Base == "" {
					t.Errorf("%v: %+v", way, e)
				}
				sameBaseValues(t, e.Path, start)
			}
			return list[0].Base
		}
		run("", 4)
		first := base(2)
		if run("latest", 6); base(3) != first {
			t.Errorf("%v: the resumed run has another base", way)
		}
		ck, err := checkpoint.Find(dir, "latest")
		if err != nil {
			t.Fatal(err)
		}
		checkpointtest.Copy(t, ck, filepath.Join(out, "whole"))
		ck.Close()
		if err := errors.Join(os.RemoveAll(dir), os.Rename(filepath.Join(out, "whole"), dir)); err != nil {
			t.Fatal(err)
		}
		run("latest", 8)
		list, err := checkpoint.List(dir)
		if err != nil || len(list) != 2 || list[0].Base != "" || list[1].Base == "" || list[1].Base == first {
			t.Errorf("%v: after going on from a whole checkpoint %+v, %v", way, list, err)
		}
		sameBaseValues(t, list[1].Path, start)
	}
}

// sameBaseValues fails unless a checkpoint contains exactly the parameters of start, and adapters.
func sameBaseValues(t *testing.T, path string, start map[string][]float32) {
	t.Helper()
	bad, err := checkpoint.Verify(t.Context(), path, checkpoint.Walk{})
	if err != nil || len(bad) > 0 {
		t.Fatal(path, bad, err)
	}
	ck, err := checkpoint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	seen := 0
	for _, x := range ck.Tensors {
		if x.Kind != checkpoint.Master || nn.IsAdapter(x.Name) {
			continue
		}
		seen++
		got := make([]float32, x.Numel())
		if err := ck.ReadF32(x.Name, x.Kind, shard.Range{Hi: len(got)}, got, 0); err != nil || !slices.Equal(got, start[x.Name]) {
			t.Errorf("%s: %v is not the folder's: %v", path, x, err)
		}
	}
	if seen != len(start) {
		t.Errorf("%s: %d parameters, want %d", path, seen, len(start))
	}
}

// TestResumeRefusesAnotherBase checks that a run with frozen parameters does not resume with a
// different base folder but accepts a copy of its own. Without frozen parameters no folder is
// read.
func TestResumeRefusesAnotherBase(t *testing.T) {
	nightly.Parallel(t)
	from := filepath.Join(hfLlama, "llama")
	other, same := t.TempDir(), t.TempDir()
	for _, folder := range []string{other, same} {
		if err := os.CopyFS(folder, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	weights := filepath.Join(other, "model.safetensors")
	raw, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-4] ^= 1 // the last bit of an element
	if err := os.WriteFile(weights, raw, 0o666); err != nil {
		t.Fatal(err)
	}
	for sets, refuses := range map[string]bool{"train.lora.rank=2": true, "train.freeze=[model.embed_tokens.*]": true, "optimizer.lr=1e-3": false} {
		out := t.TempDir()
		run := func(from, resume string, steps int) error {
			c := mustHFConfig(t, from, "tokens.bin", sets, "checkpoint.every=2", fmt.Sprintf("train.steps=%d", steps))
			return job.Run(t.Context(), c, job.Options{Out: out, Resume: resume})
		}
		if err := run(from, "", 2); err != nil {
			t.Fatal(err)
		}
		err := run(other, "latest", 4)
		if refuses && (err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), "step-00000002 has another base model: its frozen parameters have digest ")) || !refuses && err != nil {
			t.Errorf("%s: from another folder: %v", sets, err)
		}
		if err := run(same, "latest", 6); err != nil {
			t.Errorf("%s: from a copy: %v", sets, err)
		}
		ck, err := state.OpenCheckpoint(out)
		if err != nil {
			t.Fatal(err)
		}
		facts, err := state.Facts(ck)
		if err != nil || !slices.ContainsFunc(facts, func(f state.Fact) bool {
			return f[0] == "base" && strings.HasPrefix(f[1], "digest ") && strings.HasSuffix(f[1], same)
		}) {
			t.Errorf("%s: %v, %v", sets, facts, err)
		}
		ck.Close()
	}
}

// TestAdapterGoesOn checks that a run with train.lora.from begins with the adapter of the folder,
// on any ranks, and that one with model.adapters begins with the merged model: at a learning rate
// near zero, the former exports that adapter again and the latter that model.
func TestAdapterGoesOn(t *testing.T) {
	nightly.Parallel(t)
	for name, from := range map[string]string{"llama": filepath.Join(hfLlama, "llama"), "gpt2": filepath.Join(hfModels, "tiny")} {
		first := t.TempDir()
		c := mustHFConfig(t, from, "tokens.bin", "optimizer.lr=1e-2", "train.lora.rank=2", "train.lora.alpha=6", "train.lora.rslora=true", "train.lora.targets=[all-linear]",
			"train.lora.rank_pattern="+map[string]string{"llama": "{up_proj: 3, q_proj: 1}", "gpt2": "{c_fc: 3}"}[name], "train.lora.alpha_pattern="+map[string]string{"llama": "{0.mlp.*: 2}", "gpt2": "{h.0.*: 2}"}[name],
			"train.lora.modules_to_save="+map[string]string{"llama": "[model.norm, lm_head]", "gpt2": "[ln_f, wte]"}[name])
		before, merged := runJobIn(t, c, first)
		adapter := filepath.Join(first, "adapter")
		still := []string{"optimizer.lr=1e-30", "optimizer.weight_decay=0", "train.steps=1"}
		for _, way := range [][]string{{"parallel.ranks=1"}, {"parallel.ranks=4", "zero.stage=3"}, map[string][]string{"llama": {"parallel.ranks=2", "parallel.tensor=2"}, "gpt2": {"parallel.ranks=2", "parallel.pipeline=2"}}[name]} {
			out := t.TempDir()
			on := append(append(still, way...), fmt.Sprintf("train.lora.from=%q", adapter))
			steps, model := runJobIn(t, mustHFConfig(t, from, "tokens.bin", on...), out)
			if fmt.Sprint(readAdapters(t, filepath.Join(out, "adapter"))) != fmt.Sprint(readAdapters(t, adapter)) {
				t.Errorf("%s, %v: another adapter is written", name, way)
			}
			sameFloats(t, name+", continued", model, merged)

			out = t.TempDir()
			on = append(append(still, way...), fmt.Sprintf("model.adapters=[%q]", adapter), "train.lora.rank=3")
			stacked, model := runJobIn(t, mustHFConfig(t, from, "tokens.bin", on...), out)
			sameFloats(t, name+", stacked", model, merged)
			if d := math.Abs(stacked[0].Loss - steps[0].Loss); d > 1e-6 || steps[0].Loss >= before[0].Loss {
				t.Errorf("%s, %v: the first loss is %g on an adapter, %g on the merged model, %g before", name, way, steps[0].Loss, stacked[0].Loss, before[0].Loss)
			}
		}
		config := filepath.Join(adapter, "adapter_config.json")
		text, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(config, bytes.Replace(text, []byte(`"lora_dropout": 0`), []byte(`"lora_dropout": 0.25`), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := mustHFConfig(t, from, "tokens.bin", fmt.Sprintf("train.lora.from=%q", adapter)).Train.LoRA.Dropout; got != 0.25 {
			t.Errorf("%s: dropout %v, the adapter's is 0.25", name, got)
		}
		for sets, want := range map[string]string{
			"train.lora.rank=4":              "4, but the adapter in " + adapter + " has 2; want the same, or leave it out",
			"train.lora.from=" + first:       "cannot be read: no such file or directory; want a folder with adapter_config.json",
			"model.adapters=[" + first + "]": "adapter_config.json cannot be read",
		} {
			c, err := hfConfig(t, from, "tokens.bin", fmt.Sprintf("train.lora.from=%q", adapter), sets)
			if err == nil {
				err = job.Run(t.Context(), c, job.Options{Out: t.TempDir()})
			}
			if !input.IsInput(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", sets, err, want)
			}
		}
	}
}

// sameFloats fails unless two sets of tensors have the same bits.
func sameFloats(t *testing.T, what string, got, want map[string][]float32) {
	t.Helper()
	for name, x := range want {
		if !slices.Equal(got[name], x) {
			t.Errorf("%s: %s differs", what, name)
		}
	}
}

// TestAdapterDropout checks that the masks of adapters' inputs depend on the position and the layer
// only: results agree to the bit on any number of ranks, and within rounding on meshes with another
// order of sums. Seeds and probabilities change the loss.
func TestAdapterDropout(t *testing.T) {
	nightly.Parallel(t)
	for name, from := range map[string]string{"llama": filepath.Join(hfLlama, "llama"), "gpt2": filepath.Join(hfModels, "tiny")} {
		first := t.TempDir()
		targets := map[string]string{"llama": "[q_proj, o_proj, gate_proj]", "gpt2": "[c_attn, attn.c_proj, c_fc]"}[name]
		runJobIn(t, mustHFConfig(t, from, "tokens.bin", "optimizer.lr=1e-2", "train.lora.rank=2", "train.lora.alpha=16", "train.lora.targets="+targets), first)
		losses := func(sets ...string) (all []float64) {
			t.Helper()
			steps, _ := runJobIn(t, mustHFConfig(t, from, "tokens.bin", append([]string{fmt.Sprintf("train.lora.from=%q", filepath.Join(first, "adapter")), "train.lora.dropout=0.3", "train.batch=4", "train.steps=3", "model.context=24"}, sets...)...), t.TempDir())
			for _, s := range steps {
				all = append(all, s.Loss)
			}
			return all
		}
		want := losses("parallel.ranks=1", "train.micro_batch=1")
		if got := losses("parallel.ranks=4", "zero.stage=3", "zero.recompute=block"); !slices.Equal(got, want) {
			t.Errorf("%s: losses %v on 4 ranks, %v on one", name, got, want)
		}
		cut := map[string][]string{"llama": {"parallel.ranks=2", "parallel.tensor=2"}, "gpt2": {"parallel.ranks=3", "parallel.tensor=3"}}[name]
		for _, way := range [][]string{cut, {"parallel.ranks=2", "parallel.context=2"}, {"parallel.ranks=2", "parallel.pipeline=2", "pipeline.schedule=ZBH1"}, {"parallel.ranks=1", "train.micro_batch=4"}} {
			for i, got := range losses(way...) {
				if math.Abs(got-want[i]) > 1e-5 {
					t.Errorf("%s, %v: the loss of step %d is %v, on one rank %v", name, way, i+1, got, want[i])
				}
			}
		}
		for _, other := range []string{"train.lora.dropout=0", "train.lora.dropout=0.31", "train.seed=2"} {
			if got := losses("parallel.ranks=1", "train.micro_batch=1", other); math.Abs(got[0]-want[0]) < 1e-5 {
				t.Errorf("%s, %s: the first loss is the same, %v", name, other, got[0])
			}
		}
	}
}
