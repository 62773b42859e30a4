package config

import (
	"slices"
	"strconv"
	"strings"
)

const (
	ownBuckets  = "nothing to set: a unit is a bucket, and communication always overlaps computing"
	ownMetrics  = "nothing to set: metrics.jsonl in the run folder has every step"
	ownStaging  = "nothing to set: zero.offload.buffers sets how much is staged at once"
	ofPrefetch  = "nothing to set: zero.prefetch counts units, not elements"
	ofRecompute = "nothing to set here: zero.recompute: block recomputes activations"
	ownSums     = "nothing to set: gradients and their sums are float32"
	ownWhole    = "nothing to set: model/ in the run folder has all parameters"
	noQuantized = "quantized collectives are not supported; want false"
)

var (
	no           = []string{"false"}
	places3      = map[string]string{"cpu": "host", "nvme": "disk", "none": "none"}
	rules3       = map[string]string{"adamw": "adamw", "adam": "adamw", "sgd": "sgd", "lion": "lion", "muon": "muon", "fusedadam": "adamw", "deepspeedcpuadam": "adamw"}
	curves3      = map[string]string{"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
	wholeNumbers = theirs{note: ofPrefetch}
)

// deepSpeed is the configuration of DeepSpeed. Optimizer Adam is AdamW there, too, unless adam_w_mode
// is false; that and the schedules are completed by deepSpeedJob.
var deepSpeed = dialect{name: "DeepSpeed", keys: deepSpeedKeys, after: deepSpeedJob, is: func(root *node) bool {
	for _, key := range []string{"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"} {
		if root.find(key) != nil {
			return true
		}
	}
	return false
}}

var deepSpeedKeys = also3(also3(also3(map[string]theirs{
	"train_batch_size":               {key: "train.batch"},
	"train_micro_batch_size_per_gpu": {key: "train.micro_batch", auto: "8"},
	"gradient_accumulation_steps":    {key: "train.accumulate", auto: "1"},
	"gradient_clipping":              {key: "train.clip", auto: "1.0"},
	"steps_per_print":                {note: ownMetrics},
	"wall_clock_breakdown":           {note: "nothing to set: 'zeroth train --trace FILE' shows how long everything took"},
	"memory_breakdown":               {note: ownMetrics},
	"dump_state":                     {note: ownMetrics},
	"tensorboard":                    {note: ownMetrics},
	"wandb":                          {note: ownMetrics},
	"csv_monitor":                    {note: ownMetrics},
	"comms_logger":                   {note: ownMetrics},
	"flops_profiler":                 {note: ownMetrics},
	"activation_checkpointing":       {note: ofRecompute},
	"data_types":                     {note: ownSums},
	"communication_data_type":        {note: ownSums},
	"prescale_gradients":             {same: no, note: "gradients are only scaled by the mean; want false"},
	"gradient_predivide_factor":      {same: []string{"1"}},
	"zero_allow_untested_optimizer":  {note: "nothing to set: every optimizer works at every stage"},
	"zero_force_ds_cpu_optimizer":    {note: "nothing to set: there is only one optimizer for host memory"},
	"aio":                            {note: "nothing to set: the disk's queue tunes itself"},
	"elasticity.enabled":             {same: no, note: "the batch does not depend on the number of ranks: want false, and train_batch_size"},
	"checkpoint":                     {note: "nothing to set: checkpoints load on any number of ranks"},
	"lr_scheduler":                   {note: "ignored, as DeepSpeed does: its key is scheduler"},

	"bf16.enabled":               {key: "precision", words: map[string]string{"true": "bf16", "false": ""}},
	"bfloat16.enabled":           {key: "precision", words: map[string]string{"true": "bf16", "false": ""}},
	"bf16.immediate_grad_update": {note: ownSums},
	"bf16.check_grad_overflow":   {note: ownSums},
	"fp16.enabled":               {key: "precision", words: map[string]string{"true": "fp16", "false": ""}},
	"fp16.auto_cast":             {same: no},
	"fp16.loss_scale":            {note: "the loss scale is dynamic here: want 0"},
	"fp16.initial_scale_power":   {note: "the loss scale begins at 2^16: want 16"},
	"fp16.loss_scale_window":     {note: "the loss scale doubles after 1000 steps: want 1000"},
	"fp16.hysteresis":            {note: "the loss scale halves at the second overflow: want 2"},
	"fp16.min_loss_scale":        {note: "the smallest loss scale is 1: want 1"},

	"zero_optimization.stage":                    {key: "zero.stage"},
	"zero_optimization.offload_optimizer.device": {key: "zero.offload.optimizer", words: places3, auto: "none"},
	"zero_optimization.offload_param.device":     {key: "zero.offload.parameters", words: places3, auto: "none"},
	"zero_optimization.cpu_offload":              {key: "zero.offload.optimizer", words: map[string]string{"true": "host", "false": "none"}},
	"zero_optimization.mics_shard_size":          {key: "parallel.shard"},

	"zero_optimization.zero_hpz_partition_size":                   {same: []string{"1"}, note: "sharding a second copy of the weights within a node is not supported; want 1, or parallel.replicate for replicas of all state"},
	"zero_optimization.zero_quantized_weights":                    {same: no, note: noQuantized},
	"zero_optimization.zero_quantized_gradients":                  {same: no, note: noQuantized},
	"zero_optimization.zero_quantized_nontrainable_weights":       {same: no, note: noQuantized},
	"zero_optimization.stage3_prefetch_bucket_size":               wholeNumbers,
	"zero_optimization.stage3_max_live_parameters":                wholeNumbers,
	"zero_optimization.stage3_max_reuse_distance":                 wholeNumbers,
	"zero_optimization.prefetch_bucket_size":                      wholeNumbers,
	"zero_optimization.max_live_parameters":                       wholeNumbers,
	"zero_optimization.max_reuse_distance":                        wholeNumbers,
	"zero_optimization.stage3_gather_16bit_weights_on_model_save": {note: ownWhole},
	"zero_optimization.gather_16bit_weights_on_model_save":        {note: ownWhole},
	"zero_optimization.stage3_gather_fp16_weights_on_model_save":  {note: ownWhole},
	"zero_optimization.elastic_checkpoint":                        {note: "nothing to set: checkpoints load on any number of ranks"},
	"zero_optimization.load_from_fp32_weights":                    {note: "nothing to set: masters are float32"},
	"zero_optimization.cpu_offload_use_pin_memory":                {note: ownStaging},
	"zero_optimization.cpu_offload_params":                        {key: "zero.offload.parameters", words: map[string]string{"true": "host", "false": "none"}},

	"optimizer.type":                   {key: "optimizer.type", words: rules3},
	"optimizer.params.lr":              {key: "optimizer.lr", auto: "5e-5"},
	"optimizer.params.betas":           {key: "optimizer.betas", auto: "[0.9, 0.999]"},
	"optimizer.params.eps":             {key: "optimizer.eps", auto: "1e-8"},
	"optimizer.params.weight_decay":    {key: "optimizer.weight_decay", auto: "0"},
	"optimizer.params.momentum":        {key: "optimizer.momentum"},
	"optimizer.params.torch_adam":      {note: "nothing to set: there is only one AdamW"},
	"optimizer.params.bias_correction": {same: []string{"true"}},
	"optimizer.params.adam_w_mode":     {note: "nothing to set: optimizer.type determines it"},
	"optimizer.params.muon_lr":         {note: "nothing to set: optimizer.lr determines it"},
	"optimizer.params.adam_lr":         {key: "optimizer.adamw.lr"},
	"optimizer.params.ns_steps":        {key: "optimizer.ns_steps"},
	"optimizer.params.nesterov":        {key: "optimizer.nesterov"},

	"scheduler.type":                        {key: "schedule.type", words: curves3},
	"scheduler.params.warmup_num_steps":     {key: "schedule.warmup", auto: "0"},
	"scheduler.params.warmup_max_lr":        {key: "optimizer.lr", auto: "5e-5"},
	"scheduler.params.warmup_min_lr":        {same: []string{"0", "auto"}, note: "the warmup begins at 0: want 0"},
	"scheduler.params.warmup_min_ratio":     {same: []string{"0", "auto"}, note: "the warmup begins at 0: want 0"},
	"scheduler.params.warmup_type":          {same: []string{"linear"}, note: "the warmup is linear here: want linear"},
	"scheduler.params.total_num_steps":      {key: "train.steps"},
	"scheduler.params.cos_min_ratio":        {note: "nothing to set: schedule.min_lr determines it"},
	"scheduler.params.last_batch_iteration": {same: []string{"-1"}},
}, ownBuckets,
	"zero_optimization.allgather_partitions", "zero_optimization.allgather_bucket_size", "zero_optimization.reduce_scatter",
	"zero_optimization.reduce_bucket_size", "zero_optimization.overlap_comm", "zero_optimization.contiguous_gradients",
	"zero_optimization.sub_group_size", "zero_optimization.round_robin_gradients", "zero_optimization.use_multi_rank_bucket_allreduce",
	"zero_optimization.ignore_unused_parameters", "zero_optimization.memory_efficient_linear", "zero_optimization.leaf_module",
	"zero_optimization.stage3_use_all_reduce_for_fetch_params", "zero_optimization.stage3_allgather_sequential",
	"zero_optimization.mics_hierarchical_params_gather", "zero_optimization.parameter_alignment", "zero_optimization.log_trace_cache_warnings",
	"zero_optimization.override_module_apply", "zero_optimization.stage3_param_persistence_threshold", "zero_optimization.param_persistence_threshold",
	"zero_optimization.stage3_model_persistence_threshold", "zero_optimization.stage3_module_granularity_threshold"), ownStaging,
	"zero_optimization.offload_optimizer.pin_memory", "zero_optimization.offload_optimizer.buffer_count",
	"zero_optimization.offload_optimizer.buffer_size", "zero_optimization.offload_optimizer.pipeline_read",
	"zero_optimization.offload_optimizer.pipeline_write", "zero_optimization.offload_optimizer.fast_init",
	"zero_optimization.offload_optimizer.max_in_cpu", "zero_optimization.offload_optimizer.nvme_path", "zero_optimization.offload_optimizer.ratio",
	"zero_optimization.offload_param.pin_memory", "zero_optimization.offload_param.buffer_count", "zero_optimization.offload_param.buffer_size",
	"zero_optimization.offload_param.pipeline_read", "zero_optimization.offload_param.pipeline_write", "zero_optimization.offload_param.fast_init",
	"zero_optimization.offload_param.max_in_cpu", "zero_optimization.offload_param.nvme_path"), "nothing to set: elasticity is not enabled",
	"elasticity.max_train_batch_size", "elasticity.micro_batch_sizes", "elasticity.min_gpus", "elasticity.max_gpus", "elasticity.min_time",
	"elasticity.version", "elasticity.prefer_larger_batch", "elasticity.ignore_non_elastic_batch_info", "elasticity.num_gpus_per_node",
	"elasticity.model_parallel_size")

// also3 adds keys without a meaning here to a table.
func also3(keys map[string]theirs, note string, more ...string) map[string]theirs {
	for _, key := range more {
		keys[key] = theirs{note: note}
	}
	return keys
}

// deepSpeedJob completes the job: what follows from several keys, and DeepSpeed's defaults that are
// not ours.
func deepSpeedJob(t *translation) {
	if t.has("zero.stage") == nil {
		t.set("zero.stage", "0", t.root.at)
	}
	if t.has("precision") == nil {
		t.set("precision", "fp32", t.root.at)
		for _, section := range []string{"bf16", "bfloat16", "fp16"} {
			if text, _ := t.their(section + ".enabled"); text == "auto" {
				t.job.guessed = append(t.job.guessed, "precision")
			}
		}
	}
	if a, _ := t.their("bf16.enabled"); strings.EqualFold(a, "true") {
		if b, at := t.their("fp16.enabled"); strings.EqualFold(b, "true") {
			t.wrong(at, "fp16.enabled", "bf16 is enabled, too", "enable one of them")
		}
	}
	t.scaleOfFP16()
	t.offload("offload_optimizer")
	t.offload("offload_param")
	if text, at := t.their("gradient_clipping"); text == "" || text[0] == '-' {
		t.set("train.clip", "0", at)
	}
	if text, at := t.their("optimizer.params.adam_w_mode"); text == "false" && t.has("optimizer.type") != nil {
		t.set("optimizer.type", "adam", at)
	}
	t.optimizer()
	t.warmup()
}

// defaults3 lists the defaults of DeepSpeed's optimizers for keys that params lacks.
var defaults3 = map[string][][2]string{
	"adamw": {{"lr", "1e-3"}, {"betas", "[0.9, 0.999]"}, {"weight_decay", "0"}},
	"adam":  {{"lr", "1e-3"}, {"betas", "[0.9, 0.999]"}, {"weight_decay", "0"}},
	"lion":  {{"lr", "1e-3"}, {"betas", "[0.9, 0.999]"}, {"weight_decay", "0"}},
	"sgd":   {{"lr", "1e-3"}, {"momentum", "0"}, {"weight_decay", "0"}},
	"muon":  {{"lr", "0.02"}, {"weight_decay", "0"}, {"adamw.lr", "3e-4"}, {"adamw.eps", "1e-10"}},
}

// optimizer completes an optimizer by the defaults of DeepSpeed's.
func (t *translation) optimizer() {
	rule := t.has("optimizer.type")
	if rule == nil {
		return
	}
	if rule.text == "muon" {
		t.muon()
	}
	for _, d := range defaults3[rule.text] {
		if key := "optimizer." + d[0]; t.has(key) == nil {
			t.set(key, d[1], rule.at)
		}
	}
}

// muon assigns the settings of DeepSpeed's Muon to its two parts: lr to both, betas and eps to
// AdamW.
func (t *translation) muon() {
	if lr := t.has("optimizer.lr"); lr != nil && t.has("optimizer.adamw.lr") == nil {
		t.put("optimizer.adamw.lr", lr)
	}
	if lr, at := t.their("optimizer.params.muon_lr"); lr != "" {
		t.set("optimizer.lr", lr, at)
	}
	for _, key := range []string{"betas", "eps"} {
		if v := t.has("optimizer." + key); v != nil {
			t.put("optimizer.adamw."+key, v)
			t.remove("optimizer." + key)
		}
	}
}

// scaleOfFP16 checks the settings of the loss scale, which matter only with fp16.
func (t *translation) scaleOfFP16() {
	if t.has("precision").text != "fp16" {
		return
	}
	for key, want := range map[string]string{"loss_scale": "0", "initial_scale_power": "16", "loss_scale_window": "1000", "hysteresis": "2", "min_loss_scale": "1"} {
		if text, at := t.their("fp16." + key); text != "" && !sameValue(text, want) {
			t.wrong(at, "fp16."+key, text+" is not supported", deepSpeedKeys["fp16."+key].note)
		}
	}
}

// offload translates keys that matter only if something is offloaded.
func (t *translation) offload(section string) {
	in := "zero_optimization." + section + "."
	device, _ := t.their(in + "device")
	if path, at := t.their(in + "nvme_path"); device == "nvme" && path != "" {
		t.set("zero.offload.path", strconv.Quote(path), at)
	}
	ratio, at := t.their(in + "ratio")
	if slices.Contains([]string{"cpu", "nvme"}, device) && ratio != "" && section == "offload_optimizer" {
		t.set("zero.offload.ratio", ratio, at)
	}
}

// warmup completes the schedule. DeepSpeed's default warmup is logarithmic.
func (t *translation) warmup() {
	kind, at := t.their("scheduler.type")
	if kind == "" {
		rule := t.has("optimizer.type")
		if rule == nil {
			return
		}
		t.set("schedule.warmup", "0", rule.at)
		if rate, _ := t.their("optimizer.params.lr"); rate == "auto" { // the Trainer's, whose default is linear
			t.set("schedule.type", "linear", rule.at)
			t.set("schedule.min_lr", "0", rule.at)
		} else {
			t.set("schedule.type", "constant", rule.at)
		}
		return
	}
	curve, _ := t.their("scheduler.params.warmup_type")
	steps, _ := t.their("scheduler.params.warmup_num_steps")
	if steps == "" {
		t.set("schedule.warmup", "1000", at)
	}
	if curve == "" && !slices.Contains([]string{"0", "1", "auto"}, steps) {
		t.wrong(at, "scheduler.params.warmup_type", "it is missing, and DeepSpeed's default, a logarithmic warmup, is not supported", `write "warmup_type": "linear" if a linear warmup is acceptable`)
	}
	if kind != "WarmupCosineLR" { // the schedule's rate replaces the optimizer's
		t.highest(kind, at)
	}
	switch kind {
	case "WarmupDecayLR":
		t.set("schedule.min_lr", "0", at)
	case "WarmupCosineLR":
		ratio, where := t.their("scheduler.params.cos_min_ratio")
		if ratio == "" {
			ratio, where = "0.0001", at
		}
		lr := t.has("optimizer.lr")
		x, wrong := strconv.ParseFloat(ratio, 64)
		if lr == nil || wrong != nil {
			t.wrong(where, "scheduler.params.cos_min_ratio", "schedule.min_lr is computed from optimizer.params.lr, which is missing", "write optimizer.params.lr")
			return
		}
		if y, err := strconv.ParseFloat(lr.text, 64); err == nil {
			t.set("schedule.min_lr", strconv.FormatFloat(x*y, 'g', 6, 64), where)
		}
	}
}

// highest sets the learning rate to the schedule's. A WarmupLR without one has different meanings.
func (t *translation) highest(kind string, at position) {
	highest, where := t.their("scheduler.params.warmup_max_lr")
	switch lr := t.has("optimizer.lr"); {
	case highest == "auto":
		return
	case highest == "" && kind == "WarmupLR" && (lr == nil || !sameValue(lr.text, "1e-3")):
		t.wrong(at, "scheduler.params.warmup_max_lr", "it is missing, which means optimizer.params.lr in new versions of DeepSpeed and 0.001 in old ones", "write it")
		return
	case highest == "":
		highest, where = "1e-3", at
	}
	t.set("optimizer.lr", highest, where)
	if t.has("optimizer.adamw.lr") != nil {
		t.set("optimizer.adamw.lr", highest, where)
	}
}
