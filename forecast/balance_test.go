package forecast

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
)

// TestBalanced checks that stages divided by operations are as even as whole layers allow: moving
// any layer to a neighbouring stage does not make the simulated step faster by half a percent.
func TestBalanced(t *testing.T) {
	nightly.Parallel(t)
	gpt := []string{"model.family=gpt2", "model.layers=12", "model.heads=12", "model.width=768", "model.context=1024", "model.vocab=50257"}
	llama := []string{"model.family=llama", "model.layers=32", "model.heads=32", "model.kv_heads=8", "model.width=4096", "model.ffn=14336", "model.context=8192", "model.vocab=128256"}
	small := []string{"model.family=llama", "model.layers=16", "model.heads=32", "model.kv_heads=8", "model.width=2048", "model.ffn=8192", "model.context=4096", "model.vocab=128256", "model.tied=true"}
	for _, x := range []struct {
		name  string
		sets  []string
		ranks int
	}{{"GPT-2 124M", gpt, 4}, {"Llama 3 8B", llama, 4}, {"Llama 3 8B, recomputed", append(slices.Clone(llama), "zero.recompute=block"), 8}, {"Llama 3.2 1B", small, 4}} {
		base := append([]string{fmt.Sprint("parallel.ranks=", x.ranks), fmt.Sprint("parallel.pipeline=", x.ranks), "zero.stage=1", "precision=bf16", "device=cpu",
			"train.micro_batch=2", "train.accumulate=32"}, x.sets...)
		speed := func(layers []int) (float64, *spec.Job) {
			sets := slices.Clone(base)
			if layers != nil {
				sets = append(sets, "pipeline.layers=["+strings.Trim(strings.ReplaceAll(fmt.Sprint(layers), " ", ","), "[]")+"]")
			}
			c, err := setup.ThisMachine(1, 0).Draft("", sets)
			if err != nil {
				t.Fatal(err)
			}
			h, err := OpenHardware("h100")
			if err != nil {
				t.Fatal(err)
			}
			r, err := SimulateUntraced(setup.Planned(c), h)
			if err != nil {
				t.Fatal(err)
			}
			return r.Tokens, c
		}
		own, c := speed(nil)
		layers := spec.StageLayers(c)
		for from := range layers {
			for _, to := range []int{from - 1, from + 1} {
				if to < 0 || to == len(layers) || layers[from] == 1 {
					continue
				}
				other := slices.Clone(layers)
				other[from], other[to] = other[from]-1, other[to]+1
				if s, _ := speed(other); s > 1.005*own {
					t.Errorf("%s: layers %v are %.4f times as fast as %v", x.name, other, s/own, layers)
				}
			}
		}
	}
}
