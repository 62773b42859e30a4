package tests

import (
	"fmt"
	"slices"
	"testing"
	"zeroth/tests/nightly"
	"zeroth/zero"

	"zeroth/internal/setup"
	"zeroth/zero/zerotest"
)

// TestDropoutAgreesToTheBit checks that the dropout mask depends only on the seed and the sample
// numbers. Stages, prefetch depths and recomputation agree to the bit, and so do divisions of the
// same samples into ranks and micro-batches. Different positions, rates and seeds give different
// masks.
func TestDropoutAgreesToTheBit(t *testing.T) {
	nightly.Parallel(t)
	for _, family := range [][]string{{"model.family=gpt2"}, {"model.family=llama", "model.kv_heads=1", "precision=bf16"}} {
		t.Run(fmt.Sprint(family), func(t *testing.T) {
			t.Parallel()
			sets := append(family, "model.dropout=0.2", "model.attention_dropout=0.3", "train.micro_batch=2")
			agree(t, []int{0, 1, 2, 3}, append(sets, "parallel.ranks=3")...)
			agree(t, []int{0, 1}, append(sets, "parallel.ranks=2", "train.accumulate=2")...)
			agree(t, []int{2, 3}, append(sets, "parallel.ranks=2", "train.accumulate=2")...)
			sets = append(sets, "train.micro_batch=1", "zero.stage=3")
			want := zerotest.Train(t, cfg(t, append(sets, "parallel.ranks=4")...), nil)
			for _, ways := range [][]string{{"parallel.ranks=1", "train.accumulate=4"}, {"parallel.ranks=4", "zero.stage=2"}} {
				zerotest.SameBits(t, fmt.Sprint(ways), zerotest.Train(t, cfg(t, append(sets, ways...)...), nil), want)
			}
			pairs := zerotest.Train(t, cfg(t, append(sets, "parallel.ranks=2", "train.accumulate=2")...), nil) // with gradients summed in another order
			if pairs.Losses[0] != want.Losses[0] {
				t.Errorf("the loss of step 1 is %v on 2 ranks, %v on 4", pairs.Losses[0], want.Losses[0])
			}
			for k, other := range []string{"model.dropout=0", "model.dropout=0.21", "model.attention_dropout=0", "model.attention_dropout=0.31", "train.seed=2"} {
				if !nightly.Every(2, k+len(family)/2) {
					continue
				}
				got := zerotest.Train(t, cfg(t, append(sets, "parallel.ranks=4", other)...), nil)
				for i, loss := range got.Losses {
					if loss == want.Losses[i] {
						t.Errorf("%s: the loss of step %d is the same", other, i+1)
					}
				}
			}
			none := zerotest.Train(t, cfg(t, append(sets, "parallel.ranks=4", "model.dropout=0", "model.attention_dropout=0")...), nil)
			plain := zerotest.Train(t, cfg(t, append(slices.Clone(family), "train.micro_batch=1", "zero.stage=3", "parallel.ranks=4")...), nil)
			zerotest.SameBits(t, "dropout of 0", none, plain)
		})
	}
}

// TestEvaluationDropsNothing checks that evaluations do not use dropout, even after a training
// step.
func TestEvaluationDropsNothing(t *testing.T) {
	var means []float64
	for _, dropout := range []string{"0", "0.5"} {
		c := cfg(t, "parallel.ranks=2", "model.dropout="+dropout, "model.attention_dropout="+dropout)
		err := zerotest.OnRanks(t, c, func(r *setup.Rank) error {
			if _, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, 0), LR: 0}); err != nil {
				return err
			}
			if err := zerotest.Fresh(r); err != nil {
				return err
			}
			s, err := r.Trainer.Eval(1, zero.Work{Fill: zerotest.Tokens(c, r.Rank, 1)})
			if r.Rank == 0 {
				means = append(means, s.Loss)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if means[0] != means[1] {
		t.Errorf("an evaluation of a model with dropout is %v, without %v", means[1], means[0])
	}
}
