//go:build cuda

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestGPUAlgorithms checks that a run records the algorithms of its matrix products, that bench
// gpu measures a table for them, and that a job using the table gives the same bits in one
// process and in two. A resumed run keeps its algorithms even if the library would now choose
// others.
func TestGPUAlgorithms(t *testing.T) {
	inFolder(t)
	onFakes(t, "FAKECUBLAS_SEED=1")
	train := []string{"train", "tiny.yaml", "--set", "device=cuda", "--set", "parallel.ranks=2", "--set", "parallel.collective=exact", "--set", "sample.tokens=0", "--set", "checkpoint.every=2"}
	record := func(run string) string {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(run, "algorithms.json"))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	process(t, 0, append(train, "--set", "train.steps=2", "--out", "usual")...)
	usual := record("usual")
	if !strings.Contains(usual, `"by": "heuristic"`) || !strings.Contains(usual, `"by": "cublas"`) || !strings.Contains(usual, `"gpu": "Emulated GPU"`) {
		t.Errorf("a run without a table records\n%s", usual)
	}

	t.Setenv("FAKECUBLAS_SEED", "2")
	process(t, 0, append(train, "--set", "train.steps=4", "--out", "usual", "--resume", "latest")...)
	if again := record("usual"); again != usual {
		t.Errorf("a run that went on records\n%s\nwant\n%s", again, usual)
	}

	process(t, 0, "bench", "gpu", "--seconds", "0.001", "--products", "usual/algorithms.json", "--write-algorithms", "fast.json")
	chosen := append(train, "--set", "train.steps=2", "--set", "parallel.algorithms=fast.json")
	process(t, 0, append(chosen, "--out", "one")...)
	if fast := record("one"); !strings.Contains(fast, `"by": "table"`) || strings.Contains(fast, `"by": "heuristic"`) {
		t.Errorf("a run with a table records\n%s", fast)
	}
	process(t, 0, slices.Concat([]string{"launch", "-n", "2", "--"}, chosen, []string{"--out", "two"})...)
	if outcomeOf(t, "one") != outcomeOf(t, "two") {
		t.Error("two processes have other bits than one")
	}

	t.Setenv("FAKECUBLAS_VERSION", "13.0.2")
	_, said := process(t, 2, append(chosen, "--out", "other")...)
	for _, want := range []string{"parallel.algorithms: the algorithms of matrix products are for Emulated GPU and cuBLAS 12.4.0, but this machine has Emulated GPU and cuBLAS 13.0.2", "zeroth bench gpu --products fast.json"} {
		if !strings.Contains(said, want) {
			t.Errorf("%s\nwant %q in it", said, want)
		}
	}
	out, _ := process(t, 0, append(train, "--set", "train.steps=6", "--out", "usual", "--resume", "latest")...)
	if want := "cuBLAS chooses new ones"; !strings.Contains(out, want) {
		t.Errorf("%s\nwant %q in it", out, want)
	}
}

// TestGPUAttention trains a model with wide heads with the kernels that parallel.attention chooses: a
// run reports that auto uses ordinary cores, and mma computes about the same with other bits. CPUs have
// no choice.
func TestGPUAttention(t *testing.T) {
	inFolder(t)
	onFakes(t)
	train := []string{"train", "tiny.yaml", "--set", "model={family: llama, layers: 1, heads: 1, width: 136, ffn: 64, context: 24}", "--set", "train={steps: 2, micro_batch: 1}",
		"--set", "parallel.ranks=1", "--set", "device=cuda", "--set", "sample={prompt: a, tokens: 2}"}
	const slow = "heads wider than 128 runs on a GPU's ordinary cores"
	for choice, notes := range map[string]bool{"auto": true, "mma": false} {
		out, errs := process(t, 0, append(train, "--set", "parallel.attention="+choice, "--out", choice)...)
		if strings.Contains(out+errs, slow) != notes {
			t.Errorf("with parallel.attention %s the run says\n%s%s", choice, out, errs)
		}
		if choice == "mma" {
			process(t, 2, "sample", "--run", choice, "--device", "cpu", "--precision", "bf16", "--attention", choice)
		}
		process(t, 0, "sample", "--run", choice, "--device", "cuda", "--precision", "bf16", "--tokens", "2", "--attention", choice)
	}
	if outcomeOf(t, "auto") == outcomeOf(t, "mma") {
		t.Error("mma has the bits of auto")
	}
	for other, want := range map[string]string{"device=cpu": "its kernels are for GPUs, but ranks compute on the CPU", "precision=fp32": "its kernels multiply bf16 and fp16, but precision is fp32"} {
		if _, errs := process(t, 2, append(train, "--set", "parallel.attention=mma", "--set", other, "--out", "refused")...); !strings.Contains(errs, want) {
			t.Errorf("%s:\n%s", other, errs)
		}
	}
}

// TestGPUAttentionByWgmma trains with the kernels for compute capability 9.0, and asks for them on a GPU
// that does not have them.
func TestGPUAttentionByWgmma(t *testing.T) {
	inFolder(t)
	onFakes(t)
	train := []string{"train", "tiny.yaml", "--set", "train.steps=2", "--set", "precision=bf16", "--set", "device=cuda", "--set", "sample.tokens=0", "--set", "parallel.attention=wgmma"}
	process(t, 0, append(train, "--out", "hopper")...)
	t.Setenv("FAKECUDA_CAPABILITY", "80")
	if _, errs := process(t, 2, append(train, "--out", "ampere")...); !strings.Contains(errs, "is for GPUs of compute capability 9.0, but") {
		t.Error(errs)
	}
}
