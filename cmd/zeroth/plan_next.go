package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"zeroth/forecast"
	"zeroth/job/spec"
)

// next returns the command to run after a plan: train if the job is planned for this machine
// and fits, fit if it is planned for GPUs, plan for
// GPUs if a model does not fit this machine, "" if none helps.
func (p *planned) next(c *spec.Job, x *forecast.Plan, machine string) string {
	gpus := x.Machine.GPU || p.given("world")
	switch {
	case !gpus && p.model != "" && x.Fits() != nil:
		return p.words([]string{"plan", "--model", p.model, "--gpus", "auto"}, slices.Concat(p.shortened(), p.sets))
	case !gpus && (p.file == "" || x.Fits() != nil):
		return ""
	case gpus:
		words := append([]string{"fit"}, p.subject(c)...)
		if machine != "" && machine != "here" {
			words = append(words, "--machine", machine)
		}
		return p.words(words, slices.Concat(p.shortened(), p.sets))
	}
	return p.words([]string{"train", p.file}, slices.Concat(p.shortened(), p.sets))
}

// command returns the command for the job with other settings that were found: train, or plan for a
// model without a job file.
func (p *planned) command(c *spec.Job, machine string, more []string) string {
	sets := slices.Concat(p.shortened(), p.sets, p.usual, more)
	switch {
	case p.file == "":
		return p.words(append(append([]string{"plan"}, p.subject(c)...), "--machine", machine), sets)
	case p.gpus > 0:
		sets = append([]string{fmt.Sprint("parallel.ranks=", p.gpus), "parallel.shard=null"}, sets...)
	}
	return p.words([]string{"train", p.file}, sets)
}

// subject returns the job file or model, and the GPUs, as arguments.
func (p *planned) subject(c *spec.Job) (words []string) {
	if p.file != "" {
		words = append(words, p.file)
	}
	if p.model != "" {
		words = append(words, "--model", p.model)
	}
	if words = append(words, "--gpus", fmt.Sprint(c.Parallel.Ranks)); p.gpu != "" {
		words = append(words, "--gpu-memory", p.gpu)
	}
	return words
}

// words returns a command with settings, quoted for a POSIX shell. Of several values of a key only the
// last is printed.
func (p *planned) words(args, sets []string) string {
	words, last := []string{"zeroth"}, map[string]int{}
	for _, w := range args {
		words = append(words, quoted(w))
	}
	for i, s := range sets {
		key, _, _ := strings.Cut(s, "=")
		last[key] = i
	}
	for i, s := range sets {
		if key, _, _ := strings.Cut(s, "="); last[key] == i {
			words = append(words, "--set", quoted(s))
		}
	}
	return strings.Join(words, " ")
}

var unquoted = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// quoted returns a word as it must be written in a POSIX shell.
func quoted(s string) string {
	if unquoted.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
