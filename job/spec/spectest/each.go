package spectest

import (
	"fmt"
	"testing"

	"zeroth/job/spec"
)

// EachWay calls f with jobs of more micro-batches than a dry run has, of every stage, with and
// without every option that changes the memory of a micro-batch.
func EachWay(t *testing.T, f func(t *testing.T, c *spec.Job)) {
	for _, sets := range [][]string{
		{"zero.stage=0"}, {"zero.stage=1"}, {"zero.stage=2"}, {"zero.stage=3"},
		{"zero.stage=3", "zero.prefetch=0"}, {"zero.stage=3", "zero.prefetch=3"}, {"zero.stage=2", "zero.prefetch=0", "parallel.replicate=2"},
		{"zero.stage=3", "zero.recompute=block", "parallel.replicate=2", "checkpoint.every=5"},
		{"zero.stage=3", "model.family=llama", "model.tied=true", "precision=fp32"},
		{"zero.stage=1", "zero.offload.optimizer=host"}, {"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host"},
		{"zero.stage=3", "zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path=."},
		{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.ratio=0.4", "parallel.ranks=1"},
		{"zero.stage=3", "zero.recompute=linear", "zero.offload.activations=host"},
		{"zero.stage=1", "train.sums=tree"}, {"zero.stage=3", "train.sums=tree", "parallel.replicate=2"},
	} {
		for accumulate := 1; accumulate <= 9; accumulate++ {
			c := Fitted(t, append([]string{"train.batch=null", "train.micro_batch=2", fmt.Sprint("train.accumulate=", accumulate)}, sets...)...)
			t.Run(fmt.Sprint(sets, accumulate), func(t *testing.T) { f(t, c) })
		}
	}
}
