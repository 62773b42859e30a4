package tests

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// TestMLPChunksAgreeToTheBit checks that jobs whose MLP is computed in chunks train to the same bits as
// jobs without, if chunks and micro-batches are multiples of 512 tokens: products add their rows in blocks
// of that many. They hold the planned bytes.
func TestMLPChunksAgreeToTheBit(t *testing.T) {
	nightly.Parallel(t)
	shape := []string{"model.family=llama", "model.layers=2", "model.heads=2", "model.width=12", "model.ffn=20", "model.vocab=300", "model.context=1024", "parallel.ranks=2", "zero.recompute=linear", "train.batch=2"}
	for i, more := range [][]string{{"precision=fp32"}, {"precision=bf16", "zero.stage=2", "model.dropout=0.1"}, {"precision=fp32", "train.lora.rank=2", "train.lora.targets=[all-linear]", "train.lora.dropout=0.1"}} {
		if !nightly.Every(3, i) {
			continue
		}
		sets := append(append([]string{}, shape...), more...)
		want := asPlanned(t, drawnConfig(t, sets))
		for _, chunk := range []int{512, 1024} {
			asPlanned(t, drawnConfig(t, append(sets, fmt.Sprint("train.mlp_chunk=", chunk)))).same(t, fmt.Sprint(more, " chunks of ", chunk), want)
		}
	}
}

// TestMLPChunksOfFamilies checks that in chunks of a few tokens, whatever divides the model, the first loss
// has the same bits and all steps agree up to the rounding of the sums over chunks.
func TestMLPChunksOfFamilies(t *testing.T) {
	nightly.Parallel(t)
	for i, name := range slices.Sorted(maps.Keys(families)) {
		for j, way := range []string{"parallel.tensor=2", "parallel.context=2", "parallel.pipeline=2", "train.accumulate=2"} {
			if !nightly.Every(4, i+j) {
				continue
			}
			sets := append(append([]string{"precision=fp32", "parallel.shard=2", "optimizer.type=sgd", "optimizer.lr=0.05", "device=cpu", way}, divisible...), families[name]...)
			want := zerotest.Train(t, cfg(t, sets...), nil)
			for k, chunk := range []int{1, 3, 6} {
				level := []string{"mlp", "linear", "block"}[(i+j+k)%3]
				what := fmt.Sprint(name, " ", way, " ", level, " chunks of ", chunk)
				got := zerotest.Train(t, cfg(t, append(sets, "zero.recompute="+level, fmt.Sprint("train.mlp_chunk=", chunk))...), nil)
				if zerotest.Near(t, what, got, want, 1e-5); got.Losses[0] != want.Losses[0] {
					t.Errorf("%s: first loss %g, want %g", what, got.Losses[0], want.Losses[0])
				}
			}
		}
	}
}
