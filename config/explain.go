package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"zeroth/config/tree"
	"zeroth/config/words"
)

// Key documents a key of the job file.
type Key struct {
	Name    string   // "zero.stage"
	Value   string   // accepted values: "a whole number from 0 to 10000"
	Choices []string // accepted words; nil if the value is not one of a few
	Default string   // a value, or the rule that derives it from other keys
	Meaning string
	When    string // the jobs that use it; empty: all
	Example string // a value, in YAML
	Keys    []Key  // of each mapping, if the value is a list of mappings
}

// Explain returns the documentation of a key, false if the key does not exist.
func Explain(name string) (Key, bool) {
	for _, f := range table() {
		if f.key == name {
			return f.explain(), true
		}
	}
	return Key{}, false
}

// explain returns the documentation of the field.
func (f field) explain() Key {
	k := Key{Name: f.key, Value: f.value.want, Choices: f.value.choices, Default: f.initial + f.rule, Meaning: f.doc,
		When: f.used(), Example: f.sample()}
	for _, of := range f.value.items {
		k.Keys = append(k.Keys, of.explain())
	}
	return k
}

// sample returns a valid value.
func (f field) sample() string { return cmp.Or(f.like, f.initial) }

// used returns a description of the jobs that use the key, empty for all.
func (f field) used() string {
	if n := len(f.types); n > 1 {
		return "with optimizer.type " + strings.Join(f.types[:n-1], ", ") + " and " + f.types[n-1]
	} else if n == 1 {
		return "with optimizer.type " + f.types[0]
	}
	switch n := len(f.only); {
	case n > 0:
		return f.only[n-1].when
	case f.shape:
		return "without model.from"
	}
	return f.when
}

// Text returns the key's manual page.
func (k Key) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n\n", k.Name, k.Meaning)
	row := func(word, text string) { fmt.Fprintf(&b, "  %-8s %s\n", word, text) }
	row("value", k.Value)
	row("default", k.Default)
	if k.When != "" {
		row("used", k.When)
	}
	row("example", k.inline())
	row("", "--set "+k.flag())
	for i, of := range k.Keys {
		word := ""
		if i == 0 {
			word = "keys"
		}
		row(word, fmt.Sprintf("%-12s  %s: %s; default: %s", of.Name, of.Meaning, of.Value, of.Default))
	}
	return b.String()
}

// inline returns the example as one line of a job file.
func (k Key) inline() string { return nestWith(k.Name, k.Example) }

// nestWith returns a key and its value as one line of YAML.
func nestWith(key, value string) string { return strings.Replace(words.Nest(key), "...", value, 1) }

// flag returns the example as an argument of --set, quoted for a shell if necessary.
func (k Key) flag() string {
	set := k.Name + "=" + k.Example
	if strings.ContainsAny(set, `[]{}"* `) {
		return "'" + set + "'"
	}
	return set
}

// ReferenceOf returns the table of the keys in a section such as "zero" or "zero.offload", false
// if the section does not exist.
func ReferenceOf(section string) (string, bool) {
	var fields []field
	for _, f := range table() {
		if strings.HasPrefix(f.key, section+".") {
			fields = append(fields, f)
		}
	}
	return reference(fields), len(fields) > 0
}

// NearestKey returns the key that name most likely misspells, or "". It also compares the last
// part alone, in case the section is wrong or missing.
func NearestKey(name string) string {
	keys := Keys()
	_, last := tree.Split(name)
	for _, k := range keys {
		if _, is := tree.Split(k); is == last {
			return k
		}
	}
	for _, k := range keys {
		if in, _ := tree.Split(k); strings.HasSuffix(in, "."+name) {
			return in
		}
	}
	if near := words.Nearest(name, keys); near != "" {
		return near
	}
	var lasts []string
	for _, k := range keys {
		_, is := tree.Split(k)
		lasts = append(lasts, is)
	}
	if near := words.Nearest(last, lasts); near != "" {
		return keys[slices.Index(lasts, near)]
	}
	return ""
}
