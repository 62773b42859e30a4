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
	for want, sets := range map[string][]string{
		"parallel.tensor: 6 heads cannot be divided over 4 ranks; want tensor 3 or 6":                                                             {"parallel.tensor=4"},
		"parallel.tensor: 2 heads of keys and values cannot be divided over 3 ranks; want tensor 2":                                               {"parallel.tensor=3", llama},
		"parallel.tensor: 1100 columns of the hidden layer cannot be divided over 6 ranks; want tensor 5 or 10":                                   {"parallel.tensor=6", "model={family: llama, width: 384, heads: 6, ffn: 1100}"},
		"parallel.tensor: 27 positions of a micro-batch cannot be divided over 2 ranks; want train.micro_batch or model.context a multiple of 2":  {"parallel.tensor=2", "model.context=27", "train.micro_batch=1"},
		"parallel.tensor: a vocabulary of 256 tokens leaves none for the last of 96 ranks; want a smaller tensor":                                 {"parallel.tensor=96", "model={heads: 96}"},
		"parallel.ranks: 6 ranks cannot be divided by pipeline 2 × tensor 2; want ranks 4 or 8":                                                   {"parallel={ranks: 6, pipeline: 2, tensor: 2}"},
		"parallel.shard: shard 2 × replicate 1 × tensor 2 = 4, but there are 8 ranks; want ranks: 4, or shard: -1 for ranks / replicate / tensor": {"parallel={ranks: 8, shard: 2, tensor: 2}"},
		"train.batch: micro_batch 2 × accumulate 2 × shard × replicate 2 = 8, but batch is 16; want batch: 8, or leave one of the three out":      {"parallel={ranks: 4, tensor: 2}", "train={micro_batch: 2, accumulate: 2, batch: 16}"},
	} {
		refuses(t, want, sets)
	}
}

func refuses(t *testing.T, want string, sets []string) {
	t.Helper()
	if _, err := Load("job.yaml", sets); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%q: %v\nwant %s", sets, err, want)
	}
}

// TestContextsThatCannotBe checks the same for sequences.
func TestContextsThatCannotBe(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for want, sets := range map[string][]string{
		"parallel.context: sequences of 30 tokens cannot be divided into 8 equal chunks, two for each of 4 ranks; want model.context 24 or 32":      {"parallel.context=4", "model.context=30"},
		"parallel.tensor: 28 positions of a micro-batch cannot be divided over 3 ranks; want train.micro_batch or model.context a multiple of 6":    {"parallel={context: 2, tensor: 3}", "model.context=56", "train.micro_batch=1"},
		"parallel.shard: shard 2 × replicate 1 × context 2 = 4, but there are 8 ranks; want ranks: 4, or shard: -1 for ranks / replicate / context": {"parallel={ranks: 8, shard: 2, context: 2}"},
		"parallel.ranks: 6 ranks cannot be divided by pipeline 2 × context 2; want ranks 4 or 8":                                                    {"parallel={ranks: 6, pipeline: 2, context: 2}"},
		"train.batch: micro_batch 2 × accumulate 2 × shard × replicate 2 = 8, but batch is 16; want batch: 8, or leave one of the three out":        {"parallel={ranks: 4, context: 2}", "train={micro_batch: 2, accumulate: 2, batch: 16}"},
	} {
		refuses(t, want, sets)
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
