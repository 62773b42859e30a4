package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/data"
	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job"
	"zeroth/job/generate"
	"zeroth/job/hf"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/tests/nightly"
	"zeroth/zero"
	"zeroth/zero/zerotest"
)

// expertModels contains a random model with experts of each family, made by transformers 5.24.0, and what
// transformers computes with it in float32: logits, losses, gradients and chosen experts.
const expertModels = "testdata/experts"

// mixture is what transformers computes with a model.
type mixture struct {
	folder     string
	number     int       // in order
	zero       string    // parameters whose names end so are zero
	IDs        [][]int32 `json:"input_ids"`
	AdapterIDs [][]int32 `json:"adapter_input_ids"`
	Loss       float64
	AuxLoss    float64 `json:"aux_loss"`
	Balanced   float64 `json:"loss_with_output_router_logits"`
	AdamW      []float64
	Greedy     []rune // what follows the first 8 ids

	BalancedAdamW []float64 `json:"balanced_adamw"`
	Masked        struct {  // with padding in the second sequence
		AuxLoss  float64 `json:"aux_loss"`
		Balanced float64 `json:"loss_with_output_router_logits"`
	}

	positions int                             // of a sequence in the job; the last of 16 has no target
	valid     int                             // tokens of every second sequence, followed by padding; 0: all
	move      func(param string, w []float32) // changes initial values; may be nil
}

// maskedTokens are those of the second sequence in mixture.Masked.
const maskedTokens = 11

// fill sets positions of samples from number first on, and returns how many have a target.
func (m mixture) fill(first int, input, target []int32, vocab int32) (learned int) {
	for i := range input {
		n, at := first+i/m.positions, i%m.positions
		ids, shift := m.IDs[n%len(m.IDs)], int32(n/len(m.IDs))
		valid := min(m.positions+1, len(ids))
		if m.valid > 0 && n%2 > 0 {
			valid = m.valid
		}
		input[i], target[i] = (ids[at]+shift)%vocab, data.Padding
		switch {
		case at+1 < valid:
			target[i] = (ids[at+1] + shift) % vocab
			learned++
		case at < valid:
			target[i] = data.Ignored
		}
	}
	return learned
}

// family reports whether the model is of one of some families.
func (m mixture) family(names ...string) bool { return slices.Contains(names, filepath.Base(m.folder)) }

// mixturePositions is the length of a sequence: its last token is only a target.
const mixturePositions = 15

// eachMixture runs a test on the model of every family.
func eachMixture(t *testing.T, f func(t *testing.T, m mixture)) {
	folders, err := filepath.Glob(filepath.Join(expertModels, "*"))
	if err != nil || len(folders) < 9 {
		t.Fatal(folders, err)
	}
	for i, folder := range folders {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			t.Parallel()
			m := readMixture(t, folder)
			m.number = i
			f(t, m)
		})
	}
}

func readMixture(t *testing.T, folder string) mixture {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(folder, "expect.json"))
	if err != nil {
		t.Fatal(err)
	}
	m := mixture{folder: folder}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// job returns a job that trains the model on its two sequences.
func (m mixture) job(t *testing.T, sets ...string) *spec.Job {
	t.Helper()
	c, err := m.load(t, sets...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (m mixture) load(t *testing.T, sets ...string) (*spec.Job, error) {
	t.Helper()
	dir := t.TempDir()
	tokens, file := filepath.Join(dir, "tokens.bin"), filepath.Join(dir, "job.yaml")
	text := fmt.Sprintf("model: {from: %q, context: %d}\ndata: {tokens: [%q], validation: 0, tokenizer: none, dtype: uint16}\n", filepath.Join(m.folder, "model"), mixturePositions, tokens)
	for name, content := range map[string][]byte{tokens: make([]byte, 4000), file: []byte(text)} {
		if err := os.WriteFile(name, content, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return spec.Load(file, append([]string{"train.batch=2", "train.steps=6", "train.clip=0", "precision=fp32", "optimizer.type=sgd", "optimizer.weight_decay=0",
		"optimizer.lr=1e-3", "schedule.type=constant", "schedule.warmup=0", "parallel.timeout=1m"}, sets...))
}

// mixtureRun is the outcome of steps.
type mixtureRun struct {
	Losses, Norms, Aux []float64
	Balanced           zero.Balanced // of the last step
	State              map[string][]float32
}

// train trains steps on the two sequences, whose tokens are shifted in further ones, and checks that the
// allocated memory is the planned memory.
func (m mixture) train(t *testing.T, steps int, sets ...string) (got mixtureRun) {
	t.Helper()
	c := m.job(t, sets...)
	weights := readModel(t, c.Model.From)
	if from := c.Train.LoRA.From; from != "" {
		for name, w := range readModel(t, filepath.Join(from, "adapter_model.safetensors")) {
			weights[strings.TrimPrefix(name, "base_model.model.")] = w
		}
	}
	for name, w := range weights {
		if m.zero != "" && strings.HasSuffix(name, m.zero) {
			clear(w)
		}
		if m.move != nil {
			m.move(name, w)
		}
	}
	ranks, err := setup.Open(setup.Local(c))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range ranks {
		if a, b := r.Planned.Device, r.Device.Usage().Live; a != b {
			t.Errorf("%v: planned %v, allocated %v", sets, a, b)
		}
		for _, u := range r.Trainer.Units() {
			if p := u.Layout.Params[0]; p.Single && u.Param.Type != device.F32 {
				t.Errorf("%v: %s is %v", sets, p.Name, u.Param.Type)
			}
		}
	}
	mesh, vocab := spec.Mesh(c), int32(c.Model.Vocab)
	share := spec.Share(c)
	got.State = map[string][]float32{}
	m.positions = c.Model.Context
	all := make([]int32, c.Train.Batch*m.positions)
	counted := m.fill(0, all, slices.Clone(all), vocab)
	turn := make(chan struct{}, 1) // whoever holds it may write to got
	err = setup.Together(ranks, func(r *setup.Rank) error {
		defer r.Close()
		err := r.Trainer.Fill(zero.Master, func(p zero.Part, dst []float32) error {
			for tensor, own := range p.Param.Runs(p.At) {
				copy(dst[own.Lo-p.At.Lo:], weights[p.Param.Name][tensor.Lo:tensor.Hi])
			}
			return nil
		})
		for step := 0; err == nil && step < steps; step++ {
			var s zero.Stats
			s, err = r.Trainer.Step(zero.Work{Fill: func(micro int, into []data.Values) error {
				input, target, _ := data.TokensOf(into)
				first := int(share.First(0, micro, mesh.DataRank(r.Rank)))
				m.fill(first, input, target, vocab)
				return nil
			}, LR: c.Optimizer.LR, Counted: counted})
			if r.Rank == 0 {
				got.Losses, got.Norms, got.Aux = append(got.Losses, s.Loss), append(got.Norms, s.GradNorm), append(got.Aux, s.Balanced.Loss)
				got.Balanced = s.Balanced
			}
		}
		if err != nil {
			return err
		}
		if a, b := r.Planned.Device, r.Device.Usage().Live; a != b {
			t.Errorf("%v: planned %v, allocated %v after the steps", sets, a, b)
		}
		turn <- struct{}{}
		defer func() { <-turn }()
		return zerotest.Collect(r, got.State)
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestExpertsLogits compares the logits of every position.
func TestExpertsLogits(t *testing.T) {
	eachMixture(t, func(t *testing.T, m mixture) {
		c, err := hf.ReadModelConfig(filepath.Join(m.folder, "model"))
		if err != nil {
			t.Fatal(err)
		}
		want, weights := m.expected(t)["logits"], readModel(t, filepath.Join(m.folder, "model"))
		for s, ids := range m.IDs {
			for at := range ids {
				for i, x := range logits(t, c.Network(nn.LoRA{}), weights, ids, at) {
					if w := want[(s*len(ids)+at)*c.Vocab+i]; !(math.Abs(float64(x-w)) <= 2e-5) {
						t.Fatalf("logit %d of position %d of sequence %d is %.9g, transformers' is %.9g", i, at, s, x, w)
					}
				}
			}
		}
	})
}

// expected returns the tensors that transformers computes, in float32.
func (m mixture) expected(t *testing.T) map[string][]float32 { return m.read(t, "expect") }

func (m mixture) read(t *testing.T, folder string) map[string][]float32 {
	t.Helper()
	r, err := safetensors.Open(filepath.Join(m.folder, folder))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	all := map[string][]float32{}
	for _, x := range r.Tensors() {
		if x.DType != safetensors.F32 {
			continue
		}
		all[x.Name] = make([]float32, x.Numel())
		if err := r.ReadF32(x.Name, 0, x.Numel(), all[x.Name]); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestExpertsGradients compares the loss and every element of the gradients on several meshes. Those of
// experts that no token chose are zero.
func TestExpertsGradients(t *testing.T) {
	eachMixture(t, func(t *testing.T, m mixture) {
		want := m.expected(t)
		for _, sets := range [][]string{
			{"parallel.ranks=1"},
			{"parallel.ranks=1", "zero.recompute=block", "train.micro_batch=1"},
			{"parallel.ranks=2", "zero.stage=0"},
			{"parallel.ranks=2", "zero.stage=3"},
			{"parallel.ranks=2", "parallel.pipeline=2", "train.micro_batch=1"},
		} {
			got := m.train(t, 1, sets...)
			within(t, fmt.Sprint(sets, ": the loss"), got.Losses[0], m.Loss, 1e-6)
			n := 0
			for name, w := range want {
				param, is := strings.CutPrefix(name, "grad.")
				if !is {
					continue
				}
				n++
				sameGradient(t, fmt.Sprint(sets, ": ", param), got.State["momentum_buffer "+param], w)
			}
			if n < 20 {
				t.Errorf("%d gradients", n)
			}
		}
	})
}

// sameGradient fails unless got is want within 2e-5 of its root mean square and 5e-6 of each element: the gradient of an
// expert of a single row has elements far above the mean.
func sameGradient(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s has %d elements, want %d", what, len(got), len(want))
		return
	}
	all := 2e-5 * norm(want) / math.Sqrt(float64(len(want)))
	for i, w := range want {
		limit := all + 5e-6*math.Abs(float64(w))
		if d := math.Abs(float64(got[i] - w)); !(d <= limit) {
			t.Errorf("%s: element %d of the gradient is %.9g, want %.9g: %.2g apart, allowed %.2g", what, i, got[i], w, d, limit)
			return
		}
	}
}

// TestExpertsAdamW compares the losses of six steps.
func TestExpertsAdamW(t *testing.T) {
	eachMixture(t, func(t *testing.T, m mixture) {
		got := m.train(t, len(m.AdamW), "optimizer.type=adamw", "optimizer.weight_decay=0.1", "optimizer.betas=[0.9, 0.95]", "optimizer.eps=1e-8", "train.clip=1", "parallel.ranks=2", "zero.stage=2")
		for i, w := range m.AdamW {
			within(t, fmt.Sprintf("the loss of step %d", i+1), got.Losses[i], w, 1e-5)
		}
	})
}

// TestExpertsBits checks that jobs that differ in the stage, what they gather ahead or recompute, ranks or
// micro-batches, or the schedule of a pipeline have the same losses, norms and parameters after several steps.
func TestExpertsBits(t *testing.T) {
	nightly.Parallel(t)
	eachMixture(t, func(t *testing.T, m mixture) {
		for i, precision := range []string{"fp32", "bf16"} {
			if !nightly.Every(2, i+m.number) {
				continue
			}
			base := []string{"precision=" + precision, "train.batch=4", "optimizer.type=adamw", "train.clip=1"}
			run := func(sets ...string) mixtureRun { return m.train(t, 3, append(sets, base...)...) }
			want := run("parallel.ranks=2", "zero.stage=0")
			for k, sets := range [][]string{
				{"parallel.ranks=2", "zero.stage=1"}, {"parallel.ranks=2", "zero.stage=2", "zero.recompute=block"}, {"parallel.ranks=2", "zero.stage=3"},
				{"parallel.ranks=2", "zero.stage=3", "zero.prefetch=0", "zero.recompute=block"},
				{"parallel.ranks=2", "zero.recompute=elementwise"}, {"parallel.ranks=2", "zero.recompute=mlp"}, {"parallel.ranks=2", "zero.recompute=linear"},
				{"parallel.ranks=1", "train.micro_batch=2"},
			} {
				if !nightly.Every(3, k+m.number/2) {
					continue
				}
				sameRun(t, fmt.Sprint(precision, sets), run(sets...), want)
			}
			want = run("parallel.ranks=2", "parallel.pipeline=2", "train.micro_batch=1")
			for _, schedule := range []string{"GPipe", "Interleaved1F1B"} {
				if schedule == "Interleaved1F1B" && m.layers(t) < 4 {
					continue
				}
				sameRun(t, precision+" "+schedule, run("parallel.ranks=2", "parallel.pipeline=2", "train.micro_batch=1", "pipeline.schedule="+schedule), want)
			}
		}
	})
}

// TestExpertsRanks compares the gradients of jobs whose ranks divide experts with those of one rank, and checks that
// stages, what is gathered ahead, and recomputation have the same bits.
func TestExpertsRanks(t *testing.T) {
	nightly.Parallel(t)
	eachMixture(t, func(t *testing.T, m mixture) {
		want := m.train(t, 1, "parallel.ranks=1", "model.context=12", "train.batch=8")
		for i, sets := range [][]string{
			{"parallel.expert=2", "parallel.ranks=2", "zero.stage=0"}, {"parallel.expert=2", "parallel.ranks=4", "zero.stage=3", "zero.recompute=block"},
			{"parallel.expert=2", "parallel.ranks=4", "parallel.replicate=2", "zero.stage=2"}, {"parallel.expert=2", "parallel.context=2", "parallel.ranks=8", "zero.stage=3"},
			{"parallel.expert=2", "parallel.pipeline=2", "parallel.ranks=4", "train.micro_batch=1"},
			{"parallel.expert=2", "parallel.tensor=2", "parallel.ranks=4", "zero.stage=0"}, {"parallel.expert=2", "parallel.tensor=2", "parallel.ranks=8", "zero.stage=3"},
		} {
			if m.family("olmoe", "minimax_m2") && i > 4 || !nightly.Every(3, i+m.number) {
				continue // those have norms over all heads
			}
			got := m.train(t, 1, append(sets, "model.context=12", "train.batch=8")...)
			within(t, fmt.Sprint(sets, ": the loss"), got.Losses[0], want.Losses[0], 1e-6)
			for name, w := range want.State {
				if param, is := strings.CutPrefix(name, "momentum_buffer "); is {
					sameGradient(t, fmt.Sprint(sets, ": ", param), got.State[name], w)
				}
			}
		}
		for i, precision := range []string{"fp32", "bf16"} {
			if !nightly.Every(4, i+m.number) {
				continue
			}
			run := func(sets ...string) mixtureRun {
				return m.train(t, 3, append(sets, "precision="+precision, "parallel.expert=2", "parallel.ranks=4", "train.batch=8", "optimizer.type=adamw", "train.clip=1")...)
			}
			want := run("zero.stage=0")
			for _, sets := range [][]string{{"zero.stage=1"}, {"zero.stage=2", "zero.prefetch=0"}, {"zero.stage=3", "zero.recompute=block"}} {
				sameRun(t, fmt.Sprint(precision, sets), run(sets...), want)
			}
		}
	})
}

// TestExpertsOfOneRank checks that a router that sends every row to the experts of one rank changes neither the memory
// nor, beyond rounding, the loss.
func TestExpertsOfOneRank(t *testing.T) {
	m := readMixture(t, filepath.Join(expertModels, "qwen3_moe"))
	m.zero = "mlp.gate.weight" // all scores are equal: the first experts are chosen
	want := m.train(t, 3, "parallel.ranks=1", "train.batch=4")
	for _, n := range []int{2, 4} {
		got := m.train(t, 3, fmt.Sprint("parallel.expert=", n), fmt.Sprint("parallel.ranks=", n), "train.batch=4", "zero.stage=3")
		for i, w := range want.Losses {
			within(t, fmt.Sprintf("expert %d: the loss of step %d", n, i+1), got.Losses[i], w, 1e-6)
		}
	}
}

func (m mixture) layers(t *testing.T) int { return m.job(t, "parallel.ranks=1").Model.Layers }

// sameRun fails unless two runs have the same bits.
func sameRun(t *testing.T, what string, got, want mixtureRun) {
	t.Helper()
	if !slices.Equal(got.Losses, want.Losses) || !slices.Equal(got.Norms, want.Norms) {
		t.Errorf("%s: losses %v and norms %v, want %v and %v", what, got.Losses, got.Norms, want.Losses, want.Norms)
	}
	for name, w := range want.State {
		if !slices.Equal(got.State[name], w) {
			t.Errorf("%s: %s differs", what, name)
		}
	}
}

// TestExpertsDivided compares the gradients of jobs that divide matrices and positions with those of one rank.
func TestExpertsDivided(t *testing.T) {
	eachMixture(t, func(t *testing.T, m mixture) {
		for _, sets := range [][]string{
			{"parallel.tensor=2", "parallel.ranks=2"},
			{"parallel.tensor=2", "parallel.ranks=4", "zero.stage=3", "zero.recompute=block"},
			{"parallel.context=2", "parallel.ranks=2", "zero.stage=3"},
		} {
			if strings.HasPrefix(sets[0], "parallel.tensor") && m.family("olmoe", "minimax_m2") {
				continue // it has norms over all heads
			}
			want, got := m.train(t, 1, "parallel.ranks=1", "model.context=12"), m.train(t, 1, append(sets, "model.context=12")...)
			within(t, fmt.Sprint(sets, ": the loss"), got.Losses[0], want.Losses[0], 1e-6)
			for name, w := range want.State {
				if param, is := strings.CutPrefix(name, "momentum_buffer "); is {
					sameGradient(t, fmt.Sprint(sets, ": ", param), got.State[name], w)
				}
			}
		}
	})
}

// TestExpertsExport checks that an export has the bytes of the model that a run starts from, and that a run resumes
// from its checkpoint on other ranks.
func TestExpertsExport(t *testing.T) {
	nightly.Parallel(t)
	eachMixture(t, func(t *testing.T, m mixture) {
		for i, sets := range [][]string{{"parallel.ranks=1"}, {"parallel.ranks=3", "zero.stage=3"}, {"parallel.ranks=2", "parallel.pipeline=2"}} {
			if !nightly.Every(3, i+m.number) {
				continue
			}
			c := m.job(t, append(sets, "train.batch=6", "train.steps=1", "optimizer.lr=1e-300", "checkpoint.every=1")...)
			out := t.TempDir()
			if err := job.Run(t.Context(), c, job.Options{Out: out}); err != nil {
				t.Fatal(err)
			}
			sameFolders(t, filepath.Join(out, "model"), filepath.Join(m.folder, "model"))
		}
	})
}

// TestExpertsFolders checks that a folder with missing, surplus or gapped experts is refused by name.
func TestExpertsFolders(t *testing.T) {
	folder := filepath.Join(expertModels, "mixtral", "model")
	const last = "model.layers.1.block_sparse_moe.experts.7.w2.weight"
	for want, name := range map[string]func(string) string{
		last + " is missing": func(name string) string {
			if name == last {
				return "other.weight"
			}
			return name
		},
		"it has tensors that its class does not: " + strings.Replace(last, "7.w2", "8.w2", 1): func(name string) string {
			return strings.Replace(name, "layers.1.block_sparse_moe.experts.7.w2", "layers.1.block_sparse_moe.experts.8.w2", 1)
		},
		"6 parameters are missing: model.layers.0.block_sparse_moe.experts.3.w1.weight": func(name string) string {
			return strings.Replace(name, "experts.3.", "experts.9.", 1)
		},
	} {
		dir, all := t.TempDir(), readModel(t, folder)
		r, err := safetensors.Open(folder)
		if err != nil {
			t.Fatal(err)
		}
		var specs []safetensors.Spec
		for _, x := range r.Tensors() {
			specs = append(specs, safetensors.Spec{Name: name(x.Name), DType: x.DType, Shape: x.Shape})
		}
		w, err := safetensors.Create(filepath.Join(dir, "model.safetensors"), specs, nil)
		if err != nil {
			t.Fatal(err)
		}
		for old, values := range all {
			if err := w.WriteF32(name(old), 0, values); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), r.Close()); err != nil {
			t.Fatal(err)
		}
		c, err := hf.ReadModelConfig(folder)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hf.OpenModel(dir, c); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%v; want %s", err, want)
		}
	}
	for count, want := range map[string]string{
		"4":  "it has tensors that its class does not: model.layers.0.block_sparse_moe.experts.4.w1.weight",
		"16": "48 parameters are missing: model.layers.0.block_sparse_moe.experts.8.w1.weight",
	} {
		raw, err := os.ReadFile(filepath.Join(folder, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := hf.ReadModel([]byte(strings.Replace(string(raw), `"num_local_experts": 8`, `"num_local_experts": `+count, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hf.OpenModel(folder, c); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), folder) {
			t.Errorf("%s experts: %v; want %s", count, err, want)
		}
	}
}

// TestExpertsReadPieceByPiece checks that a text read piece by piece, and beside another, has the logits that it has
// when read whole and alone.
func TestExpertsReadPieceByPiece(t *testing.T) {
	eachMixture(t, func(t *testing.T, m mixture) {
		c, err := hf.ReadModelConfig(filepath.Join(m.folder, "model"))
		if err != nil {
			t.Fatal(err)
		}
		net, weights := c.Network(nn.LoRA{}), readModel(t, filepath.Join(m.folder, "model"))
		a, b := m.IDs[0], m.IDs[1][:9]
		want := logits(t, net, weights, a, len(a)-1)
		var cache []device.Buffer
		for range net.Blocks {
			cache = append(cache, device.OfF32(make([]float32, len(a)*net.QKV)))
		}
		logitsOf(t, net, weights, a[:7], nn.Sequence{T: 7, Cache: cache})
		got := logitsOf(t, net, weights, slices.Concat(b, a[7:]), nn.Sequence{T: len(b)}, nn.Sequence{Past: 7, T: len(a) - 7, Cache: cache})[c.Vocab:]
		if !slices.Equal(got, want) {
			t.Errorf("logits %v, want %v", got[:4], want[:4])
		}
	})
}

// TestExpertsGenerate compares greedy generation with transformers'. Tokens below 128 are bytes of a text.
func TestExpertsGenerate(t *testing.T) {
	eachMixture(t, func(t *testing.T, m mixture) {
		prompt := string([]rune(m.IDs[0][:8]))
		var text bytes.Buffer
		o := generate.Options{Run: filepath.Join(m.folder, "model"), Tokenizer: "bytes", Prompt: prompt, Tokens: len(m.Greedy), Chosen: map[string]bool{"temperature": true}}
		if err := generate.Sample(t.Context(), o, &text); err != nil {
			t.Fatal(err)
		}
		if want := prompt + string(m.Greedy); text.String() != want || m.Greedy == nil {
			t.Errorf("%q, want %q", text.String(), want)
		}
	})
}

// TestExpertsResume checks that a run resumes from checkpoints of ranks that divide experts otherwise: the exported
// model has the bytes of that of a run whose ranks never change, if the steps in between change nothing.
func TestExpertsResume(t *testing.T) {
	nightly.Parallel(t)
	for _, family := range []string{"qwen2_moe", "granitemoeshared"} {
		readMixture(t, filepath.Join(expertModels, family)).resumes(t)
	}
}

func (m mixture) resumes(t *testing.T) {
	meshes := [][]string{{"parallel.expert=2", "parallel.ranks=2", "zero.stage=3"}, {"parallel.expert=1", "parallel.ranks=1"}, {"parallel.expert=3", "parallel.ranks=6"}, {"parallel.expert=2", "parallel.tensor=2", "parallel.ranks=4", "zero.stage=1"}}
	out, resume := t.TempDir(), ""
	for i, mesh := range meshes {
		c := m.job(t, append(mesh, "model.context=12", "train.batch=6", fmt.Sprint("train.steps=", i+1), "optimizer.type=adamw", "optimizer.lr=1e-300", "checkpoint.every=1")...)
		if err := job.Run(t.Context(), c, job.Options{Out: out, Resume: resume}); err != nil {
			t.Fatal(mesh, err)
		}
		resume = "latest"
		sameFolders(t, filepath.Join(out, "model"), filepath.Join(m.folder, "model"))
	}
}

// TestExpertsAdapters compares the loss and the gradients of adapters of every expert, on ranks that divide them, too,
// with those of transformers, and exports adapters that a run starts from again.
func TestExpertsAdapters(t *testing.T) {
	m := readMixture(t, filepath.Join(expertModels, "qwen3_moe"))
	m.IDs = m.AdapterIDs
	want, from := m.read(t, "adapter_expect"), fmt.Sprintf("train.lora.from=%q", filepath.Join(m.folder, "adapter"))
	for _, sets := range [][]string{{"parallel.ranks=1"}, {"parallel.ranks=1", "zero.recompute=block", "train.micro_batch=1"}, {"parallel.ranks=2", "zero.stage=3"}, {"parallel.ranks=2", "parallel.expert=2", "zero.stage=2"}} {
		got := m.train(t, 1, append(sets, from)...)
		within(t, fmt.Sprint(sets, ": the loss"), got.Losses[0], float64(want["loss"][0]), 1e-6)
		n := 0
		for name, w := range want {
			if param, is := strings.CutPrefix(name, "grad."); is {
				sameGradient(t, fmt.Sprint(sets, ": ", param), got.State["momentum_buffer "+param], w)
				n++
			}
		}
		if n != 196 {
			t.Errorf("%d gradients", n)
		}
	}
	one := m.train(t, 2, "parallel.ranks=1", "model.context=12", from)
	for _, mesh := range [][]string{{"zero.stage=0"}, {"zero.stage=3"}, {"zero.stage=0", "parallel.expert=2"}, {"zero.stage=3", "parallel.expert=2", "parallel.context=2", "parallel.ranks=8"}} {
		got := m.train(t, 2, append([]string{"parallel.ranks=4", "parallel.tensor=2", "model.context=12", from}, mesh...)...)
		within(t, "the loss of ranks that divide matrices", got.Losses[1], one.Losses[1], 1e-6)
		for name, w := range one.State {
			if param, is := strings.CutPrefix(name, "momentum_buffer "); is {
				sameGradient(t, fmt.Sprint(mesh, ", tensor 2: ", param), got.State[name], w)
			}
		}
	}
	m.dropsAdapters(t, want, from)
	out := t.TempDir()
	c := m.job(t, "train.lora.rank=2", "train.lora.targets=[all-linear]", "parallel.ranks=2", "parallel.expert=2", "train.steps=2", "optimizer.type=adamw")
	if err := job.Run(t.Context(), c, job.Options{Out: out}); err != nil {
		t.Fatal(err)
	}
	a, err := hf.OpenAdapter(filepath.Join(out, "adapter"), c.Model)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if n := len(a.Tensors()); n != 2*2*(4+16*3) {
		t.Errorf("%d tensors of adapters", n)
	}
	granite := readMixture(t, filepath.Join(expertModels, "granitemoeshared"))
	if _, err := granite.load(t, "parallel.ranks=1", "train.lora.rank=2", "train.lora.targets=[input_linear]"); err == nil || !strings.Contains(err.Error(), "train.lora.targets") {
		t.Errorf("adapters of experts in one tensor: %v", err)
	}
	all := []string{"parallel.ranks=2", "train.lora.targets=[all-linear]", "train.steps=2"}
	within(t, "adapters next to divided experts", granite.lastLoss(t, append(all, "parallel.expert=2")...), granite.lastLoss(t, all...), 1e-6)
}

// dropsAdapters checks dropout in adapters of experts: that the loss changes along the gradient as the gradient says,
// and that other ranks, micro-batches and recomputation have the same masks.
func (m mixture) dropsAdapters(t *testing.T, without map[string][]float32, sets ...string) {
	sets = append(sets, "train.lora.dropout=0.1", "model.context=12")
	run := func(more ...string) mixtureRun { return m.train(t, 1, append(more, sets...)...) }
	one := run("parallel.ranks=1")
	sameRun(t, "dropout, recomputing micro-batches", run("parallel.ranks=1", "zero.recompute=block", "train.micro_batch=1"), run("parallel.ranks=2", "zero.stage=3"))
	two := []string{"parallel.ranks=4", "parallel.expert=2", "train.batch=4"}
	sameRun(t, "dropout, divided experts", run(append(two, "zero.stage=3", "zero.recompute=block")...), run(append(two, "zero.stage=0")...))
	for _, more := range [][]string{{"parallel.ranks=2", "zero.stage=2"}, {"parallel.ranks=2", "parallel.context=2"}, {"parallel.ranks=4", "parallel.expert=2", "parallel.context=2"}, {"parallel.ranks=2", "parallel.expert=2"}} {
		got := run(more...)
		within(t, fmt.Sprint(more, ": the loss"), got.Losses[0], one.Losses[0], 1e-6)
		for name, w := range one.State {
			if param, is := strings.CutPrefix(name, "momentum_buffer "); is {
				sameGradient(t, fmt.Sprint(more, ": ", param), got.State[name], w)
			}
		}
	}
	rows := []string{"parallel.ranks=4", "train.lora.targets=[up_proj]", "train.lora.dropout=0.1", "model.context=12", "train.batch=4", "train.steps=2", "optimizer.lr=1"}
	within(t, "dropout with divided experts and matrices", m.lastLoss(t, append(rows, "parallel.expert=2", "parallel.tensor=2")...), m.lastLoss(t, rows...), 1e-6)
	along, square := func(by float32) float64 {
		m.move = func(param string, w []float32) {
			for i, g := range one.State["momentum_buffer "+param] {
				w[i] += by * g
			}
		}
		return run("parallel.ranks=1").Losses[0]
	}, 0.0
	for name, w := range one.State {
		if strings.HasPrefix(name, "momentum_buffer ") {
			square += norm(w) * norm(w)
		}
	}
	const by = 3e-4 // rows change experts further away
	within(t, "the slope of the loss with dropout", (along(by)-along(-by))/(2*by), square, 1e-2)
	if one.Losses[0] == float64(without["loss"][0]) {
		t.Error("dropout has no effect")
	}
}

// TestExpertsCodes checks that experts in codes of 8 and 4 bits, under adapters, have nearly the loss of floats, and
// the same on ranks that divide them.
func TestExpertsCodes(t *testing.T) {
	for _, family := range []string{"mixtral", "granitemoe"} {
		readMixture(t, filepath.Join(expertModels, family)).codes(t)
	}
}

// lastLoss returns the loss of a run's last step, with adapters that begin at random.
func (m mixture) lastLoss(t *testing.T, sets ...string) float64 {
	t.Helper()
	c := m.job(t, append(sets, "train.lora.rank=2", "checkpoint.every=0")...)
	out := t.TempDir()
	if err := job.Run(t.Context(), c, job.Options{Out: out}); err != nil {
		t.Fatal(err)
	}
	steps, _, err := report.ReadMetrics(filepath.Join(out, "metrics.jsonl"))
	if err != nil || len(steps) == 0 {
		t.Fatal(err)
	}
	return steps[len(steps)-1].Loss
}

func (m mixture) codes(t *testing.T) {
	run := func(sets ...string) float64 { return m.lastLoss(t, append(sets, "train.steps=1")...) }
	floats := run("parallel.ranks=2")
	for code, tolerance := range map[string]float64{"int8": 2e-3, "nf4": 0.1} {
		one := run("parallel.ranks=2", "zero.stage=3", "model.weights="+code)
		within(t, code, one, floats, tolerance)
		if m.family("granitemoe") { // in one tensor, which is coded as one
			if _, err := m.load(t, "parallel.ranks=2", "parallel.expert=2", "train.lora.rank=2", "model.weights="+code); err == nil || !strings.Contains(err.Error(), "parallel.expert") {
				t.Errorf("%s: divided experts: %v", code, err)
			}
			continue
		}
		within(t, code+" with divided experts", run("parallel.ranks=2", "parallel.expert=2", "model.weights="+code), one, 1e-6)
	}
}

// TestExpertsRules trains with each update rule and tier of state, and compares ranks that divide state with one rank.
func TestExpertsRules(t *testing.T) {
	granite := readMixture(t, filepath.Join(expertModels, "granitemoe"))
	for _, mesh := range [][]string{{"parallel.ranks=1", "zero.stage=0", "train.micro_batch=1"}, {"parallel.ranks=4", "parallel.tensor=2", "model.context=12"}} {
		base := []string{"optimizer.type=muon", "model.context=12", "train.batch=2"}
		got, want := granite.train(t, 3, append(mesh, base...)...), granite.train(t, 3, append(base, "parallel.ranks=2", "zero.stage=3")...)
		within(t, fmt.Sprint("experts in one tensor with Muon, ", mesh), got.Losses[2], want.Losses[2], 1e-5)
	}
	m := readMixture(t, filepath.Join(expertModels, "mixtral"))
	for _, sets := range [][]string{
		{"optimizer.type=muon"}, {"optimizer.type=lion"}, {"optimizer.type=adamw8bit"}, {"optimizer.type=adamw", "train.freeze=[model.layers.0.*experts*]"},
		{"optimizer.type=adamw", "zero.offload.optimizer=host"}, {"optimizer.type=adamw", "zero.offload.optimizer=host", "zero.offload.parameters=host"},
	} {
		run := func(more ...string) mixtureRun {
			return m.train(t, 3, append(append(more, "train.batch=4"), sets...)...)
		}
		want := run("parallel.ranks=2", "zero.stage=3")
		if sets[0] != "optimizer.type=muon" {
			sameRun(t, fmt.Sprint(sets), run("parallel.ranks=1", "train.micro_batch=2", "zero.stage=3"), want)
		}
		if !(want.Losses[2] < want.Losses[0]) {
			t.Errorf("%v: losses %v", sets, want.Losses)
		}
	}
}
