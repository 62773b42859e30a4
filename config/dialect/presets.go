package dialect

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/config"
	"zeroth/config/tree"
)

// preset is the default of another program for a key of a job that its configuration leaves out. The presets
// of a dialect name every key on which the programs could differ, so that none differs silently: the
// translation writes the other program's default, unless it is ours, too, and reports what remains.
type preset struct {
	key    string                    // of a job
	theirs string                    // the keys of the other program that determine it; "" for none
	value  string                    // the other program's default, in YAML; "" if a script determines it
	note   string                    // how older versions or other programs differ, for people
	when   func(t *Translation) bool // nil: always
}

// decided, in a preset's note, means that scripts or launchers decide there what has our default here.
const decided = "by a script"

// ofTrainer are the defaults of the Hugging Face Trainer (transformers 4.44 and 5.24) for the optimizer
// and the schedule.
var ofTrainer = []preset{
	{key: "optimizer.type", theirs: "optim", value: "adamw"},
	{key: "optimizer.lr", theirs: "learning_rate", value: "5e-5"},
	{key: "optimizer.betas", theirs: "adam_beta1 adam_beta2", value: "[0.9, 0.999]", when: with("optimizer.type", "adamw", "adamw8bit", "lion")},
	{key: "optimizer.eps", theirs: "adam_epsilon", value: "1e-8", when: with("optimizer.type", "adamw", "adamw8bit")},
	{key: "optimizer.momentum", value: "0", when: with("optimizer.type", "sgd")},
	{key: "optimizer.weight_decay", theirs: "weight_decay", value: "0"},
	{key: "schedule.type", theirs: "lr_scheduler_type", value: "linear"},
	{key: "schedule.warmup", theirs: "warmup_steps", value: "0"},
	{key: "schedule.lag", value: "1"},
	{key: "schedule.min_lr", value: "0", when: with("schedule.type", "linear", "cosine")},
}

// ofArguments are the defaults of TrainingArguments.
var ofArguments = slices.Concat(ofTrainer, []preset{
	{key: "precision", theirs: "bf16 fp16", value: "fp32"},
	{key: "train.micro_batch", theirs: "per_device_train_batch_size", value: "8"},
	{key: "train.accumulate", theirs: "gradient_accumulation_steps", value: "1"},
	{key: "train.clip", theirs: "max_grad_norm", value: "1.0"},
	{key: "train.seed", theirs: "seed", value: "42"},
	{key: "train.epochs", theirs: "num_train_epochs max_steps", value: "3", when: lacks("train.steps")},
	{key: "train.eval_every", theirs: "eval_strategy evaluation_strategy", value: "0", when: idle},
	{key: "train.eval_every", theirs: "eval_steps logging_steps", value: "500"},
	{key: "train.eval_batches", note: "8 batches, where the Trainer evaluates all of them", when: evaluates},
	{key: "data.validation", theirs: "eval_strategy evaluation_strategy", value: "0", when: idle},
	{key: "data.validation", note: decided},
	{key: "checkpoint.every", theirs: "save_steps save_strategy", value: "500"},
	{key: "checkpoint.keep", theirs: "save_total_limit", value: "{every_steps: 1}"},
	{key: "zero.stage", theirs: "fsdp fsdp_config", value: "0", when: whole},
	{key: "zero.stage", theirs: "fsdp_config", value: "3"},
	{key: "zero.recompute", theirs: "gradient_checkpointing activation_checkpointing fsdp_config", value: "none"},
	{key: "zero.offload.optimizer", theirs: "fsdp_config", value: "none"},
	{key: "zero.offload.parameters", theirs: "fsdp_config", value: "none"},
	{key: "parallel.ranks", note: decided},
})

// ofDeepSpeed are the defaults of DeepSpeed (0.9.5 to 0.19.8). If the file leaves the optimizer or, with the
// learning rate "auto", the schedule to the program that reads it, they are the Trainer's.
var ofDeepSpeed = slices.Concat([]preset{
	{key: "zero.stage", theirs: "zero_optimization.stage", value: "0"},
	{key: "precision", theirs: "bf16.enabled bfloat16.enabled fp16.enabled", value: "fp32"},
	{key: "train.clip", theirs: "gradient_clipping", value: "1.0", note: "0 before DeepSpeed 0.19.3"},
	{key: "train.accumulate", theirs: "gradient_accumulation_steps train_micro_batch_size_per_gpu", value: "1", when: lacks("train.micro_batch")},
	{key: "zero.offload.optimizer", theirs: "zero_optimization.offload_optimizer.device zero_optimization.cpu_offload", value: "none"},
	{key: "zero.offload.parameters", theirs: "zero_optimization.offload_param.device zero_optimization.cpu_offload_param", value: "none"},
	{key: "zero.offload.ratio", theirs: "zero_optimization.offload_optimizer.ratio", value: "1.0"},
	{key: "zero.recompute", value: "none"},
	{key: "train.steps", theirs: "scheduler.params.total_num_steps", note: decided},
}, scripts("train.seed", "train.eval_every", "data.validation", "checkpoint.every", "parallel.ranks"),
	[]preset{
		{key: "optimizer.lr", theirs: "optimizer.params.lr scheduler.params.warmup_max_lr", value: "1e-3", when: with("optimizer.type", "adamw", "adam", "lion", "sgd")},
		{key: "optimizer.lr", theirs: "optimizer.params.lr optimizer.params.muon_lr scheduler.params.warmup_max_lr", value: "0.02"},
		{key: "optimizer.adamw.lr", theirs: "optimizer.params.lr optimizer.params.adam_lr scheduler.params.warmup_max_lr", value: "3e-4", when: with("optimizer.type", "muon")},
		{key: "optimizer.betas", theirs: "optimizer.params.betas", value: "[0.9, 0.999]", when: with("optimizer.type", "adamw", "adam", "lion")},
		{key: "optimizer.adamw.betas", theirs: "optimizer.params.betas", value: "[0.9, 0.95]", when: with("optimizer.type", "muon")},
		{key: "optimizer.eps", theirs: "optimizer.params.eps", value: "1e-8", when: with("optimizer.type", "adamw", "adam")},
		{key: "optimizer.adamw.eps", theirs: "optimizer.params.eps", value: "1e-10", when: with("optimizer.type", "muon")},
		{key: "optimizer.momentum", theirs: "optimizer.params.momentum", value: "0", when: with("optimizer.type", "sgd")},
		{key: "optimizer.momentum", theirs: "optimizer.params.momentum", value: "0.95", when: with("optimizer.type", "muon")},
		{key: "optimizer.weight_decay", theirs: "optimizer.params.weight_decay", value: "0.01", when: ofTorch},
		{key: "optimizer.weight_decay", theirs: "optimizer.params.weight_decay", value: "0"},

		{key: "schedule.warmup", theirs: "scheduler.params.warmup_num_steps", value: "1000", when: says("scheduler.type", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")},
		{key: "schedule.lag", value: "2", note: "before DeepSpeed 0.15, the first step has the rate optimizer.params.lr", when: says("scheduler.type", "WarmupLR", "WarmupDecayLR")},
		{key: "schedule.lag", value: "1", note: "but step s of WarmupCosineLR's warmup of n has (s-2)/n of the rate, not (s-1)/n", when: says("scheduler.type", "WarmupCosineLR")},
		{key: "schedule.min_lr", value: "0", when: says("scheduler.type", "WarmupDecayLR")},
		{key: "schedule.type", theirs: "scheduler.type", value: "constant", note: "the Trainer adds its linear schedule"},
		{key: "schedule.warmup", theirs: "scheduler.params.warmup_num_steps", value: "0"},
		{key: "schedule.lag", value: "0"},
	})

// ofAccelerate are the defaults of Accelerate (0.33 and 1.15).
var ofAccelerate = slices.Concat([]preset{
	{key: "precision", theirs: "mixed_precision", value: "fp32"},
	{key: "zero.stage", theirs: "deepspeed_config.zero_stage", value: "2", when: says("distributed_type", "DEEPSPEED")},
	{key: "zero.stage", theirs: "fsdp_config", value: "3", when: says("distributed_type", "FSDP")},
	{key: "zero.stage", theirs: "fsdp_config deepspeed_config", value: "0"},
	{key: "zero.offload.optimizer", theirs: "fsdp_config deepspeed_config.offload_optimizer_device", value: "none"},
	{key: "zero.offload.parameters", theirs: "fsdp_config deepspeed_config.offload_param_device", value: "none"},
	{key: "zero.recompute", theirs: "fsdp_config", value: "none"},
	{key: "train.accumulate", theirs: "deepspeed_config.gradient_accumulation_steps", value: "1"},
	{key: "train.clip", theirs: "deepspeed_config.gradient_clipping", value: "1.0", when: says("distributed_type", "DEEPSPEED")},
	{key: "parallel.ranks", theirs: "num_processes", note: decided},
}, scripts("train.micro_batch", "train.clip", "train.steps", "train.seed", "train.eval_every", "data.validation", "checkpoint.every",
	"optimizer.type", "optimizer.lr", "optimizer.betas", "optimizer.eps", "optimizer.weight_decay", "schedule.type", "schedule.warmup", "schedule.min_lr"))

// with holds if a key of the job, or its default, has one of the values.
func with(key string, values ...string) func(*Translation) bool {
	return func(t *Translation) bool {
		if n := t.has(key); n != nil {
			return slices.Contains(values, n.Text)
		}
		return slices.Contains(values, config.Default(key))
	}
}

// says holds if a key of the other program has one of the values.
func says(theirs string, values ...string) func(*Translation) bool {
	return func(t *Translation) bool { return slices.Contains(values, t.their(theirs).Text) }
}

func lacks(key string) func(*Translation) bool {
	return func(t *Translation) bool { return t.has(key) == nil }
}

func lacksTheir(key string) func(*Translation) bool { return says(key, "") }

// leavesSchedule holds if the file leaves the schedule to the Trainer.
func leavesSchedule(t *Translation) bool {
	return lacksTheir("scheduler.type")(t) && (lacksTheir("optimizer.type")(t) || says("optimizer.params.lr", "auto")(t))
}

// ofTorch holds if the optimizer is torch.optim.AdamW.
func ofTorch(t *Translation) bool {
	return strings.EqualFold(t.their("optimizer.params.torch_adam").Text, "true") && with("optimizer.type", "adamw")(t)
}

// evaluates holds if TrainingArguments ask for evaluations.
func evaluates(t *Translation) bool {
	return t.from.Name == "Axolotl" && t.has("train.eval_every") != nil ||
		!says("eval_strategy", "", "no")(t) || !says("evaluation_strategy", "", "no")(t)
}

// whole holds if FSDP does not shard parameters.
func whole(t *Translation) bool {
	n := t.their("fsdp")
	return n.Kind == tree.Nothing || len(n.Items) == 0 && allows([]string{"", "false"}, n)
}

func idle(t *Translation) bool { return !evaluates(t) }

// scripts returns presets of keys that are decided by a script.
func scripts(keys ...string) (all []preset) {
	for _, key := range keys {
		all = append(all, preset{key: key, note: decided})
	}
	return all
}

// complete gives the job the presets that apply. The first preset of a key does.
func (t *Translation) complete() {
	done := map[string]bool{}
	for _, d := range t.from.presets {
		if done[d.key] || t.has(d.key) != nil || d.when != nil && !d.when(t) {
			continue
		}
		done[d.key] = true
		if d.value != "" && (t.root.Kind == tree.Nothing || d.value != config.Default(d.key)) {
			t.set(d.key, d.value, t.root.At)
		}
		if d.note != "" {
			t.differs = append(t.differs, d)
		}
	}
}

// byTrainer gives the job the Hugging Face Trainer's defaults of a key, or of a section that ends with a dot,
// which a script's TrainingArguments may replace.
func (t *Translation) byTrainer(key string) {
	if t.args != nil {
		return // they decide
	}
	base := &Translation{from: arguments, root: &tree.Node{At: t.root.At}, Job: &tree.Node{At: t.root.At, Kind: tree.Mapping}}
	base.complete()
	for _, p := range arguments.presets {
		if v := base.has(p.key); v != nil && strings.HasPrefix(p.key, key) && t.has(p.key) == nil {
			tree.Put(t.Job, p.key, v)
			t.guessed = append(t.guessed, p.key)
		}
	}
}

// Finish completes a translated job after the sets, which may replace parts of it: weight decay applies to
// all parameters where the other program has no groups, and a job with data for evaluations has some.
func (t *Translation) Finish(n *tree.Node) {
	if d := n.Lookup("data.validation"); n.Lookup("data.validation_documents") != nil || n.Lookup("data.program") != nil || d != nil && d.At.Set != "" {
		for _, key := range []string{"data.validation", "train.eval_every"} {
			if v := n.Lookup(key); v != nil && v.At.Set == "" && v.Text == "0" {
				n.Remove(key)
			}
		}
	}
	decay := n.Lookup("optimizer.weight_decay")
	if decay == nil || !t.everywhere {
		return
	}
	if x, wrong := tree.Number(decay); wrong == "" && x > 0 {
		groups := &tree.Node{At: decay.At, Kind: tree.List}
		if own := n.Lookup("optimizer.groups"); own != nil && own.Kind == tree.List {
			groups.Items = slices.Clone(own.Items)
		}
		all := &tree.Node{At: decay.At, Kind: tree.Mapping}
		tree.Put(all, "match", &tree.Node{At: decay.At, Kind: tree.Scalar, Text: "*", Quoted: true})
		tree.Put(all, "weight_decay", decay)
		groups.Items = append(groups.Items, all)
		tree.Put(n, "optimizer.groups", groups)
	}
}

// Notes returns a notice of what the file does not determine, except for keys that a --set gives.
func (t *Translation) Notes(job *tree.Node) []string {
	var guessed, differ, script []string
	set := func(key string) bool { v := job.Lookup(key); return v != nil && v.At.Set != "" }
	value := func(key string) string {
		if v := job.Lookup(key); v != nil {
			return key + " " + inline(v)
		}
		return strings.TrimSuffix(key+" "+config.Default(key), " ")
	}
	for _, key := range t.guessed {
		if !set(key) {
			guessed = append(guessed, value(key))
		}
	}
	for _, d := range t.differs {
		switch {
		case set(d.key):
		case d.note == decided:
			script = append(script, d.key)
		default:
			differ = append(differ, fmt.Sprintf("%s (%s)", value(d.key), d.note))
		}
	}
	slices.Sort(guessed)
	var parts []string
	for _, part := range [][2]string{
		{`"auto" and missing keys are defaults of the Hugging Face Trainer (set what your TrainingArguments set): `, strings.Join(slices.Compact(guessed), ", ")},
		{"not the same everywhere: ", strings.Join(differ, ", ")},
		{"decided by a script there, zeroth's defaults here: ", strings.Join(script, ", ")},
	} {
		if part[1] != "" {
			parts = append(parts, part[0]+part[1])
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return []string{"from " + t.from.Name + ": " + strings.Join(parts, "; ")}
}
