package job

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
)

// TestLossOfDocuments checks that the loss is the mean over the learned targets: padding and
// prompts do not change it, however ranks divide the documents.
func TestLossOfDocuments(t *testing.T) {
	jobtest.InTinyFolder(t)
	var lines strings.Builder
	for i := range 40 {
		fmt.Fprintf(&lines, "{\"prompt\": \"%d+%d=\", \"completion\": \"%d\"}\n", i%7, i%5, i%7+i%5)
	}
	jobtest.Write(t, "sums.jsonl", lines.String())
	run := func(sets ...string) (losses []float64) {
		t.Helper()
		h := &heard{}
		sets = append(sets, "data.text=", "data.documents=[sums.jsonl]", "data.format=prompt", "data.tokenizer=bytes", "model.family=llama", "train.steps=3", "train.batch=8", "precision=fp32", "train.eval_every=0")
		if err := Run(t.Context(), spectest.MustLoad(t, sets...), Options{Out: filepath.Join(t.TempDir(), "run"), Observer: h}); err != nil {
			t.Fatal(err)
		}
		for _, s := range h.steps {
			losses = append(losses, s.Loss)
		}
		return losses
	}
	want := run("model.context=8", "parallel.ranks=1")
	for _, sets := range [][]string{{"model.context=24", "parallel.ranks=1"}, {"model.context=8", "parallel.ranks=4", "zero.stage=3"}, {"model.context=8", "parallel.ranks=2", "train.accumulate=2"}} {
		for i, got := range run(sets...) {
			if math.Abs(got-want[i]) > 1e-5 { // sums in another order
				t.Errorf("%v: step %d has loss %v, want %v", sets, i+1, got, want[i])
			}
		}
	}
	if math.Abs(want[0]-math.Log(256)) > 0.5 {
		t.Errorf("loss %v at first, want that of any byte", want[0])
	}
}

// TestTrimmedDropout checks that dropout masks depend on the number of the sample and the position,
// not on how many positions of a micro-batch are computed.
func TestTrimmedDropout(t *testing.T) {
	jobtest.InTinyFolder(t)
	var lines strings.Builder
	for i := range 32 {
		fmt.Fprintf(&lines, "{\"text\": \"%s\"}\n", strings.Repeat("ab", 1+7*i%23))
	}
	jobtest.Write(t, "docs.jsonl", lines.String())
	var want []float64
	for _, sets := range [][]string{{"train.micro_batch=8"}, {"train.micro_batch=1"}, {"train.micro_batch=2", "parallel.ranks=2", "zero.stage=3"}, {"train.micro_batch=8", "parallel.ranks=2", "parallel.pipeline=2"}} {
		h := &heard{}
		sets = append([]string{"parallel.ranks=1", "data.text=", "data.documents=[docs.jsonl]", "data.tokenizer=bytes", "data.validation=0", "model.context=48", "model.layers=2", "model.dropout=0.3", "train.steps=3", "train.batch=8", "train.accumulate=null", "precision=fp32", "train.eval_every=0"}, sets...)
		if err := Run(t.Context(), spectest.MustLoad(t, sets...), Options{Out: filepath.Join(t.TempDir(), "run"), Observer: h}); err != nil {
			t.Fatal(err)
		}
		var losses []float64
		for _, s := range h.steps {
			losses = append(losses, s.Loss)
			if positions := s.Tokens; positions >= int64(s.Step)*8*48 {
				t.Errorf("%v: %d tokens after step %d: padding is counted", sets, positions, s.Step)
			}
		}
		if want == nil {
			want = losses
		}
		for i := range want {
			if math.Abs(losses[i]-want[i]) > 1e-5 { // sums in another order
				t.Errorf("%v: losses %v, want %v", sets, losses, want)
			}
		}
	}
}

// TestPackedRunIsUnpacked trains on all documents in every step, one a sequence and
// packed: losses are the same, step for step, on any number of ranks.
func TestPackedRunIsUnpacked(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	var lines strings.Builder
	for i := range 48 {
		fmt.Fprintf(&lines, "{\"prompt\": \"%s=\", \"completion\": \"%s\"}\n", strings.Repeat("ab", i%3), strings.Repeat("c", 1+i%9))
	}
	jobtest.Write(t, "docs.jsonl", lines.String())
	base := []string{"data.text=", "data.documents=[docs.jsonl]", "data.format=prompt", "data.tokenizer=bytes", "data.validation=0", "train.steps=4", "precision=fp32", "train.eval_every=0", "optimizer.type=sgd", "optimizer.lr=0.3", "schedule.warmup=0", "schedule.type=constant", "model.context=16"}
	run := func(sets ...string) (losses []float64) {
		t.Helper()
		h := &heard{}
		if err := Run(t.Context(), spectest.MustLoad(t, append(base, sets...)...), Options{Out: filepath.Join(t.TempDir(), "run"), Observer: h}); err != nil {
			t.Fatal(err)
		}
		for _, s := range h.steps {
			losses = append(losses, s.Loss)
		}
		return losses
	}
	for _, family := range []string{"model.family=gpt2", "model.family=llama"} {
		want := run(family, "train.batch=48", "parallel.ranks=1", "train.micro_batch=48")
		if want[3] > want[0]-0.1 {
			t.Errorf("%s: losses %v", family, want)
		}
		set, err := data.Open(t.Context(), spec.Source(spectest.MustLoad(t, append(base, family, "data.pack=true", "train.batch=1", "train.micro_batch=1", "parallel.ranks=1")...)))
		if err != nil {
			t.Fatal(err)
		}
		n := set.Train.Windows()
		set.Close()
		if n > 24 || n%2 > 0 {
			t.Fatalf("48 documents in %d sequences; the test wants few, and an even number", n)
		}
		for _, ranks := range []int64{1, 2} {
			got := run(family, "data.pack=true", "zero.stage=3", "zero.recompute=block", fmt.Sprintf("parallel.ranks=%d", ranks), fmt.Sprintf("train.batch=%d", n), fmt.Sprintf("train.micro_batch=%d", n/ranks))
			for i := range want {
				if math.Abs(got[i]-want[i]) > 2e-5 { // sums in another order
					t.Errorf("%s, %d ranks: step %d has loss %v packed, %v a document a sequence", family, ranks, i+1, got[i], want[i])
				}
			}
		}
	}
}

// TestPackedRunGoesOn stops a run within an epoch of a mixture of packed documents and
// lets it go on; with other weights it does not.
func TestPackedRunGoesOn(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	for i, name := range []string{"docs.jsonl", "more.jsonl"} {
		var lines strings.Builder
		for k := range 60 {
			fmt.Fprintf(&lines, "{\"text\": \"%s\"}\n", strings.Repeat(string(rune('a'+k%13+13*i)), 2+k%11))
		}
		jobtest.Write(t, name, lines.String())
	}
	run := func(out, resume, steps, weight string) (losses []float64, err error) {
		t.Helper()
		h := &heard{}
		c := spectest.MustLoad(t, "data={documents: [{path: docs.jsonl, weight: "+weight+"}, {path: more.jsonl, weight: 1}], tokenizer: bytes, pack: true, validation: 0.1}", "train.steps="+steps,
			"schedule.type=constant", "checkpoint.every=3", "parallel.ranks=2", "model.context=16", "train.eval_every=4")
		err = Run(t.Context(), c, Options{Out: out, Resume: resume, Observer: h})
		for _, s := range h.steps {
			losses = append(losses, s.Loss)
		}
		if told := strings.Join(h.notes, "\n"); strings.Contains(told, "changed since the checkpoint: data") {
			t.Errorf("data that is as it was is told to differ: %s", told)
		}
		return losses, err
	}
	whole, err := run("whole", "", "11", "2.5")
	first, err1 := run("halves", "", "6", "2.5")
	second, err2 := run("halves", "latest", "11", "2.5")
	if halves := append(first, second...); err != nil || err1 != nil || err2 != nil || len(whole) != 11 || !slices.Equal(whole, halves) {
		t.Errorf("losses %v in one go, %v in two: %v %v %v", whole, halves, err, err1, err2)
	}
	if _, err := run("halves", "latest", "14", "2.4"); !input.IsInput(err) || !strings.Contains(err.Error(), "data") {
		t.Errorf("with other weights: %v", err)
	}
}

// TestDocumentsKeepTheirFormat checks that a run of documents continues with their format if its
// job omits it.
func TestDocumentsKeepTheirFormat(t *testing.T) {
	jobtest.InTinyFolder(t)
	jobtest.Write(t, "sums.jsonl", strings.Repeat("{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n", 40))
	run := func(resume, steps, more string) error {
		c := spectest.MustLoad(t, "data={documents: [sums.jsonl], validation: 0.1, tokenizer: bytes"+more+"}", "train.steps="+steps, "checkpoint.every=2", "model.context=8")
		return Run(t.Context(), c, Options{Out: "r", Resume: resume})
	}
	if err := errors.Join(run("", "2", ", format: prompt, pack: true"), run("latest", "4", "")); err != nil {
		t.Error(err)
	}
}

// TestResumeRefusesAnotherOrder checks that a run does not go on where the order of the data, or
// what the parameters mean, would be another.
func TestResumeRefusesAnotherOrder(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	jobtest.Write(t, "sums.jsonl", strings.Repeat("{\"text\": \"1+1=2\"}\n", 40))
	jobtest.Write(t, "dev.jsonl", "{\"text\": \"2+2=4\"}\n")
	run := func(resume, steps string, sets ...string) error {
		c := spectest.MustLoad(t, append(sets, "data.text=", "data.documents=[sums.jsonl]", "data.tokenizer=bytes", "train.steps="+steps, "train.eval_every=0", "checkpoint.every=2", "model.context=8", "train.lora.rank=2")...)
		return Run(t.Context(), c, Options{Out: "r", Resume: resume})
	}
	if err := run("", "2", "data.pack=true", "train.lora.alpha=4"); err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]string{
		"data.pack=false": "it was trained with data.pack true, but the job has false; the data would be in another order",
		"data.validation=null data.validation_documents=[dev.jsonl]": `it was trained with data.validation_documents none, but the job has ["dev.jsonl"]; the data would be in another order`,
		"train.lora.rslora=true":                                     "it was trained with train.lora.rslora false, but the job has true; that would be another model",
		"train.lora.alpha=8":                                         "it was trained with train.lora.alpha 4, but the job has 8; that would be another model",
		`train.lora.alpha_pattern={"c_attn":8}`:                      `it was trained with train.lora.alpha_pattern none, but the job has {"c_attn": 8}; that would be another model`,
		"train.lora.targets=[all-linear]":                            "is not in it: resume with the model it was trained with",
		"data.validation=0.3":                                        "it was trained with data.validation",
	} {
		if err := run("latest", "4", strings.Fields(set)...); !input.IsInput(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", set, err, want)
		}
	}
	if err := run("latest", "4"); err != nil {
		t.Error(err)
	}
}

// TestFittedContext checks that a job that does not say the length of sequences has that of its
// longest document, that job.yaml says so, and that a resume keeps it.
func TestFittedContext(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	if err := Run(t.Context(), spectest.MustLoad(t, "model.family=llama", "model.context=256", "train.steps=1", "train.eval_every=0"), Options{Out: "made"}); err != nil {
		t.Fatal(err)
	}
	longest := func(bytes int) string {
		return "{\"text\": \"" + strings.Repeat("a", bytes) + "\"}\n" + strings.Repeat("{\"text\": \"abc\"}\n", 20)
	}
	const dev = "{\"text\": \"abc\"}\n"
	for _, c := range []struct {
		name, docs, dev, sets string
		want                  int
		told                  string
	}{
		{"short", longest(60), dev, "", 64, "model.context is 64, enough for the longest document; the model's maximum is 256"},
		{"exact", longest(65), dev, "", 64, "model.context is 64, enough"},
		{"next", longest(66), dev, "", 128, "model.context is 128, enough"},
		{"held", longest(9), longest(100), "", 128, "model.context is 128, enough"},
		{"long", longest(999), dev, "", 256, "model.context is 256, the model's maximum"},
		{"said", longest(60), dev, "model.context=32", 32, ""},
	} {
		jobtest.Write(t, "docs.jsonl", c.docs)
		jobtest.Write(t, "dev.jsonl", c.dev)
		jobtest.Write(t, "tune.yaml", "model: {from: made/model}\ndata: {documents: [docs.jsonl], validation_documents: [dev.jsonl], tokenizer: bytes}\ntrain: {steps: 1, batch: 2, eval_every: 0}\nparallel: {ranks: 2}\n")
		for i, resume := range []string{"", "latest"} {
			job, err := spec.Load("tune.yaml", append(strings.Fields(c.sets), fmt.Sprintf("train.steps=%d", i+1), "checkpoint.every=1"))
			if err != nil {
				t.Fatal(err)
			}
			h := &heard{}
			if err := Run(t.Context(), job, Options{Out: c.name, Resume: resume, Observer: h}); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if told := strings.Join(h.notes, "\n"); i == 0 && !strings.Contains(told, c.told) || (i > 0 || c.told == "") && strings.Contains(told, "longest document needs") {
				t.Errorf("%s %s: %s", c.name, resume, told)
			}
			if saved, err := spec.Load(filepath.Join(c.name, "job.yaml"), nil); err != nil || saved.Model.Context != c.want {
				t.Errorf("%s %s: %v, %d tokens", c.name, resume, err, saved.Model.Context)
			}
		}
	}
}

// TestHeaderCountsNoPadding checks that the data has as many tokens before an epoch as it trains on, and that
// what is counted are tokens only if the data has tokens.
func TestHeaderCountsNoPadding(t *testing.T) {
	jobtest.InTinyFolder(t)
	jobtest.Write(t, "docs.jsonl", strings.Repeat(`{"text": "ab"}`+"\n"+`{"text": "abcde"}`+"\n", 4))
	h := runs(t, "run", "", "data.text=", "data.documents=[docs.jsonl]", "data.tokenizer=bytes", "data.validation=0", "train.steps=", "train.epochs=1", "train.batch=8", "train.eval_every=0")
	if tokens := h.sums[0].Tokens; h.header.DataTokens != tokens || tokens >= 8*8 || h.header.Unit != "" {
		t.Errorf("data of %d %s, trained on %d", h.header.DataTokens, h.header.Unit, tokens)
	}
	c := *spectest.MustLoad(t)
	c.Data.Program = true
	c.Model.Context = 1
	if unit := spec.Unit(&c); unit != "samples" {
		t.Error(unit)
	}
	rows := report.Header{Start: report.Start{Unit: "samples", TokensPerStep: 64, Steps: 5}, GlobalBatch: 64, DataTokens: 1000}.Rows()
	if !slices.Contains(rows, [2]string{"batch", "64 samples a step, 5 steps"}) || !slices.Contains(rows, [2]string{"data", "1,000 samples"}) {
		t.Error(rows)
	}
}
