package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"zeroth/checkpoint"
	"zeroth/config/tree"
	"zeroth/internal/input"
	"zeroth/internal/input/s3"
	"zeroth/job/hf"
)

// Checkpointing says when and how a run saves its state.
type Checkpointing struct {
	Every      int           // steps between saves; 0 is never
	Part       float64       // of the run's steps that Every is, below 1; 0: Every is given
	Interval   time.Duration // time between saves, if Every is 0; 0 is never
	Dir        string        // folder of checkpoints, also s3://bucket/folder; empty: ckpt in the run folder
	Local      string        // folder on each host's disk for checkpoints on their way to object storage; empty: ckpt in the run folder
	Keep       checkpoint.Keep
	Async      bool   // training continues while a save is written
	Compress   string // "auto", "always" or "never"
	SaveOnExit bool   // also save after the last step, and when the run is stopped
	OnError    string // "stop" or "continue": what the run does when a save fails
}

// Compression returns the compression mode that Compress names. It panics on an unknown name,
// which reading the job rules out.
func (k Checkpointing) Compression() checkpoint.Compression {
	c, err := checkpoint.ParseCompression(k.Compress)
	if err != nil {
		panic("config: " + err.Error())
	}
	return c
}

// checkpointKeys returns the keys of checkpoints.
func (c *Config) checkpointKeys() []field {
	k, t := &c.Checkpoint, &c.Train
	return []field{
		{key: "checkpoint.every", value: orPart(often(&k.Every, &k.Interval), &k.Every, &k.Part),
			initial: "0", like: "100", lasts: true,
			doc: "steps, a share of the run, or a time such as 30m, between checkpoints; 0: none"},
		{key: "checkpoint.dir", value: path(&k.Dir, objects),
			rule: "ckpt in the run folder", like: "/data/ckpt",
			doc: "folder of checkpoints, also s3://bucket/folder",
			not: refuse(s3.Is(k.Dir) && badBucket(k.Dir), "it names no folder in object storage",
				"want s3://BUCKET/FOLDER")},
		{key: "checkpoint.local", value: path(&k.Local),
			rule: "ckpt in the run folder", like: "/scratch/ckpt", own: true,
			doc: "with a checkpoint.dir in object storage: folder on each host's disk to save checkpoints " +
				"to before uploading them",
			only: onlyIf("with a checkpoint.dir in object storage", s3.Is(k.Dir), "checkpoint.dir",
				"checkpoint.dir is on disk already")},
		{key: "checkpoint.keep", value: retention(&k.Keep),
			initial: "3", like: "{last: 3, best: val_loss}", lasts: true,
			doc: "checkpoints to keep: the number of newest ones, or {last: 3, every_steps: 1000, best: " +
				"val_loss}",
			not: refuse(k.Keep.Best == "val_loss" && t.EvalEvery == 0,
				"keeping the best val_loss needs evaluations, but the job has none",
				"want train.eval_every of at least 1 and data.validation above 0, or best: loss")},
		{key: "checkpoint.async", value: flag(&k.Async), initial: "true",
			doc: "continue training while a checkpoint is written"},
		{key: "checkpoint.compress", value: choice(&k.Compress, []string{"auto", "always", "never"}),
			initial: "auto",
			doc: "auto | always | never: compress data files; auto: if it pays off, as measured by the " +
				"first save"},
		{key: "checkpoint.save_on_exit", value: flag(&k.SaveOnExit),
			rule: "true with every or train.final_model: best, else false", like: "true", lasts: true,
			doc:     "save after the last step and when the run is stopped",
			follows: []string{"checkpoint.every", "train.final_model"},
			then:    func() { k.SaveOnExit = k.Every > 0 || k.Interval > 0 || t.Best() }},
		{key: "checkpoint.on_error", value: choice(&k.OnError, []string{"stop", "continue"}), initial: "stop",
			doc: "stop | continue: stop or continue training when a checkpoint or metrics.jsonl cannot be " +
				"written"},
	}
}

// often is a number of steps or a time span. At most one of them is not 0.
func often(steps *int, apart *time.Duration) value {
	n, d := count(steps, 0, MostSteps), duration(apart)
	number := n.set
	n.set = func(at *tree.Node) string {
		wrong := d.set(at)
		if wrong == "" {
			*steps = 0
			return ""
		}
		if _, err := time.ParseDuration(at.Text); err == nil && at.Text != "0" {
			return wrong
		}
		if wrong = number(at); wrong == "" {
			*apart = 0
		}
		return wrong
	}
	n.yaml = func() string {
		if *apart > 0 {
			return d.yaml()
		}
		return strconv.Itoa(*steps)
	}
	n.want += ", or a time such as 30m"
	n.schema["type"], n.schema["pattern"] = []string{"integer", "string"}, d.schema["pattern"]
	return n
}

// badBucket reports whether a name of a folder in object storage has no bucket or no folder.
func badBucket(dir string) bool {
	_, key, err := s3.Split(dir)
	return err != nil || key == ""
}

// metrics lists the metrics by which the best checkpoint can be chosen.
var metrics = []string{"val_loss", "loss"}

// retention is a number of checkpoints or a mapping of rules.
func retention(p *checkpoint.Keep) value {
	newest, every := integer(1, hf.Most), integer(1, MostSteps)
	schema := object{"type": []string{"integer", "object"}, "minimum": 1, "maximum": hf.Most, "minProperties": 1, "additionalProperties": false,
		"properties": object{"last": newest, "every_steps": every, "best": object{"enum": metrics}}}
	v := of(p, "a number of checkpoints, or {last: 3, every_steps: 1000, best: val_loss}", schema, func(n *tree.Node) (checkpoint.Keep, string) {
		k, wrong, _ := readKeep(n)
		return k, wrong
	}, writeKeep)
	v.blame = func(n *tree.Node) tree.Position {
		_, _, at := readKeep(n)
		return at
	}
	return v
}

// readKeep returns the rules, or an error message and the place it refers to.
func readKeep(n *tree.Node) (k checkpoint.Keep, wrong string, at tree.Position) {
	if n.Kind != tree.Mapping {
		return k, count(&k.Last, 1, hf.Most).set(n), n.At
	}
	every := 0
	rules := map[string]value{"last": count(&k.Last, 1, hf.Most), "every_steps": count(&every, 1, MostSteps), "best": choice(&k.Best, metrics)}
	for _, p := range n.Pairs {
		rule, ok := rules[p.Key]
		if !ok {
			return k, "there is no rule " + strconv.Quote(p.Key), p.At
		}
		if wrong := rule.set(p.Value); wrong != "" {
			return k, p.Key + ": " + wrong + " (want " + rule.want + ")", p.Value.At
		}
	}
	if len(n.Pairs) == 0 {
		return k, "no rule is given", n.At
	}
	k.Every = int64(every)
	return k, "", n.At
}

// writeKeep returns rules as YAML.
func writeKeep(k checkpoint.Keep) string {
	if k == (checkpoint.Keep{Last: k.Last}) {
		return strconv.Itoa(k.Last)
	}
	var rules []string
	if k.Last > 0 {
		rules = append(rules, fmt.Sprintf("last: %d", k.Last))
	}
	if k.Every > 0 {
		rules = append(rules, fmt.Sprintf("every_steps: %d", k.Every))
	}
	if k.Best != "" {
		rules = append(rules, "best: "+k.Best)
	}
	return "{" + strings.Join(rules, ", ") + "}"
}

// assigned matches rules in their command-line form, key=value,key=value.
var assigned = regexp.MustCompile(`^\w+=[^,{]+(,\w+=[^,{]+)*$`)

// ParseKeep parses the value of checkpoint.keep: 3, or {last: 3, every_steps: 1000, best:
// val_loss}. On a command line the mapping may be written as
// last=3,every_steps=1000,best=val_loss.
func ParseKeep(s string) (k checkpoint.Keep, err error) {
	if assigned.MatchString(s) { // last=1,best=val_loss
		s = "{" + strings.NewReplacer("=", ": ", ",", ", ").Replace(s) + "}"
	}
	n, problems := tree.Parse([]byte(s), tree.Position{})
	v := retention(&k)
	if len(problems) > 0 || n == nil {
		return k, input.BadInput(fmt.Errorf("%q; want %s", s, v.want))
	}
	if wrong := v.set(n); wrong != "" {
		return k, input.BadInput(fmt.Errorf("%s; want %s", wrong, v.want))
	}
	return k, nil
}
