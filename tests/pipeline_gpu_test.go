//go:build cuda

package tests

import (
	"fmt"
	"slices"
	"testing"

	"zeroth/zero/zerotest"
)

// TestGPUPipelinesAgreeToTheBit checks that pipelines on GPUs are bit-identical to no pipeline,
// whether ranks' queues read each other's memory or use NCCL.
func TestGPUPipelinesAgreeToTheBit(t *testing.T) {
	sets := []string{"model.family=llama", "model.kv_heads=1", "model.layers=4", "precision=bf16", "train.steps=2", "train.accumulate=4", "parallel.shard=2"}
	for _, stage := range []string{"zero.stage=1", "zero.stage=3"} {
		want := onGPU(t, append(sets, stage)...)
		for _, schedule := range []string{"1F1B", "ZBH1", "Interleaved1F1B"} {
			got := onGPU(t, append(sets, stage, "parallel.pipeline=2", "pipeline.schedule="+schedule)...)
			zerotest.SameBits(t, fmt.Sprint(stage, " ", schedule), got, want)
		}
	}
}

// TestGPUContext checks that divided sequences on GPUs give the results of whole ones and of CPUs
// up to rounding, on ordinary cores and on tensor cores, and that stages agree.
func TestGPUContext(t *testing.T) {
	for tol, job := range map[float64][]string{
		1e-5: {"precision=fp32", "model.width=24", "model.dropout=0.1", "model.attention_dropout=0.1"},
		3e-3: append([]string{"precision=bf16", "model.width=32"}, packs...),
	} {
		sets := slices.Concat([]string{"model.family=gpt2", "train.steps=2", "optimizer.type=sgd", "optimizer.lr=0.05", "parallel.shard=2"}, long, job)
		whole, divided := onGPU(t, sets...), append(slices.Clone(sets), "parallel.context=2")
		gpuAgrees(t, []int{1, 3}, tol, divided...)
		zerotest.Near(t, "whole", onGPU(t, divided...), whole, tol)
	}
}

// TestGPUTensors checks that divided matrices on GPUs give the results of whole ones up to
// rounding, and that stages agree.
func TestGPUTensors(t *testing.T) {
	sets := append([]string{"model.family=llama", "model.ffn=32", "precision=fp32", "train.steps=2", "optimizer.type=sgd", "optimizer.lr=0.05", "parallel.shard=2"}, divisible...)
	want := onGPU(t, sets...)
	var first *zerotest.Outcome
	for _, stage := range []string{"zero.stage=1", "zero.stage=3"} {
		got := onGPU(t, append(sets[:len(sets):len(sets)], stage, "parallel.tensor=2")...)
		zerotest.Near(t, stage, got, want, 1e-5)
		if first == nil {
			first = &got
		}
		zerotest.SameBits(t, stage, got, *first)
	}
}
