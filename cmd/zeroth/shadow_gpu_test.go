//go:build cuda

package main

import (
	"strings"
	"testing"
)

// TestGPUShadow corrupts one element of one kernel launch and checks that --shadow names the
// step, the unit, the operation and the element. Without a corruption --shadow does not disturb
// the run.
func TestGPUShadow(t *testing.T) {
	inFolder(t)
	tiny := []string{"train", "tiny.yaml", "--shadow", "--set", "device=cuda", "--set", "parallel.ranks=1", "--set", "train.steps=3", "--set", "precision=fp32"}
	t.Run("right", func(t *testing.T) {
		onFakes(t)
		process(t, 0, append(tiny, "--out", "right")...)
	})
	for broken, want := range map[string][]string{
		"row_norm:9:5":         {"step 2: rank 0: unit h.0: forward: ", "shadow: layer norm of (8,8) fp32,", "y (8,8) fp32: element (1,1) is ", "on the GPU and ", ": error ", ", bound "},
		"adamw:9:5":            {"unit ", ": update: ", "shadow: adamw of ", "w (", "element (0,9) is ", ", bound 0"},
		"attention_dkv_64:3:3": {"step 3: rank 0: unit h.0: backward: ", "shadow: attention gradient of (8,8) fp32,", "dk (8,8) fp32: element (0,3) is "},
	} {
		t.Run(broken, func(t *testing.T) {
			onFakes(t, "FAKECUDA_BROKEN=wrong:"+broken)
			_, said := process(t, 1, append(tiny, "--out", strings.ReplaceAll(broken, ":", "-"))...)
			for _, w := range want {
				if !strings.Contains(said, w) {
					t.Errorf("%s\nwant %q in it", said, w)
				}
			}
		})
	}
	_, said := process(t, 2, append(tiny, "--set", "device=cpu", "--out", "cpu")...)
	if want := "--shadow compares a GPU's operations with the CPU's"; !strings.Contains(said, want) {
		t.Errorf("%s\nwant %q in it", said, want)
	}
}
