//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/checkpoint/checkpointtest"
	"zeroth/tests/nightly"
)

// sameFiles checks that the named files are equal in two folders.
func sameFiles(t *testing.T, got, want string, names ...string) {
	t.Helper()
	for _, name := range names {
		a, err := os.ReadFile(filepath.Join(got, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(want, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(a) != string(b) {
			t.Errorf("%s of %s is not that of %s", name, got, want)
		}
	}
}

var (
	adapterFiles = []string{"adapter_config.json", "adapter_model.safetensors"}
	modelFiles   = []string{"config.json", "model.safetensors"}
)

// TestAdaptersInSeveralProcesses checks that adapters trained in several processes are
// bit-identical to those of one process, and that ckpt export writes the same files as the run,
// merged and with --adapter.
func TestAdaptersInSeveralProcesses(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	sets := append(launched4, "--set", "train.steps=4", "--set", "zero.stage=3", "--set", "train.lora.rank=2", "--set", "train.lora.targets=[all-linear]",
		"--set", "train.lora.dropout=0.1", "--set", "train.lora.modules_to_save=[ln_f, wpe]", "--set", "optimizer.lr=1e-2", "--set", "checkpoint.every=2")
	zeroth(t, 0, append(sets, "--out", "one")...)
	for _, n := range []string{"2", "4"} {
		process(t, 0, append(append([]string{"launch", "-n", n, "--"}, sets...), "--out", "of"+n)...)
		if outcomeOf(t, "of"+n) != outcomeOf(t, "one") {
			t.Errorf("%s processes: other bits than one has", n)
		}
		sameFiles(t, "of"+n+"/adapter", "one/adapter", adapterFiles...)
	}
	for _, run := range []string{"one", "of2"} {
		zeroth(t, 0, "ckpt", "export", run, "--to", run+"-merged")
		sameFiles(t, run+"-merged", "one/model", modelFiles...)
		out, _ := zeroth(t, 0, "ckpt", "export", run, "--to", run+"-adapter", "--adapter")
		contains(t, out, "-adapter (1.3 kB in ")
		sameFiles(t, run+"-adapter", "one/adapter", adapterFiles...)
	}
	zeroth(t, 0, "ckpt", "export", "one/ckpt/step-00000002", "--to", "half", "--dtype", "bf16", "--shard-size", "1KB")
	half, _ := zeroth(t, 0, "sample", "--run", "half", "--temperature", "0", "--tokens", "5")
	whole, _ := zeroth(t, 0, "sample", "--run", "one/ckpt/step-00000002", "--temperature", "0", "--tokens", "5")
	if half != whole {
		t.Errorf("the export says %q, the checkpoint %q", half, whole)
	}
	out, _ := zeroth(t, 0, "ckpt", "inspect", "one")
	contains(t, out, "adapters   rank 2, alpha 2, on all-linear, and all of ln_f, wpe")
	contains(t, out, "shares     ", " of these tensors and files with other checkpoints")
	out, _ = zeroth(t, 0, "ckpt", "ls", "one")
	if n := strings.Count(out, "of frozen parameters and files, stored once for these checkpoints"); n != 1 {
		t.Errorf("%d base folders are listed:\n%s", n, out)
	}
	out, _ = zeroth(t, 0, "ckpt", "verify", "one")
	contains(t, out, "verified, no damage")
}

// TestAdapterExportRefuses checks that impossible exports of adapters fail before a folder is
// created.
func TestAdapterExportRefuses(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--set", "checkpoint.every=2", "--set", "train.steps=2", "--out", "plain")
	zeroth(t, 0, "train", "tiny.yaml", "--set", "checkpoint.every=2", "--set", "train.steps=2", "--set", "train.lora.rank=2", "--out", "lora")
	_, errs := zeroth(t, 2, "sample", "--run", "lora/adapter")
	contains(t, errs, "lora/adapter: adapter_config.json belongs to an adapter, which the run has merged into lora/model: use that folder, or lora")
	_, errs = zeroth(t, 2, "ckpt", "export", "plain", "--to", "x", "--adapter")
	contains(t, errs, "plain/ckpt/step-00000002 has no adapters: its job has no train.lora")
	_, errs = zeroth(t, 2, "ckpt", "export", "lora", "--to", "x", "--adapter", "--dtype", "bf16")
	contains(t, errs, "--adapter writes one file in float32")
	for say, wrong := range map[string][2]string{
		"with train.lora.rank 3 on c_attn: transformer.h.0.attn.c_attn.lora_A.weight has shape [2 8] and type F32, not [3 8]": {"rank: 2", "rank: 3"},
		"there are 2 adapter tensors, not 0": {`targets: ["c_attn"]`, `targets: ["c_nothing"]`},
		"alpha is 0":                         {"alpha: 2", "alpha: -1"},
	} {
		restate(t, "lora", "bad", wrong[0], wrong[1])
		for _, flags := range [][]string{nil, {"--adapter"}} {
			_, errs := zeroth(t, 2, append([]string{"ckpt", "export", "bad", "--to", "x"}, flags...)...)
			contains(t, errs, "its adapters do not match its job", say)
		}
		if _, err := os.Stat("x"); err == nil {
			t.Error("a folder is there")
		}
	}
}

// restate copies the newest checkpoint of a run to another folder and replaces old with new in
// its state.
func restate(t *testing.T, run, to, old, new string) {
	t.Helper()
	ck, err := checkpoint.Find(filepath.Join(run, "ckpt"), "latest")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	if !strings.Contains(string(ck.State), strings.ReplaceAll(old, `"`, `\"`)) {
		t.Fatalf("no %s in %s", old, ck.State)
	}
	ck.State = []byte(strings.ReplaceAll(string(ck.State), strings.ReplaceAll(old, `"`, `\"`), strings.ReplaceAll(new, `"`, `\"`)))
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	checkpointtest.Copy(t, ck, to)
}
