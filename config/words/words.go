// Package words has the words of other programs, what they are in a job, and the name that a word misspells.
package words

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"
)

//go:embed words.txt
var table string

// Word is a key of another program.
type Word struct {
	Program string
	Key     string
	Ours    string            // the job's key; "" for none
	Values  map[string]string // with Ours: their values and ours, "" for one that leaves the key out; nil: any value
	Only    []string          // without Ours: values that change nothing here; nil: any value
	Note    string            // why there is nothing to set, or why other values are refused; "" for none
}

// All returns the words of all programs. What is in "words" are values of several keys.
var All = sync.OnceValue(func() (all []Word) {
	var programs []string
	for line := range strings.Lines(strings.ReplaceAll(table, "\n  ", " ")) {
		line = strings.TrimSpace(line)
		keys, ours, is := strings.Cut(line, " = ")
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			programs = strings.Split(strings.Trim(line, "[]"), ", ")
		case !is:
			panic("words: " + line)
		default:
			for _, program := range programs {
				for key := range strings.FieldsSeq(keys) {
					all = append(all, parse(program, key, ours)...)
				}
			}
		}
	}
	return all
})

// parse returns the words of a key, which may have an optional part in brackets.
func parse(program, key, ours string) []Word {
	if before, rest, ok := strings.Cut(key, "["); ok {
		part, after, _ := strings.Cut(rest, "]")
		return append(parse(program, before+after, ours), parse(program, before+part+after, ours)...)
	}
	w := Word{Program: program, Key: key}
	ours, w.Note, _ = strings.Cut(ours, " # ")
	target, values, some := strings.Cut(ours, " ")
	switch {
	case target == "!":
		w.Only = strings.Split(values, ", ")
	case target != "-":
		w.Ours = target
	}
	if w.Ours != "" && some {
		w.Values = map[string]string{}
		for pair := range strings.SplitSeq(values, ", ") {
			theirs, ours, _ := strings.Cut(pair, ":")
			w.Values[theirs] = strings.TrimSpace(ours)
		}
	}
	return []Word{w}
}

// Of returns the keys of a program.
func Of(program string) map[string]Word {
	keys := map[string]Word{}
	for _, w := range All() {
		if w.Program == program {
			keys[w.Key] = w
		}
	}
	return keys
}

// Known returns the words of programs that a key, or its last part, may be.
func Known(key string) (found []Word) {
	key = strings.ReplaceAll(key, "-", "_")
	last := key[strings.LastIndexByte(key, '.')+1:]
	for _, name := range slices.Compact([]string{key, last}) {
		for _, w := range All() {
			if w.Program != "words" && (w.Key == name || strings.Contains(name, "_") && strings.HasSuffix(w.Key, "."+name)) {
				found = append(found, w)
			}
		}
	}
	return found
}

// Hint describes the equivalent in a job of a key of another program; "" if the key is unknown.
func Hint(key string) string {
	hint := ""
	for _, w := range Known(key) {
		switch {
		case w.Ours != "":
			return fmt.Sprintf("%s of %s is %s here: write %s", w.Key, w.Program, w.Ours, Nest(w.Ours))
		case hint == "" && w.Only == nil && w.Note != "":
			hint = fmt.Sprintf("%s of %s: %s", w.Key, w.Program, w.Note)
		}
	}
	return hint
}

// Nest returns a key in one line of YAML: zero: {stage: ...}.
func Nest(key string) string {
	parts := strings.Split(key, ".")
	return strings.Join(parts, ": {") + ": ..." + strings.Repeat("}", len(parts)-1)
}
