package config

import (
	"strings"
	"testing"
	"zeroth/config/tree"
)

// TestExplain checks that every key is documented with a valid example.
func TestExplain(t *testing.T) {
	for _, f := range new(Config).fields("") {
		k, ok := Explain(f.key)
		if !ok || k.Meaning == "" || k.Default == "" || k.Value == "" || k.Example == "" {
			t.Errorf("%+v", k)
		}
		n, problems := tree.Parse([]byte(k.Example), tree.Position{})
		if wrong := f.value.set(n); len(problems) > 0 || wrong != "" {
			t.Errorf("%s: the example %s: %v %s", f.key, k.Example, problems, wrong)
		}
		for _, c := range k.Choices {
			n, _ := tree.Parse([]byte(c), tree.Position{})
			if wrong := f.value.set(n); wrong != "" {
				t.Errorf("%s: the choice %s: %s", f.key, c, wrong)
			}
		}
	}
	if _, ok := Explain("zero.stge"); ok {
		t.Error("a key that is none is explained")
	}
	k, _ := Explain("zero.offload.parameters")
	want := `zero.offload.parameters: none | host | disk: where to store parameter shards between uses; needs stage 3

  value    none, host or disk
  default  none
  used     at zero.stage 3
  example  zero: {offload: {parameters: none}}
           --set zero.offload.parameters=none
`
	if k.Text() != want {
		t.Errorf("got\n%s", k.Text())
	}
}

func TestReferenceHasEveryKey(t *testing.T) {
	ref := Reference()
	for _, f := range new(Config).fields("") {
		if f.doc == "" || (f.initial == "") == (f.rule == "") {
			t.Errorf("%s: doc %q, initial %q, rule %q; want a doc and one of the two", f.key, f.doc, f.initial, f.rule)
		}
		if !strings.Contains(ref, f.key+" ") || !strings.Contains(ref, f.doc) {
			t.Errorf("%s is not in the reference", f.key)
		}
	}
}

// TestKeepOnACommandLine checks that rules of retention are read the same from a job file and a
// command line.
func TestKeepOnACommandLine(t *testing.T) {
	for text, want := range map[string]string{"3": "3", "last=1": "1", "last=1,best=val_loss": "{last: 1, best: val_loss}", "every_steps=1000,last=2": "{last: 2, every_steps: 1000}",
		"{last: 2, best: loss}": "{last: 2, best: loss}"} {
		k, err := ParseKeep(text)
		if got := retention(&k).yaml(); err != nil || got != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{"newest=1": `there is no rule "newest"`, "last=": "want a number of checkpoints", "last=x": "last: x is not a whole number"} {
		if _, err := ParseKeep(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"512MiB": 512 << 20, "1.5 GiB": 3 << 29, "4GB": 4e9, "7B": 7, "10kB": 10000, "1TiB": 1 << 40, "auto": 0} {
		var got int64
		v := bound(&got)
		if wrong := v.set(&tree.Node{Kind: tree.Scalar, Text: text}); wrong != "" || got != want {
			t.Errorf("%s: %d bytes, want %d (%s)", text, got, want, wrong)
		}
		written := v.yaml()
		got = 1
		if wrong := v.set(&tree.Node{Kind: tree.Scalar, Text: written}); wrong != "" || got != want {
			t.Errorf("%s, written as %s, reads back as %d", text, written, got)
		}
	}
	for _, text := range []string{"", "MiB", "0MiB", "1e30GiB", "NaNGB", "12 34MB", "infB"} {
		var got int64
		if wrong := bound(&got).set(&tree.Node{Kind: tree.Scalar, Text: text}); wrong == "" {
			t.Errorf("%q was read as %d bytes", text, got)
		}
	}
}

// TestExplainNamesConditions checks that the documentation of a key describes which jobs use it.
func TestExplainNamesConditions(t *testing.T) {
	for _, job := range []string{"", "model: {family: llama}", "model: {from: hf}", "optimizer: {type: sgd}", "optimizer: {type: lion}",
		"schedule: {type: constant}", "data: {tokens: [a]}", "zero: {offload: {optimizer: host}}"} {
		root, problems := tree.Parse([]byte(job), tree.Position{})
		if root == nil {
			root = &tree.Node{Kind: tree.Mapping}
		}
		r := NewReader(new(Config), "", root)
		r.Read()
		if r.Problems = append(r.Problems, problems...); len(r.Problems) > 0 {
			t.Fatal(r.Problems)
		}
		for _, f := range r.config.fields(r.On) {
			if why, _ := r.config.idle(f); why != "" && f.used() == "" {
				t.Errorf("%s is not always used (%s), and its help does not say when it is", f.key, why)
			}
		}
	}
}

// Reading a section's keys reads them all.
func TestSectionsAreComplete(t *testing.T) {
	for _, f := range new(Config).fields("") {
		if got := new(Config).field(f.key, "").key; got != f.key {
			t.Errorf("%s reads as %s", f.key, got)
		}
	}
}
