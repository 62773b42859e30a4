package config

import (
	"slices"
	"strings"
)

// accelerate is the YAML file of Accelerate.
var accelerate = dialect{name: "Accelerate", keys: accelerateKeys, after: accelerateJob, is: func(root *node) bool {
	return root.find("distributed_type") != nil || root.find("deepspeed_config") != nil || root.find("fsdp_config") != nil
}}

const (
	ownLaunch = "nothing to set: 'zeroth launch' and the launchers of clusters start processes"
	ownUnits  = "nothing to set: every block is a unit"
	ownSaving = "nothing to set: checkpoints are sharded and model/ is whole"
)

var precisions3 = map[string]string{"no": "fp32", "bf16": "bf16", "fp16": "fp16"}

var accelerateKeys = fsdpKeys(map[string]theirs{
	"compute_environment": {note: ownLaunch}, "debug": {note: ownLaunch}, "downcast_bf16": {note: ownLaunch}, "enable_cpu_affinity": {note: ownLaunch}, "machine_rank": {note: ownLaunch},
	"main_training_function": {note: ownLaunch}, "num_machines": {note: ownLaunch}, "rdzv_backend": {note: ownLaunch}, "same_network": {note: ownLaunch}, "tpu_env": {note: ownLaunch},
	"tpu_use_cluster": {note: ownLaunch}, "tpu_use_sudo": {note: ownLaunch}, "use_cpu": {note: ownLaunch}, "main_process_ip": {note: ownLaunch}, "main_process_port": {note: ownLaunch}, "gpu_ids": {note: ownLaunch},
	"distributed_type": {same: []string{"DEEPSPEED", "FSDP", "MULTI_GPU", "MULTI_CPU", "NO"}},
	"num_processes":    {key: "parallel.ranks"},
	"mixed_precision":  {key: "precision", words: precisions3},

	"deepspeed_config.zero_stage":                   {key: "zero.stage"},
	"deepspeed_config.gradient_accumulation_steps":  {key: "train.accumulate", auto: "1"},
	"deepspeed_config.gradient_clipping":            {key: "train.clip", auto: "1.0"},
	"deepspeed_config.offload_optimizer_device":     {key: "zero.offload.optimizer", words: places3},
	"deepspeed_config.offload_param_device":         {key: "zero.offload.parameters", words: places3},
	"deepspeed_config.offload_optimizer_nvme_path":  {note: ownStaging},
	"deepspeed_config.offload_param_nvme_path":      {note: ownStaging},
	"deepspeed_config.zero3_init_flag":              {note: "nothing to set: parameters are created in shards"},
	"deepspeed_config.zero3_save_16bit_model":       {note: ownSaving},
	"deepspeed_config.deepspeed_multinode_launcher": {note: ownLaunch},
	"deepspeed_config.deepspeed_hostfile":           {note: ownLaunch},
	"deepspeed_config.deepspeed_config_file":        {same: []string{"none"}, note: "name that file itself: it is a job, too"},
	"deepspeed_config.zero_hpz_partition_size":      deepSpeedKeys["zero_optimization.zero_hpz_partition_size"],
	"deepspeed_config.zero_quantized_weights":       {same: no, note: noQuantized},
	"deepspeed_config.zero_quantized_gradients":     {same: no, note: noQuantized},
})

// fsdpKeys adds the keys of fsdp_config to a table; they are written with and without fsdp_.
func fsdpKeys(keys map[string]theirs) map[string]theirs {
	for key, e := range map[string]theirs{
		"auto_wrap_policy": {note: ownUnits}, "transformer_layer_cls_to_wrap": {note: ownUnits}, "transformer_cls_names_to_wrap": {note: ownUnits}, "min_num_params": {note: ownUnits},
		"backward_prefetch": {note: ofPrefetch}, "backward_prefetch_policy": {note: ofPrefetch}, "forward_prefetch": {note: ofPrefetch},
		"cpu_ram_efficient_loading": {note: ownSaving}, "state_dict_type": {note: ownSaving}, "sync_module_states": {note: ownSaving}, "use_orig_params": {note: ownUnits}, "version": {note: ownUnits},
		"limit_all_gathers": {note: ofPrefetch}, "xla": {same: no}, "xla_fsdp_v2": {same: no}, "xla_fsdp_grad_ckpt": {same: no},
		"offload_params":           {key: "zero.offload.parameters", words: map[string]string{"true": "host", "false": "none"}},
		"activation_checkpointing": {key: "zero.recompute", words: map[string]string{"true": "block", "false": "none"}},
		"sharding_strategy":        {key: "zero.stage", words: map[string]string{"FULL_SHARD": "3", "SHARD_GRAD_OP": "2", "NO_SHARD": "0", "1": "3", "2": "2", "3": "0"}},
		"reshard_after_forward":    {key: "zero.stage", words: map[string]string{"true": "3", "false": "2", "FULL_SHARD": "3", "SHARD_GRAD_OP": "2", "NO_SHARD": "0"}},
	} {
		keys["fsdp_config."+key], keys["fsdp_config.fsdp_"+key] = e, e
	}
	return keys
}

// offloadState offloads the optimizer's state where FSDP offloads parameters, as FSDP does.
func (t *translation) offloadState() {
	if p := t.has("zero.offload.parameters"); p != nil && p.text == "host" && t.has("zero.offload.optimizer") == nil {
		t.set("zero.offload.optimizer", "host", p.at)
	}
}

// accelerateJob completes the job: without a stage, every rank has all.
func accelerateJob(t *translation) {
	kind, at := t.their("distributed_type")
	if kind == "FSDP" {
		t.offloadState()
	}
	if t.has("precision") == nil {
		t.set("precision", "fp32", at)
	}
	if t.has("zero.stage") == nil {
		t.set("zero.stage", map[bool]string{true: "3", false: "0"}[kind == "FSDP"], at)
	}
	for _, name := range []string{"optimizer", "param"} {
		path, at := t.their("deepspeed_config.offload_" + name + "_nvme_path")
		if device, _ := t.their("deepspeed_config.offload_" + name + "_device"); device == "nvme" && path != "" {
			t.set("zero.offload.path", `"`+strings.ReplaceAll(path, `"`, "")+`"`, at)
		}
	}
}

// arguments is the Hugging Face Trainer's TrainingArguments as JSON.
var arguments = dialect{name: "TrainingArguments", keys: argumentKeys, after: argumentsJob, is: func(root *node) bool {
	for _, key := range []string{"per_device_train_batch_size", "num_train_epochs", "lr_scheduler_type", "output_dir", "max_grad_norm"} {
		if root.find(key) != nil {
			return true
		}
	}
	return false
}}

var argumentKeys = also3(fsdpKeys(map[string]theirs{
	"model_name_or_path":          {key: "model.from"},
	"per_device_train_batch_size": {key: "train.micro_batch"},
	"gradient_accumulation_steps": {key: "train.accumulate"},
	"learning_rate":               {key: "optimizer.lr"},
	"weight_decay":                {key: "optimizer.weight_decay"},
	"adam_epsilon":                {key: "optimizer.eps"},
	"adam_beta1":                  {note: "nothing to set: optimizer.betas determines it"},
	"adam_beta2":                  {note: "nothing to set: optimizer.betas determines it"},
	"max_grad_norm":               {key: "train.clip"},
	"num_train_epochs":            {key: "train.epochs"},
	"max_steps":                   {note: "nothing to set: train.steps determines it"},
	"lr_scheduler_type":           {key: "schedule.type", words: map[string]string{"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant", "inverse_sqrt": "inverse_sqrt", "warmup_stable_decay": "wsd"}},
	"warmup_steps":                {key: "schedule.warmup"},
	"warmup_ratio":                {same: []string{"0"}, note: "schedule.warmup counts steps: want warmup_steps"},
	"bf16":                        {key: "precision", words: map[string]string{"true": "bf16", "false": ""}},
	"fp16":                        {key: "precision", words: map[string]string{"true": "fp16", "false": ""}},
	"seed":                        {key: "train.seed"},
	"optim":                       {key: "optimizer.type", words: map[string]string{"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "sgd": "sgd", "adamw_bnb_8bit": "adamw8bit", "adamw_8bit": "adamw8bit", "paged_adamw_8bit": "adamw8bit", "lion_32bit": "lion"}},
	"gradient_checkpointing":      {key: "zero.recompute", words: map[string]string{"true": "block", "false": "none"}},
	"save_steps":                  {key: "checkpoint.every"},
	"save_total_limit":            {key: "checkpoint.keep"},
	"eval_steps":                  {key: "train.eval_every"},
	"deepspeed":                   {same: []string{"none"}, note: "name that file itself: it is a job, too"},
	"fsdp":                        {same: []string{"", "full_shard", "full_shard auto_wrap", "auto_wrap full_shard"}, note: "want full_shard, or zero.stage in a job"},
	"label_smoothing_factor":      {same: []string{"0"}},
	"group_by_length":             {same: no},
	"auto_find_batch_size":        {same: no},
	"lr_scheduler_kwargs":         {same: []string{"none"}, note: "the keys of schedule in a job set the shape of the schedule"},
	"save_strategy":               {same: []string{"steps", "no"}, note: "checkpoint.every counts steps: want steps and save_steps"},
	"eval_strategy":               {same: []string{"steps", "no"}, note: "train.eval_every counts steps: want steps and eval_steps"},
	"evaluation_strategy":         {same: []string{"steps", "no"}, note: "train.eval_every counts steps: want steps and eval_steps"},
	"load_best_model_at_end":      {same: no, note: "checkpoint.keep: {best: val_loss} in a job keeps the best checkpoint; want false"},
	"fsdp_config":                 {same: []string{"none"}, note: "write the keys of that file here"},
}), "nothing to set",
	"output_dir", "logging_dir", "logging_steps", "logging_strategy", "logging_first_step", "report_to", "run_name", "log_level", "disable_tqdm",
	"do_train", "do_eval", "do_predict", "save_safetensors", "overwrite_output_dir",
	"dataloader_num_workers", "dataloader_pin_memory", "remove_unused_columns", "ddp_find_unused_parameters", "ddp_timeout",
	"per_device_eval_batch_size", "metric_for_best_model", "greater_is_better", "push_to_hub", "tf32",
	"gradient_checkpointing_kwargs", "data_seed", "save_only_model", "include_tokens_per_second", "use_cpu", "local_rank")

// argumentsJob completes the job by the Trainer's defaults.
func argumentsJob(t *translation) {
	at := t.root.at
	t.offloadState()
	t.strategies()
	for _, d := range [][2]string{{"precision", "fp32"}, {"train.micro_batch", "8"}, {"train.accumulate", "1"}, {"optimizer.lr", "5e-5"}, {"optimizer.weight_decay", "0"}, {"schedule.type", "linear"}, {"schedule.warmup", "0"}} {
		if t.has(d[0]) == nil {
			t.set(d[0], d[1], at)
		}
	}
	betas := [2]string{"0.9", "0.999"}
	for i, key := range []string{"adam_beta1", "adam_beta2"} {
		if text, _ := t.their(key); text != "" {
			betas[i] = text
		}
	}
	if rule := t.has("optimizer.type"); rule == nil || slices.Contains([]string{"adamw", "adamw8bit"}, rule.text) {
		t.set("optimizer.betas", "["+betas[0]+", "+betas[1]+"]", at)
	}
	if curve := t.has("schedule.type").text; curve == "linear" || curve == "cosine" {
		t.set("schedule.min_lr", "0", at)
	}
	steps, where := t.their("max_steps")
	switch {
	case steps != "" && !strings.HasPrefix(steps, "-") && steps != "0":
		t.set("train.steps", steps, where)
		t.remove("train.epochs")
	case t.has("train.epochs") == nil:
		t.set("train.epochs", "3", at)
	}
	if t.has("zero.stage") == nil {
		stage := "0"
		if text, _ := t.their("fsdp"); text != "" {
			stage = "3"
		}
		t.set("zero.stage", stage, at)
	}
}

// strategies removes intervals that a strategy switches off, and refuses two precisions.
func (t *translation) strategies() {
	for name, key := range map[string]string{"save_strategy": "checkpoint.every", "eval_strategy": "train.eval_every", "evaluation_strategy": "train.eval_every"} {
		if text, _ := t.their(name); text == "no" {
			t.remove(key)
		}
	}
	if a, _ := t.their("bf16"); strings.EqualFold(a, "true") {
		if b, at := t.their("fp16"); strings.EqualFold(b, "true") {
			t.wrong(at, "fp16", "bf16 is true, too", "set one of them")
		}
	}
}
