//go:build unix

package main

import (
	"testing"

	"zeroth/tests/nightly"
)

// TestResumedModel checks that a job that names no model, and resumes, is checked against the checkpoint's model,
// not against the default one; and against the default one where there is no checkpoint yet.
func TestResumedModel(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	write(t, "own.yaml", `data: {text: [a.txt], tokenizer: bytes, validation: 0}
model: {family: llama, layers: 8, heads: 4, kv_heads: 4, width: 32, ffn: 64, context: 32}
train: {steps: 2, micro_batch: 1}
checkpoint: {every: 1, keep: 9}
sample: {tokens: 0}
parallel: {ranks: 1}
`)
	zeroth(t, 0, "train", "own.yaml", "--out", "r")
	write(t, "next.yaml", `data: {text: [a.txt], tokenizer: bytes, validation: 0}
train: {steps: 3, micro_batch: 1, freeze: [model.embed_tokens.*]}
checkpoint: {every: 1}
`)
	_, errs := zeroth(t, 2, "train", "next.yaml", "--out", "new", "--resume", "latest")
	contains(t, errs, `train.freeze: "model.embed_tokens.*" matches no parameter`, "transformer.wte.weight")
	_, errs = zeroth(t, 2, "train", "next.yaml", "--out", "r", "--resume", "latest", "--set", "train.freeze=[transformer.*]")
	contains(t, errs, `train.freeze: "transformer.*" matches no parameter`, "model.embed_tokens.weight")
	zeroth(t, 0, "train", "next.yaml", "--out", "r", "--resume", "latest", "--set", "parallel={ranks: 4, tensor: 4}",
		"--set", "optimizer.groups=[{match: '*.mlp.*', lr: 1e-4}]")
	zeroth(t, 0, "train", "next.yaml", "--out", "r2", "--resume", "r/ckpt/step-00000002", "--set", "train={accumulate: 8, micro_batch: 1}",
		"--set", "parallel={ranks: 8, pipeline: 8}", "--set", "pipeline.layers=[1, 1, 1, 1, 1, 1, 1, 1]")
}
