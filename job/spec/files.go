package spec

import (
	"fmt"
	"os"
	"strings"

	"zeroth/config"
	"zeroth/config/tree"
	"zeroth/data"
	"zeroth/internal/input"
)

// checkFiles reports problems of the data that show without reading it: patterns that match no
// file, and empty files.
func (r *resolver) checkFiles() {
	s := Source(r.Job)
	if len(s.Text)+len(s.Tokens)+len(s.Documents.Files) == 0 {
		return // reported, or a problem of the key
	}
	s.Vocab, s.Tokenizer = 0, "bytes" // resolve has read the tokenizer and compared the vocabularies
	found, err := s.Check()
	r.Job.found = found
	for _, p := range r.Job.Blame(err) {
		if !r.Bad["data"] && !r.Bad[p.Key] {
			r.Problems = append(r.Problems, p)
		}
	}
}

// dataKeys maps fields of a data source to job keys with different names.
var dataKeys = map[string]string{"context": "model.context"}

// Blame converts each data.Problem in err to a problem at the corresponding places of the job file.
// It ignores other errors and nil.
func (c *Job) Blame(err error) (ps tree.Problems) {
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
		ps = append(ps, tree.NewProblem(c.Position(key), field, wrong.Error(), ""))
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

// checkOffload rejects a path that is not an existing folder, and activations that already are in host memory.
func (r *resolver) checkOffload() {
	o := r.Job.Zero.Offload
	if o.Activations != "none" && r.Job.on != "cuda" {
		r.Refuse("ranks on the CPU compute in host memory", "want activations: none, or device: cuda", "zero.offload.activations", "device")
	}
	if !o.Disk() || o.Path == "" {
		return
	}
	switch info, err := os.Stat(o.Path); {
	case err != nil:
		r.Refuse(fmt.Sprintf("%s: %v", o.Path, input.Cause(err)), config.OffloadPath, "zero.offload.path")
	case !info.IsDir():
		r.Refuse(o.Path+" is not a folder", config.OffloadPath, "zero.offload.path")
	}
}
