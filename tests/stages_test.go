package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"zeroth/config"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/tests/nightly"
	"zeroth/zero"
	"zeroth/zero/zerotest"
)

// TestStagesAgreeToTheBit checks the classes of runs that agree to the bit. A gradient is a sum
// over ranks and micro-batches; runs agree if they sum in the same order:
//
//   - one micro-batch per step: all stages, since all sum over ranks in order;
//   - several: stages 0 and 1, which sum a rank's micro-batches before ranks,
//     and stages 2 and 3, which sum ranks before micro-batches;
//   - hybrid: stages 1, 2 and 3 with one micro-batch; ranks of a shard group
//     are summed before the groups;
//   - prefetch depth, recompute and loss chunks of any one size: no difference.
//
// Between classes the difference is float rounding, bounded by TestSumOrders.
func TestStagesAgreeToTheBit(t *testing.T) {
	worlds := []int{1, 2, 3, 4, 8}
	if !nightly.All() {
		worlds = []int{1, 3}
	}
	for _, precision := range []string{"fp32", "bf16", "fp16"} {
		for _, world := range worlds {
			for _, micro := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/ranks=%d/accumulate=%d", precision, world, micro), func(t *testing.T) {
					t.Parallel()
					classes := [][]int{{0, 1, 2, 3}}
					if micro > 1 {
						classes = [][]int{{0, 1}, {2, 3}}
					}
					for _, stages := range classes {
						agree(t, stages, "precision="+precision, fmt.Sprintf("parallel.ranks=%d", world), fmt.Sprintf("train.accumulate=%d", micro))
					}
				})
			}
		}
	}
}

// TestLlamaStagesAgreeToTheBit checks the same classes for a Llama with grouped queries, with
// separate and with tied output layers.
func TestLlamaStagesAgreeToTheBit(t *testing.T) {
	nightly.Parallel(t)
	for _, tied := range []string{"model.tied=false", "model.tied=true"} {
		for _, precision := range []string{"precision=fp32", "precision=bf16", "precision=fp16"} {
			t.Run(tied+"/"+precision, func(t *testing.T) {
				t.Parallel()
				sets := []string{"model.family=llama", "model.kv_heads=1", tied, precision, "parallel.ranks=3"}
				agree(t, []int{0, 1, 2, 3}, sets...)
				agree(t, []int{2, 3}, append(sets, "train.accumulate=2")...)
			})
		}
	}
}

// TestPackedStagesAgreeToTheBit checks the same classes for sequences of several documents, and
// that document boundaries change the result for the same tokens.
func TestPackedStagesAgreeToTheBit(t *testing.T) {
	nightly.Parallel(t)
	packed := []string{"data.text=", "data.documents=[testdata/documents.jsonl]", "data.pack=true", "parallel.ranks=3"}
	for _, family := range []string{"model.family=gpt2", "model.family=llama"} {
		for _, precision := range []string{"precision=fp32", "precision=bf16", "precision=fp16"} {
			sets := append(packed[:4:4], family, precision)
			agree(t, []int{0, 1, 2, 3}, sets...)
			one, several := zerotest.Train(t, cfg(t, family, precision, "parallel.ranks=3"), nil), zerotest.Train(t, cfg(t, sets...), nil)
			if one.Losses[0] == several.Losses[0] {
				t.Errorf("%s, %s: documents change nothing", family, precision)
			}
		}
	}
	agree(t, []int{2, 3}, append(packed, "precision=bf16", "train.accumulate=3")...)
}

// cfg returns zerotest's small job with additional settings.
func cfg(t *testing.T, sets ...string) *spec.Job {
	t.Helper()
	return zerotest.Load(t, "stages_test.go", sets...)
}

// hosted returns a job with its activations in host memory, if its level of recomputation allows that. On
// processors jobs cannot ask for it, since it only saves memory of GPUs.
func hosted(c *spec.Job) *spec.Job {
	if x := c.Copy(); spec.Recompute(c) >= nn.RecomputeLinear && c.Pipeline.Schedule != "ZBH1" {
		x.Zero.Offload.Activations = "host"
		return x
	}
	return c
}

// agree runs every stage in several ways, by default half of them, and compares all to the first.
func agree(t *testing.T, stages []int, sets ...string) {
	t.Helper()
	var want *zerotest.Outcome
	for _, stage := range stages {
		for i, way := range []string{"zero.prefetch=1", "zero.prefetch=0", "zero.prefetch=3", "zero.recompute=" + config.Recomputes[1+stage]} {
			if !nightly.Every(2, i+stage) {
				continue
			}
			got := zerotest.Train(t, cfg(t, append(sets, fmt.Sprintf("zero.stage=%d", stage), way)...), nil)
			if want == nil {
				want = &got
			}
			zerotest.SameBits(t, fmt.Sprintf("stage %d, %s", stage, way), got, *want)
		}
	}
}

func TestHybridStagesAgreeToTheBit(t *testing.T) {
	nightly.Parallel(t)
	for _, shape := range [][2]int{{2, 2}, {4, 2}, {2, 3}, {1, 3}} {
		t.Run(fmt.Sprintf("%dx%d", shape[0], shape[1]), func(t *testing.T) {
			t.Parallel()
			agree(t, []int{1, 2, 3}, "precision=bf16", fmt.Sprintf("parallel.ranks=%d", shape[0]*shape[1]),
				fmt.Sprintf("parallel.shard=%d", shape[0]), fmt.Sprintf("parallel.replicate=%d", shape[1]))
		})
	}
}

// TestHybridLimitsAgreeToTheBit checks that shard groups of one rank equal plain data parallelism
// at every stage, and that one shard group equals no hybrid sharding.
func TestHybridLimitsAgreeToTheBit(t *testing.T) {
	want := zerotest.Train(t, cfg(t, "parallel.ranks=4", "zero.stage=3"), nil)
	for _, sets := range [][]string{
		{"zero.stage=0"},
		{"zero.stage=1", "parallel.shard=1", "parallel.replicate=4"},
		{"zero.stage=3", "parallel.shard=1", "parallel.replicate=4"},
		{"zero.stage=3", "parallel.shard=4", "parallel.replicate=1"},
	} {
		zerotest.SameBits(t, fmt.Sprint(sets), zerotest.Train(t, cfg(t, append(sets, "parallel.ranks=4")...), nil), want)
	}
}

// TestRanksAndMicroBatchesAgreeToTheBit checks that a step over 4 ranks equals a step over 4
// micro-batches of one rank if ranks are summed first, since both sum the same samples' gradients
// in the same order.
func TestRanksAndMicroBatchesAgreeToTheBit(t *testing.T) {
	for _, stage := range []string{"zero.stage=2", "zero.stage=3"} {
		want := zerotest.Train(t, cfg(t, stage, "parallel.ranks=4"), nil)
		zerotest.SameBits(t, stage, zerotest.Train(t, cfg(t, stage, "parallel.ranks=1", "train.accumulate=4"), nil), want)
	}
}

// TestSumOrders checks that runs with different orders of sums differ by float32 rounding, about
// 1e-7 for gradients of order 1 in each of 4 steps. It does not use Adam, which amplifies the
// rounding of gradients that are zero in exact arithmetic, such as those of key biases.
func TestSumOrders(t *testing.T) {
	sets := []string{"parallel.ranks=4", "precision=fp32", "train.micro_batch=1", "optimizer.type=sgd", "optimizer.lr=0.1"}
	want := zerotest.Train(t, cfg(t, append(sets, "zero.stage=3", "train.accumulate=2")...), nil)
	for _, other := range [][]string{
		{"zero.stage=0", "train.accumulate=2"},
		{"zero.stage=3", "train.accumulate=2", "parallel.shard=2", "parallel.replicate=2"},
		{"zero.stage=3", "train.accumulate=1", "parallel.ranks=8"},
		{"zero.stage=3", "train.accumulate=8", "parallel.ranks=1"},
	} {
		got := zerotest.Train(t, cfg(t, append(sets, other...)...), nil)
		zerotest.Near(t, fmt.Sprint(other), got, want, 1e-6)
	}
}

// TestUnevenShares checks that replicas with different numbers of micro-batches train on the same
// samples as one rank: the first loss has the same bits, and parameters differ by float32 rounding,
// as in TestSumOrders.
func TestUnevenShares(t *testing.T) {
	sets := []string{"precision=fp32", "train.batch=8", "train.micro_batch=1", "optimizer.type=sgd", "optimizer.lr=0.1", "model.dropout=0.1", "model.context=8"}
	want := zerotest.Train(t, cfg(t, append(sets, "parallel.ranks=1")...), nil)
	for _, mesh := range [][]string{
		{"parallel.ranks=3", "zero.stage=0"},
		{"parallel.ranks=3", "parallel.shard=1", "parallel.replicate=3", "zero.stage=3"},
		{"parallel.ranks=6", "parallel.shard=2", "parallel.replicate=3", "zero.stage=1"},
		{"parallel.ranks=6", "parallel.shard=2", "parallel.replicate=3", "zero.stage=2", "zero.offload.optimizer=host"},
		{"parallel.ranks=6", "parallel.shard=2", "parallel.replicate=3", "zero.stage=3", "zero.prefetch=0"},
		{"parallel.ranks=6", "parallel.pipeline=2", "parallel.shard=1", "parallel.replicate=3", "zero.stage=2"},
		{"parallel.ranks=6", "parallel.pipeline=2", "zero.stage=0", "pipeline.schedule=ZBH1"},
		{"parallel.ranks=6", "parallel.context=2", "parallel.replicate=3", "zero.stage=3"},
	} {
		got := zerotest.Train(t, cfg(t, append(sets, mesh...)...), nil)
		zerotest.Near(t, fmt.Sprint(mesh), got, want, 1e-6)
		if got.Losses[0] != want.Losses[0] {
			t.Errorf("%q: loss %v, want %v", mesh, got.Losses[0], want.Losses[0])
		}
	}
}

// TestGroupsAreUpdatedByThemselves checks that a parameter group is updated, to the bit, as in a
// job that uses the group's values for all parameters, and the other parameters as in a job
// without groups. Stages must agree.
func TestGroupsAreUpdatedByThemselves(t *testing.T) {
	nightly.Parallel(t)
	const groups = `optimizer.groups=[{match: "*.bias", lr: 3e-4, weight_decay: 0}, {match: "transformer.h.0.*", weight_decay: 0.5}]`
	sets := []string{"precision=fp32", "parallel.ranks=3", "schedule.warmup=0", "train.steps=1", "optimizer.lr=6e-4"}
	got := zerotest.Train(t, cfg(t, append(sets, groups)...), nil)
	main := zerotest.Train(t, cfg(t, sets...), nil)
	slow := zerotest.Train(t, cfg(t, append(sets, "optimizer.lr=3e-4")...), nil)
	decayed := zerotest.Train(t, cfg(t, append(sets, "optimizer.weight_decay=0.5")...), nil)
	for name, x := range got.State {
		want, other := main, slow
		switch {
		case strings.HasSuffix(name, ".bias"):
			want, other = slow, main
		case strings.Contains(name, ".h.0.ln_"): // decays, unlike vectors in other jobs
			continue
		case strings.Contains(name, ".h.0."):
			want, other = decayed, main
		}
		if !slices.Equal(x, want.State[name]) {
			t.Errorf("%s is not as where all are updated so", name)
		}
		if strings.HasPrefix(name, zero.Master) && slices.Equal(x, other.State[name]) {
			t.Errorf("%s is as where none is updated so", name)
		}
	}
	agree(t, []int{0, 1, 2, 3}, "precision=bf16", "parallel.ranks=3", groups)
	agree(t, []int{2, 3}, "precision=bf16", "parallel.ranks=3", "train.accumulate=2", groups)
}
