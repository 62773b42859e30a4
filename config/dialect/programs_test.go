package dialect

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPrograms checks files in the forms that Axolotl, LLaMA-Factory and the Trainer document: each is a job with
// these values, or is refused by key.
func TestPrograms(t *testing.T) {
	for _, test := range []struct{ file, want string }{
		{"axolotl-lora.yml", "train.lora.rank 16, train.lora.alpha 32, train.eval_every 0.25, optimizer.type adamw8bit, precision bf16, train.micro_batch 2, train.epochs 1, schedule.warmup 10, checkpoint.save_on_exit true, zero.recompute block, train.lora.targets [\"gate_proj\", \"down_proj\", \"up_proj\", \"q_proj\"]"},
		{"axolotl-qlora.yml", "model.weights nf4, train.lora.targets [\"all-linear\"], train.lora.modules_to_save [\"embed_tokens\", \"lm_head\"], checkpoint.every 0.25, schedule.warmup 0.1, train.eval_every 0"},
		{"axolotl-full-zero3.yml", "zero.stage 3, train.lora.rank 0, precision bf16, train.accumulate 8, train.eval_every 0.5, optimizer.betas [0.9, 0.999]"},
		{"axolotl-fsdp.yml", "!optimizer: adamw_torch_8bit is not supported"},
		{"axolotl-dpo.yml", "!rl: dpo is not supported; remove it"},
		{"llamafactory-lora.yaml", "train.lora.rank 8, train.lora.alpha 16, train.lora.targets [\"all-linear\"], schedule.warmup 0.1, optimizer.lr 1e-4, train.epochs 3, checkpoint.every 500, zero.recompute block"},
		{"llamafactory-full-zero3.yaml", "zero.stage 3, train.lora.rank 0, train.eval_every 500, train.accumulate 2"},
		{"llamafactory-qlora.yaml", "model.weights nf4, train.lora.alpha 64, train.lora.dropout 0.1, train.lora.targets [\"q_proj\", \"v_proj\"], checkpoint.save_on_exit true"},
		{"llamafactory-max-samples.yaml", "!max_samples: 1000 is not supported"},
		{"llamafactory-dpo.yaml", "!stage: dpo is not supported"},
		{"arguments-minimal.json", "train.epochs 3, train.micro_batch 8, optimizer.lr 5e-5, schedule.warmup 0"},
		{"arguments-all-4.44.json", "train.epochs 3, train.micro_batch 8, optimizer.lr 5e-5, schedule.warmup 0, zero.stage 0, zero.recompute none, checkpoint.every 500, precision fp32"},
		{"arguments-all-5.24.json", "train.epochs 3, train.micro_batch 8, optimizer.lr 5e-5, schedule.warmup 0, zero.stage 0, zero.recompute none, checkpoint.every 500, precision fp32"},
		{"arguments-cosine.json", "schedule.warmup 0.03, schedule.type cosine, train.steps 300, checkpoint.every 0.1, zero.recompute block"},
		{"arguments-epochs.json", "checkpoint.every 0.25, train.eval_every 0.25, schedule.warmup 0.1, checkpoint.keep 2, train.final_model best"},
		{"arguments-zero3.json", "zero.stage 3, optimizer.lr 1e-5, optimizer.weight_decay 0.1, train.clip 0.3, train.accumulate 4, schedule.warmup 0.05, schedule.type linear, schedule.lag 1"},
		{"arguments-zero2.json", "zero.stage 2, zero.offload.optimizer host, optimizer.lr 3e-5, optimizer.betas [0.9, 0.98], optimizer.groups [{match: \"*\", weight_decay: 0.05}], train.clip 0.5, schedule.warmup 20, schedule.lag 2, train.steps 200"},
		{"arguments-contradiction.json", "!train.clip: 0.5, but TrainingArguments has 1.0 at testdata/arguments-contradiction.json:1:76"},
		{"arguments-fsdp.json", "zero.stage 3, zero.recompute block, precision bf16"},
		{"arguments-smoothing.json", "!label_smoothing_factor: 0.1 is not supported"},
	} {
		t.Run(test.file, func(t *testing.T) { program(t, filepath.Join("testdata", test.file), test.want) })
	}
}

// pairs matches a key and its value, which may be a list.
var pairs = regexp.MustCompile(`[a-z_.]+ (?:\[.*?\], |[^,]*, )`)

// program checks the job of a file, and the job file that is written for it.
func program(t *testing.T, file, want string) {
	sets := []string{"data={text: [doc.go]}", "model={family: llama, layers: 1, heads: 2, width: 64}"}
	c, err := LoadJob(file, sets)
	text, ok, wrong := Translate(file)
	if refused, is := strings.CutPrefix(want, "!"); is {
		if err == nil || wrong == nil || !strings.Contains(err.Error(), refused) || !strings.Contains(wrong.Error(), refused) {
			t.Errorf("%v, %v, want %s", err, wrong, refused)
		}
		return
	}
	if strings.Contains(want, "model.weights") {
		sets[1] = "model={family: llama, layers: 1, heads: 2, width: 64, weights: nf4}"
		c, err = LoadJob(file, sets)
	}
	if err != nil || !ok || wrong != nil {
		t.Fatalf("%v, %v", err, wrong)
	}
	written := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(written, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	again, err := LoadJob(written, sets)
	if err != nil || again.YAML != c.YAML {
		t.Errorf("written, it is another job (%v):\n%s\nwant\n%s", err, again.YAML, c.YAML)
	}
	for _, pair := range pairs.FindAllString(want+", ", -1) {
		key, value, _ := strings.Cut(strings.TrimSuffix(pair, ", "), " ")
		if got := c.Text(key); got != value {
			t.Errorf("%s is %s, want %s", key, got, value)
		}
	}
}
