//go:build cuda

package tests

import (
	"fmt"
	"testing"
)

// On GPUs, too, pipelines have the bits of no pipeline, whether ranks' queues read each other's
// memory or NCCL moves it.
func TestGPUPipelinesAgreeToTheBit(t *testing.T) {
	sets := []string{"model.family=llama", "model.kv_heads=1", "model.layers=4", "precision=bf16", "train.steps=2", "train.accumulate=4", "parallel.shard=2"}
	for _, stage := range []string{"zero.stage=1", "zero.stage=3"} {
		want := onGPU(t, append(sets, stage)...)
		for _, schedule := range []string{"1F1B", "ZBH1", "Interleaved1F1B"} {
			got := onGPU(t, append(sets, stage, "parallel.pipeline=2", "pipeline.schedule="+schedule)...)
			sameBits(t, fmt.Sprint(stage, " ", schedule), got, want)
		}
	}
}
