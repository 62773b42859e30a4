package tests

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// long is a model with sequences that four ranks can divide.
var long = []string{"model.layers=2", "model.heads=4", "model.width=24", "model.context=16", "model.vocab=257", "train.micro_batch=2"}

// packs has several documents in a sequence.
var packs = []string{"data.text=", "data.documents=[testdata/documents.jsonl]", "data.pack=true"}

// contexts returns jobs with context parallelism, combined with the features it interacts with.
func contexts() map[string][]string {
	all := map[string][]string{
		"gpt2 packed":   append([]string{"model.family=gpt2", "model.attention_dropout=0.1"}, packs...),
		"llama packed":  append([]string{"model.family=llama", "model.ffn=32", "model.kv_heads=2"}, packs...),
		"llama grouped": {"model.family=llama", "model.ffn=32", "model.kv_heads=2", "model.attention_dropout=0.1"},
	}
	for name, sets := range families {
		all[name] = sets
	}
	return all
}

// TestContextAgreesWithWhole checks that divided sequences give the results of whole ones up to
// rounding, at every stage. For each number of ranks that divide them, the same stages agree to
// the bit as for whole ones.
func TestContextAgreesWithWhole(t *testing.T) {
	nightly.Parallel(t)
	jobs := contexts()
	for i, name := range slices.Sorted(maps.Keys(jobs)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sets := append(append([]string{"precision=fp32", "parallel.shard=2", "train.accumulate=2", "optimizer.type=sgd", "optimizer.lr=0.05", "device=cpu"}, long...), jobs[name]...)
			want := zerotest.Train(t, cfg(t, sets...), nil)
			for _, n := range []int{2, 4} {
				var alike [2]*zerotest.Outcome // whether gradients stay whole over micro-batches
				for stage := range 4 {
					if n == 4 && (!nightly.All() || stage%3 > 0) || !nightly.Every(2, i+stage/2) {
						continue
					}
					what := fmt.Sprintf("context %d, stage %d", n, stage)
					got := zerotest.Train(t, cfg(t, append(sets[:len(sets):len(sets)], fmt.Sprint("parallel.context=", n), fmt.Sprint("zero.stage=", stage))...), nil)
					zerotest.Near(t, what, got, want, 1e-6)
					for i, loss := range want.Losses {
						if math.Abs(got.Losses[i]-loss) > 1e-6*loss || math.Abs(got.Norms[i]-want.Norms[i]) > 1e-5*want.Norms[i] {
							t.Errorf("%s: loss %g and norm %g, want %g and %g", what, got.Losses[i], got.Norms[i], loss, want.Norms[i])
						}
					}
					if alike[stage/2] == nil {
						alike[stage/2] = &got
					}
					zerotest.SameBits(t, what, got, *alike[stage/2])
				}
			}
			for k, with := range [][]string{{"parallel.tensor=2"}, {"parallel.pipeline=2"}, {"parallel.tensor=2", "parallel.pipeline=2", "pipeline.schedule=ZBH1"}, {"parallel.shard=1", "train.micro_batch=4"}} {
				if !nightly.Every(4, i+k) {
					continue
				}
				got := zerotest.Train(t, cfg(t, append(append(sets[:len(sets):len(sets)], "parallel.context=2", "zero.stage=3"), with...)...), nil)
				zerotest.Near(t, fmt.Sprint(with), got, want, 1e-5)
			}
		})
	}
}

// TestContextBits checks that pipelines, recomputation and offload do not change the bits at a
// given context size, and that other features work with divided sequences.
func TestContextBits(t *testing.T) {
	nightly.Parallel(t)
	base := append([]string{"model.family=llama", "model.ffn=32", "precision=bf16", "parallel.context=2", "parallel.shard=2", "train.accumulate=4", "device=cpu", "model.dropout=0.1"}, long...)
	base = append(base, "model.layers=4", "train.steps=2")
	jobs := map[string][]string{
		"adamw": {}, "muon": {"optimizer.type=muon"}, "adamw8bit": {"optimizer.type=adamw8bit"}, "fp16": {"precision=fp16"}, "replicas": {"parallel.replicate=2"},
		"prefetch": {"zero.prefetch=0"}, "tensor": {"parallel.tensor=2"}, "packed": packs, "clip": {"train.clip=0.01"},
	}
	for i, name := range slices.Sorted(maps.Keys(jobs)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, stage := range []int{1, 3} {
				if !nightly.Every(2, i+stage/2) {
					continue
				}
				sets := append(append(base[:len(base):len(base)], fmt.Sprint("zero.stage=", stage)), jobs[name]...)
				want := zerotest.Train(t, cfg(t, sets...), nil)
				for j, way := range [][]string{
					{"zero.recompute=block"}, {"zero.offload.optimizer=host"},
					{"parallel.pipeline=2", "pipeline.schedule=GPipe"}, {"parallel.pipeline=2", "pipeline.schedule=ZBH1"}, {"parallel.pipeline=2", "pipeline.schedule=Interleaved1F1B"},
				} {
					if !nightly.Every(5, i+j) {
						continue
					}
					zerotest.SameBits(t, fmt.Sprintf("stage %d, %v", stage, way), zerotest.Train(t, cfg(t, append(sets[:len(sets):len(sets)], way...)...), nil), want)
				}
			}
		})
	}
}

// TestContextResumes checks that a run with divided sequences resumes with another division, or
// none, from the same state.
func TestContextResumes(t *testing.T) {
	nightly.Parallel(t)
	resumeOn(t, [][]string{
		{"parallel.ranks=4", "parallel.context=4", "zero.stage=1"},
		{"parallel.ranks=1", "zero.stage=0", "precision=fp32"},
		{"parallel.ranks=4", "parallel.context=2", "zero.stage=3"},
		{"parallel.ranks=8", "parallel.context=2", "parallel.tensor=2", "parallel.pipeline=2", "zero.stage=2", "train.accumulate=2"},
		{"parallel.ranks=2", "parallel.context=2", "zero.stage=0", "zero.offload.optimizer=host"},
	}, append(slices.Clone(long[:5]), "device=cpu")...)
}
