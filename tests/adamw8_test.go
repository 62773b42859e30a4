package tests

import (
	"fmt"
	"math"
	"testing"

	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// TestAdamW8AgreesToTheBit checks that stages, rank counts and offload agree to the bit. A block
// of coded moments belongs to one parameter and one rank.
func TestAdamW8AgreesToTheBit(t *testing.T) {
	nightly.Parallel(t)
	for _, sets := range [][]string{{"precision=fp32"}, {"precision=bf16", "model.family=llama", "model.kv_heads=1"}} {
		t.Run(fmt.Sprint(sets), func(t *testing.T) {
			t.Parallel()
			sets := append(sets, "optimizer.type=adamw8bit")
			agree(t, []int{0, 1, 2, 3}, append(sets, "parallel.ranks=3")...)
			agree(t, []int{2, 3}, append(sets, "parallel.ranks=2", "train.accumulate=3")...)
			want := zerotest.Train(t, cfg(t, append(sets, "zero.stage=3", "parallel.ranks=4")...), nil)
			for _, other := range [][]string{
				{"parallel.ranks=1", "train.accumulate=4"}, {"parallel.ranks=4", "zero.stage=1"},
				{"parallel.ranks=4", "zero.offload.optimizer=host"}, {"parallel.ranks=4", "zero.stage=2", "zero.offload.optimizer=host", "zero.offload.ratio=0.5"},
				{"parallel.ranks=4", "zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path=" + t.TempDir()},
			} {
				zerotest.SameBits(t, fmt.Sprint(other), zerotest.Train(t, cfg(t, append(append(sets, "zero.stage=3"), other...)...), nil), want)
			}
		})
	}
}

// TestAdamW8IsNearAdamW checks that 8-bit moments barely change training: over 12 steps every
// loss is within 2 % of the total decrease from AdamW's, and some differ.
func TestAdamW8IsNearAdamW(t *testing.T) {
	sets := []string{"precision=fp32", "parallel.ranks=2", "train.steps=12", "optimizer.lr=3e-3", "device=cpu"}
	want := zerotest.Train(t, cfg(t, sets...), nil)
	got := zerotest.Train(t, cfg(t, append(sets, "optimizer.type=adamw8bit")...), nil)
	other := 0
	for i, loss := range got.Losses {
		learned := want.Losses[0] - want.Losses[len(want.Losses)-1]
		if math.Abs(loss-want.Losses[i]) > 0.02*learned {
			t.Errorf("step %d: loss %v, of AdamW %v", i+1, loss, want.Losses[i])
		}
		if loss != want.Losses[i] {
			other++
		}
	}
	if other == 0 {
		t.Error("all losses are AdamW's")
	}
}
