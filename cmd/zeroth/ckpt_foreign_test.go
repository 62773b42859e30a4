//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"
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

func first2(out, _ string) string { return out }
