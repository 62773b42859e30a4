package spec

import (
	"errors"
	"fmt"
	"slices"

	"zeroth/config"
	"zeroth/config/tree"
)

// Draft is Here.Draft for an unknown machine.
func Draft(file string, sets []string) (*Job, error) { return Environment{}.Draft(file, sets) }

// Draft loads a job for planning: its data need not exist. The file may be empty if the sets
// describe what to plan.
func (h Environment) Draft(file string, sets []string) (*Job, error) {
	in := contents{root: &tree.Node{Kind: tree.Mapping}}
	if file != "" {
		in = readFile(file)
	}
	if !in.problems.Fatal() && in.root.Find("data") == nil && !Given(sets, "data.text", "data.tokens", "data.documents") {
		sets = append([]string{"data.tokens=[planned]", "data.tokenizer=bytes"}, sets...)
	}
	return h.load(file, in, sets)
}

// DraftDivided is like Draft for a job whose mesh will be searched. If the batch has too few
// sequences for the ranks, the model is divided among the fewest that it needs, as if by default.
func (h Environment) DraftDivided(file string, sets []string) (*Job, error) {
	c, wrong := h.Draft(file, sets)
	if problems := (tree.Problems)(nil); !errors.As(wrong, &problems) || len(problems) > 1 || !slices.Contains(batchKeys, problems[0].Key) {
		return c, wrong
	}
	const within = 8 // ranks that divide matrices or positions
	for n := 2; n <= config.MostRanks; n *= 2 {
		for _, key := range []string{"parallel.tensor", "parallel.context", "parallel.pipeline"} {
			divided := []string{fmt.Sprintf("%s=%d", key, n)}
			if key != "parallel.pipeline" {
				divided = []string{fmt.Sprintf("%s=%d", key, min(n, within)), fmt.Sprintf("parallel.pipeline=%d", max(1, n/within))}
			}
			if c, err := h.Draft(file, slices.Concat(divided, sets)); err == nil {
				c.Forget("parallel.tensor", "parallel.context", "parallel.pipeline")
				return c, nil
			}
		}
	}
	return nil, wrong
}

// Given reports whether settings give one of the keys a value.
func Given(sets []string, keys ...string) bool {
	root := &tree.Node{Kind: tree.Mapping}
	for _, s := range sets {
		_ = tree.Overlay(root, s) // load reports what is wrong
	}
	for _, key := range keys {
		if n := root.Lookup(key); n != nil && n.Kind != tree.Nothing {
			return true
		}
	}
	return false
}
