//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/job/state"
	"zeroth/tests/nightly"
)

// foreignFixture returns the absolute path of a checkpoint written by another program.
func foreignFixture(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../checkpoint/foreign/testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCkptForeign checks that checkpoints of DeepSpeed and PyTorch can be shown, exported,
// imported and trained on, and that exports to their formats can be read back.
func TestCkptForeign(t *testing.T) {
	nightly.Long(t)
	zero, dcp := foreignFixture(t, "deepspeed/x-z3-fp16-w2"), foreignFixture(t, "dcp/fsdp2-fp32-w2/step-3")
	bin := foreignFixture(t, "dcp/plain")
	inFolder(t)
	out, _ := zeroth(t, 0, "ckpt", "inspect", zero)
	matches(t, out, `format DeepSpeed 0.19.8, ZeRO stage 3, written by 2 ranks`, `trained 3 steps, 0 skipped, 12 samples`, `loss scale 256`, `transformer.wte.weight exp_avg F32 \[53 14\]`)
	if x := decoded[foreignInspected](t, first2(zeroth(t, 0, "ckpt", "inspect", zero, "--json"))); x.Step != 3 || x.Ranks != 2 || len(x.Tensors) != 84 || x.Shared["lm_head.weight"] != "transformer.wte.weight" {
		t.Errorf("%+v", x)
	}
	zeroth(t, 0, "ckpt", "export", zero, "--to", "model", "--dtype", "bf16")
	out, _ = zeroth(t, 0, "ckpt", "import", zero, "--to", "start")
	matches(t, out, `step 3\) as start/step-00000003`)
	out, _ = zeroth(t, 0, "ckpt", "inspect", "start")
	matches(t, out, `trained 3 steps by DeepSpeed 0.19.8, ZeRO stage 3`)

	if err := os.WriteFile("tokens.bin", make([]byte, 4000), 0o666); err != nil {
		t.Fatal(err)
	}
	job := "data: {tokens: [tokens.bin], dtype: uint16, validation: 0}\nmodel: {from: model, context: 16}\ntrain: {steps: 5}\nprecision: fp16\nparallel: {ranks: 2}\ncheckpoint: {every: 5}\n"
	if err := os.WriteFile("on.yaml", []byte(job), 0o666); err != nil {
		t.Fatal(err)
	}
	zeroth(t, 0, "train", "on.yaml", "--resume", "start/step-00000003", "--out", "run1")
	out, _ = zeroth(t, 0, "ckpt", "ls", "run1")
	matches(t, out, `step-00000005|5 `)

	zeroth(t, 0, "ckpt", "import", dcp, "--to", "a")
	zeroth(t, 0, "ckpt", "export", "a", "--format", "dcp", "--to", "back")
	if err := os.Rename("back", "theirs"); err != nil {
		t.Fatal(err)
	}
	zeroth(t, 0, "ckpt", "import", "theirs", "--to", "b")
	zeroth(t, 0, "ckpt", "diff", "a", "b")
	zeroth(t, 0, "ckpt", "export", "a", "--format", "torch", "--to", "torch")
	zeroth(t, 0, "ckpt", "export", "torch", "--to", "hf")

	for _, step := range []string{"3", "10"} { // without a latest file
		if err := os.CopyFS("two/global_step"+step, os.DirFS(filepath.Join(zero, "global_step3"))); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"two has checkpoints of another program and no file latest that names one; want one of two/global_step10, two/global_step3", []string{"ckpt", "export", "two", "--to", "g"}},
		{"no config.json in or next to it", []string{"ckpt", "import", bin, "--to", "c"}},
		{"--format onnx; want hf, dcp, torch", []string{"ckpt", "export", zero, "--to", "d", "--format", "onnx"}},
		{"does not contain the model of model/config.json: transformer.wte.weight is missing", []string{"ckpt", "import", bin + "/views_and_types.bin", "--model", "model", "--to", "e"}},
		{"which a is not", []string{"ckpt", "export", "a", "--to", "f", "--names", "n.json"}},
	} {
		_, errs := zeroth(t, 2, c.args...)
		matches(t, errs, c.want)
	}
}

// TestForeignPosition checks that a run goes on where the other program stopped, or says what it
// assumes: in the data, in the schedule, with the optimizer's settings and the loss scale.
func TestForeignPosition(t *testing.T) {
	nightly.Long(t)
	saved := map[string]string{"deepspeed": "deepspeed/z2-bf16-w2", "dcp": "dcp/fsdp2-fp32-w2/step-3", "accelerate": "dcp/fsdp2-accelerate-w2", "dtensor": "dcp/dtensor-pt-w2"}
	for name, fixture := range saved {
		saved[name] = foreignFixture(t, fixture)
	}
	scaler := foreignFixture(t, "dcp/scaler.pt")
	inFolder(t)
	for name, text := range map[string]string{
		"trainer_state.json": `{"best_metric": null, "epoch": 0.5, "global_step": 3, "log_history": [{"loss": NaN}]}`, "rng_state_0.pth": "", "scheduler.pt": "",
		"on.yaml": "data: {tokens: [tokens.bin], tokenizer: none, validation: 0.1}\nmodel: {vocab: 53}\ntrain: {steps: 5, batch: 8, eval_every: 0}\nprecision: fp32\ncheckpoint: {every: 5}\n", "tokens.bin": strings.Repeat("\x01\x00", 4000),
	} {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS("checkpoint-3", os.DirFS(saved["accelerate"])); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"trainer_state.json", "rng_state_0.pth", "scheduler.pt"} {
		if err := os.Rename(name, filepath.Join("checkpoint-3", name)); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(scaler)
	if err == nil {
		err = os.WriteFile("checkpoint-3/scaler.pt", raw, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	saved["trainer"] = "checkpoint-3"
	settings := `a job that resumes from it uses, unless it sets them, its optimizer: lr: 0.001, betas: \[0.9, 0.95\], eps: 1e-08, weight_decay: 0.1; its schedule is not imported`
	for name, want := range map[string]string{
		"deepspeed": "after 3 steps of DeepSpeed 0.19.8, ZeRO stage 2, the data goes on behind 12 samples, as its checkpoint says", "dcp": "24 samples, assuming steps of 8",
		"accelerate": "24 samples, assuming steps of 8", "dtensor": "24 samples, assuming steps of 8", "trainer": "94 samples, assuming that its 0.5 epochs were over this data, of 188 samples",
	} {
		out, _ := zeroth(t, 0, "ckpt", "import", saved[name], "--to", "start-"+name)
		matches(t, out, settings)
		if name == "trainer" {
			matches(t, out, `left out, not used here: scheduler.pt, rng_state_0.pth`)
			out, _ = zeroth(t, 0, "ckpt", "inspect", saved[name])
			matches(t, out, `loss scale 1024`)
		}
		out, _ = zeroth(t, 0, "train", "on.yaml", "--resume", "start-"+name+"/step-00000003", "--out", name)
		matches(t, out, "taken from the checkpoint, because the job omits them: optimizer.lr 1e-3\n", want, "the learning rate goes on at step 3 of the job's schedule")
		p := state.Progress{}
		raw, err := os.ReadFile(filepath.Join(name, "ckpt/step-00000005/state.json"))
		if err == nil {
			err = json.Unmarshal(raw, &p)
		}
		if before := map[string]int64{"deepspeed": 12, "dcp": 24, "accelerate": 24, "dtensor": 24, "trainer": 94}[name]; err != nil || p.Samples != before+16 || p.Tokens != p.Samples*int64(p.Context) {
			t.Errorf("%s: %d samples and %d tokens after 5 steps, %v", name, p.Samples, p.Tokens, err)
		}
	}
	out, _ := zeroth(t, 0, "train", "on.yaml", "--resume", "start-dcp/step-00000003", "--out", "other", "--set", "optimizer.lr=2e-3", "--set", "data.validation=0.2")
	matches(t, out, "changed since the checkpoint: optimizer.lr 1e-3 → 2e-3\n")

	_, errs := zeroth(t, 2, "train", "on.yaml", "--resume", saved["deepspeed"], "--out", "direct")
	matches(t, errs, "a checkpoint of another program; 'zeroth ckpt import .* --to FOLDER' makes one to resume from")
}

func first2(out, _ string) string { return out }
