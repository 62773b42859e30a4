package dialect

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"zeroth/tests/nightly"
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

const registry = `{
  "identity": {"file_name": "identity.jsonl"},
  "sharegpt": {"file_name": "turns.jsonl", "formatting": "sharegpt", "columns": {"messages": "conversations", "system": "system", "tools": "tools"}},
  "openai": {"file_name": "sub/chats.jsonl", "formatting": "sharegpt", "columns": {"messages": "talk"}, "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}},
  "hub": {"hf_hub_url": "org/name"},
  "pairs": {"file_name": "pairs.jsonl", "ranking": true, "columns": {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}},
  "named": {"file_name": "named.jsonl", "columns": {"prompt": "question", "response": "answer"}}
}`

// TestPublishedShapes checks short files in the shapes of examples that Axolotl, LLaMA-Factory and TRL publish. want
// is as in TestPrograms.
func TestPublishedShapes(t *testing.T) {
	nightly.Long(t)
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"doc.go": strings.Repeat("package dialect\n", 200), "data/dataset_info.json": registry, "zero3.json": `{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}`,
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o777), os.WriteFile(name, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range shapes {
		t.Run(name, func(t *testing.T) {
			file := name + ".yaml"
			if err := os.WriteFile(file, []byte(test[0]), 0o666); err != nil {
				t.Fatal(err)
			}
			program(t, file, test[1])
		})
	}
	text, _, err := Translate("factory-lora.yaml")
	if want := `documents: ["data/identity.jsonl", "data/turns.jsonl"]`; err != nil || !strings.Contains(text, want) || !strings.Contains(text, "max_records: 1000") {
		t.Errorf("%v, no %s in\n%s", err, want, text)
	}
	text, _, err = Translate("factory-openai.yaml")
	if want := `documents: ["data/sub/chats.jsonl"]`; err != nil || !strings.Contains(text, want) || !strings.Contains(text, "messages: talk") && !strings.Contains(text, `messages: "talk"`) {
		t.Errorf("%v, no %s in\n%s", err, want, text)
	}
}

const (
	axolotlBase = `
base_model: NousResearch/Meta-Llama-3-8B-Instruct
datasets: [{path: chats.jsonl, type: chat_template, field_messages: messages, message_property_mappings: {role: role, content: content}, roles: {user: [user], assistant: [assistant]}}]
sequence_len: 4096
sample_packing: true
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
flash_attention: true
warmup_ratio: 0.1
saves_per_epoch: 1
weight_decay: 0.0
`
	factoryBase = `
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
trust_remote_code: true
do_train: true
template: llama3
cutoff_len: 2048
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16
output_dir: saves/x
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
`
)

var shapes = map[string][2]string{
	"axolotl-instruct-lora": {axolotlBase + "adapter: lora\nlora_r: 32\nlora_alpha: 16\nlora_dropout: 0.05\nlora_target_linear: true\noptimizer: adamw_8bit\nload_in_8bit: true\nval_set_size: 0.05\nevals_per_epoch: 4\n", "train.lora.rank 32, train.lora.targets [\"all-linear\"], checkpoint.every 0.25, train.eval_every 0.0625"},
	"axolotl-fsdp-qlora":    {axolotlBase + "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\noptimizer: adamw_torch_fused\nfsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_limit_all_gathers: true, fsdp_sync_module_states: true, fsdp_offload_params: true, fsdp_use_orig_params: false, fsdp_cpu_ram_efficient_loading: true, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer, fsdp_state_dict_type: FULL_STATE_DICT, fsdp_sharding_strategy: FULL_SHARD}\n", "model.weights nf4, zero.stage 3, zero.offload.parameters host, zero.offload.optimizer host, schedule.warmup 0.1"},
	"axolotl-full":          {axolotlBase + "is_mistral_derived_model: true\noptimizer: adamw_torch_fused\nadam_beta2: 0.95\nadam_epsilon: 0.00001\nmax_grad_norm: 1.0\nwandb_project: x\neval_sample_packing: false\n", "optimizer.betas [0.9, 0.95], optimizer.eps 1e-5, train.clip 1, train.lora.rank 0"},
	"axolotl-fft-zero3":     {axolotlBase + "optimizer: paged_adamw_8bit\ndeepspeed: zero3.json\nval_set_size: 0.0\ndataset_prepared_path: prepared\npad_to_sequence_len: true\n", "zero.stage 3, optimizer.type adamw8bit, train.eval_every 0"},
	"axolotl-liger":         {axolotlBase + "optimizer: adamw_torch_fused\nplugins: [axolotl.integrations.liger.LigerPlugin]\nliger_rope: true\nliger_rms_norm: true\nliger_glu_activation: true\nliger_fused_linear_cross_entropy: true\n", "optimizer.type adamw, zero.recompute block"},
	"axolotl-pretrain":      {"base_model: TinyLlama/TinyLlama-1.1B\npretraining_dataset: [{path: allenai/c4, name: en, type: pretrain}]\nmax_steps: 200\nsequence_len: 2048\nmicro_batch_size: 2\nlearning_rate: 2e-4\n", "!pretraining_dataset: a list is not supported"},
	"axolotl-reward":        {axolotlBase + "reward_model: true\n", "!reward_model: true is not supported"},
	"axolotl-dora":          {axolotlBase + "adapter: lora\nlora_r: 8\npeft_use_dora: true\n", "!peft_use_dora: true is not supported"},
	"axolotl-unfrozen":      {axolotlBase + "unfrozen_parameters: [lm_head.weight]\n", "!unfrozen_parameters: a list is not supported"},
	"axolotl-qat":           {axolotlBase + "qat: {activation_dtype: int8, weight_dtype: int4}\n", "!qat: a mapping is not supported"},

	"factory-lora":        {factoryBase + "stage: sft\nfinetuning_type: lora\nlora_rank: 8\nlora_target: all\ndataset: identity,sharegpt\n", "train.lora.rank 8, train.accumulate 8"},
	"factory-openai":      {factoryBase + "stage: sft\nfinetuning_type: full\ndataset: [openai]\ndeepspeed: zero3.json\nval_size: 0.1\nper_device_eval_batch_size: 1\neval_strategy: steps\neval_steps: 500\n", "zero.stage 3, train.eval_every 500, train.lora.rank 0"},
	"factory-qlora":       {factoryBase + "stage: sft\nfinetuning_type: lora\nquantization_bit: 4\nquantization_method: bnb\nlora_rank: 8\nlora_target: all\ndataset: hub\n", "model.weights nf4, train.lora.targets [\"all-linear\"]"},
	"factory-unknown-set": {factoryBase + "stage: sft\nfinetuning_type: lora\ndataset: identify\n", "!dataset: identify is not in data/dataset_info.json"},
	"factory-renamed":     {factoryBase + "stage: sft\nfinetuning_type: lora\ndataset: named\n", "!data/dataset_info.json:7:63: named.columns.prompt: \"question\" is not supported"},
	"factory-ranking":     {factoryBase + "stage: sft\nfinetuning_type: lora\ndataset: pairs\n", "!pairs.ranking: true is not supported"},
	"factory-pretrain":    {factoryBase + "stage: pt\nfinetuning_type: lora\ndataset: identity\n", "!stage: pt is not supported"},
	"factory-kto":         {factoryBase + "stage: kto\nfinetuning_type: lora\npref_beta: 0.1\ndataset: identity\n", "!stage: kto is not supported"},
	"factory-galore":      {factoryBase + "stage: sft\nfinetuning_type: full\nuse_galore: true\ngalore_layerwise: true\ngalore_target: mlp,self_attn\ndataset: identity\npure_bf16: true\n", "!use_galore: true is not supported"},
	"factory-loraplus":    {factoryBase + "stage: sft\nfinetuning_type: lora\nloraplus_lr_ratio: 16.0\ndataset: identity\n", "!loraplus_lr_ratio: 16.0 is not supported"},
	"factory-freeze":      {factoryBase + "stage: sft\nfinetuning_type: freeze\nfreeze_trainable_layers: 8\nuse_llama_pro: true\ndataset: identity\n", "!finetuning_type: freeze is not supported"},
	"factory-vision":      {factoryBase + "stage: sft\nfinetuning_type: lora\nimage_max_pixels: 262144\nvideo_max_pixels: 16384\ndataset: identity\n", "train.lora.rank 8"},
}
