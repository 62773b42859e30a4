package dialect

import (
	"strings"

	"zeroth/config/tree"
)

// accelerate is the YAML file of Accelerate.
var accelerate = dialect{Name: "Accelerate", Keys: accelerateKeys, presets: ofAccelerate, after: accelerateJob, is: func(root *tree.Node) bool {
	return root.Find("distributed_type") != nil || root.Find("deepspeed_config") != nil || root.Find("fsdp_config") != nil
}}

const (
	ownLaunch = "nothing to set: 'zeroth launch' and the launchers of clusters start processes"
	ownUnits  = "nothing to set: every block is a unit"
	ownSaving = "nothing to set: checkpoints are sharded and model/ is whole"
)

var onCPU = theirs{Key: "device", Words: map[string]string{"true": "cpu", "false": ""}}

var precisions3 = map[string]string{"no": "fp32", "bf16": "bf16", "fp16": "fp16"}

var accelerateKeys = fsdpKeys(map[string]theirs{
	"compute_environment": {Note: ownLaunch}, "debug": {Note: ownLaunch}, "downcast_bf16": {Note: ownLaunch}, "enable_cpu_affinity": {Note: ownLaunch}, "machine_rank": {Note: ownLaunch},
	"main_training_function": {Note: ownLaunch}, "num_machines": {Note: ownLaunch}, "rdzv_backend": {Note: ownLaunch}, "same_network": {Note: ownLaunch}, "tpu_env": {Note: ownLaunch},
	"commands": {Note: ownLaunch}, "command_file": {Note: ownLaunch}, "tpu_name": {Note: ownLaunch}, "tpu_zone": {Note: ownLaunch}, "tpu_vm": {Note: ownLaunch}, "mpirun_config": {Note: ownLaunch},
	"dynamo_config": {Note: ownSpeed}, "dynamo_backend": {Note: ownSpeed}, "ipex_config": {Note: ownSpeed},
	"fp8_config": {Same: never, Note: "want mixed_precision bf16"}, "megatron_lm_config": {Same: never, Note: "the keys of parallel in a job set it"}, "parallelism_config": {Same: never, Note: "the keys of parallel in a job set it"},
	"tpu_use_cluster": {Note: ownLaunch}, "tpu_use_sudo": {Note: ownLaunch}, "use_cpu": onCPU, "main_process_ip": {Note: ownLaunch}, "main_process_port": {Note: ownLaunch}, "gpu_ids": {Note: ownLaunch},
	"distributed_type": {Same: []string{"DEEPSPEED", "FSDP", "MULTI_GPU", "MULTI_CPU", "NO"}},
	"num_processes":    {Key: "parallel.ranks"},
	"mixed_precision":  {Key: "precision", Words: precisions3},

	"deepspeed_config.zero_stage":                    {Key: "zero.stage"},
	"deepspeed_config.gradient_accumulation_steps":   {Key: "train.accumulate", auto: "1"},
	"deepspeed_config.gradient_clipping":             {Key: "train.clip", auto: "1.0"},
	"deepspeed_config.offload_optimizer_device":      {Key: "zero.offload.optimizer", Words: places3},
	"deepspeed_config.offload_param_device":          {Key: "zero.offload.parameters", Words: places3},
	"deepspeed_config.offload_optimizer_nvme_path":   {Note: ownStaging},
	"deepspeed_config.offload_param_nvme_path":       {Note: ownStaging},
	"deepspeed_config.zero3_init_flag":               {Note: "nothing to set: parameters are created in shards"},
	"deepspeed_config.zero3_save_16bit_model":        {Note: ownSaving},
	"deepspeed_config.deepspeed_multinode_launcher":  {Note: ownLaunch},
	"deepspeed_config.deepspeed_hostfile":            {Note: ownLaunch},
	"deepspeed_config.deepspeed_exclusion_filter":    {Note: ownLaunch},
	"deepspeed_config.deepspeed_inclusion_filter":    {Note: ownLaunch},
	"deepspeed_config.deepspeed_moe_layer_cls_names": {Note: ownUnits},
	"deepspeed_config.deepspeed_config_file":         {Same: []string{"none"}, Note: "name that file itself: it is a job, too"},
	"deepspeed_config.zero_hpz_partition_size":       deepSpeedKeys["zero_optimization.zero_hpz_partition_size"],
	"deepspeed_config.zero_quantized_weights":        {Same: no, Note: noQuantized},
	"deepspeed_config.zero_quantized_gradients":      {Same: no, Note: noQuantized},
})

// fsdpKeys adds the keys of fsdp_config to a table; they are written with and without fsdp_.
func fsdpKeys(keys map[string]theirs) map[string]theirs {
	for key, e := range map[string]theirs{
		"auto_wrap_policy": {Note: ownUnits}, "transformer_layer_cls_to_wrap": {Note: ownUnits}, "transformer_cls_names_to_wrap": {Note: ownUnits}, "min_num_params": {Note: ownUnits},
		"backward_prefetch": {Note: ofPrefetch}, "backward_prefetch_policy": {Note: ofPrefetch}, "forward_prefetch": {Note: ofPrefetch},
		"cpu_ram_efficient_loading": {Note: ownSaving}, "state_dict_type": {Note: ownSaving}, "sync_module_states": {Note: ownSaving}, "use_orig_params": {Note: ownUnits}, "version": {Note: ownUnits},
		"ignored_modules": {Same: never}, "activation_checkpointing_offload": {Same: no}, "activation_checkpointing_kwargs": {Note: ownSpeed}, "mixed_precision_policy": {Same: never, Note: "want mixed_precision"},
		"limit_all_gathers": {Note: ofPrefetch}, "xla": {Same: no}, "xla_fsdp_v2": {Same: no}, "xla_fsdp_grad_ckpt": {Same: no},
		"offload_params":           {Key: "zero.offload.parameters", Words: map[string]string{"true": "host", "false": "none"}},
		"activation_checkpointing": {Key: "zero.recompute", Words: map[string]string{"true": "block", "false": "none"}},
		"sharding_strategy":        {Key: "zero.stage", Words: map[string]string{"FULL_SHARD": "3", "SHARD_GRAD_OP": "2", "NO_SHARD": "0", "1": "3", "2": "2", "3": "0"}},
		"reshard_after_forward":    {Key: "zero.stage", Words: map[string]string{"true": "3", "false": "2", "FULL_SHARD": "3", "SHARD_GRAD_OP": "2", "NO_SHARD": "0"}},
	} {
		keys["fsdp_config."+key], keys["fsdp_config.fsdp_"+key] = e, e
	}
	return keys
}

// offloadState offloads the optimizer's state where FSDP offloads parameters, as FSDP does.
func (t *Translation) offloadState() {
	if p := t.has("zero.offload.parameters"); p != nil && p.Text == "host" && t.has("zero.offload.optimizer") == nil {
		t.set("zero.offload.optimizer", "host", p.At)
	}
}

// accelerateJob completes the job by what follows from several keys.
func accelerateJob(t *Translation) {
	kind := t.their("distributed_type").Text
	for _, ignored := range [][2]string{{"deepspeed_config", "DEEPSPEED"}, {"fsdp_config", "FSDP"}} {
		if n := t.their(ignored[0]); len(n.Pairs) > 0 && kind != ignored[1] {
			t.wrong(n.At, ignored[0], "Accelerate ignores it without distributed_type: "+ignored[1], "write distributed_type: "+ignored[1]+", or remove it")
		}
	}
	if kind == "FSDP" {
		t.offloadState()
	}
	for _, name := range []string{"optimizer", "param"} {
		in := "deepspeed_config.offload_" + name
		if path := t.their(in + "_nvme_path"); t.their(in+"_device").Text == "nvme" && path.Kind != tree.Nothing {
			tree.Put(t.Job, "zero.offload.path", path)
		}
	}
	t.complete()
}

// arguments is the Hugging Face Trainer's TrainingArguments as JSON.
var arguments = dialect{Name: "TrainingArguments", Keys: argumentKeys, presets: ofArguments, after: argumentsJob, is: func(root *tree.Node) bool {
	for _, key := range []string{"per_device_train_batch_size", "num_train_epochs", "lr_scheduler_type", "output_dir", "max_grad_norm"} {
		if root.Find(key) != nil {
			return true
		}
	}
	return false
}}

var argumentKeys = also3(fsdpKeys(map[string]theirs{
	"model_name_or_path":                 {Key: "model.from"},
	"per_device_train_batch_size":        {Key: "train.micro_batch"},
	"gradient_accumulation_steps":        {Key: "train.accumulate"},
	"learning_rate":                      {Key: "optimizer.lr"},
	"weight_decay":                       {Key: "optimizer.weight_decay"},
	"adam_epsilon":                       {Key: "optimizer.eps"},
	"adam_beta1":                         {Note: "nothing to set: optimizer.betas determines it"},
	"adam_beta2":                         {Note: "nothing to set: optimizer.betas determines it"},
	"max_grad_norm":                      {Key: "train.clip"},
	"num_train_epochs":                   {Key: "train.epochs"},
	"max_steps":                          {Note: "nothing to set: train.steps determines it"},
	"lr_scheduler_type":                  {Key: "schedule.type", Words: map[string]string{"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant", "inverse_sqrt": "inverse_sqrt"}},
	"warmup_steps":                       {Key: "schedule.warmup"},
	"warmup_ratio":                       {Same: []string{"0"}, Note: "schedule.warmup counts steps: want warmup_steps"},
	"bf16":                               {Key: "precision", Words: map[string]string{"true": "bf16", "false": ""}},
	"fp16":                               {Key: "precision", Words: map[string]string{"true": "fp16", "false": ""}},
	"seed":                               {Key: "train.seed"},
	"optim":                              {Key: "optimizer.type", Words: map[string]string{"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "sgd": "sgd", "adamw_bnb_8bit": "adamw8bit", "adamw_8bit": "adamw8bit", "paged_adamw_8bit": "adamw8bit", "lion_32bit": "lion"}},
	"activation_checkpointing":           {Key: "zero.recompute", Words: map[string]string{"true": "block", "false": "none"}},
	"gradient_checkpointing":             {Key: "zero.recompute", Words: map[string]string{"true": "block", "false": "none"}},
	"save_steps":                         {Key: "checkpoint.every"},
	"save_total_limit":                   {Key: "checkpoint.keep"},
	"eval_steps":                         {Key: "train.eval_every"},
	"deepspeed":                          {Same: []string{"none"}, Note: "name that file itself: it is a job, too"},
	"fsdp":                               {Same: []string{"", "full_shard", "full_shard auto_wrap", "auto_wrap full_shard"}, Note: "want full_shard, or zero.stage in a job"},
	"label_smoothing_factor":             {Same: []string{"0"}},
	"group_by_length":                    {Same: no},
	"auto_find_batch_size":               {Same: no},
	"lr_scheduler_kwargs":                {Same: []string{"none"}, Note: "the keys of schedule in a job set the shape of the schedule"},
	"save_strategy":                      {Same: []string{"steps", "no"}, Note: "checkpoint.every counts steps: want steps and save_steps"},
	"eval_strategy":                      {Same: []string{"steps", "no"}, Note: "train.eval_every counts steps: want steps and eval_steps"},
	"evaluation_strategy":                {Same: []string{"steps", "no"}, Note: "train.eval_every counts steps: want steps and eval_steps"},
	"load_best_model_at_end":             {Same: no, Note: "checkpoint.keep: {best: val_loss} in a job keeps the best checkpoint; want false"},
	"fsdp_config":                        {Same: []string{"none"}, Note: "write the keys of that file here"},
	"optim_args":                         {Same: never, Note: "the keys of optimizer in a job set them"},
	"optim_target_modules":               {Same: never, Note: "every matrix has the same optimizer"},
	"neftune_noise_alpha":                {Same: never, Note: "noise on embeddings is not supported"},
	"parallelism_config":                 {Same: never, Note: "the keys of parallel in a job set it"},
	"use_cpu":                            onCPU,
	"no_cuda":                            onCPU,
	"per_gpu_train_batch_size":           {Same: never, Note: "want per_device_train_batch_size"},
	"fsdp_transformer_layer_cls_to_wrap": {Note: ownUnits},
	"train_sampling_strategy":            {Same: []string{"random"}},
	"fp16_full_eval":                     {Same: no},
	"bf16_full_eval":                     {Same: no},
	"eval_delay":                         {Same: []string{"0"}},
	"eval_on_start":                      {Same: no},
	"adafactor":                          {Same: no},
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
func argumentsJob(t *Translation) {
	t.offloadState()
	t.strategies()
	beta1, beta2 := t.their("adam_beta1"), t.their("adam_beta2")
	if beta1.Kind+beta2.Kind != tree.Nothing && with("optimizer.type", "adamw", "adamw8bit", "lion")(t) {
		t.set("optimizer.betas", "[0.9, 0.999]", t.root.At)
		for i, beta := range []*tree.Node{beta1, beta2} {
			if beta.Kind != tree.Nothing {
				t.has("optimizer.betas").Items[i] = beta
			}
		}
	}
	if !with("optimizer.type", "adamw", "adamw8bit")(t) { // the others do not read it
		t.Job.Remove("optimizer.eps")
	}
	if clip := t.root.Find("max_grad_norm"); clip != nil && (clip.Value.Kind == tree.Nothing || strings.HasPrefix(clip.Value.Text, "-")) {
		t.set("train.clip", "0", clip.At)
	}
	if steps := t.has("schedule.warmup"); steps != nil && t.their("lr_scheduler_type").Text == "constant" && steps.Text != "0" {
		t.set("schedule.warmup", "0", steps.At)
		t.differs = append(t.differs, preset{key: "schedule.warmup", note: "lr_scheduler_type constant ignores warmup_steps"})
	}
	if steps := t.their("max_steps"); steps.Kind != tree.Nothing && !strings.HasPrefix(steps.Text, "-") && steps.Text != "0" {
		tree.Put(t.Job, "train.steps", steps)
		t.Job.Remove("train.epochs")
	}
	t.complete()
	if t.has("train.steps") == nil {
		t.differs = append(t.differs, preset{key: "train.epochs", note: "the last step is filled up, where the Trainer shortens that of each epoch"})
	}
}

// strategies applies the intervals that a strategy switches on or off, and refuses two precisions.
func (t *Translation) strategies() {
	if says("save_strategy", "no")(t) {
		t.set("checkpoint.every", "0", t.their("save_strategy").At)
	}
	switch every := t.their("logging_steps"); {
	case !evaluates(t):
		t.Job.Remove("train.eval_every")
	case t.has("train.eval_every") == nil && every.Kind != tree.Nothing:
		tree.Put(t.Job, "train.eval_every", every)
	}
	if b := t.their("fp16"); strings.EqualFold(b.Text, "true") && strings.EqualFold(t.their("bf16").Text, "true") {
		t.wrong(b.At, "fp16", "bf16 is true, too", "set one of them")
	}
}
