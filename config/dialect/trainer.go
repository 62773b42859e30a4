package dialect

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"zeroth/config"
	"zeroth/config/tree"
)

// accelerate is the YAML file of Accelerate.
var accelerate = dialect{Name: "Accelerate", presets: ofAccelerate, after: accelerateJob, is: func(root *tree.Node) bool {
	return root.Find("distributed_type") != nil || root.Find("deepspeed_config") != nil || root.Find("fsdp_config") != nil
}}

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
var arguments = dialect{Name: "TrainingArguments", presets: ofArguments, reads: true, after: argumentsJob, is: hasAny(
	"per_device_train_batch_size", "num_train_epochs", "lr_scheduler_type", "output_dir", "max_grad_norm")}

// argumentsJob completes the job by what follows from several keys.
func argumentsJob(t *Translation) {
	t.offloadState()
	if steps := t.text("train.steps"); strings.HasPrefix(steps, "-") || steps == "0" {
		t.Job.Remove("train.steps")
	} else if steps != "" {
		t.Job.Remove("train.epochs")
	}
	if warmup := t.their("warmup_steps"); warmup.Kind != tree.Nothing && warmup.Text != "0" { // it wins
		tree.Put(t.Job, "schedule.warmup", warmup)
	}
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
	t.complete()
	if t.has("train.steps") == nil {
		t.differs = append(t.differs, preset{key: "train.epochs", note: "the last step is filled up, where the Trainer shortens that of each epoch"})
	}
}

// strategies applies the intervals that a strategy switches on or off, and refuses two precisions.
func (t *Translation) strategies() {
	t.perEpoch("checkpoint.every", "save_strategy")
	t.perEpoch("train.eval_every", "eval_strategy", "evaluation_strategy")
	if says("save_strategy", "no")(t) {
		t.set("checkpoint.every", "0", t.their("save_strategy").At)
	}
	switch every := t.their("logging_steps"); {
	case !evaluates(t):
		t.Job.Remove("train.eval_every")
	case t.has("train.eval_every") == nil && every.Kind != tree.Nothing:
		tree.Put(t.Job, "train.eval_every", every)
	}
	m := t.their("metric_for_best_model")
	if t.has("train.final_model") != nil && m.Kind != tree.Nothing && !allows([]string{"loss", "eval_loss"}, m) {
		t.wrong(m.At, "metric_for_best_model", m.String()+" is not supported", "want loss: the best model has the lowest validation loss")
	}
	if b := t.their("fp16"); strings.EqualFold(b.Text, "true") && strings.EqualFold(t.their("bf16").Text, "true") {
		t.wrong(b.At, "fp16", "bf16 is true, too", "set one of them")
	}
}

// perEpoch sets an interval of the job if one of their keys is "epoch", or the number of times in an epoch.
func (t *Translation) perEpoch(key string, theirs ...string) {
	for _, name := range theirs {
		n := t.their(name)
		times, wrong := tree.Number(n)
		if n.Text == "epoch" {
			times, wrong = 1, ""
		}
		if n.Kind == tree.Scalar && wrong == "" {
			t.inEpoch(key, times, name, n)
		}
	}
}

// inEpoch sets an interval of the job to a number of times in an epoch, because of their key.
func (t *Translation) inEpoch(key string, times float64, name string, because *tree.Node) {
	epochs, wrong := tree.Number(cmp.Or(t.has("train.epochs"), &tree.Node{Kind: tree.Scalar, Text: t.epochs()}))
	switch part := 1 / (times * epochs); {
	case wrong != "" || times <= 0 || epochs <= 0:
		t.wrong(because.At, name, because.String()+" is not supported", "want a number above 0, and of epochs, too")
	case t.has("train.steps") != nil:
		t.wrong(because.At, name, because.String()+" with max_steps: the length of an epoch is unknown", "want a number of steps")
	case part < 1: // its digits are cut, because intervals are rounded up
		t.set(key, strconv.FormatFloat(math.Floor(part*1e6)/1e6, 'f', -1, 64), because.At)
	case key == "checkpoint.every": // at the end
		t.set(key, "0", because.At)
		t.set("checkpoint.save_on_exit", "true", because.At)
	default: // after the last step
		t.set(key, strconv.Itoa(config.MostSteps), because.At)
	}
}

// epochs returns the default number of epochs.
func (t *Translation) epochs() string {
	i := slices.IndexFunc(t.from.presets, func(p preset) bool { return p.key == "train.epochs" })
	return t.from.presets[i].value
}
