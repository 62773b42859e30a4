package dialect

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"zeroth/config/tree"
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
	wholeNumbers = theirs{Note: ofPrefetch}
)

// deepSpeed is the configuration of DeepSpeed. Optimizer Adam is AdamW there, too, unless adam_w_mode
// is false; deepSpeedJob completes that and the schedules.
var deepSpeed = dialect{Name: "DeepSpeed", Keys: deepSpeedKeys, presets: ofDeepSpeed, after: deepSpeedJob, is: func(root *tree.Node) bool {
	for _, key := range []string{"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"} {
		if root.Find(key) != nil {
			return true
		}
	}
	return false
}}

var deepSpeedKeys = like3(no, "not supported; want false", like3(never, unsupported, also3(also3(also3(also3(map[string]theirs{
	"train_batch_size":               {Key: "train.batch"},
	"train_micro_batch_size_per_gpu": {Key: "train.micro_batch", auto: "8"},
	"gradient_accumulation_steps":    {Key: "train.accumulate", auto: "1"},
	"gradient_clipping":              {Key: "train.clip", auto: "1.0"},
	"steps_per_print":                {Note: ownMetrics},
	"wall_clock_breakdown":           {Note: "nothing to set: 'zeroth train --trace FILE' shows how long everything took"},
	"memory_breakdown":               {Note: ownMetrics},
	"dump_state":                     {Note: ownMetrics},
	"tensorboard":                    {Note: ownMetrics},
	"wandb":                          {Note: ownMetrics},
	"csv_monitor":                    {Note: ownMetrics},
	"comms_logger":                   {Note: ownMetrics},
	"flops_profiler":                 {Note: ownMetrics},
	"activation_checkpointing":       {Note: ofRecompute},
	"data_types":                     {Note: ownSums},
	"communication_data_type":        {Note: ownSums},
	"prescale_gradients":             {Same: no, Note: "gradients are only scaled by the mean; want false"},
	"gradient_predivide_factor":      {Same: []string{"1"}},
	"zero_allow_untested_optimizer":  {Note: "nothing to set: every optimizer works at every stage"},
	"zero_force_ds_cpu_optimizer":    {Note: "nothing to set: there is only one optimizer for host memory"},
	"aio":                            {Note: "nothing to set: the disk's queue tunes itself"},
	"elasticity.enabled":             {Same: no, Note: "the batch does not depend on the number of ranks: want false, and train_batch_size"},
	"checkpoint":                     {Note: "nothing to set: checkpoints load on any number of ranks"},
	"lr_scheduler":                   {Note: "ignored, as DeepSpeed does: its key is scheduler"},
	"managed_gradient_accumulation":  {Same: []string{"true"}},
	"gradient_allreduce_op":          {Same: []string{"mean"}},
	"sparse_gradients":               {Same: no},
	"dataloader_drop_last":           {Note: "nothing to set: every batch is full"},
	"sequence_parallel_size":         {Same: []string{"1"}, Note: "want parallel.context in a job"},
	"tensor_parallel":                {Same: never, Note: "want parallel.tensor in a job"},
	"pipeline":                       {Same: never, Note: "want parallel.pipeline in a job"},
	"torch_autocast":                 {Same: never, Note: "want bf16: {enabled: true}"},
	"amp":                            {Same: never, Note: "want fp16: {enabled: true}"},

	"bf16.enabled":                {Key: "precision", Words: map[string]string{"true": "bf16", "false": ""}},
	"bfloat16.enabled":            {Key: "precision", Words: map[string]string{"true": "bf16", "false": ""}},
	"bf16.immediate_grad_update":  {Note: ownSums},
	"bf16.check_grad_overflow":    {Note: ownSums},
	"fp16.consecutive_hysteresis": {Same: no},
	"fp16.enabled":                {Key: "precision", Words: map[string]string{"true": "fp16", "false": ""}},
	"fp16.auto_cast":              {Same: no},
	"fp16.loss_scale":             {Note: "the loss scale is dynamic here: want 0"},
	"fp16.initial_scale_power":    {Note: "the loss scale begins at 2^16: want 16"},
	"fp16.loss_scale_window":      {Note: "the loss scale doubles after 1000 steps: want 1000"},
	"fp16.hysteresis":             {Note: "the loss scale halves at the second overflow: want 2"},
	"fp16.min_loss_scale":         {Note: "the smallest loss scale is 1: want 1"},

	"zero_optimization.stage":                    {Key: "zero.stage"},
	"zero_optimization.offload_optimizer.device": {Key: "zero.offload.optimizer", Words: places3, auto: "none"},
	"zero_optimization.offload_param.device":     {Key: "zero.offload.parameters", Words: places3, auto: "none"},
	"zero_optimization.cpu_offload":              {Key: "zero.offload.optimizer", Words: map[string]string{"true": "host", "false": "none"}},
	"zero_optimization.mics_shard_size":          {Key: "parallel.shard"},

	"zero_optimization.zero_hpz_partition_size":                   {Same: []string{"1"}, Note: "sharding a second copy of the weights within a node is not supported; want 1, or parallel.replicate for replicas of all state"},
	"zero_optimization.zero_quantized_weights":                    {Same: no, Note: noQuantized},
	"zero_optimization.zero_quantized_gradients":                  {Same: no, Note: noQuantized},
	"zero_optimization.zero_quantized_nontrainable_weights":       {Same: no, Note: noQuantized},
	"zero_optimization.stage3_prefetch_bucket_size":               wholeNumbers,
	"zero_optimization.stage3_max_live_parameters":                wholeNumbers,
	"zero_optimization.stage3_max_reuse_distance":                 wholeNumbers,
	"zero_optimization.prefetch_bucket_size":                      wholeNumbers,
	"zero_optimization.max_live_parameters":                       wholeNumbers,
	"zero_optimization.max_reuse_distance":                        wholeNumbers,
	"zero_optimization.stage3_gather_16bit_weights_on_model_save": {Note: ownWhole},
	"zero_optimization.gather_16bit_weights_on_model_save":        {Note: ownWhole},
	"zero_optimization.stage3_gather_fp16_weights_on_model_save":  {Note: ownWhole},
	"zero_optimization.elastic_checkpoint":                        {Note: "nothing to set: checkpoints load on any number of ranks"},
	"zero_optimization.load_from_fp32_weights":                    {Note: "nothing to set: masters are float32"},
	"zero_optimization.cpu_offload_use_pin_memory":                {Note: ownStaging},
	"zero_optimization.cpu_offload_param":                         {Key: "zero.offload.parameters", Words: map[string]string{"true": "host", "false": "none"}},
	"zero_optimization.cpu_offload_params":                        {Key: "zero.offload.parameters", Words: map[string]string{"true": "host", "false": "none"}},
	"zero_optimization.zenflow":                                   {Same: never, Note: "updates are never asynchronous: remove it"},
	"zero_optimization.zeropp_loco_param":                         {Same: never, Note: noQuantized},

	"optimizer.type":                   {Key: "optimizer.type", Words: rules3},
	"optimizer.params.lr":              {Key: "optimizer.lr", auto: "5e-5"},
	"optimizer.params.betas":           {Key: "optimizer.betas", auto: "[0.9, 0.999]"},
	"optimizer.params.eps":             {Key: "optimizer.eps", auto: "1e-8"},
	"optimizer.params.weight_decay":    {Key: "optimizer.weight_decay", auto: "0"},
	"optimizer.params.momentum":        {Key: "optimizer.momentum"},
	"optimizer.params.torch_adam":      {Note: "nothing to set: there is only one AdamW"},
	"optimizer.params.bias_correction": {Same: []string{"true"}},
	"optimizer.params.adam_w_mode":     {Note: "nothing to set: optimizer.type determines it"},
	"optimizer.params.muon_lr":         {Note: "nothing to set: optimizer.lr determines it"},
	"optimizer.params.adam_lr":         {Key: "optimizer.adamw.lr"},
	"optimizer.params.max_grad_norm":   {Same: never, Note: "want gradient_clipping"},
	"optimizer.params.amsgrad":         {Same: no},
	"optimizer.params.dampening":       {Same: []string{"0"}},
	"optimizer.params.ns_method":       {Note: ownSpeed},
	"optimizer.params.ns_steps":        {Key: "optimizer.ns_steps"},
	"optimizer.params.nesterov":        {Key: "optimizer.nesterov"},

	"scheduler.type":                        {Key: "schedule.type", Words: curves3},
	"scheduler.params.warmup_num_steps":     {Key: "schedule.warmup", auto: "0"},
	"scheduler.params.warmup_max_lr":        {Note: "nothing to set: optimizer.lr determines it"},
	"scheduler.params.warmup_min_lr":        {Same: []string{"0", "auto"}, Note: "the warmup begins at 0: want 0"},
	"scheduler.params.warmup_min_ratio":     {Same: []string{"0", "auto"}, Note: "the warmup begins at 0: want 0"},
	"scheduler.params.warmup_type":          {Same: []string{"linear"}, Note: "the warmup is linear here: want linear"},
	"scheduler.params.total_num_steps":      {Key: "train.steps"},
	"scheduler.params.cos_min_ratio":        {Note: "nothing to set: schedule.min_lr determines it"},
	"scheduler.params.last_batch_iteration": {Same: []string{"-1"}},
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
		keys[key] = theirs{Same: same, Note: note}
	}
	return keys
}

// also3 adds keys without a meaning here to a table.
func also3(keys map[string]theirs, note string, more ...string) map[string]theirs {
	for _, key := range more {
		keys[key] = theirs{Note: note}
	}
	return keys
}

// deepSpeedJob completes the job by what follows from several keys.
func deepSpeedJob(t *Translation) {
	for _, section := range []string{"bf16", "bfloat16", "fp16"} {
		if t.their(section+".enabled").Text == "auto" {
			t.set("precision", cmp.Or(t.text("precision"), "fp32"), t.root.At)
			t.guessed = append(t.guessed, "precision")
		}
	}
	if b := t.their("fp16.enabled"); strings.EqualFold(b.Text, "true") && (strings.EqualFold(t.their("bf16.enabled").Text, "true") || strings.EqualFold(t.their("bfloat16.enabled").Text, "true")) {
		t.wrong(b.At, "fp16.enabled", "bf16 is enabled, too", "enable one of them")
	}
	t.scaleOfFP16()
	t.offload("offload_optimizer")
	t.offload("offload_param")
	if clip := t.their("gradient_clipping"); strings.HasPrefix(clip.Text, "-") {
		t.set("train.clip", "0", clip.At)
	}
	for _, section := range []string{"optimizer", "scheduler"} {
		if params := t.their(section + ".params"); len(params.Pairs) > 0 && t.their(section+".type").Text == "" {
			t.wrong(params.At, section+".params", "DeepSpeed ignores it without "+section+".type", "write "+section+".type, or remove it")
		}
	}
	t.adam()
	t.muon()
	t.highest()
	t.complete()
	t.warmup()
	t.everywhere = t.their("optimizer.type").Text != ""
}

// text returns the text of a key of the job, "" if the job lacks it.
func (t *Translation) text(key string) string {
	if n := t.has(key); n != nil {
		return n.Text
	}
	return ""
}

// adam applies adam_w_mode, which makes Adam, but not AdamW, decay as Adam does.
func (t *Translation) adam() {
	mode, kind := t.their("optimizer.params.adam_w_mode"), t.their("optimizer.type")
	switch rule := t.text("optimizer.type"); {
	case mode.Text == "":
	case rule != "" && rule != "adamw" && !(rule == "muon" && strings.EqualFold(mode.Text, "true")):
		t.wrong(mode.At, "optimizer.params.adam_w_mode", kind.String()+" does not have it", "remove it")
	case strings.EqualFold(mode.Text, "false") && rule == "adamw" && !strings.EqualFold(kind.Text, "adamw"):
		t.set("optimizer.type", "adam", mode.At)
	}
}

// muon assigns the settings of DeepSpeed's Muon to its two parts: lr to both, betas and eps to
// AdamW.
func (t *Translation) muon() {
	if t.text("optimizer.type") != "muon" {
		return
	}
	if lr := t.has("optimizer.lr"); lr != nil && t.has("optimizer.adamw.lr") == nil {
		tree.Put(t.Job, "optimizer.adamw.lr", lr)
	}
	if lr := t.their("optimizer.params.muon_lr"); lr.Kind != tree.Nothing {
		tree.Put(t.Job, "optimizer.lr", lr)
	}
	for _, key := range []string{"betas", "eps"} {
		if v := t.has("optimizer." + key); v != nil {
			tree.Put(t.Job, "optimizer.adamw."+key, v)
			t.Job.Remove("optimizer." + key)
		}
	}
}

// scaleOfFP16 checks the settings of the loss scale, which matter only with fp16.
func (t *Translation) scaleOfFP16() {
	if t.text("precision") != "fp16" {
		return
	}
	for key, want := range map[string]string{"loss_scale": "0", "initial_scale_power": "16", "loss_scale_window": "1000", "hysteresis": "2", "min_loss_scale": "1"} {
		if n := t.their("fp16." + key); n.Kind != tree.Nothing && !sameValue(n.Text, want) {
			t.wrong(n.At, "fp16."+key, n.String()+" is not supported", deepSpeedKeys["fp16."+key].Note)
		}
	}
}

// offload translates keys that matter only if something is offloaded.
func (t *Translation) offload(section string) {
	in := "zero_optimization." + section + "."
	device := t.their(in + "device").Text
	if path := t.their(in + "nvme_path"); device == "nvme" && path.Kind != tree.Nothing {
		tree.Put(t.Job, "zero.offload.path", path)
	}
	if ratio := t.their(in + "ratio"); slices.Contains([]string{"cpu", "nvme"}, device) && ratio.Kind != tree.Nothing && section == "offload_optimizer" {
		tree.Put(t.Job, "zero.offload.ratio", ratio)
	}
}

// warmup checks the warmup, which is logarithmic by default and has at least two steps, and computes the
// lowest rate of a cosine.
func (t *Translation) warmup() {
	kind, steps, curve := t.their("scheduler.type"), t.has("schedule.warmup"), t.their("scheduler.params.warmup_type")
	if kind.Text == "" {
		return
	}
	least := slices.Contains([]string{"0", "1", "2"}, steps.Text)
	switch {
	case curve.Text == "" && !least:
		t.wrong(kind.At, "scheduler.params.warmup_type", "it is missing, and DeepSpeed's default, a logarithmic warmup, is not supported", `write "warmup_type": "linear" if a linear warmup is acceptable`)
	case least:
		t.set("schedule.warmup", "2", steps.At)
		if curve.Text == "" {
			t.differs = append(t.differs, preset{key: "schedule.warmup", note: "DeepSpeed's least; it is logarithmic, so its second step has the whole rate"})
		}
	}
	if kind.Text != "WarmupCosineLR" {
		return
	}
	ratio, lr := t.their("scheduler.params.cos_min_ratio"), t.has("optimizer.lr")
	if ratio.Kind == tree.Nothing {
		ratio = &tree.Node{At: kind.At, Kind: tree.Scalar, Text: "0.0001"}
	}
	x, wrong := tree.Number(ratio)
	if wrong != "" {
		t.wrong(ratio.At, "scheduler.params.cos_min_ratio", wrong, "want a number from 0 to 1")
	} else if y, wrong := tree.Number(lr); wrong == "" {
		tree.Put(t.Job, "schedule.min_lr", &tree.Node{At: ratio.At, Kind: tree.Scalar, Text: strconv.FormatFloat(x*y, 'g', 6, 64)})
	}
}

// highest sets the learning rate to the schedule's, which replaces the optimizer's. A WarmupLR without one
// has different meanings.
func (t *Translation) highest() {
	kind, rate := t.their("scheduler.type"), t.their("scheduler.params.warmup_max_lr")
	if kind.Text == "" || kind.Text == "WarmupCosineLR" {
		return
	}
	lr := t.has("optimizer.lr")
	switch {
	case rate.Text == "auto" && lr != nil: // the Trainer accepts only one rate
		return
	case rate.Text == "auto":
		t.guessed = append(t.guessed, "optimizer.lr")
		rate = &tree.Node{At: rate.At, Kind: tree.Scalar, Text: "5e-5"}
	case rate.Kind == tree.Nothing && kind.Text == "WarmupLR" && (lr == nil || !sameValue(lr.Text, "1e-3")):
		t.wrong(kind.At, "scheduler.params.warmup_max_lr", "it is missing, which means optimizer.params.lr in new versions of DeepSpeed and 0.001 in old ones", "write it")
		return
	case rate.Kind == tree.Nothing:
		rate = &tree.Node{At: kind.At, Kind: tree.Scalar, Text: "1e-3"}
	default:
		t.guessed = slices.DeleteFunc(t.guessed, func(key string) bool { return key == "optimizer.lr" })
	}
	tree.Put(t.Job, "optimizer.lr", rate)
	if t.text("optimizer.type") == "muon" {
		tree.Put(t.Job, "optimizer.adamw.lr", rate)
	}
}
