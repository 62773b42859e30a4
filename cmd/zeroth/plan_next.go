package main

import (
	"fmt"
	"regexp"
	"strings"

	"zeroth/forecast"
	"zeroth/job/spec"
)

// next returns the command to run after a plan: train if the job is planned for this machine
// and fits, fit if it is planned for GPUs, "" if neither helps.
func (p *planned) next(c *spec.Job, x *forecast.Plan) string {
	words := []string{"zeroth"}
	gpus := x.Machine.GPU || p.given("world")
	switch {
	case !gpus && (p.file == "" || x.Fits() != nil):
		return ""
	case gpus:
		words = append(words, "fit")
	default:
		words = append(words, "train")
	}
	if p.file != "" {
		words = append(words, p.file)
	}
	if gpus {
		words = append(words, p.fitFlags(c)...)
	}
	for _, s := range append(p.shortened(), p.sets...) {
		words = append(words, "--set", s)
	}
	for i, w := range words {
		words[i] = quoted(w)
	}
	return strings.Join(words, " ")
}

// fitFlags converts the flags of plan to those of fit, which also needs the memory of a GPU.
func (p *planned) fitFlags(c *spec.Job) (words []string) {
	if p.model != "" {
		words = append(words, "--model", p.model)
	}
	words = append(words, "--gpus", fmt.Sprint(c.Parallel.Ranks), "--gpu-memory")
	if p.gpu != "" {
		words = append(words, p.gpu)
	} else {
		words = append(words, "80GiB")
	}
	return words
}

var unquoted = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// quoted returns a word as it must be written in a POSIX shell.
func quoted(s string) string {
	if unquoted.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
