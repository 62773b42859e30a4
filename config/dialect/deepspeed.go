package dialect

import (
	"slices"
	"strconv"
	"strings"

	"zeroth/config/tree"
)

// deepSpeed is the configuration of DeepSpeed. Optimizer Adam is AdamW there, too, unless adam_w_mode
// is false; deepSpeedJob completes that and the schedules.
var deepSpeed = dialect{Name: "DeepSpeed", presets: ofDeepSpeed, after: deepSpeedJob, is: hasAny(
	"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")}

// deepSpeedJob completes the job by what follows from several keys.
func deepSpeedJob(t *Translation) {
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
	if lacksTheir("optimizer.type")(t) {
		t.byTrainer("optimizer.")
	}
	if leavesSchedule(t) {
		t.byTrainer("schedule.")
	}
	t.adam()
	t.muon()
	t.highest()
	t.complete()
	t.warmup()
	t.everywhere = t.their("optimizer.type").Text != ""
}

// known returns the value of a key of the job or of the arguments that use it, or nil.
func (t *Translation) known(key string) *tree.Node {
	if n := t.has(key); n != nil || t.args == nil {
		return n
	}
	return t.args.known(key)
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
			t.wrong(n.At, "fp16."+key, n.String()+" is not supported", t.words["fp16."+key].Note)
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
	kind, steps, curve := t.their("scheduler.type"), t.known("schedule.warmup"), t.their("scheduler.params.warmup_type")
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
	ratio, lr := t.their("scheduler.params.cos_min_ratio"), t.known("optimizer.lr")
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
	lr := t.known("optimizer.lr")
	switch {
	case rate.Text == "auto" && lr != nil: // the Trainer accepts only one rate
		return
	case rate.Text == "auto":
		t.byTrainer("optimizer.lr")
		if rate = t.has("optimizer.lr"); rate == nil { // the arguments have it
			t.autos = append(t.autos, "optimizer.lr")
			return
		}
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
