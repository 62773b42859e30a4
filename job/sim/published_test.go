package sim

import (
	"fmt"
	"testing"

	"zeroth/job/setup"
)

// TestPublishedPipelines compares simulated pipelines with the measured ones of Qi et al.,
// arXiv 2401.10241, table 4: GPT-3's shapes on A100s, 1F1B and ZB-1p, whose bubble is
// ZB-H1's by their table 5.
//
// Assumed: products at 61 % of an A100's peak for all models; NVLink and network as in
// arXiv 2104.04473. Simulated steps are slower than measured ones the less a micro-batch
// computes, down to 0.78 with 1,024 positions: gradients of weights are added up over
// micro-batches in a pass of their own, which Megatron does in its products. That pass is
// part of W, so ZB-H1, which fills the bubble with W, gains more here.
func TestPublishedPipelines(t *testing.T) {
	a100 := &Hardware{
		GPU: true, Flops: map[string]float64{"bf16": 190e12, "fp32": 15e12}, Attention: 80e12,
		Memory: 0.8 * 1.7e12, Launch: 4e-6, Links: []Link{{8, 240e9, 5e-6}, {0, 22e9, 15e-6}},
	}
	for _, m := range []struct {
		layers, heads, width, ranks, micro, accumulate, each int
		oneF1B, zb                                           float64 // samples per GPU and second
	}{
		{22, 24, 2304, 8, 6, 24, 3, 11.8, 12.9},
		{30, 32, 4096, 8, 3, 24, 4, 3.50, 3.88},
		{46, 40, 5120, 16, 1, 48, 3, 1.40, 1.61},
		{62, 48, 6144, 32, 1, 96, 2, 0.76, 0.87},
	} {
		if testing.Short() && m.ranks > 8 {
			continue
		}
		layers := fmt.Sprint(m.each - 1) // the first and the last stage have one less
		for range m.ranks - 2 {
			layers += fmt.Sprint(",", m.each)
		}
		layers += fmt.Sprint(",", m.each-1)
		speed := func(schedule string) float64 {
			var sets []string
			for key, x := range map[string]any{
				"model.family": "gpt2", "model.layers": m.layers, "model.heads": m.heads, "model.width": m.width, "model.context": 1024, "model.vocab": 50257,
				"parallel.ranks": m.ranks, "parallel.pipeline": m.ranks, "pipeline.schedule": schedule, "pipeline.layers": "[" + layers + "]",
				"zero.stage": 1, "precision": "bf16", "device": "cpu", "train.micro_batch": m.micro, "train.accumulate": m.accumulate,
			} {
				sets = append(sets, fmt.Sprint(key, "=", x))
			}
			c, err := setup.Here(1, 0).Draft("", sets)
			if err != nil {
				t.Fatal(err)
			}
			r, err := SimulateUntraced(setup.Planned(c), a100)
			if err != nil {
				t.Fatal(err)
			}
			return r.Tokens / 1024 / float64(m.ranks)
		}
		a, b := speed("1F1B"), speed("ZBH1")
		t.Logf("%d × %d: 1F1B %.2f, published %.2f; ZB-H1 %.2f, published %.2f; gain %.3f, published %.3f", m.layers, m.width, a, m.oneF1B, b, m.zb, b/a, m.zb/m.oneF1B)
		for _, x := range [][2]float64{{a, m.oneF1B}, {b, m.zb}} {
			if of := x[0] / x[1]; of < 0.75 || of > 1.05 {
				t.Errorf("%d × %d: %.2f samples per GPU and second, published %.2f", m.layers, m.width, x[0], x[1])
			}
		}
		if d := b/a - m.zb/m.oneF1B; d < 0 || d > 0.09 {
			t.Errorf("%d × %d: ZB-H1 is %.3f times as fast, published %.3f", m.layers, m.width, b/a, m.zb/m.oneF1B)
		}
	}
}
