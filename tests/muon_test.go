package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"zeroth/tests/nightly"
	"zeroth/zero"
	"zeroth/zero/zerotest"
)

// TestMuonAgreesToTheBit checks that whole matrices are orthogonalized alike wherever they are
// sharded and whichever rank does it: all stages, rank counts, replicas and prefetch depths agree
// to the bit if gradients do.
func TestMuonAgreesToTheBit(t *testing.T) {
	nightly.Parallel(t)
	for i, sets := range [][]string{
		{"precision=fp32"},
		{"precision=bf16", "model.family=llama", "model.kv_heads=1"},
		{"precision=fp16", "model.family=llama", "model.tied=true", "optimizer.nesterov=false", "optimizer.adjust_lr_fn=match_rms_adamw"},
	} {
		t.Run(fmt.Sprint(sets), func(t *testing.T) {
			t.Parallel()
			sets := append(sets, "optimizer.type=muon")
			agree(t, []int{0, 1, 2, 3}, append(sets, "parallel.ranks=3")...)
			agree(t, []int{2, 3}, append(sets, "parallel.ranks=2", "train.accumulate=3")...)
			agree(t, []int{1, 2, 3}, append(sets, "parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2")...)
			want := zerotest.Train(t, cfg(t, append(sets, "zero.stage=3", "parallel.ranks=4")...), nil)
			for k, other := range [][]string{
				{"parallel.ranks=1", "train.accumulate=4"}, {"parallel.ranks=4", "zero.stage=1"}, {"parallel.ranks=4", "zero.offload.parameters=host"},
				{"parallel.ranks=4", "zero.offload.parameters=disk", "zero.offload.path=" + t.TempDir()},
				{"parallel.ranks=4", "zero.offload.optimizer=host", "zero.offload.ratio=0.5"},
				{"parallel.ranks=1", "train.accumulate=4", "zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path=" + t.TempDir()},
			} {
				if !nightly.Every(3, i+k) {
					continue
				}
				zerotest.SameBits(t, fmt.Sprint(other), zerotest.Train(t, cfg(t, append(append(sets, "zero.stage=3"), other...)...), nil), want)
			}
		})
	}
}

// TestMuonWithAdamW checks that matrices of blocks have only a momentum, and that the
// parameters updated by AdamW have its moments and change as with AdamW alone in a step with the
// same gradient.
func TestMuonWithAdamW(t *testing.T) {
	sets := []string{"precision=fp32", "parallel.ranks=2", "train.steps=1", "optimizer.weight_decay=0.2"}
	got := zerotest.Train(t, cfg(t, append(sets, "optimizer.type=muon", "optimizer.adamw.lr=1e-2", "optimizer.lr=1e-2",
		`optimizer.groups=[{match: "*.h.1.mlp.c_fc.weight", type: adamw}, {match: "*.wpe.*", type: muon}]`)...), nil)
	adamw := zerotest.Train(t, cfg(t, sets...), nil)
	for name, x := range got.State {
		kind, param, _ := strings.Cut(name, " ")
		matrix := strings.HasSuffix(param, ".weight") && strings.Contains(param, ".h.") && !strings.Contains(param, ".ln_")
		muon := matrix && !strings.HasSuffix(param, ".h.1.mlp.c_fc.weight") || strings.Contains(param, ".wpe.")
		if kind != zero.Master && muon != (kind == "momentum_buffer") {
			t.Errorf("there is %s", name)
		}
		if kind == zero.Master && muon == slices.Equal(x, adamw.State[name]) {
			t.Errorf("%s is updated by Muon: %v", param, !muon)
		}
	}
}

// TestMuonOfAdaptersAgreesToTheBit checks that frozen parameters are neither orthogonalized nor
// changed, and that adapters count as matrices.
func TestMuonOfAdaptersAgreesToTheBit(t *testing.T) {
	nightly.Parallel(t)
	for _, sets := range [][]string{
		{"train.lora.rank=3"}, {`train.freeze=["*.attn.*", "*.wte.*"]`},
	} {
		agree(t, []int{0, 1, 2, 3}, append(sets, "optimizer.type=muon", "parallel.ranks=3", "precision=bf16")...)
	}
}
