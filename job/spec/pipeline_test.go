package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"zeroth/config"

	"zeroth/job/jobtest"
	"zeroth/tests/nightly"
)

// TestPipelinesThatCannotBe checks that impossible pipelines are rejected with advice.
func TestPipelinesThatCannotBe(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for _, sets := range [][]string{
		{"train.accumulate=262145"},
		{"parallel={ranks: 2, pipeline: 2}", "train.accumulate=131073"},
		{"parallel={ranks: 6, pipeline: 2, shard: 2}"},
		{"parallel={ranks: 6, pipeline: 4}"},
		{"parallel={ranks: 2, pipeline: 4}", "zero.stage=0", "zero.offload.optimizer=host"},
		{"parallel={ranks: 8, pipeline: 2, replicate: 3}"},
		{"parallel={ranks: 4, pipeline: 4}", "pipeline.schedule=Interleaved1F1B", "train.accumulate=6", "model.layers=8"},
		{"parallel={ranks: 4, pipeline: 2, shard: 1, replicate: 2}", "pipeline={schedule: Interleaved1F1B, virtual: 2}", "train={micro_batch: 1, batch: 7}"},
		{"parallel={ranks: 8, pipeline: 8}"},
		{"parallel={ranks: 2, pipeline: 2}", "pipeline={schedule: GPipe, virtual: 2}"},
		{},
		{"parallel={ranks: 2, pipeline: 2}", "pipeline.layers=[3, 2]"},
		{"parallel={ranks: 2, pipeline: 2}", "pipeline.layers=[2, 2, 2]"},
		{"parallel={ranks: 4, pipeline: 2}", "train={micro_batch: 2, accumulate: 2, batch: 16}"},
		{"pipeline.virtual=2"},
		{"parallel={ranks: 2, pipeline: 2}", "pipeline.schedule=ZBH1", "zero.recompute=block", "train.mlp_chunk=512"},
		{"zero.recompute=elementwise", "train.mlp_chunk=512"},
		{"zero.recompute=linear", "train={mlp_chunk: 1, micro_batch: 65536, batch: null}"},
		{"zero.recompute=linear", "train.mlp_chunk=512", "model.family=llama", "model.experts={count: 4, per_token: 2}"},
		{"parallel={ranks: 4, expert: 3}", "model.family=llama", "model.experts={count: 8, per_token: 2}"},
		{"parallel={ranks: 2, expert: 2}"},
		{"model.family=llama", "model.experts={count: 8, per_token: 99}"},
		{"model.family=llama", "model.experts={count: 128, per_token: 99}"},
	} {
		if len(sets) == 0 {
			sets = []string{"parallel={ranks: 2, pipeline: 2}", "pipeline={schedule: Interleaved1F1B, virtual: 1}"}
		}
		_, err := Load("job.yaml", sets)
		said.Same(t, strings.Join(sets, " "), err)
	}
}

// TestDraftDivided checks that a batch with too few sequences for the ranks divides the model of a
// search, among as few ranks as possible, as if by default.
func TestDraftDivided(t *testing.T) {
	nightly.Long(t)
	for sets, want := range map[string][3]int{ // tensor, context, pipeline
		"model.heads=8 train.batch=8 parallel.ranks=8":                     {1, 1, 1},
		"model.heads=8 train.batch=4 parallel.ranks=8":                     {2, 1, 1},
		"model.heads=8 train.batch=4 parallel.ranks=64":                    {8, 1, 2},
		"model.heads=1 train.batch=4 parallel.ranks=8":                     {1, 2, 1},
		"model.heads=1 model.context=9 train.batch=2 parallel.ranks=4":     {1, 1, 2},
		"model.heads=8 train.batch=4 parallel.ranks=8 parallel.pipeline=2": {1, 1, 2},
		"model.heads=8 train.batch=3 parallel.ranks=8":                     {8, 1, 1},
		"model.heads=8 train.batch=3 train.micro_batch=2 parallel.ranks=8": {},
		"model.heads=8 train.batch=4 parallel.ranks=8 zero.stage=4":        {},
	} {
		c, err := Environment{}.DraftDivided("", strings.Fields("model.layers=4 model.width=64 device=cpu "+sets))
		if err != nil {
			c = &Job{Document: &config.Document{}}
		}
		if got := [3]int{c.Parallel.Tensor, c.Parallel.Context, c.Parallel.Pipeline}; got != want {
			t.Errorf("%s: %v, want %v (%v)", sets, got, want, err)
		} else if err != nil && !strings.Contains(err.Error(), "has no whole solution") && !strings.Contains(err.Error(), "zero.stage") || c.Sets("parallel.tensor") {
			t.Errorf("%s: %v, sets tensor: %v", sets, err, c.Sets("parallel.tensor"))
		}
	}
}

// TestBalanced checks that the division of layers minimizes the cost of the costliest stage,
// including the output layer.
func TestBalanced(t *testing.T) {
	for _, c := range []struct {
		costs  []float64
		stages int
		want   []int
	}{
		{[]float64{0, 1, 1, 1, 1, 0}, 2, []int{2, 2}},
		{[]float64{0, 1, 1, 1, 1, 1, 0}, 2, []int{2, 3}},
		{[]float64{0, 1, 1, 1, 1, 1, 1, 2.4}, 2, []int{4, 2}},
		{[]float64{0, 1, 1, 1, 1, 9}, 4, []int{1, 1, 1, 1}},
		{[]float64{3, 1, 1, 1, 1, 1, 0}, 2, []int{1, 4}},
	} {
		if got := balanced(c.costs, c.stages); !slices.Equal(got, c.want) {
			t.Errorf("%v in %d stages: %v, want %v", c.costs, c.stages, got, c.want)
		}
	}
	for n := 2; n < 40; n++ { // against every possible threshold
		costs := make([]float64, n+2)
		for i := range costs {
			costs[i] = float64((i*i*7+n)%11) + 0.5
		}
		for stages := 1; stages <= n; stages++ {
			if got, want := dearest(costs, balanced(costs, stages)), least(costs, stages); got > want*(1+1e-6) {
				t.Fatalf("%v in %d stages: the dearest costs %g, %g is possible", costs, stages, got, want)
			}
		}
	}
}

// dearest returns the cost of the costliest stage.
func dearest(costs []float64, layers []int) (most float64) {
	at := 1
	for s, l := range layers {
		sum := 0.0
		if s == 0 {
			sum += costs[0]
		}
		for range l {
			sum += costs[at]
			at++
		}
		if s == len(layers)-1 {
			sum += costs[at]
		}
		most = max(most, sum)
	}
	if at != len(costs)-1 {
		panic(fmt.Sprint(layers))
	}
	return most
}

// least returns the cost of the costliest stage in the best division, by dynamic programming.
func least(costs []float64, stages int) float64 {
	inner := costs[1 : len(costs)-1]
	best := make([][]float64, stages+1) // of the first i layers in s stages
	for s := range best {
		best[s] = make([]float64, len(inner)+1)
		for i := range best[s] {
			best[s][i] = 1e18
		}
	}
	best[0][0] = 0
	for s := 1; s <= stages; s++ {
		for i := s; i <= len(inner); i++ {
			sum := 0.0
			if s == stages {
				sum = costs[len(costs)-1]
			}
			for from := i - 1; from >= s-1; from-- {
				sum += inner[from]
				all := sum
				if s == 1 {
					all += costs[0]
				}
				best[s][i] = min(best[s][i], max(best[s-1][from], all))
			}
		}
	}
	return best[stages][len(inner)]
}
