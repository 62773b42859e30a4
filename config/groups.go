package config

import (
	"zeroth/job/hf"
)

// MostGroups bounds the groups of a job, because every parameter is compared with each.
const MostGroups = 100

// Group sets how the parameters that match a pattern are updated. The schedule scales its learning
// rate like the job's.
type Group struct {
	Match       string   // a pattern of path.Match, for Hugging Face parameter names
	LR          *float64 // peak learning rate; nil: optimizer.lr
	WeightDecay *float64 // nil: optimizer.weight_decay for matrices, 0 for vectors
	Type        string   // with muon: "muon" or "adamw"; empty: the default for the parameter's kind
}

// fields returns the keys of a group.
func (g *Group) fields() []field {
	return []field{
		{"match", pattern{&g.Match}, "", "needed", "pattern of Hugging Face parameter names; * matches any characters", also{like: `"*.bias"`}},
		{"lr", perhaps{&g.LR, hf.Positive, "a positive number"}, "", "optimizer.lr", "highest learning rate; the schedule scales it like optimizer.lr", also{like: "1e-4"}},
		{"weight_decay", perhaps{&g.WeightDecay, atLeast0, "a number of at least 0"}, "", "the job's", "weight decay of all parameters of the group", also{like: "0"}},
		{"type", choice{&g.Type, GroupTypes[:]}, "", "muon for matrices of blocks, adamw for the rest", "with optimizer.type muon: muon (only for matrices) | adamw", also{}},
	}
}

// GroupTypes lists the update rules of parameter groups with Muon, indexed by shard.Param's Rule.
var GroupTypes = [...]string{AdamWRule: "adamw", MuonRule: "muon"}

// Update rules of a job with Muon. Other jobs have a single rule, 0.
const (
	AdamWRule = iota
	MuonRule
)
