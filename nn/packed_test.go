package nn

import (
	"fmt"
	"testing"

	"zeroth/device"
	"zeroth/tests/nightly"
)

// TestPackedIsSeparate packs documents into sequences: losses and the sums of gradients must equal
// those of the documents as separate sequences, in float32 except for the order of sums over
// positions; and with several documents per sequence, the losses must differ from those of one long
// document.
func TestPackedIsSeparate(t *testing.T) {
	nightly.Parallel(t)
	for _, c := range subjects {
		t.Run(c.name, func(t *testing.T) {
			packed, whole := newRig(t, c, device.F32), newRig(t, c, device.F32)
			packed.bt.Drops, whole.bt.Drops = Drops{}, Drops{} // dropout depends on the place in a batch
			packed.bt.Start = device.OfI32([]int32{0, 0, 2, 3, 3 /**/, 0, 0, 0, 0, 4})
			for _, recompute := range []Recompute{SaveAll, RecomputeBlock} {
				packed.train(recompute)
				sums := map[string][]float64{}
				for _, at := range [][2]int{{0, 2}, {2, 3}, {3, 5}, {5, 9}, {9, 10}} {
					one := newRig(t, c, device.F32)
					one.B, one.T = 1, at[1]-at[0]
					one.bt.B, one.bt.T, one.bt.Drops = one.B, one.T, Drops{}
					one.bt.Input, one.bt.Target = one.bt.Input.Slice(at[0], at[1]), one.bt.Target.Slice(at[0], at[1])
					one.bt.Loss = one.bt.Loss.Slice(0, one.T)
					one.bt.Drops.Row += uint64(at[0]) // the same positions have the same dropout
					one.train(SaveAll)
					for name, b := range one.named() {
						sums[name] = add64(sums[name], one.values(b), name == "losses")
					}
				}
				for name, b := range packed.named() {
					packed.near(fmt.Sprintf("recompute %d: %s", recompute, name), b, 1, sums[name], 2e-6)
				}
			}
			whole.train(SaveAll)
			for i, x := range packed.values(packed.bt.Loss) {
				first := i%tinyT == 0
				if same := x == whole.values(whole.bt.Loss)[i]; same && !first && (i < 5 && i != 1 || i == 9) || first && !same {
					t.Errorf("loss of position %d: %g with documents, %g without", i, x, whole.values(whole.bt.Loss)[i])
				}
			}
		})
	}
}

// add64 adds two vectors, or concatenates them.
func add64(sum, x []float64, behind bool) []float64 {
	if behind || sum == nil {
		return append(sum, x...)
	}
	for i := range sum {
		sum[i] += x[i]
	}
	return sum
}
