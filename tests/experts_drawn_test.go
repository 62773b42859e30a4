package tests

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/tests/nightly"
)

// TestDrawnExperts trains mixtures on random meshes. Every rank's allocator must hold the planned bytes in every
// category, whether the router spreads rows or sends all to the experts of one rank, and the first step in float32 must
// have the loss of one rank with micro-batches of the same size.
func TestDrawnExperts(t *testing.T) {
	nightly.Parallel(t)
	for i := range nightly.Of(5, 100) {
		rng := rand.New(rand.NewPCG(47, uint64(i)))
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			families := []string{"mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "dots1", "minimax_m2", "olmoe", "granitemoe"}
			m := readMixture(t, filepath.Join(expertModels, families[rng.IntN(len(families))]))
			if rng.IntN(2) == 0 && !m.family("glm4_moe", "dots1", "minimax_m2") { // these choose by a correction, too
				m.zero = map[bool]string{false: ".gate.weight", true: "router.layer.weight"}[m.family("granitemoe")]
			}
			sets, precise := drawnExperts(rng, m)
			got := m.train(t, 2, sets...)
			if !precise {
				return
			}
			batch := sets[len(sets)-1]
			want := m.train(t, 1, "parallel.ranks=1", "model.context=12", "train.micro_batch=2", "train.router_aux=0.1", batch)
			within(t, strings.Join(sets, " "), got.Losses[0], want.Losses[0], 1e-6)
			if got.Aux[0] > 0 {
				within(t, strings.Join(sets, " ")+": the balancing loss", got.Aux[0], want.Aux[0], 1e-6)
			}
		})
	}
}

// drawnExperts returns the settings of a random mesh, of which the last is the batch, and whether they are of float32.
func drawnExperts(rng *rand.Rand, m mixture) (sets []string, precise bool) {
	one := func(values ...int) int { return values[rng.IntN(len(values))] }
	draw := func(key string, values ...string) string {
		v := values[rng.IntN(len(values))]
		sets = append(sets, key+"="+v)
		return v
	}
	expert, context, tensor, pipeline, replicate, shard := one(1, 2, 2), one(1, 2), one(1, 2), one(1, 1, 2), one(1, 2), one(1, 2)
	if m.family("olmoe", "minimax_m2") {
		tensor = 1
	}
	stage := rng.IntN(4)
	if stage == 0 {
		replicate = 1
	}
	micros := one(1, 2)
	for key, n := range map[string]int{"expert": expert, "context": context, "tensor": tensor, "pipeline": pipeline, "replicate": replicate, "shard": shard} {
		sets = append(sets, fmt.Sprintf("parallel.%s=%d", key, n))
	}
	data := expert * replicate * shard
	sets = append(sets, fmt.Sprint("parallel.ranks=", data*context*tensor*pipeline), fmt.Sprint("zero.stage=", stage), "model.context=12", "train.micro_batch=2")
	precise = draw("precision", "fp32", "fp32", "bf16") == "fp32"
	draw("optimizer.type", "adamw", "lion", "sgd")
	draw("zero.recompute", "none", "elementwise", "mlp", "linear", "block")
	draw("zero.prefetch", "0", "1", "2")
	draw("train.router_aux", "0", "0.1")
	if pipeline > 1 {
		draw("pipeline.schedule", "GPipe", "1F1B")
	}
	return append(sets, fmt.Sprint("train.batch=", 2*micros*data)), precise
}
