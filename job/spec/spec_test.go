package spec

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"zeroth/config"
	"zeroth/config/tree"
	"zeroth/config/words"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"zeroth/checkpoint"
	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/machine"
	"zeroth/job/hf"
	"zeroth/job/jobtest"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// equal compares configurations without the places of their values.
var equal = cmp.Options{cmpopts.IgnoreUnexported(Job{}), cmpopts.IgnoreFields(Job{}, "Document")}

func TestDefaults(t *testing.T) {
	onProcessors(t)
	jobtest.InFolder(t, jobtest.Least)
	want := &Job{Config: config.Config{
		Model:  hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 6, Heads: 6, Width: 384, Context: 256, Vocab: 256, Eps: 1e-5}},
		Data:   config.Data{Text: []string{"a.txt"}, Format: "text", Keys: config.RecordKeys{Text: "text", Prompt: "prompt", Completion: "completion", Messages: "messages"}, Learn: "assistant", TooLong: "cut", Tokenizer: "bytes", Validation: 0.01},
		Train:  config.Training{Steps: 200, Batch: 16, MicroBatch: 4, Accumulate: 1, Clip: 1, Sums: "order", Seed: 1, EvalEvery: 50, EvalBatches: 8, LossChunk: 1024, EarlyStop: config.EarlyStop{Metric: "val_loss", Mode: "min"}, FinalModel: "last"},
		Device: "auto", Parallel: config.Parallel{Ranks: 4, Pipeline: 1, Shard: 4, Replicate: 1, Expert: 1, Context: 1, Tensor: 1, Timeout: 5 * time.Minute, Transport: "auto", Join: time.Minute, Heartbeat: 5 * time.Second, DeadAfter: 15 * time.Second, Collective: "auto", Attention: "auto"},
		Faults:     config.Faults{MinReplicas: 1},
		Pipeline:   config.Pipeline{Schedule: "1F1B", Virtual: 1},
		Zero:       config.Zero{Stage: 3, Prefetch: 1, Recompute: "none", Offload: config.Offload{Optimizer: "none", Parameters: "none", Activations: "none", Buffers: 4, Ratio: 1}},
		Precision:  device.BF16,
		Weights:    "full",
		Optimizer:  config.Optimizer{Type: "adamw", LR: 6e-4, Betas: [2]float64{0.9, 0.95}, Eps: 1e-8, WeightDecay: 0.1},
		Schedule:   config.Schedule{Type: "cosine", Warmup: 20, MinLR: 6e-5},
		Checkpoint: config.Checkpointing{Keep: checkpoint.Keep{Last: 3}, Async: true, Compress: "auto", OnError: "stop"},

		Sample: config.Sampling{Prompt: "\n", Tokens: 0, Temperature: 0.8, TopP: 1, Seed: 1},
		Report: config.Reporting{Every: 50, Experiment: "zeroth", Stall: 10 * time.Minute},
	}}
	if d := cmp.Diff(want, mustLoad(t), equal); d != "" {
		t.Errorf("defaults (-want +got):\n%s", d)
	}
}

// TestDefaultsFollow checks that derived defaults never make a job impossible.
func TestDefaultsFollow(t *testing.T) {
	nightly.Long(t)
	onProcessors(t)
	jobtest.InFolder(t, jobtest.Least)
	jobtest.Write(t, "a.bin", "\x01\x00")
	jobtest.WriteVocabulary(t, "voc", 998)
	if err := os.Mkdir("hf", 0o755); err != nil {
		t.Fatal(err)
	}
	jobtest.Write(t, "hf/config.json", string(hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 16, Vocab: 300, Eps: 1e-5}}.ConfigJSON()))
	for _, c := range []struct {
		sets []string
		got  func(*Job) any
		want any
	}{
		{[]string{"train.steps=7"}, func(c *Job) any { return c.Schedule.Warmup }, 7},
		{[]string{"optimizer.lr=1e-5"}, func(c *Job) any { return c.Schedule.MinLR }, 1e-6},
		{[]string{"optimizer.lr=3e-4"}, func(c *Job) any { return c.Schedule.MinLR }, 3e-5},
		{[]string{"schedule.type=constant"}, func(c *Job) any { return c.Schedule.MinLR }, 6e-4},
		{[]string{"data.validation=0"}, func(c *Job) any { return c.Train.EvalEvery }, 0},
		{[]string{"data.text=", "data.tokens=[a.bin]"}, func(c *Job) any { return c.Model.Vocab }, 50257},
		{[]string{"data.tokenizer=gpt2", "data.vocab=voc"}, func(c *Job) any { return c.Model.Vocab }, 999},
		{[]string{"optimizer.type=lion"}, func(c *Job) any { return c.Optimizer.Betas }, [2]float64{0.9, 0.99}},
		{[]string{"optimizer.type=sgd"}, func(c *Job) any { return c.Optimizer.Momentum }, 0.9},
		{[]string{"optimizer.type=sgd"}, func(c *Job) any { return c.Optimizer.Eps }, 0.0},
		{[]string{"sample.prompt=func"}, func(c *Job) any { return c.Sample.Tokens }, 200},
		{[]string{"train.seed=7"}, func(c *Job) any { return c.Sample.Seed }, uint64(7)},
		{[]string{"train.seed=18446744073709551615"}, func(c *Job) any { return c.Train.Seed }, ^uint64(0)},
		{[]string{"parallel={shard: 2, replicate: 3}"}, func(c *Job) any { return c.Parallel.Ranks }, 6},
		{[]string{"parallel={ranks: 8, replicate: 2}"}, func(c *Job) any { return c.Parallel.Shard }, 4},
		{[]string{"parallel={ranks: 8, replicate: 2}"}, func(c *Job) any { return Mesh(c) }, shard.Mesh{Pipeline: 1, Shard: 4, Replicate: 2, Expert: 1, Context: 1, Tensor: 1}},
		{[]string{"parallel={pipeline: 2, replicate: 3}"}, func(c *Job) any { return Mesh(c) }, shard.Mesh{Pipeline: 2, Shard: 1, Replicate: 3, Expert: 1, Context: 1, Tensor: 1}},
		{[]string{"parallel={pipeline: 2, shard: 3}", "train={micro_batch: 2, accumulate: 4}"}, func(c *Job) any { return [2]int{c.Parallel.Ranks, c.Train.Batch} }, [2]int{6, 24}},
		{[]string{"parallel.pipeline=3", "pipeline.schedule=Interleaved1F1B", "train.accumulate=3"}, func(c *Job) any { return StageLayers(c) }, []int{1, 1, 1, 1, 1, 1}},
		{[]string{"parallel.ranks=1", "train.lora.rank=2", "train.lora.targets=[all-linear]", "model.from=hf", "data.tokenizer=bytes"}, func(c *Job) any { return c.Zero.Stage }, 0},
		{[]string{"parallel.ranks=1", "train.lora.rank=2", "train.lora.targets=[all-linear]", "model.from=hf", "data.tokenizer=bytes", "zero.offload.parameters=host"}, func(c *Job) any { return c.Zero.Stage }, 3},
		{[]string{"parallel.ranks=2", "train.lora.rank=2", "train.lora.targets=[all-linear]", "model.from=hf", "data.tokenizer=bytes"}, func(c *Job) any { return c.Zero.Stage }, 3},
		{[]string{"zero.stage=0"}, func(c *Job) any { return Mesh(c) }, shard.Mesh{Pipeline: 1, Shard: 1, Replicate: 4, Expert: 1, Context: 1, Tensor: 1}},
		{[]string{"model.family=llama"}, func(c *Job) any { return c.Model }, hf.Model{Family: "llama", Shape: nn.Shape{Layers: 6, Heads: 6, Width: 384, Context: 256, Vocab: 256, Eps: 1e-5}, Llama: nn.Llama{KV: 6, FFN: 1024, Theta: 10000}}},
		{[]string{"model={family: llama, width: 390, heads: 3, kv_heads: 1, tied: true, rope_theta: 5e5}"}, func(c *Job) any { return c.Model },
			hf.Model{Family: "llama", Shape: nn.Shape{Layers: 6, Heads: 3, Width: 390, Context: 256, Vocab: 256, Eps: 1e-5}, Llama: nn.Llama{KV: 1, FFN: 1088, Theta: 5e5, Tied: true}}},
		{[]string{"model={from: hf}", "data.tokenizer=bytes"}, func(c *Job) any { return c.Model.Context }, 16},
		{[]string{"model={from: hf, context: 16}", "data.tokenizer=bytes"}, func(c *Job) any { return c.Model.Longest }, 0},
		{[]string{"model={from: hf, context: 9}", "data.tokenizer=bytes"}, func(c *Job) any { return c.Model }, hf.Model{From: "hf", Family: "gpt2", Longest: 16, Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 9, Vocab: 300, Eps: 1e-5}}},
		{[]string{"model.context=100"}, func(c *Job) any { return TokensPerStep(c) }, 1600},
	} {
		if got := c.got(mustLoad(t, c.sets...)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: got %v, want %v", c.sets, got, c.want)
		}
	}
}

// TestBatchTriangle checks that any two of batch, micro_batch and accumulate determine the third.
func TestBatchTriangle(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least+"parallel: {ranks: 4}\n")
	for _, c := range []struct {
		sets                     string
		batch, micro, accumulate int
	}{
		{"", 16, 4, 1},
		{"micro_batch=3", 12, 3, 1},
		{"accumulate=5", 80, 4, 5},
		{"micro_batch=2 accumulate=3", 24, 2, 3},
		{"batch=48 micro_batch=6", 48, 6, 2},
		{"batch=48 accumulate=4", 48, 3, 4},
		{"batch=48 micro_batch=4 accumulate=3", 48, 4, 3},
		{"batch=4", 4, 1, 1},
		{"batch=24", 24, 3, 2}, // 6 a rank: 3 is the largest micro-batch up to 4
		{"batch=64", 64, 4, 4},
		{"batch=28", 28, 1, 7},
		{"batch=26 parallel.replicate=4", 26, 1, 7},
		{"batch=20 parallel.replicate=4", 20, 1, 5}, // not 4 in 2 micro-batches: 8 for one of the ranks
		{"batch=40 micro_batch=4 parallel.replicate=4", 40, 4, 3},
		{"batch=40 micro_batch=4 accumulate=3 parallel.replicate=4", 40, 4, 3},
		{"batch=40 micro_batch=4 zero.stage=0", 40, 4, 3},
		{"batch=24 parallel.replicate=2 micro_batch=4", 24, 4, 2},
	} {
		var sets []string
		for _, s := range strings.Fields(c.sets) {
			if !strings.Contains(s, ".") {
				s = "train." + s
			}
			sets = append(sets, s)
		}
		tr := mustLoad(t, sets...).Train
		if tr.Batch != c.batch || tr.MicroBatch != c.micro || tr.Accumulate != c.accumulate {
			t.Errorf("%q: batch %d, micro_batch %d, accumulate %d; want %d, %d, %d", c.sets, tr.Batch, tr.MicroBatch, tr.Accumulate, c.batch, c.micro, c.accumulate)
		}
	}
}

// TestYAMLReadsBack checks that Load reads back what YAML writes.
func TestYAMLReadsBack(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	jobtest.Write(t, "a.bin", "\x01\x00")
	jobtest.Write(t, "it's: a #\t\"strange\" näme.txt", "x")
	jobtest.WriteVocabulary(t, "own", 299)
	jobtest.Write(t, "own/config.json", string(hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 16, Vocab: 300, Eps: 2e-5}}.ConfigJSON()))
	jobtest.Write(t, "config.json", string(hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 16, Vocab: 300, Eps: 2e-5}}.ConfigJSON()))
	for _, sets := range [][]string{
		nil,
		{"zero.stage=0", "precision=fp32"},
		{"precision=fp16", "zero={stage: 1, prefetch: 0, recompute: block}"},
		{"model={from: .}", "data.tokenizer=bytes"},
		{"model={from: own}"},
		{"data={tokens: [a.bin], dtype: int64, tokenizer: none}", "model.vocab=1000"},
		{"model={from: ., context: 9}", "data.tokenizer=bytes"},
		{"model={family: llama}"},
		{"model={family: llama, kv_heads: 2, ffn: 100, rope_theta: 5e5, tied: true}"},
		{"data={tokens: [a.bin], validation: 0}"},
		{"optimizer={type: sgd, lr: 0.1, momentum: 0}", "schedule={type: constant, warmup: 0}"},
		{"optimizer={type: lion, lr: 1.23456789e-5}", "schedule={type: linear}"},
		{"optimizer={type: adam, weight_decay: 0}"},
		{"parallel={ranks: 6, replicate: 3, timeout: 1m30s}", "train.batch=60"},
		{`data.text=["it's: a #\t\"strange\" näme.txt"]`},
		{`sample.prompt="a\n\\ \u2028 \x01 # : [ 😀 <b> \x7f"`, "sample.temperature=0", "sample.top_k=5", "sample.top_p=0.9", `sample.stop=["\n\n", "# "]`},
		{"sample.prompt=null", "sample.tokens=9"},
		{"sample.prompt='null'"},
		{"sample.prompt='6e-4'"},
	} {
		want := mustLoad(t, sets...)
		jobtest.Write(t, "again.yaml", string(want.YAML()))
		got, err := Load("again.yaml", nil)
		if err != nil {
			t.Errorf("%q: reading back: %v\n%s", sets, err, want.YAML())
			continue
		}
		if d := cmp.Diff(want, got, equal); d != "" {
			t.Errorf("%q: read back differs (-written +read):\n%s\n%s", sets, d, want.YAML())
		}
	}
}

// TestYAMLOnOtherRanks checks that the effective configuration runs unchanged on another number of
// ranks.
func TestYAMLOnOtherRanks(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least+"train: {batch: 48, accumulate: 2}\nparallel: {ranks: 6, shard: 3, replicate: 2}\n")
	jobtest.Write(t, "again.yaml", string(mustLoad(t).YAML()))
	c, err := Load("again.yaml", []string{"parallel.ranks=4", "train.steps=3"})
	if err != nil {
		t.Fatal(err)
	}
	want := [4]int{3, 32, 4, 2}
	if got := [4]int{c.Train.Steps, c.Train.Batch, c.Train.MicroBatch, c.Train.Accumulate}; got != want || c.Parallel.Shard != 2 {
		t.Errorf("got %+v, shard %d", got, c.Parallel.Shard)
	}
}

func TestYAMLText(t *testing.T) {
	onProcessors(t)
	jobtest.InFolder(t, jobtest.Least)
	got := string(mustLoad(t).YAML())
	for _, line := range []string{"  lr: 6e-4\n", "precision: bf16\n", "  betas: [0.9, 0.95]\n", "  shard: -1 # 4 = ranks / replicate\n", "  accumulate: 1 # batch: 16 = micro_batch × accumulate × ranks\n", `  text: ["a.txt"]` + "\n"} {
		if !strings.Contains(got, line) {
			t.Errorf("no line %q in\n%s", line, got)
		}
	}
	if strings.Contains(got, "momentum") || strings.Contains(got, "from") {
		t.Errorf("keys without a meaning are written:\n%s", got)
	}
}

// TestSets checks that a --set overrides the file, that the last one wins, and that null selects
// the default.
func TestSets(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least+"train: {steps: 5, seed: 3}\noptimizer:\nschedule: {min_lr: 1e-5}\n")
	c := mustLoad(t, "train.steps=6", "train.steps=8", "train.seed=null", "optimizer.lr=1e-3", "schedule.min_lr=", "zero.stage=1", "sample.prompt=# heading")
	if c.Train.Steps != 8 || c.Train.Seed != 1 || c.Optimizer.LR != 1e-3 || c.Schedule.MinLR != 1e-4 || c.Zero.Stage != 1 || c.Sample.Prompt != "# heading" {
		t.Errorf("got %+v", c)
	}
	c = mustLoad(t, "train={micro_batch: 2}")
	if c.Train.Steps != 200 || c.Train.MicroBatch != 2 {
		t.Errorf("a section as a whole: got %+v", c.Train)
	}
}

func TestAnchors(t *testing.T) {
	jobtest.InFolder(t, "data: {text: &files [a.txt]}\ntrain:\n  steps: &n 12\nschedule: {warmup: *n}\nsample:\n  tokens: *n\n  prompt: |\n    one\n    two\n")
	c := mustLoad(t)
	if c.Train.Steps != 12 || c.Schedule.Warmup != 12 || c.Sample.Tokens != 12 || c.Sample.Prompt != "one\ntwo\n" {
		t.Errorf("got %+v %+v %+v", c.Train, c.Schedule, c.Sample)
	}
	jobtest.Write(t, "job.yaml", "data: &d {text: [a.txt]}\ntrain:\n  steps: 3\n  <<: {steps: 4, seed: 9}\n")
	if c := mustLoad(t); c.Train.Steps != 3 || c.Train.Seed != 9 {
		t.Errorf("merge key: got %+v", c.Train)
	}
}

// TestOneMistakeOneMessage checks that one mistake causes a single message.
func TestOneMistakeOneMessage(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for _, set := range []string{
		"data={txt: [a.txt]}", "data=[a.txt]", "data.text=[a.txt, {b: c}]", "model.width=wide", "model.heads=0",
		"parallel.ranks=four", "parallel.shard=0", "train.micro_batch=x", "train.batch=1.5", "optimizer.lr=-1",
		"optimizer={type: adamx, momentum: 0.1}", "schedule.warmup=-1", "data.validation=1", "precision=half",
		"model.from=nowhere", "data.tokenizer=gpt3",
	} {
		_, err := Load("job.yaml", []string{set})
		if ps, ok := err.(tree.Problems); !ok || len(ps) != 1 {
			t.Errorf("--set %s: %v", set, err)
		}
	}
}

func TestTabsAndOtherNonsense(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for _, file := range []string{
		"",
		"# nothing\n",
		"hello\n",
		"- a\n- b\n",
		"data:\n\ttext: [a.txt]\n",
		"data: {text: [a.txt\n",
		"\xff\xfe",
		jobtest.Least + "train: {steps: 1, steps: 2}\n",
		jobtest.Least + "---\n" + jobtest.Least,
		jobtest.Least + "zero: {stage: *s}\n",
		jobtest.Least + "1: 2\n",
	} {
		jobtest.Write(t, "job.yaml", file)
		_, err := Load("job.yaml", nil)
		said.Same(t, file, err)
		if !input.IsInput(err) {
			t.Errorf("%q: not the user's to mend", file)
		}
	}
}

func TestUnreadableJob(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, path := range []string{
		"gone.yaml",
		".",
	} {
		_, err := Load(path, nil)
		said.Same(t, path, err)
	}
}

// TestDataIsNoJob checks that a data or model file given as a job is identified, however large,
// with the job lines that would use it.
func TestDataIsNoJob(t *testing.T) {
	t.Chdir(t.TempDir())
	for path, c := range map[string]struct{ text, want string }{
		"chat.jsonl":        {strings.Repeat(`{"messages": []}`+"\n", 100_000), `data: {documents: ["chat.jsonl"], format: chat}`},
		"chat":              {strings.Repeat(`{"messages": []}`+"\n", 2), `data: {documents: ["chat"], format: chat}`},
		"one.jsonl":         {`{"prompt": "a", "completion": "b"}`, `data: {documents: ["one.jsonl"], format: prompt}`},
		"other.jsonl":       {`{"x": 1}`, `data: {documents: ["other.jsonl"]}`},
		"all.jsonl.gz":      {"\x1f\x8b\x08\x00", `data: {documents: ["all.jsonl.gz"]}`},
		"rows.parquet":      {"PAR1", `data: {documents: ["rows.parquet"]}`},
		"all.json":          {"[" + strings.Repeat("{},", 2000) + "{}]", "jq -c"},
		"a.txt":             {"words", `data: {text: ["a.txt"]}`},
		"ids.bin":           {"\x01\x00\x02\x00", `data: {tokens: ["ids.bin"]}`},
		"model.safetensors": {"\x80\x00", "a model's parameters"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path, nil)
		if err == nil || !strings.Contains(err.Error(), "not a job file") || !strings.Contains(err.Error(), c.want) || !input.IsInput(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := os.WriteFile("job.json", []byte("{\n\"data\": {\"text\": [\"a.txt\"], \"validation\": 0}, \"model\": {\"context\": 1}, \"train\": {\"batch\": 4}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load("job.json", nil); err != nil {
		t.Error(err)
	}
}

// TestCombinations checks every message about a bad combination of keys.
func TestCombinations(t *testing.T) {
	onProcessors(t)
	jobtest.InFolder(t, "data: {text: [a.txt], tokenizer: bytes}\n")
	jobtest.Write(t, "empty.txt", "")
	jobtest.Write(t, "a.bin", "\x01\x00")
	if err := os.Mkdir("hf", 0o755); err != nil {
		t.Fatal(err)
	}
	jobtest.Write(t, "hf/config.json", string(hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 16, Vocab: 100, Eps: 1e-5}}.ConfigJSON()))
	for _, set := range []string{
		"zero.stage=5",
		"train={router_aux: 0.01}",
		"model={heads: 7}",
		"model={width: 100}",
		"model={family: llama, heads: 7}",
		"model={family: llama, heads: 128}",
		"model={family: llama, width: 25, heads: 5}",
		"model={family: llama, kv_heads: 4}",
		"model={kv_heads: 2, tied: true}",
		"model={family: llama, rope_theta: 0}",
		"model={family: llama, tied: yes}",
		"model={from: hf, context: 17}",
		"model={vocab: 65}",
		"model={from: hf}",
		"model={from: hf, layers: 3, vocab: 300}",
		"model={family: gptj}",
		"data={text: [a.txt], tokens: [a.bin]}",
		"data={text: []}",
		"data={text: [empty.txt]}",
		"data={tokens: ['e*.txt']}",
		"data={text: [a.txt], format: chat}",
		"data={text: [a.txt], documents: [a.txt]}",
		"data={documents: [{path: a.txt, weight: 1}, b.txt]}",
		"data={documents: [{path: a.txt, weight: 0}]}",
		"data={documents: [{path: a.txt}]}",
		"data={documents: [{path: a.txt, wheight: 1}]}",
		"data={text: [a.txt], pack: true}",
		"data={documents: [a.txt], keys: {prompt: q}}",
		"data={documents: [a.txt], validation: 0.1, validation_documents: [a.txt]}",
		"data={documents: [none.jsonl]}",
		"data={documents: [a.txt], tokenizer: none}",
		"data={text: [a.txt], tokenizer: bytes, vocab: hf}",
		"data={text: [a.txt], tokenizer: gpt2, vocab: hf}",
		"data={text: [a.txt], validation: 1.5}",
		"parallel={ranks: 6, shard: 4}",
		"parallel={replicate: 3}",
		"parallel={shard: -2}",
		"parallel={ranks: 100000}",
		"train={batch: 30, micro_batch: 4}",
		"train={batch: 30, accumulate: 2}",
		"train={batch: 2}",
		"train={batch: 64, micro_batch: 4, accumulate: 2}",
		"train={clip: -1}",
		"train={steps: 99999999999999999999}",
		"train={seed: 1.5}",
		"schedule={min_lr: 1e-3}",
		"schedule={type: constant, min_lr: 1e-4}",
		"schedule={type: cosin}",
		"optimizer={type: sgd, betas: [0.9, 0.9], eps: 1e-8}",
		"optimizer={momentum: 0.9}",
		"optimizer={lr: 1e999}",
		"optimizer={lr: -.inf}",
		"optimizer={betas: [0.9]}",
		"parallel={timeout: -1s}",
		"parallel={timeout: [5m]}",
		"parallel=[4]",
		"train={lr: 1}",
		"steps=5",
		"parallel.rank=8",
	} {
		_, err := Load("job.yaml", []string{set})
		said.Same(t, set, err)
	}
}

// TestCombinationsOfSections checks that a bad combination over sections is reported at the key
// that causes it.
func TestCombinationsOfSections(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for _, sets := range []string{
		"zero.stage=0 parallel.replicate=2",
		"data.validation=0 train.eval_every=10",
		"parallel.ranks=8 train.batch=12",
	} {
		_, err := Load("job.yaml", strings.Fields(sets))
		said.Same(t, sets, err)
	}
}

// TestDate checks that chat templates get the day on which the job was first loaded.
func TestDate(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	chats := []string{"data.text=null", "data.documents=[a.jsonl]", "data.format=chat", "data.tokenizer=bytes"}
	jobtest.Write(t, "a.jsonl", "{}")
	today := time.Now().Format(time.DateOnly)
	c, err := Load("job.yaml", chats)
	if err != nil || c.Data.Date < today || !strings.Contains(string(c.YAML()), `date: "`+c.Data.Date+`"`) {
		t.Errorf("%v: %s", err, c.YAML())
	}
	if c, err = Load("job.yaml", append(chats, "data.date=2026-01-31")); err != nil || c.Data.Date != "2026-01-31" {
		t.Error(err)
	}
	if _, err = Load("job.yaml", append(chats, "data.date=31.1.2026")); err == nil || !strings.Contains(err.Error(), "31.1.2026 is not a date; want a date such as 2026-01-31") {
		t.Error(err)
	}
}

// TestUntrainedRouterIsReported checks that a job reports routers whose weights are always 1.
func TestUntrainedRouterIsReported(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for experts, want := range map[string]bool{"{count: 4, per_token: 1}": true, "{count: 4, per_token: 2}": false, "{count: 1}": false} {
		c := mustLoad(t, "model.family=llama", "model.experts="+experts)
		if notes := strings.Join(c.Notes, " "); strings.Contains(notes, "router") != want {
			t.Errorf("%s: %q", experts, notes)
		}
	}
}

// TestScoreCapIsReported checks that a job on GPUs reports that soft-capped scores exclude tensor
// cores.
func TestScoreCapIsReported(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for device, want := range map[string]int{"cpu": 0, "cuda": 1} {
		jobtest.Write(t, "config.json", `{"model_type": "gemma2", "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 256}`)
		c := mustLoad(t, "model.from=.", "data.tokenizer=bytes", "device="+device)
		if n := strings.Count(strings.Join(c.Notes, " "), "attention with soft-capped scores"); n != want {
			t.Errorf("%s: said %d times in %q", device, n, c.Notes)
		}
	}
}

func TestMalformedSets(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least+"zero: {stage: 3}\n")
	for _, set := range []string{
		"zero.stage",
		"=3",
		"zero.stage.x=3",
		"zero=3",
		"sample.prompt=\"a",
		"sample.stop=['x', '']",
		"sample.prompt=a: b",
		"train.=3",
	} {
		_, err := Load("job.yaml", []string{set})
		said.Same(t, set, err)
	}
}

// TestAllAtOnce checks that all problems are reported at once, sorted by line, followed by those
// of the sets.
func TestAllAtOnce(t *testing.T) {
	jobtest.InFolder(t, "zero: {stage: 9}\n"+jobtest.Least+"train: {stps: 1}\nmodel: {heads: 5}\n")
	_, err := Load("job.yaml", []string{"precision=fp8"})
	var at []string
	for _, p := range err.(tree.Problems) {
		at = append(at, p.At+" "+p.Key)
	}
	want := []string{"job.yaml:1:15 zero.stage", "job.yaml:3:9 train.stps", "job.yaml:4:16 model.heads", "--set precision=fp8 precision"}
	if d := cmp.Diff(want, at); d != "" {
		t.Error(d)
	}
}

// TestPatterns checks that each problem of the data is reported at its own pattern.
func TestPatterns(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	if err := os.MkdirAll(filepath.Join("d", "e"), 0o755); err != nil {
		t.Fatal(err)
	}
	jobtest.Write(t, "d/e/b.md", "x")
	t.Setenv("ZEROTH_TEST", "d")
	for pattern, want := range map[string]string{
		"d/**/*.md":             "",
		"${ZEROTH_TEST}/e/*":    "",
		"*.tx?":                 "",
		"{a,b}.txt":             "",
		"${GOROOT}/src/io/*.go": "",
		"d/*.md":                "no file matches d/*.md; relative paths start in the working directory",
		"/nodir/**":             "no file matches /nodir/**",
		"d":                     "d is a folder; its files are d/**",
		"${ZEROTH_NOT}/x":       "${ZEROTH_NOT}/x: the environment variable ZEROTH_NOT is not set; export it or write out the path",
		"[a.txt":                "[a.txt: syntax error in pattern",
	} {
		jobtest.Write(t, "job.yaml", "data:\n  text:\n  - a.txt\n  - "+tree.Quote(pattern)+"\n")
		_, err := Load("job.yaml", nil)
		if want != "" {
			want = "job.yaml:4:5: data.text: " + want
		}
		if got := fmt.Sprint(err); got != want && (err != nil || want != "") {
			t.Errorf("%s: %v; want %q", pattern, got, want)
		}
	}
}

// TestLoadTokenizer checks that a run's tokenizer is known after its data was deleted.
func TestLoadTokenizer(t *testing.T) {
	jobtest.InFolder(t, "data: {text: [gone.txt], tokenizer: gpt2}\nmodel: {from: gone}\n")
	for file, want := range map[string]string{
		"data: {text: [gone.txt], tokenizer: gpt2}\nmodel: {from: gone}\n": "gpt2",
		"data: {tokens: [gone.bin]}":                                       "gpt2 of tokens",
		"data: {tokens: [gone.bin], tokenizer: none}":                      " of tokens",
		"data: {text: [gone.txt]}":                                         "bytes",
		"data: {text: [gone.txt], tokenizer: gpt2, vocab: folder}":         "folder",
	} {
		jobtest.Write(t, "job.yaml", file)
		got, tokens, err := LoadTokenizer("job.yaml")
		if tokens {
			got += " of tokens"
		}
		if got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", file, got, err, want)
		}
	}
	jobtest.Write(t, "job.yaml", "data: {text: [gone.txt], tokenizer: gpt3}\n")
	if _, _, err := LoadTokenizer("job.yaml"); err == nil || !strings.HasPrefix(err.Error(), "job.yaml:1:37: data.tokenizer: gpt3 is not a valid value") {
		t.Errorf("got %v", err)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"layers", "heads", "width", "lr", "betas"}
	for word, want := range map[string]string{"layer": "layers", "haeds": "heads", "WIDTH": "width", "bettas": "betas", "optimizer": "", "x": "", "rl": "lr"} {
		if got := words.Nearest(word, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
	if d := words.Distance("ca", "abc"); d != 3 {
		t.Errorf("distance(ca, abc) = %d, want 3", d)
	}
}

// FuzzLoad checks on arbitrary files and sets that Load never panics. A loaded job reads back and
// is countable; problems are printable and short.
func FuzzLoad(f *testing.F) {
	dir := f.TempDir()
	text := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(text, []byte("x"), 0o644); err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"train: {steps: 3}", "a: &a [*a]", "? {a: b}\n: c", "optimizer: {lr: 1e-3}\nprecision: fp16", "<<: {train: {clip: 0}}", "sample: {prompt: \"\\x01\"}",
		"!!binary x", "- - -", "\"a\": 'b'\n---\n", "train:\n  <<: [{steps: 3}, {seed: 4}]\n", "\ufeff", "parallel: {timeout: 5m, memory: 1GiB}", "checkpoint: {every: 3, keep: {last: 2, best: loss}}",
		"zero: {stage: 1, offload: {optimizer: disk, path: .}}", "model: {family: llama, layers: 2, heads: 2, kv_heads: 1, width: 8}", "%YAML 1.2\n---\n", "train: {micro_batch: 1073741824}", "[[[[", "\"\\e[31m\": *a"} {
		for _, set := range []string{"", "train.batch=16", "zero.stage=", "sample.prompt=\"\\u0085\"", "model={width: 64, heads: 4}", "train.seed=18446744073709551615", "parallel.shard=2", "optimizer.betas=[0.9, 0.99]", "a.b.c=[1, {d: e}]"} {
			f.Add(s, set)
		}
	}
	f.Fuzz(func(t *testing.T, s, set string) {
		path, again := filepath.Join(dir, "job.yaml"), filepath.Join(dir, "again.yaml")
		jobtest.Write(t, path, "data: {text: ["+tree.Quote(text)+"]}\n"+s)
		var sets []string
		if set != "" {
			sets = []string{set}
		}
		c, err := Load(path, sets)
		if err != nil {
			if !input.IsInput(err) || len(err.Error()) > 100_000 || strings.ContainsFunc(err.Error(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
				t.Fatalf("said: %q", err)
			}
			return
		}
		if wrong, _ := Countable(c); wrong != "" {
			t.Fatal(wrong)
		}
		jobtest.Write(t, again, string(c.YAML()))
		got, err := Load(again, nil)
		if d := cmp.Diff(c, got, equal); err != nil || d != "" {
			t.Fatalf("read back: %v\n%s\n%s", err, d, c.YAML())
		}
	})
}

// onProcessors skips a test of defaults for machines without GPUs if there are some.
func onProcessors(t *testing.T) {
	t.Helper()
	if gpus, err := machine.UsableGPUs(); err == nil {
		t.Skipf("without GPUs a job has 4 ranks, and here are %d", len(gpus))
	}
}

func mustLoad(t *testing.T, sets ...string) *Job {
	t.Helper()
	c, err := Load("job.yaml", sets)
	if err != nil {
		t.Fatalf("Load(%q): %v", sets, err)
	}
	return c
}

// TestModelsDifferByEveryField checks that every field of a model is compared, except those that
// do not affect the computation or are compared elsewhere.
func TestModelsDifferByEveryField(t *testing.T) {
	elsewhere := []string{"From", "Context", "Longest", "BOS", "EOS", "Dropout", "Name", "Predicting", "RouterAux"}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[hf.Model]()) {
		if f.Anonymous || len(f.Index) == 3 { // the Model's own Shape is used
			continue
		}
		if f.Name == "LoRA" || f.Name == "Cut" { // properties of a job, not of a model
			continue
		}
		var m, zero hf.Model
		switch v := reflect.ValueOf(&m).Elem().FieldByIndex(f.Index); v.Kind() {
		case reflect.Int:
			v.SetInt(7)
		case reflect.String:
			v.SetString("x")
		case reflect.Float64:
			v.SetFloat(0.5)
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Uint8:
			v.SetUint(1)
		case reflect.Struct:
			if in := v.Field(1); in.CanFloat() {
				in.SetFloat(0.5)
			} else {
				in.SetInt(7)
			}
		default:
			t.Fatalf("%s has kind %v", f.Name, v.Kind())
		}
		differences := 0
		m.Differ(zero, func(string, any, any) { differences++ })
		if want := map[bool]int{false: 1}[slices.Contains(elsewhere, f.Name)]; differences != want {
			t.Errorf("Model.%s is compared %d times, want %d", f.Name, differences, want)
		}
	}
}
