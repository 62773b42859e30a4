package tests

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"zeroth/forecast"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// deep is an untied model of eight layers with dropout.
var deep = []string{"model.family=llama", "model.kv_heads=1", "model.layers=8", "model.dropout=0.1", "model.attention_dropout=0.1"}

// pipelines lists ways to divide deep over some ranks.
var pipelines = [][]string{
	{"parallel.pipeline=2", "pipeline.schedule=GPipe"},
	{"parallel.pipeline=2", "pipeline.schedule=1F1B"},
	{"parallel.pipeline=2", "pipeline.schedule=ZBH1"},
	{"parallel.pipeline=2", "pipeline.schedule=Interleaved1F1B"},
	{"parallel.pipeline=2", "pipeline.schedule=Interleaved1F1B", "pipeline.virtual=4"},
	{"parallel.pipeline=4", "pipeline.schedule=GPipe"},
	{"parallel.pipeline=4", "pipeline.schedule=1F1B"},
	{"parallel.pipeline=4", "pipeline.schedule=1F1B", "pipeline.layers=[1, 4, 1, 2]"},
	{"parallel.pipeline=4", "pipeline.schedule=ZBH1"},
	{"parallel.pipeline=4", "pipeline.schedule=Interleaved1F1B"},
}

// TestPipelinesAgreeToTheBit checks that, for the same number of data-parallel ranks, every
// schedule and no pipeline at all agree to the bit at every stage in losses, norms, parameters
// and state, with the pipelines' activations in host memory if they can be.
func TestPipelinesAgreeToTheBit(t *testing.T) {
	nightly.Parallel(t)
	for _, accumulate := range []int{4, 8} {
		for i, ways := range [][]string{{"precision=fp32"}, {"precision=bf16"}, {"precision=fp16", "zero.recompute=block"},
			{"precision=bf16", "optimizer.type=muon", "zero.prefetch=2", "device=cpu"}, {"precision=fp32", "zero.offload.optimizer=host", "parallel.replicate=2"},
			{"precision=bf16", "zero.offload.optimizer=disk", "zero.offload.path=."}, {"precision=bf16", "data.text=", "data.documents=[testdata/documents.jsonl]", "data.pack=true", "zero.recompute=linear"},
			{"precision=bf16", "train.freeze=[\"*.mlp.*\"]"}, {"precision=bf16", "train.lora.rank=2", "train.lora.targets=[all-linear]"}} {
			if accumulate == 8 && (len(ways) > 1 || !nightly.All()) {
				continue
			}
			t.Run(fmt.Sprint(accumulate, ways), func(t *testing.T) {
				t.Parallel()
				for stage := 1; stage <= 3; stage++ {
					if !nightly.Every(3, i+stage) {
						continue
					}
					sets := append(append([]string{fmt.Sprint("zero.stage=", stage), fmt.Sprint("train.accumulate=", accumulate), "parallel.shard=2", "train.steps=2"}, deep...), ways...)
					want := zerotest.Train(t, cfg(t, sets...), nil)
					for j, p := range pipelines {
						if !nightly.Every(5, i+j) {
							continue
						}
						if disk := slices.Contains(ways, "zero.offload.path=."); disk && slices.Contains(p, "pipeline.schedule=GPipe") {
							continue // a disk is slow
						}
						zerotest.SameBits(t, fmt.Sprintf("stage %d, %v", stage, p), zerotest.Train(t, hosted(cfg(t, append(sets[:len(sets):len(sets)], p...)...)), nil), want)
					}
				}
			})
		}
	}
}

// TestTiedPipelines checks tied embeddings. A pipeline sums their gradient over both ends after
// summing each end's ranks and micro-batches; without a pipeline the order is that of the passes.
// The difference is float rounding, and all pipelines agree to the bit.
func TestTiedPipelines(t *testing.T) {
	nightly.Parallel(t)
	for stage := range 4 {
		t.Run(fmt.Sprint("stage ", stage), func(t *testing.T) {
			t.Parallel()
			sets := []string{fmt.Sprint("zero.stage=", stage), "precision=fp32", "model.layers=8", "model.dropout=0.1", "train.accumulate=4", "parallel.shard=2", "optimizer.type=sgd", "optimizer.lr=0.1"}
			alone := zerotest.Train(t, cfg(t, sets...), nil)
			var want *zerotest.Outcome
			for i, p := range pipelines {
				if !nightly.Every(4, i+stage) {
					continue
				}
				got := zerotest.Train(t, cfg(t, append(sets[:len(sets):len(sets)], p...)...), nil)
				if want == nil {
					want = &got
				}
				zerotest.SameBits(t, fmt.Sprint(p), got, *want)
				zerotest.Near(t, fmt.Sprint(p), got, alone, 1e-6)
				for i, loss := range alone.Losses {
					if math.Abs(got.Losses[i]-loss) > 1e-6 {
						t.Errorf("%v: loss %g, %g without a pipeline", p, got.Losses[i], loss)
					}
				}
			}
		})
	}
}

// TestPipelinesDifferByRounding bounds the two exceptions from the same bits that docs/parallelism.md names: with a
// tied embedding and shards, stage 0 sums the gradients of both ends in another order than stages 1 to 3, which
// agree; and documents that are not packed, with a loss in several chunks, differ from those without a pipeline.
func TestPipelinesDifferByRounding(t *testing.T) {
	train := func(sets ...string) zerotest.Outcome {
		return zerotest.Train(t, cfg(t, append([]string{"precision=fp32", "model.layers=4", "train.accumulate=4", "parallel.shard=2", "optimizer.type=sgd", "optimizer.lr=0.1"}, sets...)...), nil)
	}
	near := func(what string, got, want zerotest.Outcome) {
		zerotest.Near(t, what, got, want, 1e-6)
		for i, loss := range want.Losses {
			if math.Abs(got.Losses[i]-loss) > 1e-6 {
				t.Errorf("%s: loss %g, want %g", what, got.Losses[i], loss)
			}
		}
	}
	tied := func(stage int) zerotest.Outcome {
		return train("parallel.pipeline=2", "train.accumulate=1", fmt.Sprint("zero.stage=", stage)) // with more, sums have other orders anyway
	}
	sharded := tied(1)
	zerotest.SameBits(t, "tied, stage 2", tied(2), sharded)
	zerotest.SameBits(t, "tied, stage 3", tied(3), sharded)
	near("tied, stage 0", tied(0), sharded)
	documents := []string{"model.family=llama", "data.text=", "data.documents=[testdata/documents.jsonl]", "train.loss_chunk=5", "zero.stage=1"}
	near("documents", train(append(documents, "parallel.pipeline=2")...), train(documents...))
}

// drawnMesh returns the settings of a job with a random pipeline.
func drawnMesh(rng *rand.Rand) (sets []string) {
	pick := func(values ...string) { sets = append(sets, values[rng.IntN(len(values))]) }
	schedules := []string{"GPipe", "1F1B", "ZBH1", "Interleaved1F1B"}
	schedule := schedules[rng.IntN(len(schedules))]
	p, v := 2+rng.IntN(4), 1
	if schedule == "Interleaved1F1B" {
		v = 2 + rng.IntN(2)
		sets = append(sets, fmt.Sprint("pipeline.virtual=", v), fmt.Sprint("train.accumulate=", p*(1+rng.IntN(3))))
	} else {
		sets = append(sets, fmt.Sprint("train.accumulate=", 1+rng.IntN(13)))
	}
	sets = append(sets, fmt.Sprint("parallel.pipeline=", p), "pipeline.schedule="+schedule, fmt.Sprint("model.layers=", p*v+rng.IntN(4)))
	pick("model.family=gpt2", "model.family=llama")
	pick("precision=fp32", "precision=bf16")
	pick("zero.recompute=none", "zero.recompute=elementwise", "zero.recompute=mlp", "zero.recompute=linear", "zero.recompute=block")
	if slices.Contains(sets, "zero.recompute=linear") && schedule != "ZBH1" {
		pick("train.mlp_chunk=0", "train.mlp_chunk=6")
	}
	pick("zero.prefetch=0", "zero.prefetch=1", "zero.prefetch=2")
	pick("optimizer.type=adamw", "optimizer.type=muon", "train.delayed_update=true")
	pick("train.loss_chunk=5", "train.loss_chunk=1024")
	pick("parallel.shard=1", "parallel.shard=2", "parallel.shard=3")
	stage := rng.IntN(4)
	sets = append(sets, fmt.Sprint("zero.stage=", stage), "device=cpu")
	if stage > 0 {
		pick("parallel.replicate=1", "parallel.replicate=2")
		pick("zero.offload.optimizer=none", "zero.offload.optimizer=host")
	}
	return sets
}

// allocatesAsPlanned checks that every rank of a job allocates and uses the memory planned for
// its position.
func allocatesAsPlanned(t *testing.T, c *spec.Job, job string) {
	t.Helper()
	p, err := forecast.NewPlan(c, forecast.Machine{})
	if err != nil {
		t.Fatal(err)
	}
	ranks, err := setup.Open(setup.Local(c))
	if err != nil {
		t.Fatal(err)
	}
	defer zerotest.CloseAll(ranks)
	steps(t, c, ranks, 2)
	for _, r := range ranks {
		planned, host := p.Allocated, p.Host
		if at := setup.RankKind(c, r.Rank); len(p.Kinds) > 0 {
			planned, host = p.Kinds[at].Allocated, p.Kinds[at].Host
		}
		name := fmt.Sprintf("rank %d of %s", r.Rank, job)
		sameBytes(t, name, r.Device.Usage().Peak, planned)
		if r.Host != nil {
			sameBytes(t, "host memory of "+name, r.Host.Usage().Peak, host)
		}
		if got, _ := r.Trainer.ArenaPeak(); got != r.Planned.Arena {
			t.Errorf("%s: %d bytes of activations, planned are %d", name, got, r.Planned.Arena)
		}
	}
}

// TestPipelinesAllocateAsPlanned checks that every rank of random pipelines allocates and uses
// the memory planned for its position.
func TestPipelinesAllocateAsPlanned(t *testing.T) {
	nightly.Parallel(t)
	for _, sets := range [][]string{{"faults={survive: true}", "pipeline.schedule=GPipe"}, {"faults={survive: true, min_replicas: 2}"}, {"zero.stage=3", "pipeline.schedule=GPipe"}} {
		sets := append([]string{"parallel={ranks: 6, pipeline: 2, replicate: 3, shard: 1}", "train={batch: 8, micro_batch: 2}"}, sets...)
		t.Run(fmt.Sprint(sets), func(t *testing.T) { allocatesAsPlanned(t, cfg(t, sets...), "uneven replicas") })
	}
	draws := nightly.Of(8, 200)
	for i := range draws {
		rng := rand.New(rand.NewPCG(25, uint64(i)))
		sets := drawnMesh(rng)
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			c := cfg(t, sets...)
			if i%2 == 0 {
				c = hosted(c)
			}
			allocatesAsPlanned(t, c, strings.Join(sets, " "))
		})
	}
}
