//go:build unix

package main

import (
	"strings"
	"testing"

	"zeroth/tests/nightly"
)

// TestMessagesAreShort checks that no message about megabytes of input has megabytes: values, keys, paths, and
// files of jobs, models, adapters, data and other programs.
func TestMessagesAreShort(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	long := strings.Repeat("long ", 1<<18)
	word := strings.Repeat("w", 1<<20)
	write(t, "key.yaml", "train: {"+word+": 3}\n")
	write(t, "value.yaml", "train: {steps: \""+long+"\"}\n")
	write(t, "many.yaml", "train: {"+strings.Repeat("steps: x, ", 1<<12)+"}\n")
	write(t, "ds.json", `{"`+word+`": {"`+word+`": 3}, "optimizer": {"type": "`+word+`"}}`)
	write(t, "hf/config.json", `{"model_type": "`+word+`", "architectures": ["`+word+`"]}`)
	write(t, "llama/config.json", `{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_scaling": {"`+word+`": "`+word+`"}, "hidden_size": "`+word+`", "`+word+`": true}`)
	write(t, "adapter/adapter_config.json", `{"peft_type": "`+word+`", "target_modules": ["`+word+`"]}`)
	write(t, "a.jsonl", `{"`+word+`": "x"}`+"\n"+`{"text": `+word+"}\n")
	write(t, "prompts.txt", `"`+word+"\n")
	zeroth(t, 0, "train", "tiny.yaml", "--out", "r")
	for i, args := range [][]string{
		{"plan", "key.yaml"}, {"plan", "value.yaml"}, {"plan", "many.yaml"}, {"plan", word}, {"plan", "tiny.yaml", "--set", "train.steps=" + word},
		{"plan", "tiny.yaml", "--set", word + "=1"}, {"plan", "tiny.yaml", "--set", "optimizer.groups=[{match: '" + word + "', lr: 1}]"},
		{"plan", "tiny.yaml", "--set", "train.freeze=['" + word + "']"}, {"plan", "tiny.yaml", "--set", "data.text=['" + word + "']"},
		{"train", "tiny.yaml", "--set", "train.lora={rank: 2, targets: ['" + word + "']}"}, {"train", "tiny.yaml", "--set", "train.lora={from: adapter}"},
		{"train", "tiny.yaml", "--out", word}, {"train", "tiny.yaml", "--resume", word, "--out", "new"}, {"train", "tiny.yaml", "--set", "data.text=['" + word + "']"},
		{"train", "tiny.yaml", "--set", "data={text: null, documents: [a.jsonl]}"},
		{"train", "tiny.yaml", "--set", "report.listen=" + word, "--out", "n2"},
		{"init", word}, {"init", "--from", "ds.json"}, {"model", "hf"}, {"model", "llama"}, {"model", "hf://" + word}, {"model", word}, {"plan", "--model", "llama"},
		{"sample", "--run", word}, {"sample", "--run", "r", "--tokenizer", word}, {"sample", "--run", "r", "--chat", "--template-arg", word},
		{"tokenize", "--tokenizer", word, "a.txt", "--out", "o.bin"}, {"tokenize", "--tokenizer", "bytes", "--format", "text", "a.jsonl", "--out", "o.bin"},
		{"tokenize", "--tokenizer", "bytes", word, "--out", "o.bin"}, {"ckpt", "ls", word}, {"ckpt", "verify", word}, {"ckpt", "export", "r", "--to", word, "--dtype", word},
		{"ckpt", "import", "llama", "--to", "c"}, {"ckpt", "prune", "r", "--keep", word}, {"help", word}, {word}, {"bench", word}, {"compare", word, word},
		{"launch", "--", word}, {"fit", "tiny.yaml", "--gpu-memory", word}, {"plan", "tiny.yaml", "--machine", word},
		{"runs", word}, {"report", word}, {"flight", word}, {"--log", word, "version"}, {"--" + word}, {"eval", "tiny.yaml", "--run", word},
	} {
		if !nightly.Every(6, i) {
			continue
		}
		var out, errs strings.Builder
		if code := run(args, &out, &errs); code == 0 {
			t.Logf("%.60q: exit code 0", args)
		}
		longest := 0
		for line := range strings.Lines(errs.String()) {
			longest = max(longest, len(line))
		}
		if longest > 10_000 || errs.Len() > 80_000 {
			t.Errorf("%.60q: %d bytes, the longest line has %d: %.300s", args, errs.Len(), longest, errs.String())
		}
	}
}
