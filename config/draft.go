package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Draft is Here.Draft for an unknown machine.
func Draft(file string, sets []string) (*Config, error) { return Environment{}.Draft(file, sets) }

// Draft loads a job for planning: its data need not exist. The file may be empty if the sets
// describe what to plan.
func (h Environment) Draft(file string, sets []string) (*Config, error) {
	root, problems := &node{kind: mapping}, Problems(nil)
	if file != "" {
		root, problems = readFile(file)
	}
	if !problems.Fatal() && root.find("data") == nil && !setsSource(sets) {
		sets = append([]string{"data.tokens=[planned]", "data.tokenizer=bytes"}, sets...)
	}
	return h.load(file, root, problems, sets)
}

// DraftDivided is like Draft for a job whose mesh will be searched. If the batch has too few
// sequences for the ranks, the model is divided among the fewest that it needs, as if by default.
func (h Environment) DraftDivided(file string, sets []string) (*Config, error) {
	c, wrong := h.Draft(file, sets)
	if problems := (Problems)(nil); !errors.As(wrong, &problems) || len(problems) > 1 || !slices.Contains(batchKeys, problems[0].Key) {
		return c, wrong
	}
	const within = 8 // ranks that divide matrices or positions
	for n := 2; n <= MostRanks; n *= 2 {
		for _, key := range []string{"parallel.tensor", "parallel.context", "parallel.pipeline"} {
			divided := []string{fmt.Sprintf("%s=%d", key, n)}
			if key != "parallel.pipeline" {
				divided = []string{fmt.Sprintf("%s=%d", key, min(n, within)), fmt.Sprintf("parallel.pipeline=%d", max(1, n/within))}
			}
			if c, err := h.Draft(file, slices.Concat(divided, sets)); err == nil {
				for _, k := range []string{"parallel.tensor", "parallel.context", "parallel.pipeline"} {
					delete(c.positions, k)
				}
				return c, nil
			}
		}
	}
	return nil, wrong
}

// setsSource reports whether the sets name the data.
func setsSource(sets []string) bool {
	root := &node{kind: mapping}
	for _, s := range sets {
		_ = overlay(root, s) // load reports what is wrong
	}
	for _, key := range []string{"data.text", "data.tokens", "data.documents"} {
		if n := root.lookup(key); n != nil && n.kind != nothing {
			return true
		}
	}
	return false
}

// memoryUnits lists the units of memory. A bare G is rejected as ambiguous.
var memoryUnits = []struct {
	name  string
	bytes float64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// ParseSize reads a number of bytes with its unit, such as 80GiB or 80GB.
func ParseSize(s string) (int64, error) {
	for _, u := range memoryUnits {
		at := len(s) - len(u.name)
		if at < 0 || !strings.EqualFold(s[at:], u.name) {
			continue
		}
		x, wrong := number(&node{kind: scalar, text: strings.TrimSpace(s[:at])})
		if b := x * u.bytes; wrong == "" && b >= 1 && b <= MostMemory {
			return int64(b), nil
		}
		break
	}
	return 0, fmt.Errorf("%q is not a size; want a number with its unit, such as 80GiB (2^30 bytes) or 80GB (10^9)", s)
}
