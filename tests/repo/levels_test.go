package repo

import (
	"fmt"
	"strings"
	"testing"

	"zeroth/config"
	"zeroth/forecast"
	"zeroth/internal/setup"
	"zeroth/internal/show"
)

// levelsTable returns what each level of recomputation saves, needs and costs in published models, as planned.
func levelsTable(t *testing.T) string {
	h, err := forecast.OpenHardware("h200")
	if err != nil {
		t.Fatal(err)
	}
	again := map[string]string{"none": "nothing", "elementwise": "norms and the MLP's activation", "mlp": "also the MLP's hidden layer",
		"linear": "also queries, keys, values: everything but attention", "block": "everything but the block's input"}
	models := [...][]string{
		{"GPT-2 124M, 1 × 16", "model={family: gpt2, layers: 12, heads: 12, width: 768, vocab: 50257, context: 1024}", "parallel.ranks=1", "train.micro_batch=16"},
		{"Llama 3 8B, 8 × 1", "model={family: llama, layers: 32, heads: 32, kv_heads: 8, width: 4096, ffn: 14336, vocab: 128256, context: 8192}", "parallel.ranks=8", "train.micro_batch=1"},
	}
	var b strings.Builder
	fmt.Fprint(&b, "| `zero.recompute` | computed again |")
	for _, m := range models {
		fmt.Fprintf(&b, " %s |", m[0])
	}
	fmt.Fprintln(&b, "\n|---|---|---:|---:|")
	for _, level := range config.Recomputes {
		fmt.Fprintf(&b, "| `%s` | %s |", level, again[level])
		for _, m := range models {
			c, err := setup.ThisMachine(1, 0).Draft("", append(m[1:], "device=cuda", "precision=bf16", "zero.stage=3", "zero.recompute="+level))
			if err != nil {
				t.Fatal(err)
			}
			p, err := forecast.NewPlan(c, forecast.Machine{GPU: true})
			if err != nil {
				t.Fatal(err)
			}
			s, err := forecast.SimulateUntraced(setup.Planned(c), h)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, " %s, %s, %.3g s |", show.ByteSize(int64(p.Saved)), show.ByteSize(p.Allocated.Total()), s.Seconds)
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}
