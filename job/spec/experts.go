package spec

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/device"
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
	if n := c.Parallel.Expert; x.Count%n != 0 || n > 1 && x.Count == 0 {
		r.Refuse(fmt.Sprintf("%d experts cannot be divided over %d ranks", x.Count, n), wantNear("expert", n, func(n int) bool { return x.Count%n == 0 && n <= max(1, x.Count) }), "parallel.expert")
	}
	if x.Count == 0 {
		return
	}
	if c.Parallel.Expert > 1 {
		r.resolveExpertRanks()
	}
	if c.Parallel.Pipeline > 1 && c.Pipeline.Schedule == string(pipe.ZBH1) {
		r.Refuse("ZBH1 defers weight gradients, which would keep the rows of all experts for every micro-batch in flight", "want pipeline.schedule: 1F1B", "pipeline.schedule")
	}
	if c.Optimizer.Type == "muon" && x.Names.Up == "" {
		r.Refuse("Muon is for matrices, but the model has the experts of a layer in one tensor", "want another rule", "optimizer.type")
	}
	if Coded(c) && x.Names.Up == "" {
		r.Refuse("the model has the experts of a layer in one tensor, which has no codes", "want weights: full", "model.weights")
	}
	if n := x.FFN / c.Parallel.Tensor * c.Model.Width; c.Optimizer.Type == "adamw8bit" && n%device.BlockLen != 0 {
		r.Refuse(fmt.Sprintf("the %d elements of an expert's matrix are not whole blocks of %d", n, device.BlockLen), "want optimizer.type: adamw, or experts of another width", "optimizer.type", "model.experts.width")
	}
	r.checkExperts()
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
	wrong("the model has the experts of a layer in one tensor", c.Model.Experts.Names.Up == "")
	wrong("the master has the whole model", c.Parallel.Master)
	wrong("Muon spreads the updates of matrices over ranks that have all of them", c.Optimizer.Type == "muon")
}

// checkExperts rejects adapters of experts, and settings that treat some experts of a layer differently: their
// matrices are one operand.
func (r *resolver) checkExperts() {
	c := r.Job
	l := Adapters(c)
	for _, mod := range Network(c).Modules {
		experts := slices.DeleteFunc(slices.Clone(mod.Params()), func(p shard.Param) bool { return !p.Expert })
		for i, p := range experts {
			if layer := strings.TrimSuffix(p.Name, ".weight"); l.Targeted(layer) {
				r.Refuse("experts cannot have adapters, such as "+layer, "want layers of attention, such as q_proj", "train.lora.targets", "train.lora.from")
				return
			}
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
