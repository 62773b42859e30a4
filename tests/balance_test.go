package tests

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/job"
	"zeroth/job/report"
	"zeroth/tests/nightly"
)

// balances reports whether transformers' class of the model has a balancing loss.
func (m mixture) balances() bool { return m.AuxLoss != 0 }

// coefficient returns router_aux_loss_coef of the model's config.json.
func (m mixture) coefficient(t *testing.T) (of float64) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(m.folder, "model", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Coefficient float64 `json:"router_aux_loss_coef"`
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	return config.Coefficient
}

// TestBalance compares the balancing loss of a micro-batch, with and without padding, and the gradients of routers
// and of a matrix before them with transformers', on several meshes; and the losses of six steps.
func TestBalance(t *testing.T) {
	nightly.Parallel(t)
	eachMixture(t, func(t *testing.T, m mixture) {
		if !m.balances() {
			return
		}
		grads := map[string][]float32{}
		if _, err := os.Stat(filepath.Join(m.folder, "balanced")); err == nil {
			grads = m.read(t, "balanced")
		}
		coef := m.coefficient(t)
		on := []string{"model.context=16", fmt.Sprint("train.router_aux=", coef)}
		for _, sets := range [][]string{
			{"parallel.ranks=1"}, {"parallel.ranks=1", "zero.recompute=block"}, {"parallel.ranks=2", "parallel.context=2", "zero.stage=3"},
			{"parallel.ranks=4", "parallel.tensor=2", "parallel.context=2"}, {"parallel.ranks=2", "parallel.pipeline=2"},
			{"parallel.ranks=4", "parallel.pipeline=2", "parallel.tensor=2"},
		} {
			if strings.Contains(fmt.Sprint(sets), "tensor") && m.family("olmoe", "minimax_m2") {
				continue // it has norms over all heads
			}
			m.valid = 0
			got := m.train(t, 1, append(sets, on...)...)
			within(t, fmt.Sprint(sets, ": the balancing loss"), got.Aux[0], m.AuxLoss, 1e-6)
			within(t, fmt.Sprint(sets, ": both losses"), got.Losses[0]+coef*got.Aux[0], m.BalancedAdamW[0], 1e-6)
			for name, w := range grads {
				param := strings.TrimPrefix(name, "grad.")
				sameGradient(t, fmt.Sprint(sets, ": ", param), got.State["momentum_buffer "+param], w)
			}
			if m.Masked.AuxLoss == 0 {
				continue
			}
			m.valid = maskedTokens
			got = m.train(t, 1, append(sets, on...)...)
			within(t, fmt.Sprint(sets, ": the balancing loss without padding"), got.Aux[0], m.Masked.AuxLoss, 1e-6)
			within(t, fmt.Sprint(sets, ": both losses without padding"), got.Losses[0]+coef*got.Aux[0], m.Masked.Balanced, 1e-6)
		}
		m.valid = 0
		got := m.train(t, len(m.BalancedAdamW), append(on, "optimizer.type=adamw", "optimizer.weight_decay=0.1", "optimizer.betas=[0.9, 0.95]", "optimizer.eps=1e-8", "train.clip=1", "parallel.ranks=1")...)
		for i, w := range m.BalancedAdamW {
			within(t, fmt.Sprintf("the losses of step %d", i+1), got.Losses[i]+coef*got.Aux[i], w, 1e-5)
		}
	})
}

// TestBalanceDependsOnMicroBatches checks that ranks that divide experts, data, layers, positions or matrices have
// the balancing loss and the gradients of one rank with as many micro-batches, and that stages, recomputation and
// schedules have the same bits.
func TestBalanceDependsOnMicroBatches(t *testing.T) {
	m := readMixture(t, filepath.Join(expertModels, "qwen2_moe"))
	m.valid = maskedTokens
	base := []string{"model.context=16", "train.batch=8", "train.micro_batch=2", "train.router_aux=0.5"}
	run := func(steps int, sets ...string) mixtureRun { return m.train(t, steps, slices.Concat(base, sets)...) }
	want := run(1, "parallel.ranks=1")
	for _, sets := range [][]string{
		{"parallel.ranks=4", "zero.stage=3", "zero.recompute=block"}, {"parallel.ranks=2", "parallel.expert=2"},
		{"parallel.ranks=4", "parallel.expert=2", "parallel.tensor=2"}, {"parallel.ranks=4", "parallel.expert=2", "parallel.pipeline=2"},
		{"parallel.ranks=3", "parallel.pipeline=3"}, {"parallel.ranks=4", "parallel.context=2", "parallel.replicate=2"},
	} {
		got := run(1, sets...)
		within(t, fmt.Sprint(sets, ": the balancing loss"), got.Aux[0], want.Aux[0], 1e-6)
		within(t, fmt.Sprint(sets, ": the loss"), got.Losses[0], want.Losses[0], 1e-6)
		for l, w := range want.Balanced.Entropy {
			within(t, fmt.Sprint(sets, ": the entropy of layer ", l), got.Balanced.Entropy[l], w, 1e-12)
			within(t, fmt.Sprint(sets, ": the largest share of layer ", l), got.Balanced.Share[l], want.Balanced.Share[l], 1e-12)
		}
		for name, w := range want.State {
			if param, is := strings.CutPrefix(name, "momentum_buffer "); is {
				sameGradient(t, fmt.Sprint(sets, ": ", param), got.State[name], w)
			}
		}
	}
	for _, precision := range []string{"fp32", "bf16"} {
		more := []string{"train.batch=4", "precision=" + precision, "optimizer.type=adamw", "parallel.ranks=2"}
		want := run(3, append(more, "zero.stage=0")...)
		for _, sets := range [][]string{{"zero.stage=2"}, {"zero.stage=3", "zero.recompute=block"}, {"zero.recompute=mlp"}, {"parallel.ranks=1"}} {
			sameRun(t, fmt.Sprint(precision, sets), run(3, append(more, sets...)...), want)
		}
		piped := append(more, "parallel.pipeline=2", "train.micro_batch=1")
		want = run(3, append(piped, "pipeline.schedule=1F1B")...)
		sameRun(t, precision+" GPipe", run(3, append(piped, "pipeline.schedule=GPipe")...), want)
	}
}

// TestBalanceGradient compares the gradient of the balancing loss with central differences of it.
func TestBalanceGradient(t *testing.T) {
	m := readMixture(t, filepath.Join(expertModels, "mixtral"))
	m.valid = maskedTokens
	const coef, h = 10, 2e-3
	sets := []string{"parallel.ranks=1", "model.context=16"}
	without, with := m.train(t, 1, sets...), m.train(t, 1, append(sets, fmt.Sprint("train.router_aux=", coef))...)
	for _, name := range []string{"model.layers.0.block_sparse_moe.gate.weight", "model.layers.1.block_sparse_moe.gate.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.0.block_sparse_moe.experts.2.w2.weight"} {
		largest, grad := 0, func(i int) float64 {
			return float64(with.State["momentum_buffer "+name][i]-without.State["momentum_buffer "+name][i]) / coef
		}
		for i := range with.State["momentum_buffer "+name] {
			if math.Abs(grad(i)) > math.Abs(grad(largest)) {
				largest = i
			}
		}
		aux := func(by float32) float64 {
			moved := m
			moved.move = func(param string, w []float32) {
				if param == name {
					w[largest] += by
				}
			}
			return moved.train(t, 1, append(sets, fmt.Sprint("train.router_aux=", coef))...).Aux[0]
		}
		within(t, fmt.Sprintf("%s: the gradient of element %d", name, largest), grad(largest), (aux(h)-aux(-h))/(2*h), 1e-2)
	}
}

// TestBalanceOfJobs checks the default of train.router_aux and what a run reports and exports.
func TestBalanceOfJobs(t *testing.T) {
	m := readMixture(t, filepath.Join(expertModels, "mixtral"))
	if c := m.job(t, "parallel.ranks=1"); c.Train.RouterAux != 0 {
		t.Errorf("router_aux is %v by default", c.Train.RouterAux)
	}
	folder := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		raw, err := os.ReadFile(filepath.Join(m.folder, "model", name))
		if err != nil {
			t.Fatal(err)
		}
		raw = []byte(strings.Replace(string(raw), `"output_router_logits": false`, `"output_router_logits": true`, 1))
		if err := os.WriteFile(filepath.Join(folder, name), raw, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	c := m.job(t, "parallel.ranks=2", "model.from="+folder, "train.steps=2", "optimizer.type=adamw")
	if c.Train.RouterAux != 0.02 {
		t.Fatalf("router_aux is %v, want the folder's", c.Train.RouterAux)
	}
	out := t.TempDir()
	if err := job.Run(t.Context(), c, job.Options{Out: out}); err != nil {
		t.Fatal(err)
	}
	steps, _, err := report.ReadMetrics(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	of := steps[1].Metrics
	if aux, share, h := of["router_aux"], of["router_largest_share"], of["router_layer_entropy_1"]; len(of) != 4 || !(aux >= 1 && aux < 8 && share >= 0.125 && share <= 0.5 && h > 0 && h <= math.Log(8)) {
		t.Errorf("metrics %v", of)
	}
	if raw, err := os.ReadFile(filepath.Join(out, "model", "config.json")); err != nil || !strings.Contains(string(raw), `"output_router_logits": true`) {
		t.Errorf("the exported config.json: %s, %v", raw, err)
	}
}
