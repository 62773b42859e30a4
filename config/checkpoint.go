package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"zeroth/checkpoint"
	"zeroth/config/tree"
	"zeroth/input"
	"zeroth/input/s3"
	"zeroth/job/hf"
)

// Checkpointing says when and how a run saves its state.
type Checkpointing struct {
	Every      int    // steps between saves; 0 is never
	Dir        string // folder of checkpoints, also s3://bucket/folder; empty: ckpt in the run folder
	Local      string // folder on each host's disk for checkpoints on their way to object storage; empty: ckpt in the run folder
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

// badBucket reports whether a name of a folder in object storage has no bucket or no folder.
func badBucket(dir string) bool {
	_, key, err := s3.Split(dir)
	return err != nil || key == ""
}

// flag is a boolean.
type flag struct{ p *bool }

func (v flag) set(n *tree.Node) string {
	if n.Kind != tree.Scalar || n.Quoted || n.Text != "true" && n.Text != "false" {
		return n.String() + " is neither true nor false"
	}
	*v.p = n.Text == "true"
	return ""
}

func (v flag) want() string { return "true or false" }
func (v flag) yaml() string { return strconv.FormatBool(*v.p) }

// retention is a number of checkpoints or a mapping of rules.
type retention struct{ p *checkpoint.Keep }

func (v retention) set(n *tree.Node) string {
	k, wrong, _ := v.read(n)
	if wrong == "" {
		*v.p = k
	}
	return wrong
}

// culprit returns the place of the rule that set rejects, which is more precise than the whole
// mapping.
func (v retention) culprit(n *tree.Node) tree.Position {
	_, _, at := v.read(n)
	return at
}

// read returns the rules, or an error message and the place it refers to.
func (v retention) read(n *tree.Node) (k checkpoint.Keep, wrong string, at tree.Position) {
	if n.Kind != tree.Mapping {
		return k, count{&k.Last, 1, hf.Most}.set(n), n.At
	}
	every := 0
	rules := map[string]value{"last": count{&k.Last, 1, hf.Most}, "every_steps": count{&every, 1, MostSteps}, "best": choice{&k.Best, metrics}}
	for _, p := range n.Pairs {
		rule := rules[p.Key]
		if rule == nil {
			return k, "there is no rule " + strconv.Quote(p.Key), p.At
		}
		if wrong := rule.set(p.Value); wrong != "" {
			return k, p.Key + ": " + wrong + " (want " + rule.want() + ")", p.Value.At
		}
	}
	if len(n.Pairs) == 0 {
		return k, "no rule is given", n.At
	}
	k.Every = int64(every)
	return k, "", n.At
}

// metrics lists the metrics by which the best checkpoint can be chosen.
var metrics = []string{"val_loss", "loss"}

func (v retention) want() string {
	return "a number of checkpoints, or {last: 3, every_steps: 1000, best: val_loss}"
}

func (v retention) yaml() string {
	if *v.p == (checkpoint.Keep{Last: v.p.Last}) {
		return strconv.Itoa(v.p.Last)
	}
	var rules []string
	if v.p.Last > 0 {
		rules = append(rules, fmt.Sprintf("last: %d", v.p.Last))
	}
	if v.p.Every > 0 {
		rules = append(rules, fmt.Sprintf("every_steps: %d", v.p.Every))
	}
	if v.p.Best != "" {
		rules = append(rules, "best: "+v.p.Best)
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
	v := retention{&k}
	if len(problems) > 0 || n == nil {
		return k, input.BadInput(fmt.Errorf("%q; want %s", s, v.want()))
	}
	if wrong := v.set(n); wrong != "" {
		return k, input.BadInput(fmt.Errorf("%s; want %s", wrong, v.want()))
	}
	return k, nil
}
