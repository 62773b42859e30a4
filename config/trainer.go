package config

import (
	"strings"
)

// accelerate is the YAML file of Accelerate.
var accelerate = dialect{name: "Accelerate", keys: accelerateKeys, presets: ofAccelerate, after: accelerateJob, is: func(root *node) bool {
	return root.find("distributed_type") != nil || root.find("deepspeed_config") != nil || root.find("fsdp_config") != nil
}}

const (
	ownLaunch = "nothing to set: 'zeroth launch' and the launchers of clusters start processes"
	ownUnits  = "nothing to set: every block is a unit"
	ownSaving = "nothing to set: checkpoints are sharded and model/ is whole"
)

var onCPU = theirs{key: "device", words: map[string]string{"true": "cpu", "false": ""}}

var precisions3 = map[string]string{"no": "fp32", "bf16": "bf16", "fp16": "fp16"}

var accelerateKeys = fsdpKeys(map[string]theirs{
	"compute_environment": {note: ownLaunch}, "debug": {note: ownLaunch}, "downcast_bf16": {note: ownLaunch}, "enable_cpu_affinity": {note: ownLaunch}, "machine_rank": {note: ownLaunch},
	"main_training_function": {note: ownLaunch}, "num_machines": {note: ownLaunch}, "rdzv_backend": {note: ownLaunch}, "same_network": {note: ownLaunch}, "tpu_env": {note: ownLaunch},
	"commands": {note: ownLaunch}, "command_file": {note: ownLaunch}, "tpu_name": {note: ownLaunch}, "tpu_zone": {note: ownLaunch}, "tpu_vm": {note: ownLaunch}, "mpirun_config": {note: ownLaunch},
	"dynamo_config": {note: ownSpeed}, "dynamo_backend": {note: ownSpeed}, "ipex_config": {note: ownSpeed},
	"fp8_config": {same: never, note: "want mixed_precision bf16"}, "megatron_lm_config": {same: never, note: "the keys of parallel in a job set it"}, "parallelism_config": {same: never, note: "the keys of parallel in a job set it"},
	"tpu_use_cluster": {note: ownLaunch}, "tpu_use_sudo": {note: ownLaunch}, "use_cpu": onCPU, "main_process_ip": {note: ownLaunch}, "main_process_port": {note: ownLaunch}, "gpu_ids": {note: ownLaunch},
	"distributed_type": {same: []string{"DEEPSPEED", "FSDP", "MULTI_GPU", "MULTI_CPU", "NO"}},
	"num_processes":    {key: "parallel.ranks"},
	"mixed_precision":  {key: "precision", words: precisions3},

	"deepspeed_config.zero_stage":                    {key: "zero.stage"},
	"deepspeed_config.gradient_accumulation_steps":   {key: "train.accumulate", auto: "1"},
	"deepspeed_config.gradient_clipping":             {key: "train.clip", auto: "1.0"},
	"deepspeed_config.offload_optimizer_device":      {key: "zero.offload.optimizer", words: places3},
	"deepspeed_config.offload_param_device":          {key: "zero.offload.parameters", words: places3},
	"deepspeed_config.offload_optimizer_nvme_path":   {note: ownStaging},
	"deepspeed_config.offload_param_nvme_path":       {note: ownStaging},
	"deepspeed_config.zero3_init_flag":               {note: "nothing to set: parameters are created in shards"},
	"deepspeed_config.zero3_save_16bit_model":        {note: ownSaving},
	"deepspeed_config.deepspeed_multinode_launcher":  {note: ownLaunch},
	"deepspeed_config.deepspeed_hostfile":            {note: ownLaunch},
	"deepspeed_config.deepspeed_exclusion_filter":    {note: ownLaunch},
	"deepspeed_config.deepspeed_inclusion_filter":    {note: ownLaunch},
	"deepspeed_config.deepspeed_moe_layer_cls_names": {note: ownUnits},
	"deepspeed_config.deepspeed_config_file":         {same: []string{"none"}, note: "name that file itself: it is a job, too"},
	"deepspeed_config.zero_hpz_partition_size":       deepSpeedKeys["zero_optimization.zero_hpz_partition_size"],
	"deepspeed_config.zero_quantized_weights":        {same: no, note: noQuantized},
	"deepspeed_config.zero_quantized_gradients":      {same: no, note: noQuantized},
})

// fsdpKeys adds the keys of fsdp_config to a table; they are written with and without fsdp_.
func fsdpKeys(keys map[string]theirs) map[string]theirs {
	for key, e := range map[string]theirs{
		"auto_wrap_policy": {note: ownUnits}, "transformer_layer_cls_to_wrap": {note: ownUnits}, "transformer_cls_names_to_wrap": {note: ownUnits}, "min_num_params": {note: ownUnits},
		"backward_prefetch": {note: ofPrefetch}, "backward_prefetch_policy": {note: ofPrefetch}, "forward_prefetch": {note: ofPrefetch},
		"cpu_ram_efficient_loading": {note: ownSaving}, "state_dict_type": {note: ownSaving}, "sync_module_states": {note: ownSaving}, "use_orig_params": {note: ownUnits}, "version": {note: ownUnits},
		"ignored_modules": {same: never}, "activation_checkpointing_offload": {same: no}, "activation_checkpointing_kwargs": {note: ownSpeed}, "mixed_precision_policy": {same: never, note: "want mixed_precision"},
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

// accelerateJob completes the job by what follows from several keys.
func accelerateJob(t *translation) {
	kind := t.their("distributed_type").text
	for _, ignored := range [][2]string{{"deepspeed_config", "DEEPSPEED"}, {"fsdp_config", "FSDP"}} {
		if n := t.their(ignored[0]); len(n.pairs) > 0 && kind != ignored[1] {
			t.wrong(n.at, ignored[0], "Accelerate ignores it without distributed_type: "+ignored[1], "write distributed_type: "+ignored[1]+", or remove it")
		}
	}
	if kind == "FSDP" {
		t.offloadState()
	}
	for _, name := range []string{"optimizer", "param"} {
		in := "deepspeed_config.offload_" + name
		if path := t.their(in + "_nvme_path"); t.their(in+"_device").text == "nvme" && path.kind != nothing {
			put(t.job, "zero.offload.path", path)
		}
	}
	t.complete()
}

// arguments is the Hugging Face Trainer's TrainingArguments as JSON.
var arguments = dialect{name: "TrainingArguments", keys: argumentKeys, presets: ofArguments, after: argumentsJob, is: func(root *node) bool {
	for _, key := range []string{"per_device_train_batch_size", "num_train_epochs", "lr_scheduler_type", "output_dir", "max_grad_norm"} {
		if root.find(key) != nil {
			return true
		}
	}
	return false
}}

var argumentKeys = also3(fsdpKeys(map[string]theirs{
	"model_name_or_path":                 {key: "model.from"},
	"per_device_train_batch_size":        {key: "train.micro_batch"},
	"gradient_accumulation_steps":        {key: "train.accumulate"},
	"learning_rate":                      {key: "optimizer.lr"},
	"weight_decay":                       {key: "optimizer.weight_decay"},
	"adam_epsilon":                       {key: "optimizer.eps"},
	"adam_beta1":                         {note: "nothing to set: optimizer.betas determines it"},
	"adam_beta2":                         {note: "nothing to set: optimizer.betas determines it"},
	"max_grad_norm":                      {key: "train.clip"},
	"num_train_epochs":                   {key: "train.epochs"},
	"max_steps":                          {note: "nothing to set: train.steps determines it"},
	"lr_scheduler_type":                  {key: "schedule.type", words: map[string]string{"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant", "inverse_sqrt": "inverse_sqrt"}},
	"warmup_steps":                       {key: "schedule.warmup"},
	"warmup_ratio":                       {same: []string{"0"}, note: "schedule.warmup counts steps: want warmup_steps"},
	"bf16":                               {key: "precision", words: map[string]string{"true": "bf16", "false": ""}},
	"fp16":                               {key: "precision", words: map[string]string{"true": "fp16", "false": ""}},
	"seed":                               {key: "train.seed"},
	"optim":                              {key: "optimizer.type", words: map[string]string{"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "sgd": "sgd", "adamw_bnb_8bit": "adamw8bit", "adamw_8bit": "adamw8bit", "paged_adamw_8bit": "adamw8bit", "lion_32bit": "lion"}},
	"activation_checkpointing":           {key: "zero.recompute", words: map[string]string{"true": "block", "false": "none"}},
	"gradient_checkpointing":             {key: "zero.recompute", words: map[string]string{"true": "block", "false": "none"}},
	"save_steps":                         {key: "checkpoint.every"},
	"save_total_limit":                   {key: "checkpoint.keep"},
	"eval_steps":                         {key: "train.eval_every"},
	"deepspeed":                          {same: []string{"none"}, note: "name that file itself: it is a job, too"},
	"fsdp":                               {same: []string{"", "full_shard", "full_shard auto_wrap", "auto_wrap full_shard"}, note: "want full_shard, or zero.stage in a job"},
	"label_smoothing_factor":             {same: []string{"0"}},
	"group_by_length":                    {same: no},
	"auto_find_batch_size":               {same: no},
	"lr_scheduler_kwargs":                {same: []string{"none"}, note: "the keys of schedule in a job set the shape of the schedule"},
	"save_strategy":                      {same: []string{"steps", "no"}, note: "checkpoint.every counts steps: want steps and save_steps"},
	"eval_strategy":                      {same: []string{"steps", "no"}, note: "train.eval_every counts steps: want steps and eval_steps"},
	"evaluation_strategy":                {same: []string{"steps", "no"}, note: "train.eval_every counts steps: want steps and eval_steps"},
	"load_best_model_at_end":             {same: no, note: "checkpoint.keep: {best: val_loss} in a job keeps the best checkpoint; want false"},
	"fsdp_config":                        {same: []string{"none"}, note: "write the keys of that file here"},
	"optim_args":                         {same: never, note: "the keys of optimizer in a job set them"},
	"optim_target_modules":               {same: never, note: "every matrix has the same optimizer"},
	"neftune_noise_alpha":                {same: never, note: "noise on embeddings is not supported"},
	"parallelism_config":                 {same: never, note: "the keys of parallel in a job set it"},
	"use_cpu":                            onCPU,
	"no_cuda":                            onCPU,
	"per_gpu_train_batch_size":           {same: never, note: "want per_device_train_batch_size"},
	"fsdp_transformer_layer_cls_to_wrap": {note: ownUnits},
	"train_sampling_strategy":            {same: []string{"random"}},
	"fp16_full_eval":                     {same: no},
	"bf16_full_eval":                     {same: no},
	"eval_delay":                         {same: []string{"0"}},
	"eval_on_start":                      {same: no},
	"adafactor":                          {same: no},
}), "nothing to set",
	"output_dir", "logging_dir", "logging_steps", "logging_strategy", "logging_first_step", "report_to", "run_name", "log_level", "disable_tqdm",
	"do_train", "do_eval", "do_predict", "save_safetensors", "overwrite_output_dir",
	"dataloader_num_workers", "dataloader_pin_memory", "remove_unused_columns", "ddp_find_unused_parameters", "ddp_timeout",
	"per_device_eval_batch_size", "metric_for_best_model", "greater_is_better", "push_to_hub", "tf32",
	"gradient_checkpointing_kwargs", "data_seed", "save_only_model", "include_tokens_per_second", "local_rank",
	"prediction_loss_only", "per_gpu_eval_batch_size", "eval_accumulation_steps", "torch_empty_cache_steps", "log_level_replica", "log_on_each_node", "logging_nan_inf_filter", "save_on_each_node",
	"restore_callback_states_from_checkpoint", "use_mps_device", "jit_mode_eval", "use_ipex", "fp16_opt_level", "half_precision_backend", "ddp_backend", "tpu_num_cores", "tpu_metrics_debug",
	"dataloader_drop_last", "dataloader_prefetch_factor", "past_index", "label_names", "ignore_data_skip", "fsdp_min_num_params", "accelerator_config", "length_column_name", "ddp_bucket_cap_mb",
	"ddp_broadcast_buffers", "ddp_static_graph", "dataloader_persistent_workers", "skip_memory_metrics", "use_legacy_prediction_loop", "resume_from_checkpoint", "hub_model_id", "hub_strategy", "hub_token",
	"hub_private_repo", "hub_always_push", "hub_revision", "include_inputs_for_metrics", "include_for_metrics", "eval_do_concat_batches", "fp16_backend", "push_to_hub_model_id", "push_to_hub_organization",
	"push_to_hub_token", "_n_gpu", "mp_parameters", "full_determinism", "torchdynamo", "ray_scope", "torch_compile", "torch_compile_backend", "torch_compile_mode", "dispatch_batches", "split_batches",
	"include_num_input_tokens_seen", "batch_eval_metrics", "eval_use_gather_object", "average_tokens_across_devices", "activation_checkpointing_kwargs", "use_liger_kernel", "liger_kernel_config", "use_cache",
	"project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "enable_jit_checkpoint", "dataloader_multiprocessing_context", "dataloader_in_order", "debug")

// argumentsJob completes the job by what follows from several keys.
func argumentsJob(t *translation) {
	t.offloadState()
	t.strategies()
	beta1, beta2 := t.their("adam_beta1"), t.their("adam_beta2")
	if beta1.kind+beta2.kind != nothing && with("optimizer.type", "adamw", "adamw8bit", "lion")(t) {
		t.set("optimizer.betas", "[0.9, 0.999]", t.root.at)
		for i, beta := range []*node{beta1, beta2} {
			if beta.kind != nothing {
				t.has("optimizer.betas").items[i] = beta
			}
		}
	}
	if !with("optimizer.type", "adamw", "adamw8bit")(t) { // the others do not read it
		t.job.remove("optimizer.eps")
	}
	if clip := t.root.find("max_grad_norm"); clip != nil && (clip.value.kind == nothing || strings.HasPrefix(clip.value.text, "-")) {
		t.set("train.clip", "0", clip.at)
	}
	if steps := t.has("schedule.warmup"); steps != nil && t.their("lr_scheduler_type").text == "constant" && steps.text != "0" {
		t.set("schedule.warmup", "0", steps.at)
		t.differs = append(t.differs, preset{key: "schedule.warmup", note: "lr_scheduler_type constant ignores warmup_steps"})
	}
	if steps := t.their("max_steps"); steps.kind != nothing && !strings.HasPrefix(steps.text, "-") && steps.text != "0" {
		put(t.job, "train.steps", steps)
		t.job.remove("train.epochs")
	}
	t.complete()
	if t.has("train.steps") == nil {
		t.differs = append(t.differs, preset{key: "train.epochs", note: "the last step is filled up, where the Trainer shortens that of each epoch"})
	}
}

// strategies applies the intervals that a strategy switches on or off, and refuses two precisions.
func (t *translation) strategies() {
	if says("save_strategy", "no")(t) {
		t.set("checkpoint.every", "0", t.their("save_strategy").at)
	}
	switch every := t.their("logging_steps"); {
	case !evaluates(t):
		t.job.remove("train.eval_every")
	case t.has("train.eval_every") == nil && every.kind != nothing:
		put(t.job, "train.eval_every", every)
	}
	if b := t.their("fp16"); strings.EqualFold(b.text, "true") && strings.EqualFold(t.their("bf16").text, "true") {
		t.wrong(b.at, "fp16", "bf16 is true, too", "set one of them")
	}
}
