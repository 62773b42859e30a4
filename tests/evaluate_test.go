package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/job"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/tests/nightly"
)

// TestEvaluationIsPyTorchs checks that the loss of a folder's model on all data equals PyTorch's
// for any number of ranks, even if the data does not fill a batch for all of them.
func TestEvaluationIsPyTorchs(t *testing.T) {
	e := expectations(t).Tiny
	for _, sets := range []string{"parallel.ranks=1", "parallel.ranks=2 train.micro_batch=3", "parallel.ranks=5 train.micro_batch=1 train.batch=5", "parallel.ranks=2 train.micro_batch=5 train.batch=10"} {
		c := mustHFConfig(t, filepath.Join(hfModels, "tiny"), "tokens.bin", strings.Fields(sets)...)
		got, err := job.Evaluate(t.Context(), c, job.Evaluating{All: true}, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		within(t, sets+": the loss", got.Loss, e.Loss, 1e-6)
		if got.Tokens != 12*32 || got.Perplexity() != math.Exp(got.Loss) {
			t.Errorf("%s: %+v", sets, got)
		}
	}
	c := mustHFConfig(t, filepath.Join(hfModels, "tiny"), "tokens.bin")
	got, err := job.Evaluate(t.Context(), c, job.Evaluating{}, func(string) {}) // there is no validation data, so all of it
	if err != nil {
		t.Fatal(err)
	}
	within(t, "without validation data: the loss", got.Loss, e.Loss, 1e-6)
	c = cfg(t)
	if _, err := job.Evaluate(t.Context(), c, job.Evaluating{All: true}, func(string) {}); err == nil || !strings.Contains(err.Error(), "model.from is missing") {
		t.Errorf("without a model: %v", err)
	}
}

// TestEvaluationOfDocuments checks that only trained targets count: the loss is the average of
// the documents' own losses weighted by their targets, for any batch size.
func TestEvaluationOfDocuments(t *testing.T) {
	nightly.Parallel(t)
	dir := t.TempDir()
	var lines strings.Builder
	for i := range 70 {
		fmt.Fprintf(&lines, `{"prompt": "%s", "completion": "%s"}`+"\n", strings.Repeat("x", 1+i%5), strings.Repeat("yz", 1+i%7))
	}
	if err := os.WriteFile(filepath.Join(dir, "d.jsonl"), []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	first := 0.0
	for i, sets := range [][]string{{"parallel.ranks=1", "train.micro_batch=1"}, {"parallel.ranks=2", "train.micro_batch=5"}, {"parallel.ranks=3", "train.micro_batch=7"}, {"parallel.ranks=1", "train.micro_batch=1", "data.pack=true"},
		{"parallel.ranks=3", "train.micro_batch=3", "data.pack=true"}} {
		file := filepath.Join(dir, "job.yaml")
		text := fmt.Sprintf("model: {from: %q, context: 24}\ndata: {documents: [%q], format: prompt, tokenizer: bytes, validation: 0}\n", byteModel(t), filepath.Join(dir, "d.jsonl"))
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := spec.Load(file, append([]string{"precision=fp32", "train.eval_every=0", "train.steps=1"}, sets...))
		if err != nil {
			t.Fatal(err)
		}
		e, err := job.Evaluate(t.Context(), c, job.Evaluating{All: true}, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		targets := int64(0)
		for n := range 70 {
			targets += int64(2 * (1 + n%7))
		}
		if e.Tokens != targets {
			t.Errorf("%v: %d targets, want %d", sets, e.Tokens, targets)
		}
		if i == 0 {
			first = e.Loss
		}
		if math.Abs(e.Loss-first) > 1e-6*first {
			t.Errorf("%v: the loss is %.9g, one document at a time %.9g", sets, e.Loss, first)
		}
	}
}

// TestEvaluationWithStride checks that losses with overlapping windows equal those of transformers, see
// perplexity.py, on a text and on documents, for any number of ranks.
func TestEvaluationWithStride(t *testing.T) {
	nightly.Parallel(t)
	raw, err := os.ReadFile("testdata/hf-families/perplexity.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Documents []json.RawMessage
		Models    []struct {
			Config          json.RawMessage
			Stride          int
			Text, Documents float64
			Tokens, Learned int64
		}
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	lines := filepath.Join(t.TempDir(), "d.jsonl")
	if err := os.WriteFile(lines, bytes.Join(asBytes(all.Documents), []byte("\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, m := range all.Models {
		folder, tokens := writeFamily(t, m.Config)
		ranks := fmt.Sprint("parallel.ranks=", 1+i%3)
		evaluate := func(wantLoss float64, wantTokens int64, o job.Evaluating, sets ...string) {
			t.Helper()
			var notes []string
			e, err := job.Evaluate(t.Context(), mustHFConfig(t, folder, "tokens.bin", sets...), o, func(s string) { notes = append(notes, s) })
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(e.Loss-wantLoss) > 1e-6 || e.Tokens != wantTokens || len(notes) > 0 {
				t.Errorf("stride %d, %v: loss %.8f of %d tokens, want %.8f of %d; notes %q", m.Stride, sets, e.Loss, e.Tokens, wantLoss, wantTokens, notes)
			}
		}
		o := job.Evaluating{Stride: m.Stride, All: true}
		evaluate(m.Text, m.Tokens, o, familyJob(t, folder, tokens, ranks)...)
		evaluate(m.Text, m.Tokens, o, familyJob(t, folder, tokens, ranks, "data.validation=0.2")...)
		docs := []string{fmt.Sprintf("data={documents: [%q], format: prompt, tokenizer: bytes, pack: true, validation: 0.3}", lines), "model.context=24", ranks}
		evaluate(m.Documents, m.Learned, o, docs...)
	}
}

func asBytes(all []json.RawMessage) (lines [][]byte) {
	for _, x := range all {
		lines = append(lines, x)
	}
	return lines
}

// TestValidationIsTheSameOnAnyRanks checks that evaluations during a run use the same sequences
// for any number of ranks and micro-batches. The loss agrees to the bit if parameters do and a
// micro-batch is a multiple of 64 tokens, the block of the loss sum.
func TestValidationIsTheSameOnAnyRanks(t *testing.T) {
	nightly.Parallel(t)
	var want []byte
	for _, sets := range []string{"parallel.ranks=1", "parallel.ranks=1 train.micro_batch=2", "parallel.ranks=2 train.micro_batch=1", "parallel.ranks=4", "parallel.ranks=8 train.micro_batch=1 zero.stage=0", "parallel.ranks=4 parallel.shard=2 parallel.replicate=2"} {
		out := t.TempDir()
		c := cfg(t, append(strings.Fields(sets), "train.batch=8", "train.accumulate=null", "model.context=64", "data.text=[\"*_test.go\"]", "data.validation=0.1",
			"train.eval_every=1", "train.eval_batches=2", "train.steps=2", "optimizer.lr=1e-30")...) // does not change parameters
		if err := job.Run(t.Context(), c, job.Options{Out: out}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(out, "metrics.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		got := bytes.Join(regexp.MustCompile(`.*"val_loss".*`).FindAll(text, -1), []byte("\n"))
		if want == nil {
			want = got
		}
		if bytes.Count(got, []byte("val_loss")) != 2 || !bytes.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", sets, got, want)
		}
	}
}

// TestValidationCountsOnce checks that every item of a small validation set counts once in val_loss,
// whatever the batch, its division and the mesh: it is the loss that zeroth eval computes afterwards.
func TestValidationCountsOnce(t *testing.T) {
	nightly.Parallel(t)
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	record := `{"prompt": "%s", "completion": "%s"}` + "\n"
	write("a.jsonl", strings.Repeat(fmt.Sprintf(record, "to be", "or not"), 40))
	write("v.jsonl", fmt.Sprintf(record, "a", "bc")+fmt.Sprintf(record, "wxyz wxyz", "zyxw")+fmt.Sprintf(record, "a", "qqqqqqqqqqqqqqq"))
	write("a.txt", strings.Repeat("to be, or not to be; that is the question. ", 40))
	documents := strings.ReplaceAll("{documents: [DIR/a.jsonl], validation_documents: [DIR/v.jsonl], format: prompt, tokenizer: bytes}", "DIR", dir)
	for _, kind := range []string{documents, strings.Replace(documents, "format", "pack: true, format", 1), "{text: [" + dir + "/a.txt], validation: 0.1}"} {
		for i, sets := range []string{
			"parallel.ranks=1 train.batch=1", "parallel.ranks=1 train.batch=2", "parallel.ranks=1 train.batch=8", "parallel.ranks=4 train.batch=8", "parallel.ranks=2 train.batch=8 train.micro_batch=2 zero.stage=0",
			"parallel.ranks=2 parallel.tensor=2 train.batch=8", "parallel.ranks=2 parallel.pipeline=2 train.batch=8 train.micro_batch=2", "parallel.ranks=2 parallel.context=2 train.batch=8",
		} {
			if !nightly.Every(2, i) && i < 5 {
				continue
			}
			write("job.yaml", "model: {family: llama, layers: 2, heads: 2, width: 16, context: 32}\noptimizer: {lr: 1e-2}\ndevice: cpu\nprecision: fp32\ntrain: {steps: 2, eval_every: 2}\ndata: "+kind+"\n")
			c, err := spec.Load(filepath.Join(dir, "job.yaml"), strings.Fields(sets))
			if err != nil {
				t.Fatal(sets, err)
			}
			out := t.TempDir()
			if err := job.Run(t.Context(), c, job.Options{Out: out}); err != nil {
				t.Fatal(sets, err)
			}
			text, err := os.ReadFile(filepath.Join(out, "metrics.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			var got float64
			if m := regexp.MustCompile(`"val_loss":([0-9.e-]+)`).FindSubmatch(text); m != nil {
				got, _ = strconv.ParseFloat(string(m[1]), 64)
			}
			if c, err = spec.Load(filepath.Join(dir, "job.yaml"), []string{"parallel.ranks=1", "train.batch=1", "model={from: " + filepath.Join(out, "model") + ", context: 32}"}); err != nil {
				t.Fatal(err)
			}
			e, err := job.Evaluate(t.Context(), c, job.Evaluating{}, func(string) {})
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(got-e.Loss) > 1e-5 {
				t.Errorf("%s, %s: val_loss %v, zeroth eval %v", kind, sets, got, e.Loss)
			}
		}
	}
}

// byteModel returns the folder of a small, untrained byte-level model.
func byteModel(t *testing.T) string {
	t.Helper()
	out := t.TempDir()
	if err := job.Run(t.Context(), cfg(t, "train.steps=1", "model.context=24", "parallel.ranks=1"), job.Options{Out: out}); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(out, "model")
}

// TestEvaluationIsANumber checks that a NaN loss is an error, not a result.
func TestEvaluationIsANumber(t *testing.T) {
	from, to := filepath.Join(hfModels, "tiny"), t.TempDir()
	changeConfig(t, from, to, "", "")
	var specs []safetensors.Spec
	m, err := hf.ReadModelConfig(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range hf.Parameters(m.Network(nn.LoRA{})) {
		specs = append(specs, safetensors.Spec{Name: p.Name, DType: safetensors.F32, Shape: p.Shape})
	}
	w, err := safetensors.Create(filepath.Join(to, "model.safetensors"), specs, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range readModel(t, from) {
		for i := range values {
			values[i] *= 1e37 // finite, but its products are not
		}
		if err := w.WriteF32(name, 0, values); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if e, err := job.Evaluate(t.Context(), mustHFConfig(t, to, "tokens.bin", "parallel.ranks=1"), job.Evaluating{All: true}, func(string) {}); err == nil || !strings.Contains(err.Error(), "parameters are unusable") {
		t.Errorf("%+v, %v", e, err)
	}
}
