package tests

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/safetensors/safetensorstest"
	"zeroth/data"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job"
	"zeroth/job/hf"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/zero"
	"zeroth/zero/zerotest"
)

// hfModels contains models saved by transformers and PyTorch's float64 results for them. make.py
// there creates and describes them. Every step trains on all windows of the token file, so their
// order and distribution over ranks change only the order of sums.
const hfModels = "testdata/hf"

type expected struct {
	Tiny computed
	Bare float64 // loss
}

// computed contains PyTorch's results for a model.
type computed struct {
	Loss      float64
	Logits    map[string][]float64 // by "window,position"
	Gradients map[string]tensor
	AdamW     struct {
		Losses, Norms []float64 // one per step
		Params        map[string]tensor
	}
}

// tensor contains the norm of a gradient, or of a parameter's movement, and some elements of the
// flattened gradient or parameter.
type tensor struct {
	Norm float64
	At   map[string]float64
}

func expectations(t *testing.T) (e expected) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(hfModels, "expect.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// hfConfig returns a job that starts from a folder and trains in steps of make.py's size.
func hfConfig(t *testing.T, from, tokens string, sets ...string) (*spec.Job, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "job.yaml")
	text := fmt.Sprintf("model: {from: %q}\ndata: {tokens: [%q], validation: 0}\n", from, filepath.Join(hfModels, tokens))
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return spec.Load(file, append([]string{"train.batch=12", "train.steps=10", "train.clip=1", "train.loss_chunk=50",
		"precision=fp32", "optimizer.lr=1e-3", "schedule.type=constant", "schedule.warmup=0", "parallel.timeout=1m"}, sets...))
}

func mustHFConfig(t *testing.T, from, tokens string, sets ...string) *spec.Job {
	t.Helper()
	c, err := hfConfig(t, from, tokens, sets...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// runJob trains and returns the steps and the exported parameters.
func runJob(t *testing.T, c *spec.Job) ([]report.Step, map[string][]float32) {
	t.Helper()
	return runJobIn(t, c, t.TempDir())
}

// runJobIn is like runJob, with the run folder out.
func runJobIn(t *testing.T, c *spec.Job, out string) ([]report.Step, map[string][]float32) {
	t.Helper()
	if err := job.Run(context.Background(), c, job.Options{Out: out}); err != nil {
		t.Fatal(err)
	}
	steps, _, err := report.ReadMetrics(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return steps, readModel(t, filepath.Join(out, "model"))
}

func readModel(t *testing.T, folder string) map[string][]float32 {
	t.Helper()
	r, err := safetensors.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	all := map[string][]float32{}
	for _, x := range r.Tensors() {
		all[x.Name] = make([]float32, x.Numel())
		if err := r.ReadF32(x.Name, 0, x.Numel(), all[x.Name]); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// within fails unless got equals want with a relative error of at most rel.
func within(t *testing.T, what string, got, want, rel float64) {
	t.Helper()
	if !(math.Abs(got-want) <= rel*math.Abs(want)) {
		t.Errorf("%s is %.9g, PyTorch's is %.9g: %.2g of it apart, allowed %.2g", what, got, want, math.Abs(got/want-1), rel)
	}
}

// hiddenBias reports whether element i of a parameter is the bias of a key. Its gradient is zero
// in exact arithmetic, since softmax ignores what all keys have in common; in float32 it is
// rounding noise, which Adam amplifies.
func hiddenBias(name string, i, n int) bool {
	return strings.HasSuffix(name, "attn.c_attn.bias") && n/3 <= i && i < 2*n/3
}

// topologies lists ways to run make.py's steps of 12 windows.
var topologies = [][]string{
	{"zero.stage=0", "parallel.ranks=1"},
	{"zero.stage=3", "parallel.ranks=4"},
	{"zero.stage=1", "parallel.ranks=3", "train.micro_batch=1", "zero.recompute=block"},
	{"zero.stage=2", "parallel.ranks=4", "parallel.replicate=2", "train.micro_batch=1"},
}

// TestTrajectoryIsPyTorchs trains like make.py, through the job and its files alone, and compares
// the losses and norms of 10 AdamW steps, some of them clipped, and the final parameters.
// Tolerances are about three times the measured difference, which is well below the distance
// between PyTorch's float32 and float64 results (2e-7 in losses and norms, 1.3e-5 in an element;
// see expect.json).
func TestTrajectoryIsPyTorchs(t *testing.T) {
	sameTrajectory(t, filepath.Join(hfModels, "tiny"), "tokens.bin", expectations(t).Tiny)
}

// sameTrajectory trains from a folder in all topologies.
func sameTrajectory(t *testing.T, folder, tokens string, e computed) {
	start := readModel(t, folder)
	for _, sets := range topologies {
		t.Run(strings.Join(sets, ","), func(t *testing.T) {
			t.Parallel()
			steps, end := runJob(t, mustHFConfig(t, folder, tokens, sets...))
			if len(steps) != len(e.AdamW.Losses) || len(end) != len(e.AdamW.Params) {
				t.Fatalf("%d steps and %d parameters, want %d and %d", len(steps), len(end), len(e.AdamW.Losses), len(e.AdamW.Params))
			}
			for i, s := range steps {
				within(t, fmt.Sprintf("the loss of step %d", s.Step), s.Loss, e.AdamW.Losses[i], 1e-7)
				within(t, fmt.Sprintf("the gradient norm of step %d", s.Step), s.GradNorm, e.AdamW.Norms[i], 5e-7)
			}
			for name, want := range e.AdamW.Params {
				within(t, "the way of "+name, moved(name, start[name], end[name]), want.Norm, 5e-6)
				elements(t, name, end[name], want.At, 1e-6, hiddenBias)
			}
		})
	}
}

// moved returns the norm of the difference between two values of a parameter.
func moved(name string, from, to []float32) float64 {
	var sum float64
	for i := range to {
		if d := float64(to[i]) - float64(from[i]); !hiddenBias(name, i, len(to)) {
			sum += d * d
		}
	}
	return math.Sqrt(sum)
}

// elements fails unless the elements in want have those values within an absolute tolerance,
// ignoring elements for which skip returns true.
func elements(t *testing.T, name string, got []float32, want map[string]float64, tol float64, skip func(string, int, int) bool) {
	t.Helper()
	for key, w := range want {
		i, err := strconv.Atoi(key)
		if err != nil || i >= len(got) {
			t.Fatalf("element %q of %d of %s", key, len(got), name)
		}
		if d := math.Abs(float64(got[i]) - w); !(d <= tol) && !skip(name, i, len(got)) {
			t.Errorf("%s[%d] is %.9g, PyTorch's is %.9g: %.2g apart, allowed %.2g", name, i, got[i], w, d, tol)
		}
	}
}

// TestLowPrecisionFollowsPyTorch bounds how much bf16 (2^-9 per rounding) and fp16 (2^-12, with a
// loss scale) change the losses of 10 steps.
func TestLowPrecisionFollowsPyTorch(t *testing.T) {
	e := expectations(t).Tiny
	for precision, tol := range map[string]float64{"bf16": 1e-3, "fp16": 1e-4} {
		t.Run(precision, func(t *testing.T) {
			t.Parallel()
			steps, _ := runJob(t, mustHFConfig(t, filepath.Join(hfModels, "tiny"), "tokens.bin", "parallel.ranks=2", "precision="+precision))
			if len(steps) != len(e.AdamW.Losses) {
				t.Fatalf("%d steps, want %d", len(steps), len(e.AdamW.Losses))
			}
			for i, s := range steps {
				within(t, fmt.Sprintf("the loss of step %d", s.Step), s.Loss, e.AdamW.Losses[i], tol)
				if s.Skipped > 0 {
					t.Errorf("step %d: %d skipped", s.Step, s.Skipped)
				}
			}
		})
	}
}

// TestGradientsArePyTorchs compares the gradients of one step, which equal the momentum after the
// first step of SGD.
func TestGradientsArePyTorchs(t *testing.T) {
	sameGradients(t, filepath.Join(hfModels, "tiny"), "tokens.bin", expectations(t).Tiny)
}

// sameGradients trains one step from a folder in all topologies.
func sameGradients(t *testing.T, folder, tokens string, e computed) {
	for _, sets := range topologies {
		t.Run(strings.Join(sets, ","), func(t *testing.T) {
			t.Parallel()
			c := mustHFConfig(t, folder, tokens, append(sets, "optimizer.type=sgd", "optimizer.weight_decay=0", "train.steps=1", "train.clip=0")...)
			loss, grads := gradients(t, c)
			within(t, "the loss", loss, e.Loss, 1e-7)
			for name, want := range e.Gradients {
				g := grads["momentum_buffer "+name]
				within(t, "the norm of the gradient of "+name, norm(g), want.Norm, 1e-6)
				elements(t, "the gradient of "+name, g, want.At, 5e-6*want.Norm/math.Sqrt(float64(len(g))), none)
			}
		})
	}
}

func none(string, int, int) bool { return false }

func norm(x []float32) float64 { return moved("", make([]float32, len(x)), x) }

// gradients trains one step from the job's folder and returns its loss and the state after it.
func gradients(t *testing.T, c *spec.Job) (loss float64, state map[string][]float32) {
	t.Helper()
	weights := readModel(t, c.Model.From)
	ids := tokenIDs(t, c.Data.Tokens[0])
	ranks, err := setup.Open(setup.Local(c))
	if err != nil {
		t.Fatal(err)
	}
	mesh := spec.Mesh(c)
	share := spec.Share(c)
	state = map[string][]float32{}
	turn := make(chan struct{}, 1) // whoever holds it may write to state
	err = setup.Together(ranks, func(r *setup.Rank) error {
		defer r.Close()
		err := r.Trainer.Fill(zero.Master, func(p zero.Part, dst []float32) error {
			for tensor, own := range p.Param.Runs(p.At) {
				copy(dst[own.Lo-p.At.Lo:], weights[p.Param.Name][tensor.Lo:tensor.Hi])
			}
			return nil
		})
		if err != nil {
			return err
		}
		s, err := r.Trainer.Step(zero.Work{Fill: func(micro int, into []data.Values) error {
			input, target, _ := data.TokensOf(into)
			at := int(share.First(0, micro, mesh.DataRank(r.Rank))) * c.Model.Context
			copy(input, ids[at:])
			copy(target, ids[at+1:])
			return nil
		}, LR: c.Optimizer.LR})
		if err != nil {
			return err
		}
		turn <- struct{}{}
		defer func() { <-turn }()
		loss = s.Loss
		return zerotest.Collect(r, state)
	})
	if err != nil {
		t.Fatal(err)
	}
	return loss, state
}

// tokenIDs returns all ids of a token file.
func tokenIDs(t *testing.T, file string) (ids []int32) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for ; len(raw) > 0; raw = raw[2:] {
		ids = append(ids, int32(binary.LittleEndian.Uint16(raw)))
	}
	return ids
}

// TestLogitsArePyTorchs runs the model on one window and compares the logits of a position, which
// are of order 1.
func TestLogitsArePyTorchs(t *testing.T) {
	m, err := hf.ReadModelConfig(filepath.Join(hfModels, "tiny"))
	if err != nil {
		t.Fatal(err)
	}
	g := nn.GPT2{Shape: nn.Shape{Layers: m.Layers, Heads: m.Heads, Width: m.Width, Context: m.Context, Vocab: m.Vocab, Eps: m.Eps}}
	sameLogits(t, g.Model(), filepath.Join(hfModels, "tiny"), filepath.Join(hfModels, "tokens.bin"), expectations(t).Tiny)
}

// sameLogits runs a folder's model and compares its logits.
func sameLogits(t *testing.T, m *nn.Model, folder, tokens string, e computed) {
	ids, weights := tokenIDs(t, tokens), readModel(t, folder)
	for key, want := range e.Logits {
		var window, position int
		if _, err := fmt.Sscanf(key, "%d,%d", &window, &position); err != nil {
			t.Fatal(err)
		}
		got := logits(t, m, weights, ids[window*m.Context:(window+1)*m.Context], position)
		for i, w := range want {
			if d := math.Abs(float64(got[i]) - w); !(d <= 5e-6) {
				t.Errorf("logit %d of window %d, position %d is %.9g, PyTorch's is %.9g", i, window, position, got[i], w)
			}
		}
	}
}

// logits returns the model's logits at one position of a window.
func logits(t *testing.T, m *nn.Model, weights map[string][]float32, ids []int32, at int) []float32 {
	t.Helper()
	return logitsOf(t, m, weights, ids[:at+1], nn.Sequence{T: at + 1})
}

// logitsOf returns the model's logits at the last position of pieces of sequences.
func logitsOf(t *testing.T, m *nn.Model, weights map[string][]float32, ids []int32, pieces ...nn.Sequence) []float32 {
	t.Helper()
	dev := cpu.NewHost(2)
	q := dev.NewQueue("test")
	defer func() { q.Close(); dev.Close() }()
	mem := device.NewArena(device.OfF32(make([]float32, 1<<17)))
	out := make([]float32, len(pieces)*m.Vocab)
	bt := nn.Batch{B: 1, T: len(ids), Input: device.OfI32(ids), Logits: device.OfF32(out), Sequences: pieces}
	var x device.Buffer
	for _, mod := range m.Modules {
		var all []float32
		for _, p := range mod.Params() {
			all = append(all, weights[p.Name]...)
		}
		var w []device.Buffer
		for unit, at := device.OfF32(all), 0; len(w) < len(mod.Params()); {
			n := len(weights[mod.Params()[len(w)].Name])
			w, at = append(w, unit.Slice(at, at+n)), at+n
		}
		y := mem.Take(device.F32, bt.Rows()*m.Width)
		mod.Forward(q, mem, w, &bt, x, y, nil)
		x = y
	}
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestExportIsTheImport checks that after one step with learning rate 0 the exported model is
// bit-identical to the imported one, with the same names and configuration.
func TestExportIsTheImport(t *testing.T) {
	sameExport(t, filepath.Join(hfModels, "tiny"), "tokens.bin")
}

// sameExport checks this in all topologies.
func sameExport(t *testing.T, folder, tokens string) {
	for _, sets := range topologies {
		t.Run(strings.Join(sets, ","), func(t *testing.T) {
			t.Parallel()
			c := mustHFConfig(t, folder, tokens, append(sets, "train.steps=1", "optimizer.lr=1e-300")...)
			out := t.TempDir()
			if err := job.Run(context.Background(), c, job.Options{Out: out}); err != nil {
				t.Fatal(err)
			}
			sameFolders(t, filepath.Join(out, "model"), folder)
		})
	}
}

func sameFolders(t *testing.T, got, want string) {
	t.Helper()
	a, errA := hf.ReadModelConfig(got)
	b, errB := hf.ReadModelConfig(want)
	if errA != nil || errB != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("config %+v (%v), want %+v (%v)", a, errA, b, errB)
	}
	x, y := rawModel(t, got), rawModel(t, want)
	if len(x) != len(y) {
		t.Errorf("%d tensors, want %d", len(x), len(y))
	}
	for name := range y {
		if !bytes.Equal(x[name], y[name]) {
			t.Errorf("%s differs", name)
		}
	}
}

// rawModel returns every tensor of a folder: its dtype and shape, a line feed, and its bytes.
func rawModel(t *testing.T, folder string) map[string][]byte {
	t.Helper()
	r, err := safetensors.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	all := map[string][]byte{}
	for _, x := range r.Tensors() {
		head := fmt.Appendf(nil, "%v %v\n", x.DType, x.Shape)
		b := make([]byte, x.Numel()*x.DType.Size())
		if err := r.ReadRaw(x.Name, 0, x.Numel(), b); err != nil {
			t.Fatal(err)
		}
		all[x.Name] = append(head, b...)
	}
	return all
}

// TestOtherFolders loads the files that transformers writes for a model without its head (no
// "transformer." prefix; here in bfloat16 and with the masks of older versions) and for a model
// split into several files. Both contain the same parameters, and both are exported under the
// full names.
func TestOtherFolders(t *testing.T) {
	want := expectations(t).Bare
	for _, folder := range []string{"bare", "parts"} {
		c := mustHFConfig(t, filepath.Join(hfModels, folder), "bare.bin", "parallel.ranks=3", "train.steps=1", "optimizer.lr=1e-300")
		steps, end := runJob(t, c)
		within(t, folder+": the loss", steps[0].Loss, want, 1e-7)
		parts := readModel(t, filepath.Join(hfModels, "parts"))
		if len(end) != len(parts) {
			t.Errorf("%s: %d tensors exported, want %d", folder, len(end), len(parts))
		}
		for name, w := range parts {
			if !slices.Equal(end[name], w) {
				t.Errorf("%s: %s differs", folder, name)
			}
		}
	}
}

// TestRefusedFolders checks that a folder is rejected, with the location of the problem and
// before anything is written, if it does not match its config or its model would be computed
// differently from how it was trained.
func TestRefusedFolders(t *testing.T) {
	for _, c := range []struct {
		name, key, value string // of config.json
		drop             string // tensor to remove
		want             string // part of the error
	}{
		{name: "missing tensor", drop: "transformer.h.1.ln_2.bias", want: "transformer.h.1.ln_2.bias is missing"},
		{name: "another shape", key: "n_positions", value: "31", want: "transformer.wpe.weight has shape [32 48], but config.json implies [31 48]"},
		{name: "more layers", key: "n_layer", value: "3", want: "12 parameters are missing: transformer.h.2.ln_1.weight, "},
		{name: "architecture", key: "model_type", value: `"bert"`, want: `config.json: model_type "bert" is not supported; want gpt2, llama, mistral, qwen2, qwen3, olmo2, olmo3, phi3, smollm3, granite, gemma, gemma2, gemma3_text, mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoeshared, glm4_moe, dots1 or minimax_m2`},
		{name: "heads", key: "n_head", value: "5", want: "n_head 5 does not divide n_embd 48"},
		{name: "inner", key: "n_inner", value: "96", want: "transformer.h.0.mlp.c_fc.weight has shape [48 192], but config.json implies [48 96]"},
		{name: "activation", key: "activation_function", value: `"mish"`, want: `activation_function "mish" is not supported; want gelu, `},
		{name: "untied", key: "tie_word_embeddings", value: "false", want: "lm_head.weight is missing"},
		{name: "cross attention", key: "add_cross_attention", value: "true", want: "add_cross_attention true is not supported"},
		{name: "eps", key: "layer_norm_epsilon", value: "0", want: "layer_norm_epsilon 0 is out of range"},
		{name: "no number", key: "n_layer", value: `"two"`, want: `config.json: n_layer "two" is not a whole number`},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder := variant(t, c.key, c.value, c.drop)
			out := filepath.Join(t.TempDir(), "run")
			cfg, err := hfConfig(t, folder, "tokens.bin", "parallel.ranks=1", "data.tokenizer=bytes")
			if err == nil {
				err = job.Run(context.Background(), cfg, job.Options{Out: out})
				if !input.IsInput(err) {
					t.Errorf("%v is not called the user's error", err)
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), folder) {
				t.Errorf("error %v, want one with %q about %s", err, c.want, folder)
			}
			if _, err := os.Stat(out); err == nil {
				t.Errorf("a run folder was made")
			}
		})
	}
}

// variant returns a copy of tiny with one config key changed and one tensor removed.
func variant(t *testing.T, key, value, drop string) string {
	t.Helper()
	folder := t.TempDir()
	changeConfig(t, filepath.Join(hfModels, "tiny"), folder, key, value)
	rewrite(t, filepath.Join(hfModels, "tiny"), folder, drop)
	return folder
}

// changeConfig copies a folder's config.json and sets one key, unless key is empty.
func changeConfig(t *testing.T, from, to, key, value string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(from, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	config := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	if key != "" {
		config[key] = json.RawMessage(value)
	}
	if raw, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, "config.json"), raw, 0o666); err != nil {
		t.Fatal(err)
	}
}

// rewrite copies all tensors of a folder except one.
func rewrite(t *testing.T, from, to, drop string) {
	t.Helper()
	r, err := safetensors.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var specs []safetensors.Spec
	for _, x := range r.Tensors() {
		if x.Name != drop {
			specs = append(specs, safetensors.Spec{Name: x.Name, DType: x.DType, Shape: x.Shape})
		}
	}
	safetensorstest.Write(t, filepath.Join(to, "model.safetensors"), specs, func(s safetensors.Spec) []byte {
		b := make([]byte, s.Numel()*s.DType.Size())
		if err := r.ReadRaw(s.Name, 0, s.Numel(), b); err != nil {
			t.Fatal(err)
		}
		return b
	})
}
