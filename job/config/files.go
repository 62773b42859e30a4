package config

import (
	"strings"

	"zeroth/data"
)

// checkFiles reports what is wrong with the data as far as it shows without
// reading it: patterns without a file, files without a byte.
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

// dataKeys are the keys of a job for those fields of a data source that have
// another name.
var dataKeys = map[string]string{"context": "model.context"}

// Blame turns what package data found wrong with the job's source into
// problems at the places the job file has its keys; errors of other kinds, nil
// among them, are none.
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
		ps = append(ps, newProblem(c.Place(key), field, wrong.Error(), ""))
	}
	return ps
}

// parts are the errors that were joined to err, or err alone.
func parts(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// Place is where a key was given: "data.text", or "data.text[2]" for its third
// item. For a key that was not it is where its section or the file begins.
func (c *Config) Place(key string) place {
	for key != "" {
		if at, ok := c.places[key]; ok {
			return at
		}
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
	return c.places[""]
}
