package tests

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/input"
	"zeroth/job"
)

// The loss of a folder's model on all data is PyTorch's, on any number of ranks; of
// what does not fill a batch it is told how much that is.
func TestEvaluationIsPyTorchs(t *testing.T) {
	e := expectations(t).Tiny
	for sets, left := range map[string]int64{"parallel.ranks=1": 0, "parallel.ranks=2 train.micro_batch=3": 0, "parallel.ranks=5 train.micro_batch=1 train.batch=5": 2 * 32} {
		c := mustHFConfig(t, filepath.Join(hfModels, "tiny"), "tokens.bin", strings.Fields(sets)...)
		got, err := job.Evaluate(t.Context(), c, true, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		if left == 0 {
			within(t, sets+": the loss", got.Loss, e.Loss, 1e-6)
		}
		if got.Tokens != 12*32-left || got.Left != left || got.Perplexity() != math.Exp(got.Loss) {
			t.Errorf("%s: %+v", sets, got)
		}
	}
	c := mustHFConfig(t, filepath.Join(hfModels, "tiny"), "tokens.bin", "data.validation=0.2", "train.micro_batch=5", "train.batch=5", "parallel.ranks=1", "train.eval_every=0")
	const want = "the data has 2 windows of 32 tokens, and 1 ranks read 5 at once"
	if _, err := job.Evaluate(t.Context(), c, false, func(string) {}); err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	c = mustHFConfig(t, filepath.Join(hfModels, "tiny"), "tokens.bin")
	if _, err := job.Evaluate(t.Context(), c, false, func(string) {}); err == nil || !strings.Contains(err.Error(), "there is no validation data") {
		t.Errorf("without validation data: %v", err)
	}
	c = cfg(t)
	if _, err := job.Evaluate(t.Context(), c, true, func(string) {}); err == nil || !strings.Contains(err.Error(), "model.from names none") {
		t.Errorf("without a model: %v", err)
	}
}
