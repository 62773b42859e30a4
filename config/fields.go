package config

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"text/tabwriter"

	"zeroth/device"
)

// field describes one key of the job file: where its value is stored, its default and its meaning.
// Reading, checking, writing and the reference are all made from this list.
type field struct {
	key     string // "train.steps"; a top-level key has no dot
	value   value
	initial string // the default, in YAML; empty if rule describes it
	rule    string // how the default is derived from other keys
	doc     string

	when    string   // the jobs that use the key, if only does not describe them; empty: all
	only    []only   // conditions for using the key
	not     refusal  // conflicts with other keys
	types   []string // update rules that use it, each with its own default; nil: independent of the rule
	then    func()   // sets the default derived from keys above
	like    string   // a sample value, in YAML, if initial is empty
	shape   bool     // describes what the model computes; also stored in checkpoints and read from model.from
	lasts   bool     // inherited by a resumed run unless the job sets it
	follows []string // keys that the default depends on: if the job changes one of them, the default replaces the inherited value
	own     bool     // may differ between the processes of a job
	derived bool     // follows from other keys that are written
	remark  string   // comment written after the value
}

// only is a condition that a job must meet to use a key.
type only struct {
	when         string
	met          bool
	because, why string // the key that violates the condition, and how
}

// refusal is a combination of keys that cannot work.
type refusal struct {
	is           bool
	wrong, right string
	with         []string // the other keys
}

// Program is the value of keys whose meaning the program that runs the job provides, see Own.
const Program = "program"

// The names that a job can use for families, rules and other choices.
var (
	families    = []string{"gpt2", "llama", Program}
	tokenizers  = []string{"bytes", "gpt2", "folder", "none"}
	formats     = []string{"text", "prompt", "chat"}
	learns      = []string{"assistant", "last", "all"}
	idTypes     = []string{"uint16", "uint32", "int32", "int64"}
	rules       = []string{"adamw", "adamw8bit", "adam", "sgd", "lion", "muon", Program}
	Adjusts     = []string{"original", "match_rms_adamw", "spectral_unclamped"} // as optim.Adjust has them
	curves      = []string{"constant", "linear", "cosine", "wsd", "inverse_sqrt"}
	Recomputes  = []string{"none", "elementwise", "mlp", "linear", "block"} // as nn.Recompute has them
	Transports  = []string{"auto", "local", "unix", "tcp", "mpi"}
	Collectives = []string{"auto", "exact", "nccl"}
	Attentions  = []string{"auto", "mma", "wgmma"} // each includes the kernels of those before
	precisions  = []device.DType{device.F32, device.BF16, device.F16}
	devices     = []string{"auto", "cpu", "cuda"}
)

// refuse returns a combination that cannot work if it is given, with the other keys.
func refuse(is bool, wrong, right string, with ...string) refusal {
	return refusal{is, wrong, right, with}
}

// onlyIf returns a single condition.
func onlyIf(when string, met bool, because, why string) []only {
	return []only{{when, met, because, why}}
}

// fields returns the keys in writing order, with values that set c. Ranks compute on the device on;
// "" if it is not known.
func (c *Config) fields(on string) []field { return c.section("", on) }

// section returns the keys of one section, such as "train", or of all if it is "".
func (c *Config) section(name, on string) (fields []field) {
	for _, s := range []struct {
		name string
		keys func() []field
	}{
		{"model", c.modelKeys}, {"data", c.dataKeys}, {"train", func() []field { return c.trainKeys(on) }}, {"train", c.stopKeys},
		{"train", c.tuningKeys}, {"parallel", func() []field { return c.parallelKeys(on) }}, {"faults", c.faultKeys},
		{"pipeline", c.pipelineKeys}, {"zero", c.zeroKeys}, {"optimizer", c.optimizerKeys}, {"schedule", c.scheduleKeys},
		{"checkpoint", c.checkpointKeys}, {"sample", c.sampleKeys}, {"report", c.reportKeys},
	} {
		if name == "" || name == s.name {
			fields = append(fields, s.keys()...)
		}
	}
	return fields
}

// table holds the keys of a job without settings, for their documentation. It is read-only.
var table = sync.OnceValue(func() []field { return new(Config).fields("") })

// pick returns yes if a condition holds, else no.
func pick[T any](holds bool, yes, no T) T {
	if holds {
		return yes
	}
	return no
}

func atLeast0(x float64) bool { return x >= 0 && !math.IsInf(x, 0) }

func probable(x float64) bool { return x > 0 && x <= 1 }

func atMostHalf(x float64) bool { return x >= 0 && x <= 0.5 }

func within(lo, hi float64) func(float64) bool {
	return func(x float64) bool { return x >= lo && x < hi }
}

// Keys returns the keys of a job file in order, such as "model.layers".
func Keys() []string { return keysOf(func(field) bool { return true }) }

// Shape returns the keys that describe what a model computes.
func Shape() []string { return keysOf(func(f field) bool { return f.shape }) }

// Lasting returns the keys that a resumed run inherits unless the job sets them: keys that change
// results, except the model's, and keys that control saving and deleting.
func Lasting() []string { return keysOf(func(f field) bool { return f.lasts }) }

// Follows returns the keys on which the default of an inherited key depends.
func Follows(key string) []string {
	f := new(Config).field(key, "")
	if f.types != nil {
		return append(f.follows, "optimizer.type")
	}
	return f.follows
}

// Default returns the default of a key, in YAML; "" if it depends on other keys.
func Default(key string) string { return new(Config).field(key, "").initial }

func keysOf(some func(field) bool) (keys []string) {
	for _, f := range table() {
		if some(f) {
			keys = append(keys, f.key)
		}
	}
	return keys
}

// Reference returns a table of all keys with their defaults and meanings.
func Reference() string { return reference(table()) }

func reference(fields []field) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	last := ""
	for _, f := range fields {
		section, _, _ := strings.Cut(f.key, ".")
		if section != last && last != "" {
			fmt.Fprintln(w, "\t\t")
		}
		last = section
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.key, f.initial+f.rule, f.doc)
	}
	w.Flush()
	lines := strings.Split(b.String(), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " ")
	}
	return strings.Join(lines, "\n")
}
