package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/data"
	"zeroth/internal/setup"
	"zeroth/job/state"
	"zeroth/tests/nightly"
	"zeroth/zero"
)

const foreignFolder = "../checkpoint/foreign/testdata"

// TestForeignGoesOn continues DeepSpeed and FSDP runs from their checkpoints. In float32 the
// losses of the following steps equal theirs up to rounding.
func TestForeignGoesOn(t *testing.T) {
	nightly.Parallel(t)
	raw, err := os.ReadFile("testdata/foreign-batches.json")
	if err != nil {
		t.Fatal(err)
	}
	var batches map[string]map[string][][][]int32 // sequences, by number of ranks, step and rank
	if err := json.Unmarshal(raw, &batches); err != nil {
		t.Fatal(err)
	}
	const constant = 1e-3
	for _, test := range []struct {
		folder, ranks string
		rates         [3]float64 // for steps 4 to 6: WarmupDecayLR to 0 in 10 steps for DeepSpeed
		clip          int
	}{
		{"deepspeed/x-z0-fp32-w2", "w2", [3]float64{1e-3, 8.75e-4, 7.5e-4}, 1},
		{"deepspeed/z1-fp32-w2", "w2", [3]float64{1e-3, 8.75e-4, 7.5e-4}, 1},
		{"deepspeed/z3-fp32-w4", "w4", [3]float64{1e-3, 8.75e-4, 7.5e-4}, 1},
		{"dcp/fsdp2-fp32-w2/step-3", "w2", [3]float64{constant, constant, constant}, 0},
	} {
		for _, ranks := range []int{1, 2} {
			t.Run(fmt.Sprint(test.folder, ranks), func(t *testing.T) {
				folder := filepath.Join(foreignFolder, test.folder)
				f, err := state.OpenForeign(folder, "", "")
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				model := filepath.Join(t.TempDir(), "model")
				if _, err := f.Export(t.Context(), model, checkpoint.Export{}); err != nil {
					t.Fatal(err)
				}
				root := t.TempDir()
				path, err := f.Import(t.Context(), root, checkpoint.Options{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				ck, err := checkpoint.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				defer ck.Close()
				if err := os.WriteFile(filepath.Join(model, "tokens.bin"), make([]byte, 400), 0o666); err != nil {
					t.Fatal(err)
				}
				all := batches[test.ranks]
				per := 2 * len(all["4"]) / ranks // sequences per rank
				c := mustHFConfig(t, model, "tokens.bin", "data.tokens=[\""+filepath.Join(model, "tokens.bin")+"\"]", "model.context=16", fmt.Sprint("train.micro_batch=", per), fmt.Sprint("train.batch=", per*ranks), fmt.Sprint("train.clip=", test.clip),
					fmt.Sprint("parallel.ranks=", ranks), "zero.stage=3", "optimizer.weight_decay=0.1", "optimizer.betas=[0.9, 0.95]", "optimizer.eps=1e-8", "train.steps=6")
				losses := goOn(t, setup.InWorld(c, setup.Alone{}, setup.Hooks{}), ck, test.rates, func(step, rank, i int) []int32 {
					n := rank*per + i
					return all[fmt.Sprint(step)][n/2][n%2]
				})
				want := lossesOf(t, folder)
				for i, loss := range losses {
					within(t, fmt.Sprintf("the loss of step %d", 4+i), loss, want[3+i], 1e-6)
				}
			})
		}
	}
}

// goOn loads a checkpoint into the ranks and trains steps 4 to 6.
func goOn(t *testing.T, j *setup.Job, ck *checkpoint.Checkpoint, rates [3]float64, sequence func(step, rank, i int) []int32) (losses [3]float64) {
	t.Helper()
	ranks, err := setup.Open(j)
	if err != nil {
		t.Fatal(err)
	}
	defer setup.CloseAll(ranks)
	err = setup.Together(ranks, func(r *setup.Rank) error {
		r.Trainer.Updates, r.Trainer.Steps = 3, 3
		for _, kind := range r.Trainer.Kinds() {
			err := r.Trainer.Fill(kind, func(p zero.Part, dst []float32) error {
				return ck.ReadAllF32([]checkpoint.RequestF32{{Name: p.Param.Name, Kind: kind, Cut: p.Param.Cut, Range: p.At, Into: dst}}, 1)
			})
			if err != nil {
				return err
			}
		}
		for i, rate := range rates {
			stats, err := r.Trainer.Step(zero.Work{Fill: func(_ int, into []data.Values) error {
				input, target, _ := data.TokensOf(into)
				for k := range len(input) / 16 {
					s := sequence(4+i, r.LocalIndex, k)
					copy(input[16*k:16*(k+1)], s)
					copy(target[16*k:16*(k+1)], s[1:])
				}
				return nil
			}, LR: rate})
			if err != nil {
				return err
			}
			if r.LocalIndex == 0 {
				losses[i] = stats.Loss
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return losses
}

// lossesOf returns the losses in run.json of a fixture.
func lossesOf(t *testing.T, folder string) []float64 {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(strings.TrimSuffix(folder, "/step-3"), "run.json"))
	if err != nil {
		t.Fatal(err)
	}
	var run struct{ Losses []float64 }
	if err := json.Unmarshal(raw, &run); err != nil || len(run.Losses) != 6 {
		t.Fatalf("%v, %d losses", err, len(run.Losses))
	}
	return run.Losses
}
