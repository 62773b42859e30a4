package config

import (
	"cmp"
	"fmt"
	"strings"
)

// theirs is what a key of DeepSpeed's configuration is in a job: a key, with other
// words for some values, or a note where there is nothing to set.
type theirs struct {
	key   string
	words map[string]string
	note  string
}

const (
	ownBuckets  = "nothing to set: a unit is a bucket, and communication always overlaps computing"
	ownScale    = "nothing to set: fp16 has a dynamic loss scale of its own"
	ownMetrics  = "nothing to set: metrics.jsonl in the run folder has every step"
	noPart      = "there is no such thing here"
	ofPrefetch  = "zero.prefetch counts units, not elements"
	ofRecompute = "zero.recompute: block"
)

var (
	places3 = map[string]string{"cpu": "host", "nvme": "disk"}
	rules3  = map[string]string{"AdamW": "adamw", "Adam": "adam", "SGD": "sgd", "Lion": "lion", "FusedAdam": "adamw", "DeepSpeedCPUAdam": "adamw"}
	curves3 = map[string]string{"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
)

// deepSpeedKeys are the keys people set, by their path, or by the beginning of it
// where all behind has one answer.
var deepSpeedKeys = map[string]theirs{
	"train_batch_size":               {key: "train.batch"},
	"train_micro_batch_size_per_gpu": {key: "train.micro_batch"},
	"gradient_accumulation_steps":    {key: "train.accumulate"},
	"gradient_clipping":              {key: "train.clip"},
	"steps_per_print":                {note: ownMetrics},
	"wall_clock_breakdown":           {note: "'zeroth train --trace FILE' says what took how long"},
	"tensorboard":                    {note: ownMetrics},
	"wandb":                          {note: ownMetrics},
	"csv_monitor":                    {note: ownMetrics},
	"activation_checkpointing":       {note: ofRecompute},
	"data_types":                     {note: "nothing to set: gradients and their sums are float32"},
	"communication_data_type":        {note: "nothing to set: sums of gradients travel as float32"},

	"bf16.enabled": {key: "precision", words: map[string]string{"true": "bf16"}},
	"fp16.enabled": {key: "precision", words: map[string]string{"true": "fp16"}},
	"bf16":         {note: "nothing to set: masters and moments are float32"},
	"fp16":         {note: ownScale},

	"zero_optimization.stage":                                     {key: "zero.stage"},
	"zero_optimization.offload_optimizer.device":                  {key: "zero.offload.optimizer", words: places3},
	"zero_optimization.offload_optimizer.nvme_path":               {key: "zero.offload.path"},
	"zero_optimization.offload_optimizer.ratio":                   {key: "zero.offload.ratio"},
	"zero_optimization.offload_optimizer":                         {note: "nothing to set; zero.offload.buffers is how much is staged at once"},
	"zero_optimization.offload_param.device":                      {key: "zero.offload.parameters", words: places3},
	"zero_optimization.offload_param.nvme_path":                   {key: "zero.offload.path"},
	"zero_optimization.offload_param":                             {note: "nothing to set; zero.offload.buffers is how much is staged at once"},
	"zero_optimization.cpu_offload":                               {key: "zero.offload.optimizer", words: map[string]string{"true": "host", "false": "none"}},
	"zero_optimization.stage3_prefetch_bucket_size":               {note: ofPrefetch},
	"zero_optimization.stage3_max_live_parameters":                {note: ofPrefetch},
	"zero_optimization.stage3_max_reuse_distance":                 {note: ofPrefetch},
	"zero_optimization.zero_hpz_partition_size":                   {key: "parallel.shard"},
	"zero_optimization.mics_shard_size":                           {key: "parallel.shard"},
	"zero_optimization.stage3_gather_16bit_weights_on_model_save": {note: "nothing to set: model/ in the run folder has the whole parameters"},
	"zero_optimization":                                           {note: ownBuckets},

	"optimizer.type":                {key: "optimizer.type", words: rules3},
	"optimizer.params.lr":           {key: "optimizer.lr"},
	"optimizer.params.betas":        {key: "optimizer.betas"},
	"optimizer.params.eps":          {key: "optimizer.eps"},
	"optimizer.params.weight_decay": {key: "optimizer.weight_decay"},
	"optimizer.params.momentum":     {key: "optimizer.momentum"},

	"scheduler.type":                    {key: "schedule.type", words: curves3},
	"scheduler.params.warmup_num_steps": {key: "schedule.warmup"},
	"scheduler.params.warmup_max_lr":    {key: "optimizer.lr"},
	"scheduler.params.warmup_min_lr":    {note: "nothing to set: the rise begins at 0"},
	"scheduler.params.total_num_steps":  {key: "train.steps"},
	"scheduler.params.cos_min_ratio":    {note: "schedule.min_lr is a learning rate, not a ratio"},
}

// deepSpeed are the keys of a configuration of DeepSpeed, a line each, with what
// they are in a job; nil of any other file.
func deepSpeed(root *node) Problems {
	if root.find("zero_optimization") == nil && root.find("train_micro_batch_size_per_gpu") == nil && root.find("train_batch_size") == nil {
		return nil
	}
	at := place{file: root.at.file}
	problems := fatal(at, "this is a configuration of DeepSpeed, not a job of zeroth", "its keys are below with what they are in a job; 'zeroth init' writes a job to begin with")
	return append(problems, translated("", root)...)
}

func translated(in string, n *node) (ps Problems) {
	for _, p := range n.pairs {
		key := join(in, p.key)
		if p.value.kind == mapping {
			ps = append(ps, translated(key, p.value)...)
			continue
		}
		ps = append(ps, newProblem(p.at, key, "of DeepSpeed", inJob(key, p.value)))
	}
	return ps
}

// inJob is what a key of DeepSpeed with a value is in a job.
func inJob(key string, v *node) string {
	for at := key; at != ""; at, _ = split(at) {
		t, ok := deepSpeedKeys[at]
		switch {
		case !ok || at != key && t.key != "":
		case t.key == "":
			return t.note
		case v.text == "auto":
			return "in a job " + t.key + ", which has a default: leave it out"
		default:
			return "in a job " + t.in(v)
		}
	}
	return noPart
}

// in is the key with a value, as a job file has it.
func (t theirs) in(v *node) string {
	text := cmp.Or(t.words[v.text], v.text)
	if v.kind == list {
		var items []string
		for _, item := range v.items {
			items = append(items, item.text)
		}
		text = "[" + strings.Join(items, ", ") + "]"
	}
	if t.words != nil && t.words[v.text] == "" && v.text != "none" {
		return fmt.Sprintf("%s, which has no %s", t.key, v)
	}
	return nestWith(t.key, text)
}
