package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job"
	"zeroth/job/generate"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/optim"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// decoded returns a copy of a model's folder in which the matrices of blocks have the decoded
// values of their codes.
func decoded(t *testing.T, from, weights string, sets ...string) string {
	t.Helper()
	if sets == nil {
		sets = []string{"train.lora.rank=1"}
	}
	return altered(t, from, append(sets, "model.weights="+weights), func(p shard.Param, x []float32) []float32 { return throughCodes(device.Code(p.Code), x, p.Shape) })
}

// altered returns a copy of a model's folder in which the matrices of blocks have other values.
func altered(t *testing.T, from string, sets []string, to func(p shard.Param, x []float32) []float32) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	c := mustHFConfig(t, from, "tokens.bin", sets...)
	var specs []safetensors.Spec
	for _, p := range spec.Parameters(c) {
		if !nn.IsAdapter(p.Name) {
			specs = append(specs, safetensors.Spec{Name: p.Name, DType: safetensors.F32, Shape: p.Shape})
		}
	}
	w, err := safetensors.Create(filepath.Join(folder, "model.safetensors"), specs, nil)
	if err != nil {
		t.Fatal(err)
	}
	coded, all := 0, readModel(t, from)
	for _, p := range spec.Parameters(c) {
		x, ok := all[p.Name]
		if !ok { // GPT-2's folder omits the first word
			x, ok = all[strings.TrimPrefix(p.Name, "transformer.")]
		}
		if p.Code != 0 {
			x, coded = to(p, x), coded+1
		}
		if ok {
			_ = w.WriteF32(p.Name, 0, x) // Close reports it
		}
	}
	if err := w.Close(); err != nil || coded == 0 {
		t.Fatalf("%d matrices are coded: %v", coded, err)
	}
	return folder
}

// throughCodes codes and decodes a matrix.
func throughCodes(code device.Code, x []float32, shape []int) []float32 {
	cols := shape[1]
	words, y := make([]float32, code.Words(shape[0], cols)), make([]float32, len(x))
	bits, piece := device.OfF32(words).Words(), code.Piece(cols)
	var most []float32
	for lo := 0; lo < len(x); lo += piece {
		hi := min(lo+piece, len(x))
		first, end := code.Span(lo, hi, cols)
		most = append(most, code.Encode(bits[first:end], x[lo:hi])...)
	}
	code.EncodeMagnitudes(bits, most)
	code.Decode(device.OfF32(y), bits, 0, cols)
	return y
}

// lossesAndModel returns the losses and norms of a run in out, and its model.
func lossesAndModel(t *testing.T, c *spec.Job, out string) (string, map[string][]float32) {
	t.Helper()
	steps, end := runJobIn(t, c, out)
	own := ""
	for _, s := range steps {
		own += fmt.Sprintf(" %v %v", s.Loss, s.GradNorm)
	}
	return own, end
}

// TestCodedWeightsAreDecodedOnes checks that a run with coded weights has, to the bit, the
// losses, norms and merged model of a run with the decoded values as float32, at all stages, on
// 1, 2 and 4 ranks.
func TestCodedWeightsAreDecodedOnes(t *testing.T) {
	nightly.Parallel(t)
	for name, from := range map[string]string{"llama": filepath.Join(hfLlama, "llama"), "gpt2": filepath.Join(hfModels, "tiny")} {
		nf4, int8 := decoded(t, from, "nf4"), decoded(t, from, "int8")
		for i, way := range [][]string{
			{"parallel.ranks=1", "zero.stage=0", "precision=fp32"}, {"parallel.ranks=1", "zero.recompute=block"},
			{"parallel.ranks=2", "zero.stage=0", "precision=fp32"}, {"parallel.ranks=2", "zero.stage=1"}, {"parallel.ranks=2", "zero.stage=2", "zero.recompute=linear", "train.mlp_chunk=5"}, {"parallel.ranks=2", "zero.stage=3"},
			{"parallel.ranks=4", "zero.stage=3", "zero.prefetch=0", "precision=fp32"}, {"parallel.ranks=4", "zero.stage=3", "zero.recompute=block", "train.accumulate=3"},
			{"parallel.ranks=4", "parallel.replicate=2", "zero.stage=3", "optimizer.type=adamw8bit", "device=cpu"},
			{"parallel.ranks=4", "parallel.pipeline=2", "pipeline.schedule=ZBH1", "train.accumulate=2", "zero.stage=3"},
			{"parallel.ranks=4", "parallel.context=2", "zero.stage=3", "precision=fp32"}, {"parallel.ranks=2", "parallel.master=true", "zero.stage=0"},
			{"parallel.ranks=2", "zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host"}, {"parallel.ranks=2", "zero.stage=3", "zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path=" + t.TempDir()}, {"parallel.ranks=2", "train.delayed_update=true", "precision=fp32"},
		} {
			if name == "gpt2" && !nightly.Every(3, i) {
				continue
			}
			if name == "llama" || nightly.All() {
				t.Run(fmt.Sprint(name, way), func(t *testing.T) { codedAsDecoded(t, from, nf4, append(way, "model.weights=nf4")) })
			}
			if name == "gpt2" || nightly.All() {
				t.Run(fmt.Sprint(name, way, "int8"), func(t *testing.T) { codedAsDecoded(t, from, int8, append(way, "model.weights=int8")) })
			}
		}
	}
}

// TestSeveralCodedUnits checks the same for blocks whose frozen matrices are several units, between trained ones.
func TestSeveralCodedUnits(t *testing.T) {
	nightly.Parallel(t)
	llama := filepath.Join(hfLlama, "llama")
	for name, tune := range map[string][]string{
		"freeze": {"train.freeze=['*.q_proj.*', '*.gate_proj.*', '*.down_proj.*']"},
		"lora":   {"train.lora={rank: 2, targets: [v_proj], modules_to_save: [k_proj]}"},
	} {
		plain := decoded(t, llama, "nf4", tune...)
		for _, way := range [][]string{{"parallel.ranks=1"}, {"parallel.ranks=2", "zero.stage=3", "zero.recompute=block"}} {
			t.Run(fmt.Sprint(name, way), func(t *testing.T) {
				sets := append(append([]string{"train.steps=3", "precision=fp32"}, tune...), way...)
				want, end := lossesAndModel(t, mustHFConfig(t, plain, "tokens.bin", sets...), t.TempDir())
				got, own := lossesAndModel(t, mustHFConfig(t, llama, "tokens.bin", append(sets, "model.weights=nf4")...), t.TempDir())
				if got != want {
					t.Errorf("losses and norms%s, with decoded weights%s", got, want)
				}
				for name, x := range end {
					if !slices.Equal(own[name], x) {
						t.Errorf("%s differs at the end", name)
					}
				}
			})
		}
	}
}

// codedAsDecoded compares a run with the coded weights of a folder, the last setting of way, with one
// that has the decoded ones, those of plain.
func codedAsDecoded(t *testing.T, from, plain string, way []string) {
	t.Helper()
	job := func(from string, sets ...string) *spec.Job {
		sets = append(sets, "train.lora.rank=3", "train.lora.targets=[all-linear]", "optimizer.lr=1e-2", "train.steps=3")
		return mustHFConfig(t, from, "tokens.bin", append(sets, way...)...)
	}
	weights := way[len(way)-1]
	way = way[:len(way)-1]
	want, end := lossesAndModel(t, job(plain), t.TempDir())
	got, own := lossesAndModel(t, job(from, weights), t.TempDir())
	if got != want {
		t.Errorf("losses and norms%s, with decoded weights%s", got, want)
	}
	for name, x := range end {
		if !slices.Equal(own[name], x) {
			t.Errorf("%s differs at the end", name)
		}
	}
}

// TestResumeWithCodedWeights checks that a resumed run agrees to the bit with one that never
// stopped, on the same ranks and at other stages, that its checkpoints contain codes, and that
// exports and samples use the decoded weights.
func TestResumeWithCodedWeights(t *testing.T) {
	nightly.Parallel(t)
	from := filepath.Join(hfLlama, "llama")
	jobOf := func(sets ...string) *spec.Job {
		return mustHFConfig(t, from, "tokens.bin", append([]string{"train.steps=4", "checkpoint.every=2", "train.batch=4", "parallel.ranks=4", "optimizer.lr=1e-2"}, sets...)...)
	}
	coded := []string{"model.weights=nf4", "train.lora.rank=3"}
	for i, way := range [][]string{{"checkpoint.async=false"}, {"zero.stage=1", "precision=fp32", "checkpoint.compress=always"}, {"parallel.replicate=2"}} {
		first := t.TempDir()
		coded[0] = []string{"model.weights=nf4", "model.weights=int8"}[i%2]
		want, end := lossesAndModel(t, jobOf(append(way[:len(way):len(way)], coded...)...), first)
		for _, on := range [][]string{nil, {"zero.stage=2"}, {"zero.stage=1"}} {
			again := t.TempDir()
			c := jobOf(slices.Concat(way, on)...) // weights and adapters come from the checkpoint
			if err := job.Run(t.Context(), c, job.Options{Out: again, Resume: filepath.Join(first, "ckpt", "step-00000002")}); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(losses(t, again, 2), "\n"); got != strings.Join(losses(t, first, 2), "\n") {
				t.Errorf("%v, resumed on %v: %s, want of%s", way, on, got, want)
			}
			if a, b := digest(t, filepath.Join(again, "ckpt"), "4"), digest(t, filepath.Join(first, "ckpt"), "4"); a != b {
				t.Errorf("%v, resumed on %v: the state at the end differs", way, on)
			}
		}
		if own := readModel(t, filepath.Join(first, "model")); len(own) != len(end) {
			t.Error("the model cannot be read twice")
		}
	}
	said := func(run string) string {
		var b strings.Builder
		if err := generate.Sample(t.Context(), generate.Options{Run: run, Tokenizer: "bytes", Prompt: "\x01\x02\x03", Tokens: 20, Note: func(string) {}}, &b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	out := t.TempDir()
	lossesAndModel(t, jobOf(append(coded, "optimizer.lr=1e-1")...), out)
	if a, b := said(filepath.Join(out, "ckpt", "step-00000004")), said(filepath.Join(out, "model")); a != b {
		t.Errorf("the checkpoint says %q, the model %q", a, b)
	}
}

// TestCodedWeightsArePlanned checks the plan, and the memory of a run at every event of a step,
// against closed forms: codes of 4 bits, 8 bits for each 64 of them, 4 bytes for each 16,384 and
// for each parameter, or codes of 8 bits and 4 bytes for each row, and one slot for the decoded matrices
// of a block.
func TestCodedWeightsArePlanned(t *testing.T) {
	nightly.Parallel(t)
	from := filepath.Join(hfLlama, "llama")
	for _, way := range [][]string{
		{"zero.stage=3", "train.accumulate=3"}, {"zero.stage=3", "zero.prefetch=0", "zero.recompute=block"}, {"zero.stage=2"}, {"zero.stage=1", "precision=fp32"}, {"zero.stage=0"},
		{"zero.stage=3", "optimizer.type=adamw8bit", "device=cpu"}, {"zero.stage=3", "model.weights=int8"}, {"zero.stage=0", "model.weights=int8"},
		{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host"}, {"zero.stage=3", "model.weights=int8", "zero.offload.optimizer=host", "zero.offload.parameters=host"},
	} {
		c := mustHFConfig(t, from, "tokens.bin", append([]string{"model.weights=nf4", "parallel.ranks=2", "train.steps=2", "train.lora.rank=2"}, way...)...)
		plan, err := setup.DryRun(setup.Planned(c))
		if err != nil {
			t.Fatal(err)
		}
		want := codedFormula(c)
		if c.Zero.Offload.Parameters == "host" {
			if got := plan.Host[device.Params]; got != want[device.Params] {
				t.Errorf("%v: %d bytes of parameters are planned in host memory, by the closed form %d", way, got, want[device.Params])
			}
			want[device.Params] = 0
		}
		for use, n := range want {
			if plan.Device[use] != n {
				t.Errorf("%v: %v: %d bytes are planned, by the closed form %d", way, use, plan.Device[use], n)
			}
		}
		seen := &job.Observation{}
		if err := job.Run(t.Context(), c, job.Options{Out: t.TempDir(), Timeline: seen}); err != nil {
			t.Fatal(err)
		}
		m := seen.Plan.Measured
		if m.Allocated != seen.Plan.Allocated || len(m.Timeline) != len(seen.Plan.Timeline) {
			t.Fatalf("%v: %v allocated, planned are %v", way, m.Allocated, seen.Plan.Allocated)
		}
		for i, x := range m.Timeline {
			if p := seen.Plan.Timeline[i]; x.InUse != p.InUse {
				t.Errorf("%v: %s: %v in use, planned are %v", way, p.Name, x.InUse, p.InUse)
			}
		}
	}
}

// codedFormula returns the bytes of parameters and of slots.
func codedFormula(c *spec.Job) map[device.Use]int64 {
	var codes, values, plain, adapters, ends, shards int64
	up := func(n, to int64) int64 { return (n + to - 1) / to * to }
	mesh := spec.Mesh(c)
	p, ranks := int64(c.Precision.Size()), int64(mesh.Shard)
	align, begin := int64(fsdp.Align*mesh.Replicate), int64(1)
	if slices.ContainsFunc(setup.Rules(c), func(r optim.Rule) bool { return slices.ContainsFunc(r.Types(), device.DType.Coded) }) {
		align, begin = 256, 256
	}
	policy := setup.Trainer(c, 0).Policy
	slots := int64(policy.ParamSlots())
	for _, u := range spec.Network(c).Units() {
		n, words, elements := int64(0), int64(0), int64(0)
		for _, q := range u.Params {
			e := int64(q.Numel())
			n = up(n, begin) + e
			switch device.Code(q.Code) {
			case device.NF4:
				words = up(words, begin) + 1 + up(e, 16384)/16384*65 + up(e, 8)/8
			case device.Int8:
				words = up(words, begin) + int64(q.Shape[0])*(1+up(int64(q.Shape[1]), 4)/4)
			}
			elements += e
		}
		whole := up(n, ranks*align)
		switch {
		case u.Params[0].Code != 0:
			whole = up(words, ranks*align)
			codes, values, shards = max(codes, 4*whole), max(values, p*up(elements, int64(fsdp.Align))), shards+4*whole/ranks
			if policy.KeepParams {
				plain += 4 * whole
			}
			continue
		case policy.KeepParams:
			plain += p * whole
		}
		shards += p * whole / ranks
		switch {
		case nn.IsAdapter(u.Params[0].Name):
			adapters = max(adapters, p*whole)
		default:
			ends = max(ends, p*whole)
		}
	}
	if policy.KeepParams {
		return map[device.Use]int64{device.Params: plain, device.Gathered: values}
	}
	norms := int64(0) // slots of units that come first in a step: embedding and output layer share one
	if slots > 1 {
		norms = up(2*int64(c.Model.Width), ranks*align) * p
	}
	return map[device.Use]int64{device.Params: shards, device.Gathered: slots*(codes+adapters) + ends + norms + values}
}

// TestInt8Range checks that an element that float16 does not have is refused, for frozen parameters in
// fp16, too, and that 4 bits take it.
func TestInt8Range(t *testing.T) {
	from := altered(t, filepath.Join(hfLlama, "llama"), []string{"train.lora.rank=1", "model.weights=int8"}, func(_ shard.Param, x []float32) []float32 { x[5] = 70_000; return x })
	for _, c := range []struct{ weights, precision, want string }{
		{"nf4", "fp32", ""},
		{"int8", "fp32", "_proj.weight is 70000, larger than 65504, the largest float16, which int8 cannot store; want model.weights: nf4 or full"},
		{"full", "bf16", ""},
		{"full", "fp16", "_proj.weight\" is 70000, which fp16 rounds to infinity; want another precision"},
	} {
		run := mustHFConfig(t, from, "tokens.bin", "train.steps=1", "train.lora.rank=2", "precision="+c.precision, "model.weights="+c.weights)
		err := job.Run(t.Context(), run, job.Options{Out: t.TempDir()})
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "element 5 of") || !input.IsInput(err)) {
			t.Errorf("%s %s: %v; want %q", c.weights, c.precision, err, c.want)
		}
	}
}

// TestWeightsRefusals checks that codes are refused, with an alternative, for weights that are
// trained or divided.
func TestWeightsRefusals(t *testing.T) {
	for sets, want := range map[string]string{
		"":                                    "no matrix of a block is frozen, and trained weights are not coded; want train.lora.rank, such as 16, or train.freeze, or weights: full",
		"train.freeze=[model.embed_tokens.*]": "no matrix of a block is frozen",
		"train.lora.rank=2 parallel.ranks=2 parallel.tensor=2": "matrices that ranks divide are not coded; want tensor: 1",
	} {
		_, err := hfConfig(t, filepath.Join(hfLlama, "llama"), "tokens.bin", append(strings.Fields(sets), "model.weights=nf4")...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", sets, err, want)
		}
	}
}
