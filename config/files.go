package config

import (
	"strings"

	"zeroth/data"
)

// checkFiles reports problems of the data that show without reading it: patterns that match no
// file, and empty files.
func (r *reader) checkFiles() {
	s := Source(r.Config)
	if len(s.Text)+len(s.Tokens)+len(s.Documents.Files) == 0 {
		return // reported, or a problem of the key
	}
	s.Vocab, s.Tokenizer = 0, "bytes" // resolve has read the tokenizer and compared the vocabularies
	found, err := s.Check()
	r.Config.found = found
	for _, p := range r.Config.Blame(err) {
		if !r.bad["data"] && !r.bad[p.Key] {
			r.problems = append(r.problems, p)
		}
	}
}

// dataKeys maps fields of a data source to job keys with different names.
var dataKeys = map[string]string{"context": "model.context"}

// Blame converts each data.Problem in err to a problem at the corresponding places of the job file.
// It ignores other errors and nil.
func (c *Config) Blame(err error) (ps Problems) {
	var p *data.Problem
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			ps = append(ps, c.Blame(part)...)
		}
	case *data.Problem:
		p = e
	}
	if p == nil {
		return ps
	}
	key := dataKeys[p.Key]
	if key == "" {
		key = "data." + p.Key
	}
	if p.Key == "tokenizer" && c.Data.Vocab != "" {
		key = "data.vocab"
	}
	field, _, _ := strings.Cut(key, "[")
	for _, wrong := range parts(p.Err) {
		ps = append(ps, newProblem(c.Position(key), field, wrong.Error(), ""))
	}
	return ps
}

// parts returns the errors joined in err, or err alone.
func parts(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// Position returns where a key was given: "data.text", or "data.text[2]" for its third item. For a
// missing key it returns the beginning of the key's section or of the file.
func (c *Config) Position(key string) position {
	for key != "" {
		if at, ok := c.positions[key]; ok {
			return at
		}
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
	return c.positions[""]
}
