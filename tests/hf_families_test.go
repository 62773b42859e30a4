package tests

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zeroth/checkpoint/safetensors"
	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/tests/nightly"
)

// hfFamilies contains PyTorch's results for models of every family, computed by make.py there.
// Both sides generate the same parameters and tokens.
const hfFamilies = "testdata/hf-families/expect.json"

// familyVariant is a model in expect.json.
type familyVariant struct {
	number        int             // of the variant, by name
	Config, Saved json.RawMessage // config.json as on the Hub, and as saved by transformers
	Logits        []float64       // of window 3, position 17
	Losses, Norms []float64       // of each step
	Gradients     map[string]float64
}

const familyWindows, familyContext, familyVocab = 6, 24, 61

// scramble returns number i, of 24 bits, of the pseudorandom sequence for a name.
func scramble(name string, i int) uint32 {
	x := crc32.ChecksumIEEE([]byte(name)) + uint32(i+1)*2654435761
	x ^= x >> 15
	x *= 2246822519
	x ^= x >> 13
	return x >> 8
}

// familyValue returns element i of a parameter, like value in make.py.
func familyValue(name string, i int) float32 {
	x := float32(scramble(name, i))*0x1p-25 - 0.25
	if strings.Contains(name, "norm") || strings.Contains(name, ".ln_") && strings.HasSuffix(name, "weight") {
		x++
	}
	return x
}

// writeFamily writes the folder of a variant's model and its tokens.
func writeFamily(t *testing.T, config []byte) (folder, tokens string) {
	t.Helper()
	folder = t.TempDir()
	tokens = filepath.Join(folder, "tokens.bin")
	var ids []byte
	for i := range familyWindows*familyContext + 1 {
		ids = binary.LittleEndian.AppendUint16(ids, uint16(scramble("tokens", i)%familyVocab))
	}
	for name, content := range map[string][]byte{"config.json": config, "tokens.bin": ids} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m, err := hf.ReadModelConfig(folder)
	if err != nil {
		t.Fatal(err)
	}
	var specs []safetensors.Spec
	for _, p := range hf.Parameters(m.Network(nn.LoRA{})) {
		specs = append(specs, safetensors.Spec{Name: p.Name, DType: safetensors.F32, Shape: p.Shape})
	}
	w, err := safetensors.Create(filepath.Join(folder, "model.safetensors"), specs, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range hf.Parameters(m.Network(nn.LoRA{})) {
		values := make([]float32, p.Numel())
		for i := range values {
			values[i] = familyValue(p.Name, i)
		}
		if err := w.WriteF32(p.Name, 0, values); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return folder, tokens
}

// eachFamily runs a test on every variant.
func eachFamily(t *testing.T, f func(t *testing.T, folder, tokens string, v familyVariant)) {
	raw, err := os.ReadFile(hfFamilies)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]familyVariant
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	for i, name := range slices.Sorted(maps.Keys(all)) {
		v := all[name]
		v.number = i
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder, tokens := writeFamily(t, v.Config)
			f(t, folder, tokens, v)
		})
	}
}

// familyJob returns the settings of a job that trains like make.py.
func familyJob(t *testing.T, folder, tokens string, sets ...string) []string {
	return append([]string{fmt.Sprintf("data.tokens=[%q]", tokens), fmt.Sprintf("train.batch=%d", familyWindows), fmt.Sprintf("model.context=%d", familyContext)}, sets...)
}

// familyJobs calls f with a variant's job on whole matrices, and on those that 2 and 4 ranks
// divide, where its heads can be divided so.
func familyJobs(t *testing.T, folder, tokens string, v familyVariant, sets []string, f func(c *spec.Job)) {
	t.Helper()
	m, err := hf.ReadModelConfig(folder)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range []int{1, 2, 4} {
		if !nightly.Every(3, i+v.number) && (n > 1 || v.number%3 == 0) {
			continue
		}
		if n == 1 || m.Heads%n == 0 && m.KV%n == 0 && m.HeadNorm != nn.AllHeads {
			f(mustHFConfig(t, folder, "tokens.bin", familyJob(t, folder, tokens, append(sets[:len(sets):len(sets)], fmt.Sprint("parallel.tensor=", n))...)...))
		}
	}
}

// TestFamiliesAreTransformers trains every variant like make.py, on one rank, on three at stage
// 3, and with divided matrices, and compares the losses and gradient norms of ten steps.
// PyTorch's results are float32, too.
func TestFamiliesAreTransformers(t *testing.T) {
	nightly.Parallel(t)
	eachFamily(t, func(t *testing.T, folder, tokens string, v familyVariant) {
		loose := 1.0
		if strings.Contains(string(v.Config), "gemma") {
			loose = 50 // the loss of this tiny Gemma falls so fast that rounding errors grow tenfold in some steps
		}
		for i, sets := range [][]string{{"parallel.shard=1"}, {"parallel.shard=3", "zero.stage=3", "train.micro_batch=1", "zero.recompute=block"}} {
			if !nightly.Every(2, i+v.number) {
				continue
			}
			sets = append(sets, fmt.Sprint("train.steps=", nightly.Of(5, len(v.Losses))))
			familyJobs(t, folder, tokens, v, sets, func(c *spec.Job) {
				steps, _ := runJob(t, c)
				if len(steps) != c.Train.Steps {
					t.Fatalf("%d steps, want %d", len(steps), c.Train.Steps)
				}
				for i, s := range steps {
					what := fmt.Sprintf("%v, tensor %d: the %%s of step %d", sets, c.Parallel.Tensor, s.Step)
					within(t, fmt.Sprintf(what, "loss"), s.Loss, v.Losses[i], loose*1e-6)
					within(t, fmt.Sprintf(what, "norm"), s.GradNorm, v.Norms[i], loose*1e-5)
				}
			})
		}
	})
}

// TestFamiliesGradients compares the loss of the first step and the gradient of every parameter.
func TestFamiliesGradients(t *testing.T) {
	nightly.Parallel(t)
	eachFamily(t, func(t *testing.T, folder, tokens string, v familyVariant) {
		familyJobs(t, folder, tokens, v, []string{"parallel.shard=2", "optimizer.type=sgd", "optimizer.weight_decay=0", "train.steps=1", "train.clip=0"}, func(c *spec.Job) {
			loss, grads := gradients(t, c)
			within(t, fmt.Sprintf("tensor %d: the loss", c.Parallel.Tensor), loss, v.Losses[0], 1e-6)
			all := 0.0
			for _, want := range v.Gradients {
				all += want * want
			}
			for name, want := range v.Gradients {
				if got := norm(grads["momentum_buffer "+name]); !(math.Abs(got-want) <= 3e-6*want+1e-7*math.Sqrt(all)) {
					t.Errorf("tensor %d: the norm of the gradient of %s is %.9g, PyTorch's is %.9g", c.Parallel.Tensor, name, got, want)
				}
			}
			if n := len(hf.Parameters(c.Model.Network(nn.LoRA{}))); n != len(v.Gradients) {
				t.Errorf("%d parameters, PyTorch has %d", n, len(v.Gradients))
			}
		})
	})
}

// TestFamiliesLogits compares the logits of one position.
func TestFamiliesLogits(t *testing.T) {
	nightly.Parallel(t)
	eachFamily(t, func(t *testing.T, folder, tokens string, v familyVariant) {
		m, err := hf.ReadModelConfig(folder)
		if err != nil {
			t.Fatal(err)
		}
		ids := tokenIDs(t, tokens)[3*familyContext : 4*familyContext]
		for i, x := range logits(t, m.Network(nn.LoRA{}), readModel(t, folder), ids, 17) {
			if d := math.Abs(float64(x) - v.Logits[i]); !(d <= 1e-5) {
				t.Errorf("logit %d is %.9g, PyTorch's is %.9g", i, x, v.Logits[i])
			}
		}
	})
}

// TestFamiliesConfigsAreOne checks that the config.json saved by transformers describes the same
// model as the published one.
func TestFamiliesConfigsAreOne(t *testing.T) {
	nightly.Parallel(t)
	eachFamily(t, func(t *testing.T, folder, _ string, v familyVariant) {
		hub, err := hf.ReadModelConfig(folder)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "config.json"), v.Saved, 0o644); err != nil {
			t.Fatal(err)
		}
		saved, carried, err := hf.ReadConfig(folder)
		if err != nil {
			t.Fatal(err)
		}
		notes := slices.DeleteFunc(carried.Notes, func(s string) bool { return strings.Contains(s, "a model of text and images") })
		if d := cmp.Diff(hub, saved); d != "" {
			t.Errorf("as transformers writes it, it is another model:\n%s\n%s", d, v.Saved)
		}
		if len(notes) > 0 {
			t.Errorf("notes of what transformers writes: %q", notes)
		}
	})
}

// TestFamiliesActivationsAreFormula checks that a family's activations match its closed form,
// which the search for settings uses.
func TestFamiliesActivationsAreFormula(t *testing.T) {
	nightly.Parallel(t)
	eachFamily(t, func(t *testing.T, folder, tokens string, v familyVariant) {
		for i, sets := range [][]string{{"precision=fp32"}, {"precision=bf16", "zero.recompute=block", "train.loss_chunk=5"},
			{"precision=bf16", "zero.recompute=elementwise"}, {"precision=fp32", "zero.recompute=mlp"}, {"precision=bf16", "zero.recompute=linear"},
			{"precision=fp32", "zero.recompute=mlp", "train.mlp_chunk=5"}, {"precision=bf16", "zero.recompute=linear", "train.mlp_chunk=5"}} {
			if !nightly.Every(3, i+v.number) {
				continue
			}
			c := mustHFConfig(t, folder, "tokens.bin", familyJob(t, folder, tokens, append(sets, "parallel.ranks=2", "zero.stage=3")...)...)
			f, err := setup.DryRun(setup.Planned(c))
			if err != nil {
				t.Fatal(err)
			}
			rows, chunk, recompute := c.Train.MicroBatch*c.Model.Context, c.Train.LossChunk, spec.Recompute(c)
			g, l := c.Model.GPT2, c.Model.Llama
			g.Shape, l.Shape = c.Model.Shape, c.Model.Shape
			want := gpt2Activations(g, c.Precision, rows, chunk, c.Train.MLPChunk, recompute)
			if c.Model.Family == "llama" {
				want = llamaActivations(l, c.Precision, rows, chunk, c.Train.MLPChunk, recompute)
			}
			if f.Arena != want {
				t.Errorf("%v: a step takes %d bytes of activations, the closed form says %d", sets, f.Arena, want)
			}
		}
	})
}

// TestFamiliesReadPieceByPiece checks that reading a text piece by piece, with cached keys and
// values, gives the logits of reading it whole.
func TestFamiliesReadPieceByPiece(t *testing.T) {
	nightly.Parallel(t)
	eachFamily(t, func(t *testing.T, folder, tokens string, _ familyVariant) {
		m, err := hf.ReadModelConfig(folder)
		if err != nil {
			t.Fatal(err)
		}
		net, ids, weights := m.Network(nn.LoRA{}), tokenIDs(t, tokens)[:familyContext], readModel(t, folder)
		var cache []device.Buffer
		for range net.Blocks {
			cache = append(cache, device.OfF32(make([]float32, familyContext*net.QKV)))
		}
		for past, end := 0, 0; past < len(ids); past = end {
			end = min(len(ids), past+1+past/2)
			if past <= net.LongFrom && end > net.LongFrom && net.LongFrom > 0 {
				past = 0 // rotary frequencies change from here on, so read again from the start
			}
			got, want := logitsOf(t, net, weights, ids[past:end], nn.Sequence{Past: past, T: end - past, Cache: cache}), logits(t, net, weights, ids[:end], end-1)
			for i := range want {
				if d := math.Abs(float64(got[i] - want[i])); d > 1e-6*(1+math.Abs(float64(want[i]))) {
					t.Fatalf("logit %d of token %d after %d others is %g, read whole %g", i, end-past, past, got[i], want[i])
				}
			}
		}
	})
}

// TestGemma3WithImages checks that the language model of a wrapper is found under the names that
// versions of transformers give it, that the image part is reported, and that a run exports the
// language model alone.
func TestGemma3WithImages(t *testing.T) {
	raw, err := os.ReadFile(hfFamilies)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]familyVariant
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	v := all["gemma3, with images"]
	for _, layout := range []struct{ from, to, tower string }{{"model.", "language_model.model.", "vision_tower."}, {"model.", "model.language_model.", "model.vision_tower."}} {
		folder, tokens := writeFamily(t, v.Config)
		params := readModel(t, folder)
		m, err := hf.ReadModelConfig(folder)
		if err != nil {
			t.Fatal(err)
		}
		specs := []safetensors.Spec{{Name: layout.tower + "vision_model.encoder.layers.9.norm.weight", DType: safetensors.F32, Shape: []int{2}}}
		names := map[string]string{}
		for _, p := range hf.Parameters(m.Network(nn.LoRA{})) {
			name := strings.Replace(p.Name, layout.from, layout.to, 1)
			names[name] = p.Name
			specs = append(specs, safetensors.Spec{Name: name, DType: safetensors.F32, Shape: p.Shape})
		}
		w, err := safetensors.Create(filepath.Join(folder, "model.safetensors"), specs, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range specs {
			values := params[names[s.Name]]
			if values == nil {
				values = make([]float32, 2)
			}
			if err := w.WriteF32(s.Name, 0, values); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		var notes []string
		c := mustHFConfig(t, folder, "tokens.bin", familyJob(t, folder, tokens, "train.steps=1", "parallel.ranks=2")...)
		e, err := job.Evaluate(t.Context(), c, job.Evaluating{All: true}, func(s string) { notes = append(notes, s) })
		if err != nil {
			t.Fatal(err)
		}
		within(t, layout.to+": the loss", e.Loss, v.Losses[0], 1e-6)
		if said := strings.Join(notes, "\n"); !strings.Contains(said, "only its language model is used") || !strings.Contains(said, "1 tensors of images (vision_tower, multi_modal_projector) are left out") {
			t.Errorf("%s: notes %q", layout.to, notes)
		}
		out := t.TempDir()
		if err := job.Run(t.Context(), c, job.Options{Out: out}); err != nil {
			t.Fatal(err)
		}
		written, err := os.ReadFile(filepath.Join(out, "model", "config.json"))
		if err != nil || !strings.Contains(string(written), `"gemma3_text"`) || strings.Contains(string(written), "vision_config") || !strings.Contains(string(written), "Gemma3ForCausalLM") {
			t.Errorf("%v: %s", err, written)
		}
		if got := readModel(t, filepath.Join(out, "model")); len(got) != len(params) || got["model.norm.weight"] == nil {
			t.Errorf("%d parameters were exported, want %d", len(got), len(params))
		}
	}
}
