package forecast

import (
	"fmt"
	"testing"

	"zeroth/config"
	"zeroth/job/spec/spectest"
)

// TestSavedPerToken checks the bytes that a layer saves per token at every level of recomputation against
// the sizes of its activations, on the device and on the host, whatever divides the model.
func TestSavedPerToken(t *testing.T) {
	const C, K, F, H = 64, 32, 160, 4 // the width of queries is C
	rest := map[string]int{"none": 8*C + 4*C + 4*K + 6*F + 4*H + 8, "block": 2 * C}
	rest["elementwise"] = rest["none"] - 4*C - 2*F
	rest["mlp"] = rest["elementwise"] - 4*F
	rest["linear"] = 4*C + 4*H + 8
	model := fmt.Sprintf("model={family: llama, layers: 6, heads: %d, kv_heads: 2, width: %d, ffn: %d, vocab: 256, context: 16}", H, C, F)
	for _, level := range config.Recomputes {
		for _, more := range []string{"zero.stage=3", "parallel.pipeline=2", "parallel.context=2", "zero.offload.activations=host"} {
			if more == "zero.offload.activations=host" && level != "linear" && level != "block" {
				continue
			}
			c := spectest.Fitted(t, model, "precision=bf16", "device=cuda", "zero.recompute="+level, more)
			p, err := NewPlan(c, Machine{GPU: true})
			if err != nil {
				t.Fatal(err)
			}
			if want := float64(rest[level]) / float64(c.Parallel.Context); p.Saved != want {
				t.Errorf("%s, %s: %v bytes per token and layer, want %v", level, more, p.Saved, want)
			}
		}
	}
}
