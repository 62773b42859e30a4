package spec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"zeroth/device"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/pipe"
	"zeroth/shard"
)

// resolveExperts rejects what does not work with a mixture of experts.
func (r *resolver) resolveExperts() {
	c := r.Job
	x := c.Model.Experts
	if c.unknown() || len(r.Problems) > 0 {
		return
	}
	if !r.Has("train.router_aux") {
		c.Train.RouterAux = c.Model.RouterAux
	}
	if x.Count == 0 {
		if c.Train.RouterAux > 0 {
			r.Refuse("the model has no experts whose load could be balanced", "want router_aux: 0", "train.router_aux")
		}
		return
	}
	if c.Parallel.Expert > 1 {
		r.resolveExpertRanks()
	}
	if x.Count > 1 && x.Router.TopK == 1 && x.Router.Normalize {
		c.note("each token has one expert, weighed by 1 whatever its router computes, so the loss does not train routers; want at least 2 experts for each token")
	}
	if c.Parallel.Pipeline > 1 && c.Pipeline.Schedule == string(pipe.ZBH1) {
		r.Refuse("ZBH1 defers weight gradients, which would keep the rows of all experts for every micro-batch in flight", "want pipeline.schedule: 1F1B", "pipeline.schedule")
	}
	if n := x.FFN / c.Parallel.Tensor * c.Model.Width; c.Optimizer.Type == "adamw8bit" && n%device.BlockLen != 0 {
		r.Refuse(fmt.Sprintf("the %d elements of an expert's matrix are not whole blocks of %d", n, device.BlockLen), "want optimizer.type: adamw, or experts of another width", "optimizer.type", "model.experts.width")
	}
	if c.Train.MLPChunk > 0 {
		r.Refuse("experts compute all tokens of a micro-batch at a time", "want mlp_chunk: 0", "train.mlp_chunk")
	}
	if Tunes(c) || c.Train.LoRA.From != "" || len(c.Optimizer.Groups) > 0 {
		r.checkExperts()
	}
}

// unevenExperts rejects ranks that do not divide the experts, and reports whether it did.
func (r *resolver) unevenExperts() bool {
	p, all := r.Job.Parallel, r.Job.Model.Experts.Count
	if r.Job.unknown() || len(r.Problems) > 0 || p.Expert == 1 || all > 0 && all%p.Expert == 0 {
		return false
	}
	if all == 0 {
		r.Refuse("the model has no experts that ranks could divide", "want expert: 1, or model.experts", "parallel.expert")
		return true
	}
	r.Refuse(fmt.Sprintf("%d experts cannot be divided over %d ranks", all, p.Expert),
		wantNear("expert", p.Expert, func(n int) bool { return n <= all && all%n == 0 && p.Ranks%(p.Models()*n) == 0 }), "parallel.expert")
	return true
}

// resolveExpertRanks rejects what does not work with ranks that divide experts.
func (r *resolver) resolveExpertRanks() {
	c := r.Job
	if n, k := c.Parallel.Expert, c.Model.Experts.Router.TopK; n > k {
		c.note("%d ranks divide the experts, and each token has %d: they send %.3g times the bytes of an all-to-all; want parallel.expert of at most %d", n, k, float64(n)/float64(k), k)
	}
	wrong := func(wrong string, is bool) {
		if is {
			r.Refuse(wrong+", but ranks divide the experts", "want expert: 1", "parallel.expert")
		}
	}
	wrong("the master has the whole model", c.Parallel.Master)
	wrong("Muon spreads the updates of matrices over ranks that have all of them", c.Optimizer.Type == "muon")
}

// checkExperts rejects settings that treat some experts of a layer differently: their matrices are one operand.
func (r *resolver) checkExperts() {
	c := r.Job
	if r.checkExpertAdapters(); len(r.Problems) > 0 {
		return
	}
	for _, mod := range Network(c).Modules {
		experts := slices.DeleteFunc(slices.Clone(mod.Params()), func(p shard.Param) bool { return !p.Expert || nn.IsAdapter(p.Name) })
		for i, p := range experts {
			first := experts[0]
			if downs := 2 * len(experts) / 3; i >= downs {
				first = experts[downs]
			}
			if p.Frozen != first.Frozen || p.Rule != first.Rule {
				r.Refuse(fmt.Sprintf("%s and %s would be updated differently", first.Name, p.Name), "want a pattern that matches all experts of a layer", "train.freeze", "optimizer.groups")
				return
			}
		}
	}
}

// checkExpertAdapters rejects adapters that only some experts of a layer have, or that differ.
func (r *resolver) checkExpertAdapters() {
	c := r.Job
	l, all := c.Train.LoRA.LoRA, map[string]string{} // the adapted layers by what they are in all layers and experts
	some, stacked := "", c.Model.Experts.Names.Up == ""
	if stacked && slices.Equal(l.Targets, []string{nn.AllLinear}) {
		c.note("all-linear adapts no expert of a %s, as in PEFT: those of a layer are one tensor", c.Model.Type)
		return
	}
	for _, p := range hf.Parameters(c.Model.Network(nn.LoRA{})) {
		layer := strings.TrimSuffix(p.Name, ".weight")
		if !p.Expert {
			continue
		}
		kind, has := expertNumber.ReplaceAllString(layer, ".experts."), fmt.Sprint(l.Targeted(layer), l.RankOf(layer), l.Scale(layer))
		if was, seen := all[kind]; seen && was != has {
			r.Refuse("all experts of a layer need the same rank and alpha, or no adapter, but "+layer+" differs from the first", "want patterns that match all experts of a layer", "train.lora.targets", "train.lora.rank_pattern", "train.lora.alpha_pattern", "train.lora.from")
			return
		}
		if all[kind] = has; l.Targeted(layer) {
			some = layer
		}
	}
	if some == "" {
		return
	}
	wrong := func(is bool, wrong, right string, keys ...string) {
		if is {
			r.Refuse(wrong+": "+some, right, append(keys, "train.lora.targets")...)
		}
	}
	blocks := func(n int) bool { return c.Optimizer.Type == "adamw8bit" && n%device.BlockLen != 0 }
	wrong(stacked, "PEFT stores adapters of experts in one tensor as target_parameters, which is not supported", "want [all-linear], which leaves experts out, or other layers")
	rank := l.RankOf(some)
	wrong(blocks(rank*c.Model.Width) || blocks(rank*c.Model.Experts.FFN), "adamw8bit divides matrices into blocks, which a matrix of an expert's adapter does not fill", "want optimizer.type: adamw", "optimizer.type")
	if c.Model.Type == "qwen2_moe" {
		c.note("PEFT ignores adapters of a qwen2_moe's experts with only a warning: use the merged model in model/")
	}
}

// expertNumber matches an expert's number in the name of a layer.
var expertNumber = regexp.MustCompile(`\.experts\.\d+\.`)
