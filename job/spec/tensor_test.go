package spec

import (
	"errors"
	"strings"
	"testing"
	"zeroth/config/tree"

	"zeroth/job/jobtest"
)

// TestTensorsThatCannotBe checks that matrices that cannot be divided are rejected with advice.
func TestTensorsThatCannotBe(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	llama := "model={family: llama, width: 384, heads: 6, kv_heads: 2, layers: 6}"
	for _, sets := range [][]string{
		{"parallel.tensor=4"},
		{"parallel.tensor=3", llama},
		{"parallel.tensor=6", "model={family: llama, width: 384, heads: 6, ffn: 1100}"},
		{"parallel.tensor=2", "model.context=27", "train.micro_batch=1"},
		{"parallel.tensor=96", "model={heads: 96}"},
		{"parallel={ranks: 6, pipeline: 2, tensor: 2}"},
		{"parallel={ranks: 8, shard: 2, tensor: 2}"},
		{"parallel={ranks: 4, tensor: 2}", "train={micro_batch: 2, accumulate: 2, batch: 16}"},
	} {
		refuses(t, sets)
	}
}

func refuses(t *testing.T, sets []string) {
	t.Helper()
	_, err := Load("job.yaml", sets)
	said.Same(t, strings.Join(sets, " "), err)
}

// TestContextsThatCannotBe checks the same for sequences.
func TestContextsThatCannotBe(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for _, sets := range [][]string{
		{"parallel.context=4", "model.context=30"},
		{"parallel={context: 2, tensor: 3}", "model.context=56", "train.micro_batch=1"},
		{"parallel={ranks: 8, shard: 2, context: 2}"},
		{"parallel={ranks: 6, pipeline: 2, context: 2}"},
		{"parallel={ranks: 4, context: 2}", "train={micro_batch: 2, accumulate: 2, batch: 16}"},
	} {
		refuses(t, sets)
	}
	for sets, want := range map[string]int{"parallel={ranks: 4, context: 2}": 2, "parallel={context: 4, tensor: 2}": 1, "parallel={shard: 3, context: 2}": 3} {
		if c, err := Load("job.yaml", []string{sets}); err != nil || c.Parallel.Shard != want {
			t.Errorf("%s: %v, want shard %d", sets, err, want)
		}
	}
}

// TestWrongTargetIsOneProblem checks that a wrong layer name of adapters is not blamed on other keys, too.
func TestWrongTargetIsOneProblem(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for _, set := range []string{"train.lora={rank: 2, targets: [nope_proj]}", "train.lora={rank: 2, targets: [c_attn], modules_to_save: [nope]}", "train.freeze=['nope.*']"} {
		_, err := Load("job.yaml", []string{set})
		if problems := (tree.Problems)(nil); !errors.As(err, &problems) || len(problems) != 1 || strings.Contains(err.Error(), "every parameter") {
			t.Errorf("%s: %v", set, err)
		}
	}
}
