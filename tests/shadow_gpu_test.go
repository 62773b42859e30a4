//go:build cuda

package tests

import (
	"fmt"
	"slices"
	"testing"

	"zeroth/device/cuda/fake"
	"zeroth/internal/setup"
	"zeroth/zero/zerotest"
)

// shadowed is like onGPU, but compares every operation with the CPU's kernels.
func shadowed(t *testing.T, sets ...string) zerotest.Outcome {
	t.Helper()
	c := cfg(t, append(slices.Clone(sets), "device=cuda")...)
	j := setup.InWorld(c, setup.Alone{}, setup.Hooks{})
	j.Shadow = true
	ranks, err := setup.Open(j)
	if err != nil {
		t.Fatal(err)
	}
	defer zerotest.CloseAll(ranks)
	return zerotest.TrainOn(t, c, ranks)
}

// TestGPUShadow trains jobs that together use all operations in shadow mode: every result is
// within its bound, and the run is bit-identical to one without shadow mode.
func TestGPUShadow(t *testing.T) {
	fake.Need(t)
	for _, sets := range [][]string{
		{"parallel.ranks=2", "train.accumulate=2", "zero.recompute=block", "model.dropout=0.1"},
		append([]string{"parallel.ranks=2", "precision=fp16", "zero.offload.optimizer=host", "zero.offload.ratio=0.5"}, llama...),
		append([]string{"parallel.ranks=2", "parallel.tensor=2", "precision=fp32", "optimizer.type=adamw8bit"}, llama...),
		append([]string{"model.family=gpt2", "parallel.shard=1", "parallel.context=2", "precision=bf16", "model.attention_dropout=0.1"}, slices.Concat(long, packs, []string{"model.width=32"})...),
		{"parallel.ranks=2", "precision=fp32", "optimizer.type=muon", "model.layers=4", "zero.stage=1"},
		{"optimizer.type=lion"},
		{"optimizer.type=sgd", "optimizer.lr=0.1"},
	} {
		sets = append(sets, "train.steps=2")
		zerotest.SameBits(t, fmt.Sprint(sets), shadowed(t, sets...), onGPU(t, sets...))
	}
}
