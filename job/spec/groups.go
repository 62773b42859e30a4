package spec

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"zeroth/config"
	"zeroth/config/tree"
	"zeroth/config/words"
	"zeroth/internal/show"
	"zeroth/nn"
	"zeroth/shard"
)

// Updated holds the settings that update a parameter.
type Updated struct {
	Group           int // index in Optimizer.Groups; -1: none
	LR, WeightDecay float64
}

// Update returns the settings that update a parameter.
func (c *Job) Update(p shard.Param) Updated {
	o := &c.Optimizer
	u, decay := Updated{groupOf(o.Groups, p), o.LR, 0}, o.WeightDecay
	if o.Type == "muon" && p.Rule == config.AdamWRule {
		u.LR, decay = o.AdamW.LR, o.AdamW.WeightDecay
	}
	if p.Group == shard.Decayed {
		u.WeightDecay = decay
	}
	if u.Group >= 0 {
		g := o.Groups[u.Group]
		u.LR, u.WeightDecay = *cmp.Or(g.LR, &u.LR), *cmp.Or(g.WeightDecay, &u.WeightDecay)
	}
	return u
}

// groupOf returns the index of the first group that matches a parameter, or -1.
func groupOf(groups []config.Group, p shard.Param) int {
	return slices.IndexFunc(groups, func(g config.Group) bool { return matches(g.Match, p.Name) })
}

// ruled returns the model with Muon for the matrices between its first and last module, and AdamW
// for the rest, unless a group chooses otherwise. Parameters that are not matrices, and float32
// routers, always use AdamW.
func ruled(groups []config.Group, m *nn.Model) *nn.Model {
	ends := map[string]bool{}
	for _, mod := range []nn.Module{m.Modules[0], m.Modules[len(m.Modules)-1]} {
		for _, p := range mod.Params() {
			ends[p.Name] = true
		}
	}
	return m.Ruled(config.GroupTypes[:], func(p shard.Param) int {
		chosen := ""
		if g := groupOf(groups, p); g >= 0 {
			chosen = groups[g].Type
		}
		if len(p.Shape) < 2 || p.Single || chosen == "adamw" || chosen == "" && ends[p.Name] {
			return config.AdamWRule
		}
		return config.MuonRule
	})
}

// Grouped describes a set of parameters that are updated alike.
type Grouped struct {
	Match       string  `json:"match,omitempty"` // the group's pattern; empty: no group
	Rule        string  `json:"rule,omitempty"`  // if the job has several
	Kind        string  `json:"kind,omitempty"`  // matrices or vectors, if they differ
	Parameters  int64   `json:"parameters"`      // elements
	LR          float64 `json:"lr"`              // the peak
	WeightDecay float64 `json:"weight_decay"`
}

func (g Grouped) String() string {
	name := g.Kind
	if g.Rule != "" {
		name = strings.TrimSuffix(g.Rule+" "+name, " ")
	}
	if g.Match != "" {
		name = strings.TrimSuffix(tree.Quote(g.Match)+" "+name, " ")
	}
	return fmt.Sprintf("%s: %s parameters, lr %s, weight decay %s", name, show.Grouped(g.Parameters), config.FormatReal(g.LR), config.FormatReal(g.WeightDecay))
}

// GroupRows returns the report lines of a job's groups, each a label and a text.
func GroupRows(groups []Grouped) (rows [][2]string) {
	word := "groups"
	for _, g := range groups {
		rows = append(rows, [2]string{word, g.String()})
		word = ""
	}
	return rows
}

// Groups returns the groups of a job's trained parameters in the job's order, followed by the
// ungrouped parameters. It returns nil for a job without groups and with a single update rule.
func Groups(c *Job) (all []Grouped) {
	groups, muon := c.Optimizer.Groups, c.Optimizer.Type == "muon"
	if len(groups) == 0 && !muon {
		return nil
	}
	kinds := [...]string{shard.Decayed: "matrices", shard.Plain: "vectors"}
	sums := make([][4]Grouped, len(groups)+1) // indexed by group, by rule (Muon before AdamW) and by kind, if kinds differ
	for _, p := range Parameters(c) {
		if p.Frozen {
			continue
		}
		u := c.Update(p)
		at, kind, g := len(groups), shard.Decayed-p.Group, Grouped{Kind: kinds[p.Group], LR: u.LR, WeightDecay: u.WeightDecay}
		if u.Group >= 0 {
			at, g.Match = u.Group, groups[u.Group].Match
			if groups[at].WeightDecay != nil {
				kind, g.Kind = 0, ""
			}
		}
		if muon {
			g.Rule = config.GroupTypes[p.Rule]
		}
		sum := &sums[at][2*(config.MuonRule-p.Rule)+int(kind)]
		g.Parameters = sum.Parameters + int64(p.Numel())
		*sum = g
	}
	for _, some := range sums {
		for _, g := range some {
			if g.Parameters > 0 {
				all = append(all, g)
			}
		}
	}
	return all
}

// resolveGroups rejects groups that set nothing or match nothing. It needs the model, so it does
// nothing if the model has a problem.
func (r *resolver) resolveGroups() {
	groups := r.Job.Optimizer.Groups
	for key := range r.Bad {
		section, _, _ := strings.Cut(key, ".")
		if section == "model" || section == "data" || section == "train" {
			return
		}
	}
	if len(groups) == 0 || r.Job.unknown() {
		return
	}
	for i, wrong := range ungrouped(&r.Job.Optimizer, Parameters(r.Job)) {
		if wrong != [2]string{} {
			key := fmt.Sprintf("optimizer.groups[%d]", i)
			r.Wrong(r.Job.Position(key), key, wrong[0], wrong[1])
		}
	}
}

// ungrouped returns the problem of each group and its remedy, empty for valid groups.
func ungrouped(o *config.Optimizer, params []shard.Param) (wrong [][2]string) {
	groups := o.Groups
	had, left := make([]int, len(groups)), make([]int, len(groups)) // parameters that each group matches, and those not matched by an earlier group
	vector := make([]string, len(groups))                           // the first of the latter that is not a matrix
	for _, p := range params {
		first := true
		for i, g := range groups {
			if !p.Frozen && matches(g.Match, p.Name) {
				had[i]++
				if first {
					left[i]++
				}
				if first && len(p.Shape) < 2 {
					vector[i] = cmp.Or(vector[i], p.Name)
				}
				first = false
			}
		}
	}
	for i, g := range groups {
		switch {
		case g.Type != "" && o.Type != "muon":
			wrong = append(wrong, [2]string{"type is for a job with Muon; this one's parameters are all updated by " + o.Type, "remove it, or want optimizer.type: muon"})
		case g.LR == nil && g.WeightDecay == nil && g.Type == "":
			wrong = append(wrong, [2]string{"the group sets nothing for its parameters", "want lr, weight_decay or both in addition to match"})
		case had[i] == 0:
			wrong = append(wrong, [2]string{fmt.Sprintf("%s matches no trained parameter", tree.Quote(g.Match)), "there are " + strings.Join(near(g.Match, params), ", ")})
		case left[i] == 0:
			wrong = append(wrong, [2]string{fmt.Sprintf("all %d parameters that %s matches belong to earlier groups", had[i], tree.Quote(g.Match)), "put it first, or remove it"})
		case g.Type == "muon" && vector[i] != "":
			wrong = append(wrong, [2]string{fmt.Sprintf("Muon is for matrices, and %s matches %s", tree.Quote(g.Match), vector[i]), "want a pattern that matches only matrices"})
		default:
			wrong = append(wrong, [2]string{})
		}
	}
	return wrong
}

// layerNumber matches the layer number in a parameter name.
var layerNumber = regexp.MustCompile(`\.[0-9]+\.`)

// near returns up to three patterns of trained parameter names that resemble a pattern without a
// match. It compares the longest part without wildcards, and merges the names of all layers.
func near(pattern string, params []shard.Param) (names []string) {
	part := ""
	for _, s := range strings.FieldsFunc(pattern, func(r rune) bool { return strings.ContainsRune(`*?[]\\`, r) }) {
		if len(s) > len(part) {
			part = s
		}
	}
	part = part[:min(len(part), 40)]
	far := map[string]int{}
	for _, p := range params {
		name := layerNumber.ReplaceAllString(p.Name, ".*.")
		if _, known := far[name]; p.Frozen || known {
			continue
		}
		names, far[name] = append(names, name), len(part)
		for i := 0; i+len(part) <= len(name); i++ {
			far[name] = min(far[name], words.Distance(part, name[i:i+len(part)]))
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return far[a] - far[b] })
	return names[:min(len(names), 3)]
}
