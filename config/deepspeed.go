package config

import (
	"cmp"
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
	ownSpeed    = "nothing to set: it does not change what is computed"
	unsupported = "remove it, or set enabled to false"
	noQuantized = "quantized collectives are not supported; want false"
)

var (
	no           = []string{"false"}
	places3      = map[string]string{"cpu": "host", "nvme": "disk", "none": "none"}
	rules3       = map[string]string{"adamw": "adamw", "adam": "adamw", "sgd": "sgd", "lion": "lion", "muon": "muon", "fusedadam": "adamw", "deepspeedcpuadam": "adamw"}
	never        = []string{"none"}
	curves3      = map[string]string{"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
	wholeNumbers = theirs{note: ofPrefetch}
)

// deepSpeed is the configuration of DeepSpeed. Optimizer Adam is AdamW there, too, unless adam_w_mode
// is false; deepSpeedJob completes that and the schedules.
var deepSpeed = dialect{name: "DeepSpeed", keys: deepSpeedKeys, presets: ofDeepSpeed, after: deepSpeedJob, is: func(root *node) bool {
	for _, key := range []string{"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"} {
		if root.find(key) != nil {
			return true
		}
	}
	return false
}}

var deepSpeedKeys = like3(no, "not supported; want false", like3(never, unsupported, also3(also3(also3(also3(map[string]theirs{
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
	"managed_gradient_accumulation":  {same: []string{"true"}},
	"gradient_allreduce_op":          {same: []string{"mean"}},
	"sparse_gradients":               {same: no},
	"dataloader_drop_last":           {note: "nothing to set: every batch is full"},
	"sequence_parallel_size":         {same: []string{"1"}, note: "want parallel.context in a job"},
	"tensor_parallel":                {same: never, note: "want parallel.tensor in a job"},
	"pipeline":                       {same: never, note: "want parallel.pipeline in a job"},
	"torch_autocast":                 {same: never, note: "want bf16: {enabled: true}"},
	"amp":                            {same: never, note: "want fp16: {enabled: true}"},

	"bf16.enabled":                {key: "precision", words: map[string]string{"true": "bf16", "false": ""}},
	"bfloat16.enabled":            {key: "precision", words: map[string]string{"true": "bf16", "false": ""}},
	"bf16.immediate_grad_update":  {note: ownSums},
	"bf16.check_grad_overflow":    {note: ownSums},
	"fp16.consecutive_hysteresis": {same: no},
	"fp16.enabled":                {key: "precision", words: map[string]string{"true": "fp16", "false": ""}},
	"fp16.auto_cast":              {same: no},
	"fp16.loss_scale":             {note: "the loss scale is dynamic here: want 0"},
	"fp16.initial_scale_power":    {note: "the loss scale begins at 2^16: want 16"},
	"fp16.loss_scale_window":      {note: "the loss scale doubles after 1000 steps: want 1000"},
	"fp16.hysteresis":             {note: "the loss scale halves at the second overflow: want 2"},
	"fp16.min_loss_scale":         {note: "the smallest loss scale is 1: want 1"},

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
	"zero_optimization.cpu_offload_param":                         {key: "zero.offload.parameters", words: map[string]string{"true": "host", "false": "none"}},
	"zero_optimization.cpu_offload_params":                        {key: "zero.offload.parameters", words: map[string]string{"true": "host", "false": "none"}},
	"zero_optimization.zenflow":                                   {same: never, note: "updates are never asynchronous: remove it"},
	"zero_optimization.zeropp_loco_param":                         {same: never, note: noQuantized},

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
	"optimizer.params.max_grad_norm":   {same: never, note: "want gradient_clipping"},
	"optimizer.params.amsgrad":         {same: no},
	"optimizer.params.dampening":       {same: []string{"0"}},
	"optimizer.params.ns_method":       {note: ownSpeed},
	"optimizer.params.ns_steps":        {key: "optimizer.ns_steps"},
	"optimizer.params.nesterov":        {key: "optimizer.nesterov"},

	"scheduler.type":                        {key: "schedule.type", words: curves3},
	"scheduler.params.warmup_num_steps":     {key: "schedule.warmup", auto: "0"},
	"scheduler.params.warmup_max_lr":        {note: "nothing to set: optimizer.lr determines it"},
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
	"elasticity.model_parallel_size"), ownSpeed,
	"nebula", "datastates_ckpt", "timers", "comet", "compile", "log_level", "disable_python_gc", "disable_allgather", "vocabulary_size", "graph_harvesting", "optimizer.legacy_fusion",
	"seq_parallel_communication_data_type", "use_data_before_expert_parallelism", "zero_optimization.compute_grad_norm", "zero_optimization.enable_sanity_checks", "zero_optimization.pipeline_loading_checkpoint",
	"zero_optimization.save_muon_momentum_buffer_in_memory", "zero_optimization.offload_optimizer.cpuadam_cores_perc", "optimizer.params.fp32_optimizer_states",
	"optimizer.params.foreach", "optimizer.params.fused", "optimizer.params.set_grad_none"),
	"compression_training", "quantize_training", "eigenvalue", "sparse_attention", "curriculum_learning", "progressive_layer_drop", "data_efficiency", "hybrid_engine", "autotuning",
	"weight_quantization", "expert_parallel"),
	"fp16.fp16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states", "zero_optimization.legacy_stage1", "zero_optimization.offload_optimizer.super_offload")

// like3 adds keys to a table for which only some values are accepted.
func like3(same []string, note string, keys map[string]theirs, more ...string) map[string]theirs {
	for _, key := range more {
		keys[key] = theirs{same: same, note: note}
	}
	return keys
}

// also3 adds keys without a meaning here to a table.
func also3(keys map[string]theirs, note string, more ...string) map[string]theirs {
	for _, key := range more {
		keys[key] = theirs{note: note}
	}
	return keys
}

// deepSpeedJob completes the job by what follows from several keys.
func deepSpeedJob(t *translation) {
	for _, section := range []string{"bf16", "bfloat16", "fp16"} {
		if t.their(section+".enabled").text == "auto" {
			t.set("precision", cmp.Or(t.text("precision"), "fp32"), t.root.at)
			t.guessed = append(t.guessed, "precision")
		}
	}
	if b := t.their("fp16.enabled"); strings.EqualFold(b.text, "true") && (strings.EqualFold(t.their("bf16.enabled").text, "true") || strings.EqualFold(t.their("bfloat16.enabled").text, "true")) {
		t.wrong(b.at, "fp16.enabled", "bf16 is enabled, too", "enable one of them")
	}
	t.scaleOfFP16()
	t.offload("offload_optimizer")
	t.offload("offload_param")
	if clip := t.their("gradient_clipping"); strings.HasPrefix(clip.text, "-") {
		t.set("train.clip", "0", clip.at)
	}
	for _, section := range []string{"optimizer", "scheduler"} {
		if params := t.their(section + ".params"); len(params.pairs) > 0 && t.their(section+".type").text == "" {
			t.wrong(params.at, section+".params", "DeepSpeed ignores it without "+section+".type", "write "+section+".type, or remove it")
		}
	}
	t.adam()
	t.muon()
	t.highest()
	t.complete()
	t.warmup()
	t.everywhere = t.their("optimizer.type").text != ""
}

// text returns the text of a key of the job, "" if the job lacks it.
func (t *translation) text(key string) string {
	if n := t.has(key); n != nil {
		return n.text
	}
	return ""
}

// adam applies adam_w_mode, which makes Adam, but not AdamW, decay as Adam does.
func (t *translation) adam() {
	mode, kind := t.their("optimizer.params.adam_w_mode"), t.their("optimizer.type")
	switch rule := t.text("optimizer.type"); {
	case mode.text == "":
	case rule != "" && rule != "adamw" && !(rule == "muon" && strings.EqualFold(mode.text, "true")):
		t.wrong(mode.at, "optimizer.params.adam_w_mode", kind.String()+" does not have it", "remove it")
	case strings.EqualFold(mode.text, "false") && rule == "adamw" && !strings.EqualFold(kind.text, "adamw"):
		t.set("optimizer.type", "adam", mode.at)
	}
}

// muon assigns the settings of DeepSpeed's Muon to its two parts: lr to both, betas and eps to
// AdamW.
func (t *translation) muon() {
	if t.text("optimizer.type") != "muon" {
		return
	}
	if lr := t.has("optimizer.lr"); lr != nil && t.has("optimizer.adamw.lr") == nil {
		put(t.job, "optimizer.adamw.lr", lr)
	}
	if lr := t.their("optimizer.params.muon_lr"); lr.kind != nothing {
		put(t.job, "optimizer.lr", lr)
	}
	for _, key := range []string{"betas", "eps"} {
		if v := t.has("optimizer." + key); v != nil {
			put(t.job, "optimizer.adamw."+key, v)
			t.job.remove("optimizer." + key)
		}
	}
}

// scaleOfFP16 checks the settings of the loss scale, which matter only with fp16.
func (t *translation) scaleOfFP16() {
	if t.text("precision") != "fp16" {
		return
	}
	for key, want := range map[string]string{"loss_scale": "0", "initial_scale_power": "16", "loss_scale_window": "1000", "hysteresis": "2", "min_loss_scale": "1"} {
		if n := t.their("fp16." + key); n.kind != nothing && !sameValue(n.text, want) {
			t.wrong(n.at, "fp16."+key, n.String()+" is not supported", deepSpeedKeys["fp16."+key].note)
		}
	}
}

// offload translates keys that matter only if something is offloaded.
func (t *translation) offload(section string) {
	in := "zero_optimization." + section + "."
	device := t.their(in + "device").text
	if path := t.their(in + "nvme_path"); device == "nvme" && path.kind != nothing {
		put(t.job, "zero.offload.path", path)
	}
	if ratio := t.their(in + "ratio"); slices.Contains([]string{"cpu", "nvme"}, device) && ratio.kind != nothing && section == "offload_optimizer" {
		put(t.job, "zero.offload.ratio", ratio)
	}
}

// warmup checks the warmup, which is logarithmic by default and has at least two steps, and computes the
// lowest rate of a cosine.
func (t *translation) warmup() {
	kind, steps, curve := t.their("scheduler.type"), t.has("schedule.warmup"), t.their("scheduler.params.warmup_type")
	if kind.text == "" {
		return
	}
	least := slices.Contains([]string{"0", "1", "2"}, steps.text)
	switch {
	case curve.text == "" && !least:
		t.wrong(kind.at, "scheduler.params.warmup_type", "it is missing, and DeepSpeed's default, a logarithmic warmup, is not supported", `write "warmup_type": "linear" if a linear warmup is acceptable`)
	case least:
		t.set("schedule.warmup", "2", steps.at)
		if curve.text == "" {
			t.differs = append(t.differs, preset{key: "schedule.warmup", note: "DeepSpeed's least; it is logarithmic, so its second step has the whole rate"})
		}
	}
	if kind.text != "WarmupCosineLR" {
		return
	}
	ratio, lr := t.their("scheduler.params.cos_min_ratio"), t.has("optimizer.lr")
	if ratio.kind == nothing {
		ratio = &node{at: kind.at, kind: scalar, text: "0.0001"}
	}
	x, wrong := number(ratio)
	if wrong != "" {
		t.wrong(ratio.at, "scheduler.params.cos_min_ratio", wrong, "want a number from 0 to 1")
	} else if y, wrong := number(lr); wrong == "" {
		put(t.job, "schedule.min_lr", &node{at: ratio.at, kind: scalar, text: strconv.FormatFloat(x*y, 'g', 6, 64)})
	}
}

// highest sets the learning rate to the schedule's, which replaces the optimizer's. A WarmupLR without one
// has different meanings.
func (t *translation) highest() {
	kind, rate := t.their("scheduler.type"), t.their("scheduler.params.warmup_max_lr")
	if kind.text == "" || kind.text == "WarmupCosineLR" {
		return
	}
	lr := t.has("optimizer.lr")
	switch {
	case rate.text == "auto" && lr != nil: // the Trainer accepts only one rate
		return
	case rate.text == "auto":
		t.guessed = append(t.guessed, "optimizer.lr")
		rate = &node{at: rate.at, kind: scalar, text: "5e-5"}
	case rate.kind == nothing && kind.text == "WarmupLR" && (lr == nil || !sameValue(lr.text, "1e-3")):
		t.wrong(kind.at, "scheduler.params.warmup_max_lr", "it is missing, which means optimizer.params.lr in new versions of DeepSpeed and 0.001 in old ones", "write it")
		return
	case rate.kind == nothing:
		rate = &node{at: kind.at, kind: scalar, text: "1e-3"}
	default:
		t.guessed = slices.DeleteFunc(t.guessed, func(key string) bool { return key == "optimizer.lr" })
	}
	put(t.job, "optimizer.lr", rate)
	if t.text("optimizer.type") == "muon" {
		put(t.job, "optimizer.adamw.lr", rate)
	}
}
