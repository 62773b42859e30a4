package tests

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/checkpoint/checkpointtest"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/state"
	"zeroth/shard"
	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// divisible is a model whose matrices four ranks can divide; the last rank has fewer tokens of
// the vocabulary.
var divisible = []string{"model.layers=2", "model.heads=4", "model.width=24", "model.context=8", "model.vocab=257"}

// families contains a model for each way of dividing.
var families = map[string][]string{
	"gpt2":          {"model.family=gpt2"},
	"gpt2 dropout":  {"model.family=gpt2", "model.dropout=0.1", "model.attention_dropout=0.1"},
	"gpt2 lora":     {"model.family=gpt2", "train.lora.rank=2", "train.lora.targets=[all-linear]"},
	"llama":         {"model.family=llama", "model.ffn=32"},
	"llama dropout": {"model.family=llama", "model.ffn=32", "model.dropout=0.1", "model.attention_dropout=0.1"},
	"llama tied":    {"model.family=llama", "model.ffn=32", "model.tied=true"},
	"llama lora":    {"model.family=llama", "model.ffn=32", "train.lora.rank=2", "train.lora.targets=[all-linear]"},
	"llama frozen":  {"model.family=llama", "model.ffn=32", "train.freeze=[\"*.mlp.*\", \"*norm*\"]"},
}

// TestTensorAgreesWithWhole checks that divided matrices give the results of whole ones up to
// rounding, at every stage. For each number of ranks that divide them, the same stages agree to
// the bit as for whole ones.
func TestTensorAgreesWithWhole(t *testing.T) {
	nightly.Parallel(t)
	for i, name := range slices.Sorted(maps.Keys(families)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sets := append(append([]string{"precision=fp32", "parallel.shard=2", "train.accumulate=2", "optimizer.type=sgd", "optimizer.lr=0.05", "device=cpu"}, divisible...), families[name]...)
			want := zerotest.Train(t, cfg(t, sets...), nil)
			for _, n := range []int{2, 4} {
				var alike [2]*zerotest.Outcome // whether gradients stay whole over micro-batches
				for stage := range 4 {
					if !nightly.Every(2, i/2+n/4) || !nightly.Every(2, i+stage/2) {
						continue
					}
					what := fmt.Sprintf("tensor %d, stage %d", n, stage)
					got := zerotest.Train(t, cfg(t, append(sets[:len(sets):len(sets)], fmt.Sprint("parallel.tensor=", n), fmt.Sprint("zero.stage=", stage))...), nil)
					zerotest.Near(t, what, got, want, 1e-5)
					for i, loss := range want.Losses {
						if math.Abs(got.Losses[i]-loss) > 1e-6*loss || math.Abs(got.Norms[i]-want.Norms[i]) > 1e-5*want.Norms[i] {
							t.Errorf("%s: loss %g and norm %g, want %g and %g", what, got.Losses[i], got.Norms[i], loss, want.Norms[i])
						}
					}
					if alike[stage/2] == nil {
						alike[stage/2] = &got
					}
					zerotest.SameBits(t, what, got, *alike[stage/2])
				}
			}
		})
	}
}

// TestTensorsAllocateAsPlanned checks that every rank of random meshes with divided matrices and
// sequences allocates and uses the planned memory.
func TestTensorsAllocateAsPlanned(t *testing.T) {
	nightly.Parallel(t)
	draws := nightly.Of(8, 200)
	for i := range draws {
		rng := rand.New(rand.NewPCG(26, uint64(i)))
		sets := append([]string{}, divisible...)
		pick := func(values ...string) { sets = append(sets, values[rng.IntN(len(values))]) }
		pick("model.family=gpt2", "model.family=llama")
		pick("precision=fp32", "precision=bf16")
		pick("parallel.tensor=1", "parallel.tensor=2", "parallel.tensor=4")
		pick("parallel.shard=1", "parallel.shard=2", "parallel.shard=3")
		pick("parallel.pipeline=1", "parallel.pipeline=2")
		pick("parallel.context=1", "parallel.context=2")
		pick("zero.recompute=none", "zero.recompute=elementwise", "zero.recompute=mlp", "zero.recompute=linear", "zero.recompute=block")
		if slices.Contains(sets, "zero.recompute=linear") {
			pick("train.mlp_chunk=0", "train.mlp_chunk=6")
		}
		pick("zero.prefetch=0", "zero.prefetch=2")
		pick("train.loss_chunk=5", "train.loss_chunk=1024")
		pick("train.accumulate=1", "train.accumulate=3")
		if rng.IntN(3) == 0 {
			sets = append(sets, packs...)
		}
		stage := rng.IntN(4)
		sets = append(sets, fmt.Sprint("zero.stage=", stage), "device=cpu")
		if stage > 0 {
			pick("parallel.replicate=1", "parallel.replicate=2")
			pick("zero.offload.optimizer=none", "zero.offload.optimizer=host")
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			allocatesAsPlanned(t, cfg(t, sets...), strings.Join(sets, " "))
		})
	}
}

// TestTensorBits checks that pipelines of divided matrices are bit-identical to no pipeline, and
// that settings that do not affect the order of sums do not change the bits.
func TestTensorBits(t *testing.T) {
	nightly.Parallel(t)
	base := append([]string{"model.family=llama", "model.ffn=32", "precision=bf16", "parallel.tensor=2", "parallel.shard=2", "train.accumulate=4", "device=cpu", "model.dropout=0.1"}, divisible...)
	base = append(base, "model.layers=4", "train.steps=2")
	jobs := map[string][]string{
		"adamw": {}, "muon": {"optimizer.type=muon"}, "adamw8bit": {"optimizer.type=adamw8bit"}, "fp16": {"precision=fp16"}, "replicas": {"parallel.replicate=2"},
		"prefetch": {"zero.prefetch=0"},
	}
	for i, name := range slices.Sorted(maps.Keys(jobs)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, stage := range []int{1, 3} {
				if !nightly.Every(2, i+stage/2) {
					continue
				}
				sets := append(append(base[:len(base):len(base)], fmt.Sprint("zero.stage=", stage)), jobs[name]...)
				want := zerotest.Train(t, cfg(t, sets...), nil)
				for j, way := range [][]string{
					{"zero.recompute=block"}, {"zero.offload.optimizer=host"},
					{"parallel.pipeline=2", "pipeline.schedule=GPipe"}, {"parallel.pipeline=2", "pipeline.schedule=ZBH1"}, {"parallel.pipeline=2", "pipeline.schedule=Interleaved1F1B"},
				} {
					if !nightly.Every(5, i+j) {
						continue
					}
					zerotest.SameBits(t, fmt.Sprintf("stage %d, %v", stage, way), zerotest.Train(t, cfg(t, append(sets[:len(sets):len(sets)], way...)...), nil), want)
				}
			}
		})
	}
}

// TestTensorMuon checks that Muon updates whole matrices even if they are divided: each element
// moves as without division, up to the rounding of gradients. Updating the parts separately would
// differ by as much as the learning rate.
func TestTensorMuon(t *testing.T) {
	nightly.Parallel(t)
	for _, family := range [][]string{{"model.family=gpt2"}, {"model.family=llama", "model.ffn=32", "model.kv_heads=4"}} {
		for stage := range 4 {
			const lr = 0.01
			sets := append(append([]string{"precision=fp32", "parallel.shard=2", "optimizer.type=muon", fmt.Sprint("optimizer.lr=", lr), "train.steps=1", fmt.Sprint("zero.stage=", stage), "device=cpu"}, divisible...), family...)
			want := zerotest.Train(t, cfg(t, sets...), nil)
			for _, n := range []int{2, 4} {
				got := zerotest.Train(t, cfg(t, append(sets[:len(sets):len(sets)], fmt.Sprint("parallel.tensor=", n))...), nil)
				matrices := 0
				for name, w := range want.State {
					if !strings.HasPrefix(name, "momentum_buffer ") {
						continue
					}
					matrices++
					master := "master " + strings.TrimPrefix(name, "momentum_buffer ")
					for i, x := range want.State[master] {
						if d := math.Abs(float64(got.State[master][i] - x)); d > 0.03*lr {
							t.Fatalf("%v: stage %d, tensor %d: %s[%d] = %g, want %g", family, stage, n, master, i, got.State[master][i], x)
						}
					}
					if len(got.State[name]) != len(w) {
						t.Errorf("%s has %d elements, want %d", name, len(got.State[name]), len(w))
					}
				}
				if matrices < 8 {
					t.Errorf("%d matrices", matrices)
				}
			}
		}
	}
}

// TestMeshesBeginAlike checks that every mesh of up to eight ranks begins with the same
// checkpoint: rewritten by one writer, its files and its export have the same bytes.
func TestMeshesBeginAlike(t *testing.T) {
	nightly.Parallel(t)
	for family, sets := range map[string][]string{
		"gpt2":  {"model.heads=24", "model.width=48", "model.context=24"},
		"llama": {"model.heads=24", "model.width=48", "model.context=24", "model.ffn=48"},
		"odd":   {"model.family=llama", "model.heads=35", "model.width=70", "model.context=35", "model.ffn=70"}, // heads for 5 and 7 ranks
	} {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			if family != "odd" {
				sets = append(sets, "model.family="+family)
			}
			var want map[string][]byte
			for i, m := range meshes(8) {
				if odd := m.Tensor == 5 || m.Tensor == 7; odd != (family == "odd") && m.World() > 1 || family == "odd" && m.Context > 1 || family != "odd" && !nightly.Every(12, i) {
					continue
				}
				dir := t.TempDir()
				mesh := fmt.Sprintf("parallel={pipeline: %d, replicate: %d, shard: %d, context: %d, tensor: %d}", m.Pipeline, m.Replicate, m.Shard, m.Context, m.Tensor)
				got := begun(t, dir, cfg(t, append(sets[:len(sets):len(sets)], "model.layers=8", "model.vocab=257", "train.micro_batch=1", "device=cpu",
					mesh, fmt.Sprint("zero.stage=", 1+m.World()%3), "checkpoint.async=false", "checkpoint.every=1", "checkpoint.dir="+dir)...))
				if want == nil {
					want = got
				}
				for name, w := range want {
					if !bytes.Equal(got[name], w) {
						t.Errorf("%s: %s has other bytes", mesh, name)
					}
				}
				if len(got) != len(want) || len(got) < 2 {
					t.Errorf("%s: %d files, want %d", mesh, len(got), len(want))
				}
				os.RemoveAll(dir)
			}
		})
	}
}

// begun saves a job's first checkpoint and returns the data files of a copy by one writer and of
// its export.
func begun(t *testing.T, dir string, c *spec.Job) map[string][]byte {
	t.Helper()
	j := setup.Local(c)
	ranks, err := setup.Open(j)
	if err != nil {
		t.Fatal(err)
	}
	savers, err := state.OpenSavers(j, ranks)
	if err == nil {
		err = setup.Together(ranks, func(r *setup.Rank) error {
			return cmp.Or(zerotest.Fresh(r), savers[r.Rank].Save(state.Progress{Data: "none"}, nil), savers[r.Rank].End(true).Err)
		})
	}
	zerotest.CloseAll(ranks)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "step-00000000")
	if bad, err := checkpoint.Verify(t.Context(), path, checkpoint.Walk{}); err != nil || len(bad) > 0 {
		t.Fatal(bad, err)
	}
	ck, err := checkpoint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	again := checkpointtest.Copy(t, ck, filepath.Join(dir, "again"))
	if err := (checkpoint.Export{}).Write(t.Context(), ck, ck.Path, filepath.Join(dir, "model")); err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, folder := range []string{again, filepath.Join(dir, "model")} {
		names, _ := filepath.Glob(filepath.Join(folder, "*.safetensors")) // the pattern is valid
		for _, name := range names {
			if all[filepath.Base(name)], err = os.ReadFile(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

// meshes returns all meshes of up to most ranks, with context 1 or 2.
func meshes(most int) (all []shard.Mesh) {
	for p := 1; p <= most; p++ {
		for r := 1; r*p <= most; r++ {
			for s := 1; s*r*p <= most; s++ {
				for n := 1; n*s*r*p <= most; n++ {
					for c := 1; c*n*s*r*p <= most && c <= 2; c++ {
						all = append(all, shard.Mesh{Pipeline: p, Replicate: r, Shard: s, Context: c, Tensor: n})
					}
				}
			}
		}
	}
	return all
}

// TestDrawnResumes checks that one checkpoint of divided matrices resumes on random meshes with
// the same state.
func TestDrawnResumes(t *testing.T) {
	nightly.Parallel(t)
	for family, sets := range map[string][]string{"gpt2": {"model.family=gpt2"}, "llama": {"model.family=llama", "model.ffn=32", "model.kv_heads=4", "optimizer.type=muon"}} {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			sets = append(append(sets, divisible...), "model.layers=4", "train.batch=48", "device=cpu")
			run(t, saving(t, dir, append(sets[:len(sets):len(sets)], "parallel={pipeline: 2, shard: 2, tensor: 2}", "zero.stage=2", "train.accumulate=2")...), "")
			want, drawn := digest(t, dir, "3"), map[string]bool{}
			for i := uint64(0); len(drawn) < nightly.Of(2, 10); i++ {
				rng := rand.New(rand.NewPCG(4, i))
				of := func(n ...int) int { return n[rng.IntN(len(n))] }
				mesh := fmt.Sprintf("parallel={pipeline: %d, replicate: %d, shard: %d, tensor: %d}", of(1, 2, 4), of(1, 2), of(1, 2, 3), of(1, 2, 4))
				if drawn[mesh] {
					continue
				}
				drawn[mesh] = true
				second := t.TempDir()
				sets := append(sets[:len(sets):len(sets)], mesh, fmt.Sprint("zero.stage=", of(1, 2, 3)), "zero.offload.optimizer="+[]string{"none", "host"}[of(0, 1)], "train.steps=3")
				run(t, saving(t, second, sets...), filepath.Join(dir, "step-00000003"))
				if got := digest(t, second, "3"); got != want {
					t.Errorf("%v: other state", sets)
				}
			}
		})
	}
}

// TestTensorsResume checks that a run with divided matrices resumes with another division, or
// none, with the same state.
func TestTensorsResume(t *testing.T) {
	nightly.Parallel(t)
	for _, optimizer := range []string{"adamw", "muon"} {
		t.Run(optimizer, func(t *testing.T) {
			t.Parallel()
			topologies := [][]string{
				{"parallel.ranks=4", "parallel.tensor=4", "zero.stage=1"},
				{"parallel.ranks=1", "zero.stage=0", "precision=fp32"},
				{"parallel.ranks=4", "parallel.tensor=2", "zero.stage=3"},
				{"parallel.ranks=4", "parallel.tensor=2", "parallel.pipeline=2", "zero.stage=2", "train.accumulate=2"},
				{"parallel.ranks=2", "zero.stage=1", "zero.offload.optimizer=host"},
			}
			if optimizer == "muon" {
				topologies = topologies[1:3]
			}
			resumeOn(t, topologies, append(slices.Clone(divisible), "optimizer.type="+optimizer, "device=cpu")...)
		})
	}
}
