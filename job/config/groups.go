package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"zeroth/job/hf"
	"zeroth/job/show"
	"zeroth/nn"
	"zeroth/shard"
)

// mostGroups bounds the groups of a job: every parameter is compared with each.
const mostGroups = 100

// Group is parameters whose names match a pattern, and how they are updated. The
// schedule scales its learning rate as the job's.
type Group struct {
	Match       string   // a pattern as path.Match has it, of names as Hugging Face has them
	LR          *float64 // its highest learning rate; nil: optimizer.lr
	WeightDecay *float64 // nil: optimizer.weight_decay of matrices, 0 of vectors
	Type        string   // with muon: "muon" or "adamw"; empty: that of their kind
}

// fields are the keys of a group.
func (g *Group) fields() []field {
	return []field{
		{"match", pattern{&g.Match}, "", "needed", "names of parameters as Hugging Face has them; * is any characters", also{like: `"*.bias"`}},
		{"lr", perhaps{&g.LR, hf.Positive, "a positive number"}, "", "optimizer.lr", "highest learning rate; the schedule scales it as optimizer.lr", also{like: "1e-4"}},
		{"weight_decay", perhaps{&g.WeightDecay, atLeast0, "a number of at least 0"}, "", "as without a group", "weight decay of all of them", also{like: "0"}},
		{"type", choice{&g.Type, groupTypes[:]}, "", "as without a group", "with optimizer.type muon: their own, muon of matrices or adamw", also{}},
	}
}

// groupTypes are what a group of parameters can be updated by, with Muon, as
// shard.Param's Rule has them.
var groupTypes = [...]string{AdamWRule: "adamw", MuonRule: "muon"}

// The update rules of a job with Muon. That of every other is 0.
const (
	AdamWRule = iota
	MuonRule
)

// Updated is how a parameter is updated.
type Updated struct {
	Group           int // of Optimizer.Groups; -1: of none
	LR, WeightDecay float64
}

// For is how the optimizer updates a parameter.
func (o *Optimizer) For(p shard.Param) Updated {
	u, decay := Updated{o.group(p), o.LR, 0}, o.WeightDecay
	if o.Type == "muon" && p.Rule == AdamWRule {
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

// group is the first that matches a parameter; -1: none does.
func (o *Optimizer) group(p shard.Param) int {
	return slices.IndexFunc(o.Groups, func(g Group) bool { return matches(g.Match, p.Name) })
}

// ruled is the model with Muon for the matrices between its first and its last module,
// and AdamW for the rest, but where groups say otherwise. What is no matrix is AdamW's.
func (o *Optimizer) ruled(m *nn.Model) *nn.Model {
	ends := map[string]bool{}
	for _, mod := range []nn.Module{m.Modules[0], m.Modules[len(m.Modules)-1]} {
		for _, p := range mod.Params() {
			ends[p.Name] = true
		}
	}
	return m.Ruled(groupTypes[:], func(p shard.Param) int {
		said := ""
		if g := o.group(p); g >= 0 {
			said = o.Groups[g].Type
		}
		if len(p.Shape) != 2 || said == "adamw" || said == "" && ends[p.Name] {
			return AdamWRule
		}
		return MuonRule
	})
}

// Grouped is the parameters that are updated alike, as people are told of them.
type Grouped struct {
	Match       string  `json:"match,omitempty"` // the group's; empty: of no group
	Rule        string  `json:"rule,omitempty"`  // of a job that has several
	Kind        string  `json:"kind,omitempty"`  // matrices or vectors, where that is of consequence
	Parameters  int64   `json:"parameters"`      // elements
	LR          float64 `json:"lr"`              // the highest
	WeightDecay float64 `json:"weight_decay"`
}

func (g Grouped) String() string {
	name := g.Kind
	if g.Rule != "" {
		name = strings.TrimSuffix(g.Rule+" "+name, " ")
	}
	if g.Match != "" {
		name = strings.TrimSuffix(Quote(g.Match)+" "+name, " ")
	}
	return fmt.Sprintf("%s: %s parameters, lr %s, weight decay %s", name, show.Grouped(g.Parameters), formatReal(g.LR), formatReal(g.WeightDecay))
}

// GroupRows are the lines that tell of a job's groups, a word and the text; none of
// a job without groups.
func GroupRows(groups []Grouped) (rows [][2]string) {
	word := "groups"
	for _, g := range groups {
		rows = append(rows, [2]string{word, g.String()})
		word = ""
	}
	return rows
}

// Groups are the groups of a job's trained parameters in the order of the job, those
// that are of none at the end; nil of a job without groups and with one update rule.
func Groups(c *Config) (all []Grouped) {
	groups, muon := c.Optimizer.Groups, c.Optimizer.Type == "muon"
	if len(groups) == 0 && !muon {
		return nil
	}
	kinds := [...]string{shard.Decayed: "matrices", shard.Plain: "vectors"}
	sums := make([][4]Grouped, len(groups)+1) // by group, by rule, Muon before AdamW, and by kind where that is of consequence
	for _, p := range Parameters(c) {
		if p.Frozen {
			continue
		}
		u := c.Optimizer.For(p)
		at, kind, g := len(groups), shard.Decayed-p.Group, Grouped{Kind: kinds[p.Group], LR: u.LR, WeightDecay: u.WeightDecay}
		if u.Group >= 0 {
			at, g.Match = u.Group, groups[u.Group].Match
			if groups[at].WeightDecay != nil {
				kind, g.Kind = 0, ""
			}
		}
		if muon {
			g.Rule = groupTypes[p.Rule]
		}
		sum := &sums[at][2*(MuonRule-p.Rule)+int(kind)]
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

// resolveGroups refuses groups that say nothing, or say it of nothing. It needs to
// know the model, so it is silent where that has a problem.
func (r *reader) resolveGroups() {
	groups := r.Config.Optimizer.Groups
	for key := range r.bad {
		section, _, _ := strings.Cut(key, ".")
		if section == "model" || section == "data" || section == "train" {
			return
		}
	}
	if len(groups) == 0 {
		return
	}
	for i, wrong := range r.Config.Optimizer.ungrouped(Parameters(r.Config)) {
		if wrong != [2]string{} {
			key := fmt.Sprintf("optimizer.groups[%d]", i)
			r.wrong(r.Config.Place(key), key, wrong[0], wrong[1])
		}
	}
}

// ungrouped is what is wrong with each group, and what would be right.
func (o *Optimizer) ungrouped(params []shard.Param) (wrong [][2]string) {
	groups := o.Groups
	had, left := make([]int, len(groups)), make([]int, len(groups)) // parameters that each matches, and those of no group before
	vector := make([]string, len(groups))                           // the first of these that is no matrix
	for _, p := range params {
		first := true
		for i, g := range groups {
			if !p.Frozen && matches(g.Match, p.Name) {
				had[i]++
				if first {
					left[i]++
				}
				if first && len(p.Shape) != 2 {
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
			wrong = append(wrong, [2]string{"it says nothing of its parameters", "want lr, weight_decay or both beside match"})
		case had[i] == 0:
			wrong = append(wrong, [2]string{fmt.Sprintf("%s matches no parameter that is trained", Quote(g.Match)), "there are " + strings.Join(near(g.Match, params), ", ")})
		case left[i] == 0:
			wrong = append(wrong, [2]string{fmt.Sprintf("all %d parameters that %s matches are of groups before it", had[i], Quote(g.Match)), "put it before them, or remove it"})
		case g.Type == "muon" && vector[i] != "":
			wrong = append(wrong, [2]string{fmt.Sprintf("Muon is for matrices, and %s matches %s", Quote(g.Match), vector[i]), "want a pattern of matrices alone"})
		default:
			wrong = append(wrong, [2]string{})
		}
	}
	return wrong
}

// layerNumber is what tells the layers' parameters apart.
var layerNumber = regexp.MustCompile(`\.[0-9]+\.`)

// near are a few patterns of trained parameters' names, layers taken together, that
// are most like one that matches none: those with a part that is most like its
// longest part without wildcards.
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
			far[name] = min(far[name], distance(part, name[i:i+len(part)]))
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return far[a] - far[b] })
	return names[:min(len(names), 3)]
}
