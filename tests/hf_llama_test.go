package tests

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"zeroth/job"
	"zeroth/job/hf"
	"zeroth/job/report"
	"zeroth/nn"
	"zeroth/tests/nightly"
)

// hfLlama contains models of the Llama family saved by transformers, and PyTorch's float64
// results for them. make.py there creates and describes them.
const hfLlama = "testdata/hf-llama"

// eachLlama runs a test on LlamaForCausalLM (grouped queries, a separate output layer, scaled
// frequencies) and Qwen2ForCausalLM (biases, tied).
func eachLlama(t *testing.T, f func(t *testing.T, folder, tokens string, e computed)) {
	raw, err := os.ReadFile(filepath.Join(hfLlama, "expect.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]computed
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"llama", "qwen2"} {
		t.Run(name, func(t *testing.T) {
			f(t, filepath.Join(hfLlama, name), filepath.Join("..", filepath.Base(hfLlama), "tokens.bin"), all[name])
		})
	}
}

func TestLlamaTrajectoryIsPyTorchs(t *testing.T) { eachLlama(t, sameTrajectory) }

func TestLlamaGradientsArePyTorchs(t *testing.T) { eachLlama(t, sameGradients) }

func TestLlamaLogitsArePyTorchs(t *testing.T) {
	eachLlama(t, func(t *testing.T, folder, tokens string, e computed) {
		m, err := hf.ReadModelConfig(folder)
		if err != nil {
			t.Fatal(err)
		}
		l := nn.Llama{Shape: nn.Shape{Layers: m.Layers, Heads: m.Heads, Width: m.Width, Context: m.Context, Vocab: m.Vocab, Eps: m.Eps}, KV: m.KV, FFN: m.FFN, Theta: m.Theta, Scaling: m.Scaling, Tied: m.Tied, BiasQKV: m.BiasQKV}
		sameLogits(t, l.Model(), folder, filepath.Join(hfModels, tokens), e)
	})
}

func TestLlamaExportIsTheImport(t *testing.T) {
	eachLlama(t, func(t *testing.T, folder, tokens string, _ computed) { sameExport(t, folder, tokens) })
}

// TestShorterSequences checks that a model trained on sequences of half its context has the right
// loss on those tokens and is exported unchanged in shape, including the position rows that were
// never used.
func TestShorterSequences(t *testing.T) {
	nightly.Parallel(t)
	for _, folder := range []string{filepath.Join(hfModels, "tiny"), filepath.Join(hfLlama, "llama")} {
		c := mustHFConfig(t, folder, "tokens.bin", "model.context=16", "train.batch=24", "parallel.ranks=2", "train.steps=1", "optimizer.lr=1e-300")
		out := t.TempDir()
		if err := job.Run(context.Background(), c, job.Options{Out: out}); err != nil {
			t.Fatal(err)
		}
		sameFolders(t, filepath.Join(out, "model"), folder)
		steps, _, err := report.ReadMetrics(filepath.Join(out, "metrics.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		half, _ := gradients(t, mustHFConfig(t, folder, "tokens.bin", "model.context=16", "train.batch=24", "parallel.ranks=1", "train.micro_batch=8"))
		whole, _ := gradients(t, mustHFConfig(t, folder, "tokens.bin", "parallel.ranks=1"))
		within(t, folder+": the loss", steps[0].Loss, half, 1e-6)
		if half == whole {
			t.Errorf("%s: the loss is %g whatever the sequences' length", folder, half)
		}
	}
}
