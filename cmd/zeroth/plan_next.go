package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"zeroth/job/config"
	"zeroth/job/plan"
)

// next is the command to type after a plan: train, if the job is planned for this
// machine and fits, or fit for so many GPUs. It is empty where neither helps.
func (p *planned) next(c *config.Config, of *plan.Plan) string {
	words := []string{"zeroth"}
	gpus := of.Machine.GPU || p.given("world")
	switch {
	case !gpus && (p.file == "" || of.Fits() != nil):
		return ""
	case gpus:
		words = append(words, "fit")
	default:
		words = append(words, "train")
	}
	if p.file != "" {
		words = append(words, p.file)
	}
	sets := p.sets
	if gpus {
		words = append(words, p.flagsOfFit(c)...)
	} else {
		sets = append(p.shortened(), sets...)
	}
	for _, s := range sets {
		words = append(words, "--set", s)
	}
	for i, w := range words {
		words[i] = quoted(w)
	}
	return strings.Join(words, " ")
}

// flagsOfFit are those of the plan, as fit takes them. How much memory a GPU has
// fit must know.
func (p *planned) flagsOfFit(c *config.Config) (words []string) {
	if p.model != "" {
		words = append(words, "--model", p.model)
	}
	words = append(words, "--gpus", fmt.Sprint(c.Parallel.Ranks), "--gpu-memory")
	if p.gpu != "" {
		words = append(words, p.gpu)
	} else {
		words = append(words, "80GiB")
	}
	for _, flag := range slices.Sorted(maps.Keys(shortcuts)) {
		if value := *p.keys[flag]; value != "" {
			words = append(words, "--"+flag, value)
		}
	}
	return words
}

var unquoted = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// quoted is a word as a POSIX shell reads it.
func quoted(s string) string {
	if unquoted.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
