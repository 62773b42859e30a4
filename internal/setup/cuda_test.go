package setup

import (
	"strings"
	"testing"

	"zeroth/device/cuda/kernel"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/nn"
)

// TestGPUsLack checks that models without GPU kernels are rejected with the reason.
func TestGPUsLack(t *testing.T) {
	for want, m := range map[string]hf.Model{
		"":                       {Shape: nn.Shape{Width: 16384, Heads: 128}},
		"heads of 264 elements":  {Shape: nn.Shape{Width: 1024, Heads: 4}, Llama: nn.Llama{Head: 264}},
		"rows of 16640 elements": {Shape: nn.Shape{Width: 16640, Heads: 130}},
		"rows of 20480 elements": {Shape: nn.Shape{Width: 8192, Heads: 80}, Llama: nn.Llama{Head: 256}},
	} {
		if said := lacks(m); (want == "") != (said == "") || !strings.Contains(said, want) {
			t.Errorf("width %d, %d heads %d wide: %q, want %q", m.Width, m.Heads, m.Head(), said, want)
		}
	}
}

// TestAttentions checks that the values of parallel.attention are the kernels' choices, in order.
func TestAttentions(t *testing.T) {
	for value, want := range map[string]kernel.Choice{"": kernel.Auto, "auto": kernel.Auto, "mma": kernel.MMA} {
		j := &Job{Job: &spec.Job{}}
		j.Parallel.Attention = value
		if got := newCUDA(j).attention; got != want {
			t.Errorf("%q: %d, want %d", value, got, want)
		}
	}
}
