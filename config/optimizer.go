package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Optimizer is the update rule. Constants that the rule does not use are zero.
type Optimizer struct {
	Type        string // "adamw", "adamw8bit", "adam", "sgd", "lion" or "muon"
	LR          float64
	Betas       [2]float64 // adamw, adamw8bit, adam, lion
	Eps         float64    // adamw, adamw8bit, adam, muon
	WeightDecay float64
	Momentum    float64 // sgd, muon
	Nesterov    bool    // muon
	Steps       int     // muon: Newton-Schulz iterations
	Adjust      string  // muon: one of Adjusts
	AdamW       AdamW   // muon: for parameters other than the blocks' matrices
	Groups      []Group // parameters with settings of their own; the first matching group applies
}

// AdamW is the update rule of parameters that Muon does not update.
type AdamW struct {
	LR          float64
	Betas       [2]float64
	Eps         float64
	WeightDecay float64
}

// mostMuonSteps is the limit of torch.optim.Muon.
const mostMuonSteps = 99

// optimizerKeys returns the keys of the update rule.
func (c *Config) optimizerKeys() []field {
	o := &c.Optimizer
	return []field{
		{key: "precision", value: dtype(&c.Precision, precisions), initial: "bf16", lasts: true,
			doc: "fp32 | bf16 | fp16: type of gathered parameters and activations"},
		{key: "optimizer.type", value: choice(&o.Type, rules), initial: "adamw", lasts: true,
			doc: "adamw | adamw8bit | adam | sgd | lion | muon | program; adamw8bit: moments in 8 bits; " +
				"muon: for the matrices of blocks, with AdamW for the rest; program: the rule of the Go " +
				"program that runs the job (job.Options.Rule)"},
		{key: "optimizer.lr", value: positive(&o.LR), initial: "6e-4; muon 1e-3", like: "6e-4", lasts: true,
			doc: "highest learning rate"},
		{key: "optimizer.betas", value: betas(&o.Betas),
			initial: "[0.9, 0.95]; lion [0.9, 0.99]", like: "[0.9, 0.95]", lasts: true,
			doc:   "decay rates of the moments; not for sgd and muon",
			types: []string{"adamw", "adamw8bit", "adam", "lion"},
			only: onlyIf("", o.Type != "muon", "optimizer.type",
				"muon has none; its AdamW uses optimizer.adamw.betas")},
		{key: "optimizer.eps", value: positive(&o.Eps), initial: "1e-8; muon 1e-7", like: "1e-8", lasts: true,
			doc:   "added to the denominator of adamw, adamw8bit and adam; minimum norm for muon",
			types: []string{"adamw", "adamw8bit", "adam", "muon"}},
		{key: "optimizer.weight_decay", value: least0(&o.WeightDecay), initial: "0.1", lasts: true,
			doc: "weight decay of matrices; biases and norms have none"},
		{key: "optimizer.momentum", value: decays(&o.Momentum),
			initial: "0.9; muon 0.95", like: "0.9", lasts: true,
			doc:   "momentum of sgd and muon",
			types: []string{"sgd", "muon"}},
		{key: "optimizer.nesterov", value: flag(&o.Nesterov), initial: "true", like: "false", lasts: true,
			doc:   "muon: use Nesterov momentum",
			types: []string{"muon"}},
		{key: "optimizer.ns_steps", value: count(&o.Steps, 1, mostMuonSteps),
			initial: "5", like: "6", lasts: true,
			doc:   "muon: steps of the Newton-Schulz iteration",
			types: []string{"muon"}},
		{key: "optimizer.adjust_lr_fn", value: choice(&o.Adjust, Adjusts),
			initial: "original", like: "match_rms_adamw", lasts: true,
			doc: "muon: factor of a matrix's learning rate: original: sqrt(max(1, rows/columns)); " +
				"match_rms_adamw: 0.2 sqrt(max(rows, columns)); spectral_unclamped: sqrt(rows/columns)",
			types: []string{"muon"}},
		{key: "optimizer.adamw.lr", value: positive(&o.AdamW.LR),
			rule: "6e-4; lr with match_rms_adamw", like: "3e-4", lasts: true,
			doc:     "muon: highest learning rate of embeddings, output layer, norms and biases",
			types:   []string{"muon"},
			follows: []string{"optimizer.adjust_lr_fn", "optimizer.lr"},
			then:    func() { o.AdamW.LR = pick(o.Adjust == "match_rms_adamw", o.LR, 6e-4) }},
		{key: "optimizer.adamw.betas", value: betas(&o.AdamW.Betas),
			initial: "[0.9, 0.95]", like: "[0.9, 0.95]", lasts: true,
			doc:   "muon: decay rates of the moments of its AdamW",
			types: []string{"muon"}},
		{key: "optimizer.adamw.eps", value: positive(&o.AdamW.Eps),
			initial: "1e-8", like: "1e-8", lasts: true,
			doc:   "muon: added to the denominator of its AdamW",
			types: []string{"muon"}},
		{key: "optimizer.adamw.weight_decay", value: least0(&o.AdamW.WeightDecay),
			rule: "optimizer.weight_decay", like: "0", lasts: true,
			doc:     "muon: weight decay of embeddings and output layer",
			types:   []string{"muon"},
			follows: []string{"optimizer.weight_decay"},
			then:    func() { o.AdamW.WeightDecay = o.WeightDecay }},
		{key: "optimizer.groups", value: listOf(&o.Groups, "group of parameters", "groups of parameters",
			MostGroups, (*Group).fields),
			rule: "none", like: `[{match: "*.bias", lr: 1e-4, weight_decay: 0}]`, lasts: true,
			doc: "settings for parameters selected by name; the first matching group applies"},
	}
}

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
		{key: "match", value: pattern(&g.Match), rule: "needed", like: `"*.bias"`,
			doc: "pattern of Hugging Face parameter names; * matches any characters"},
		{key: "lr", value: perhaps(&g.LR, positive), rule: "optimizer.lr", like: "1e-4",
			doc: "highest learning rate; the schedule scales it like optimizer.lr"},
		{key: "weight_decay", value: perhaps(&g.WeightDecay, least0), rule: "the job's", like: "0",
			doc: "weight decay of all parameters of the group"},
		{key: "type", value: choice(&g.Type, GroupTypes[:]),
			rule: "muon for matrices of blocks, adamw for the rest",
			doc:  "with optimizer.type muon: muon (only for matrices) | adamw"},
	}
}

// GroupTypes lists the update rules of parameter groups with Muon, indexed by shard.Param's Rule.
var GroupTypes = [...]string{AdamWRule: "adamw", MuonRule: "muon"}

// Update rules of a job with Muon. Other jobs have a single rule, 0.
const (
	AdamWRule = iota
	MuonRule
)

// Schedule is the learning rate over the steps: a linear warmup from 0 over Warmup steps, then the
// curve of Type from Optimizer.LR to MinLR.
type Schedule struct {
	Type   string  // "constant", "linear", "cosine", "wsd" or "inverse_sqrt"
	Warmup int     // steps
	Part   float64 // of the run's steps that Warmup is, below 1; 0: Warmup is given
	MinLR  float64
	Decay  int // wsd: number of final steps in which the rate falls
	Lag    int // steps by which all of it is later than in llm.c
}

// scheduleKeys returns the keys of the learning rate.
func (c *Config) scheduleKeys() []field {
	o, s := &c.Optimizer, &c.Schedule
	falls := []only{
		{"", s.Type != "constant", "schedule.type", "a constant schedule does not fall"},
		{"with schedule.type linear, cosine and wsd", s.Type != "inverse_sqrt",
			"schedule.type", "an inverse_sqrt schedule falls by its formula"},
	}
	return []field{
		{key: "schedule.type", value: choice(&s.Type, curves), initial: "cosine", lasts: true,
			doc: "constant | linear | cosine | wsd | inverse_sqrt: the learning rate after the warmup"},
		{key: "schedule.warmup", value: orPart(count(&s.Warmup, 0, MostSteps), &s.Warmup, &s.Part),
			rule: "20, or steps if fewer", like: "100", lasts: true,
			doc: "steps of linear warmup from 0, or their share of the run; a shorter run never reaches the highest rate, and " +
				"reports that"},
		{key: "schedule.min_lr", value: least0(&s.MinLR), rule: "lr / 10", like: "6e-5", lasts: true,
			doc:     "learning rate at the last step; not for constant and inverse_sqrt",
			only:    falls,
			follows: []string{"optimizer.lr", "schedule.type"},
			then:    func() { s.MinLR = pick(s.Type == "constant" || s.Type == "inverse_sqrt", o.LR, tenth(o.LR)) },
			not: refuse(s.Type != "constant" && s.Type != "inverse_sqrt" && s.MinLR > o.LR,
				fmt.Sprintf("min_lr %s is above lr %s", FormatReal(s.MinLR), FormatReal(o.LR)),
				"want a min_lr of at most lr", "optimizer.lr")},
		{key: "schedule.decay", value: count(&s.Decay, 1, MostSteps),
			rule: "a tenth of steps, at least 1", like: "100", lasts: true,
			doc: "wsd: steps at the end in which the learning rate falls",
			only: onlyIf("with schedule.type wsd", s.Type == "wsd", "schedule.type",
				"a "+s.Type+" schedule has no decay of its own"),
			follows: []string{"train.steps", "train.epochs", "schedule.type"}},
		{key: "schedule.lag", value: count(&s.Lag, 0, 2), initial: "0", lasts: true,
			doc: "steps by which warmup and decay are later: 0 as in llm.c, where the first step has a " +
				"rate above 0 and the last min_lr; 1 as in transformers; 2 as in DeepSpeed"},
	}
}

// tenth returns x/10 in decimal: a tenth of 6e-4 is exactly 6e-5.
func tenth(x float64) float64 {
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(x, 'e', -1, 64), "e")
	e, _ := strconv.Atoi(exponent)
	y, _ := strconv.ParseFloat(fmt.Sprintf("%se%d", mantissa, e-1), 64)
	return y
}
