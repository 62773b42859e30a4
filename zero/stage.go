// Package zero implements one rank's training step at a ZeRO stage: micro-batches, clipping, loss
// scaling, the sharded update, and saving and loading of state.
//
// Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv
// 1910.02054, define the stages:
//
//	stage  optimizer state  gradients  parameters
//	0      whole            whole      whole       (plain data parallel)
//	1      sharded          whole      whole
//	2      sharded          sharded    whole
//	3      sharded          sharded    sharded
package zero

import (
	"fmt"

	"zeroth/fsdp"
	"zeroth/nn"
	"zeroth/shard"
)

// Stage is a ZeRO stage, 0 to 3.
type Stage int

// Stages is the number of stages.
const Stages = 4

// Policy returns the stage's policy: which parameters and activations stay after use.
func (s Stage) Policy(prefetch int, recompute nn.Recompute) fsdp.Policy {
	if s < 0 || s >= Stages {
		panic(fmt.Sprintf("zero: stage %d", s))
	}
	return fsdp.Policy{KeepParams: s < 3, KeepGrads: s < 2, Prefetch: prefetch, Recompute: recompute}
}

// Mesh returns a mesh adapted to a stage. Stage 0 uses shard groups of one rank: the same code with
// different sizes.
func (s Stage) Mesh(m shard.Mesh) shard.Mesh {
	if s == 0 {
		m.Replicate, m.Shard, m.Copies = m.Size(shard.Replicate, shard.Shard), 1, m.Size(shard.Expert, shard.Context) > 1
	}
	return m
}
