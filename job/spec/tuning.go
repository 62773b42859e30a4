package spec

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"zeroth/config"
	"zeroth/device"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/shard"
)

// Selection of the trained parameters: all, those that freeze does not match, or adapters.

// resolveTuning derives missing settings of adapters, and rejects layer names and patterns that
// match nothing in the model.
func (r *resolver) resolveTuning() {
	c := r.Job
	l := &c.Train.LoRA
	if l.From != "" && len(r.Problems) == 0 {
		r.adapterFrom()
	}
	if l.Rank == 0 && len(c.Train.Freeze) == 0 || len(r.Problems) > 0 {
		return // an invalid model has no names to match
	}
	if l.Rank > 0 {
		if c.Model.From == "" && c.Own.Model == nil && r.was == nil {
			c.note("adapters are trained on a model of random parameters, which stay as they are; name a trained model with model.from")
		}
		if !r.Has("train.lora.targets") && l.From == "" {
			l.Targets = usualTargets(c.Model)
		}
	}
	if l.Rank > 0 || c.Own.Model == nil {
		r.checkTargets()
		r.checkPatterns()
		r.checkSaved()
	}
	r.checkFreeze()
	if l.Rank > 0 && len(c.Merged) > 0 {
		c.note("the saved adapter fits %s with model.adapters merged into it (PEFT's merge_and_unload); model/ contains everything", c.Model.From)
	}
}

// adapterFrom sets the adapters to those of a folder. Keys that the job sets must agree with them.
func (r *resolver) adapterFrom() {
	l := &r.Job.Train.LoRA
	a, err := hf.OpenAdapter(l.From, r.Job.Model)
	if err != nil {
		r.Wrong(r.Given["train.lora.from"].At, "train.lora.from", err.Error(), "")
		return
	}
	defer a.Close() // only read from
	its := config.Config{Train: config.Training{LoRA: config.LoRA{LoRA: a.LoRA}}}
	for _, x := range []struct {
		key      string
		same     bool
		job, has any
	}{
		{"train.lora.rank", l.Rank == a.LoRA.Rank, l.Rank, a.LoRA.Rank},
		{"train.lora.alpha", l.Alpha == a.LoRA.Alpha, l.Alpha, a.LoRA.Alpha},
		{"train.lora.rslora", l.Stabilized == a.LoRA.Stabilized, l.Stabilized, a.LoRA.Stabilized},
		{"train.lora.targets", slices.Equal(slices.Sorted(slices.Values(l.Targets)), a.LoRA.Targets), l.Targets, a.LoRA.Targets},
		{"train.lora.rank_pattern", same(l.Ranks, a.LoRA.Ranks), r.Job.Text("train.lora.rank_pattern"), its.Text("train.lora.rank_pattern")},
		{"train.lora.alpha_pattern", same(l.Alphas, a.LoRA.Alphas), r.Job.Text("train.lora.alpha_pattern"), its.Text("train.lora.alpha_pattern")},
		{"train.lora.modules_to_save", slices.Equal(slices.Sorted(slices.Values(l.Saved)), a.LoRA.Saved), l.Saved, a.LoRA.Saved},
	} {
		if r.Has(x.key) && !x.same {
			r.Refuse(fmt.Sprintf("%v, but the adapter in %s has %v", x.job, l.From, x.has), "want the same, or leave it out", x.key, "train.lora.from")
		}
	}
	if r.Has("train.lora.dropout") {
		a.LoRA.Dropout = l.Dropout
	}
	l.LoRA = a.LoRA
}

// same reports whether patterns give layers the same values in the same order.
func same(a, b []nn.Pattern) bool {
	return slices.EqualFunc(a, b, func(a, b nn.Pattern) bool { return a.Name == b.Name && a.Value == b.Value })
}

// Coded reports whether the job stores frozen matrices as codes.
func Coded(c *Job) bool { return codeOf(c) != device.Floats }

// codeOf returns the code of the job's frozen matrices.
func codeOf(c *Job) device.Code {
	return device.Code(max(0, slices.Index(device.Codes[:], c.Weights)))
}

// resolveWeights rejects codes of weights that are trained or divided.
func (r *resolver) resolveWeights() {
	c := r.Job
	if !Coded(c) || len(r.Problems) > 0 || c.unknown() {
		return
	}
	wrong := func(wrong, right string, keys ...string) {
		r.Refuse(wrong, right+", or weights: full", append(keys, "model.weights")...)
	}
	if !slices.ContainsFunc(Parameters(c), func(p shard.Param) bool { return p.Code != 0 }) {
		wrong("no matrix of a block is frozen, and trained weights are not coded", "want train.lora.rank, such as 16, or train.freeze", "model.weights")
	}
	if c.Parallel.Expert > 1 && c.Model.Experts.Names.Up == "" && slices.ContainsFunc(Parameters(c), func(p shard.Param) bool { return p.Expert && p.Code != 0 }) {
		wrong("experts in one tensor are coded together, but ranks divide them", "want expert: 1", "parallel.expert")
	}
	if c.Parallel.Tensor > 1 {
		wrong("matrices that ranks divide are not coded", "want tensor: 1", "parallel.tensor")
	}
}

// usualTargets returns the layers that PEFT adapts by default.
func usualTargets(m hf.Model) []string {
	switch {
	case m.Family == "gpt2":
		return []string{"c_attn"}
	case m.Fused:
		return []string{"qkv_proj"}
	}
	return []string{"q_proj", "v_proj"}
}

// adaptable returns the names of the layers that can have adapters.
func adaptable(c *Job) map[string]bool {
	layers := map[string]bool{}
	for _, p := range hf.Parameters(c.Model.Network(nn.LoRA{Rank: 1, Targets: []string{nn.AllLinear}})) {
		if name, ok := strings.CutSuffix(p.Name, ".lora_B.weight"); ok {
			layers[name] = true
		}
	}
	return layers
}

func (r *resolver) checkTargets() {
	c := r.Job
	layers := adaptable(c)
	for _, t := range c.Train.LoRA.Targets {
		one, hit := nn.LoRA{Rank: 1, Targets: []string{t}}, false
		for name := range layers {
			hit = hit || one.Targeted(name)
		}
		if !hit || t == nn.AllLinear && len(c.Train.LoRA.Targets) > 1 {
			r.Refuse(fmt.Sprintf("the model has no linear layer whose name ends with %q", t), "want some of "+strings.Join(ends(layers), ", ")+", or all-linear alone", "train.lora.targets")
		}
	}
	if c.Train.LoRA.Rank > 0 && len(c.Train.LoRA.Targets) == 0 {
		r.Refuse("no layer has an adapter", "want some of "+strings.Join(ends(layers), ", ")+", or all-linear", "train.lora.targets")
	}
}

// checkPatterns rejects patterns of ranks and alphas that match no adapter, and dropout where ranks
// divide the columns of an input so that a mask would begin in the middle of eight columns.
func (r *resolver) checkPatterns() {
	c, l := r.Job, r.Job.Train.LoRA.LoRA
	layers := adaptable(c)
	if c.Train.LoRA.From != "" {
		layers = nil // PEFT ignores patterns that match nothing, and so do its adapters here
	}
	for key, patterns := range map[string][]nn.Pattern{"train.lora.rank_pattern": l.Ranks, "train.lora.alpha_pattern": l.Alphas} {
		for _, p := range patterns {
			hit := layers == nil
			for name := range layers {
				hit = hit || l.Targeted(name) && p.Matches(name)
			}
			if !hit {
				r.Refuse(fmt.Sprintf("no layer with an adapter has a name that ends with %q", p.Name), "want some of "+strings.Join(ends(layers), ", "), key)
			}
		}
	}
	n, divided := c.Parallel.Tensor, regexp.MustCompile(`\.(o_proj|down_proj|c_proj)\.lora_A\.`)
	for _, p := range hf.Parameters(c.Model.Network(l)) {
		if l.Dropout > 0 && n > 1 && divided.MatchString(p.Name) && p.Shape[1]%(8*n) != 0 {
			r.Refuse(fmt.Sprintf("dropout needs a multiple of 8 inputs on each rank, but %s has %d inputs on %d ranks", strings.TrimSuffix(p.Name, ".lora_A.weight"), p.Shape[1], n), "want dropout: 0, or another tensor", "train.lora.dropout", "parallel.tensor")
			return
		}
	}
}

// checkSaved rejects modules to save that the model does not have, or that have adapters.
func (r *resolver) checkSaved() {
	c, l := r.Job, r.Job.Train.LoRA.LoRA
	all := hf.Parameters(c.Model.Network(l))
	for _, s := range l.Saved {
		one := nn.LoRA{Rank: 1, Saved: []string{s}}
		if !slices.ContainsFunc(all, func(p shard.Param) bool { return one.Saves(p.Name) }) {
			r.Refuse(fmt.Sprintf("the model has no module whose name ends with %q", s), "want some of "+strings.Join(savable(all), ", "), "train.lora.modules_to_save")
		}
		for _, p := range all {
			if layer := strings.TrimSuffix(p.Name, ".weight"); one.Saves(p.Name) && l.Targeted(layer) && adaptable(c)[layer] {
				r.Refuse(fmt.Sprintf("%s would have an adapter and be trained whole", layer), "want it in only one of the two", "train.lora.modules_to_save", "train.lora.targets")
				return
			}
		}
	}
}

// savable returns the distinct last parts of the names of modules with parameters.
func savable(params []shard.Param) []string {
	modules := map[string]bool{}
	for _, p := range params {
		if !nn.IsAdapter(p.Name) {
			modules[p.Name[:strings.LastIndex(p.Name, ".")]] = true
		}
	}
	return ends(modules)
}

// ends returns the distinct last parts of names.
func ends(names map[string]bool) (list []string) {
	for name := range names {
		if last := name[strings.LastIndex(name, ".")+1:]; !slices.Contains(list, last) {
			list = append(list, last)
		}
	}
	slices.Sort(list)
	return list
}

func (r *resolver) checkFreeze() {
	c := r.Job
	net := c.Own.Model
	if net == nil {
		net = c.Model.Network(c.Train.LoRA.LoRA)
	}
	all := hf.Parameters(net)
	for _, pattern := range c.Train.Freeze {
		if _, err := filepath.Match(pattern, ""); err != nil {
			r.Refuse(fmt.Sprintf("%q is no pattern: %v", pattern, err), "want names, with * for any characters", "train.freeze")
			return
		}
		if !slices.ContainsFunc(all, func(p shard.Param) bool { return matches(pattern, p.Name) }) {
			r.Refuse(fmt.Sprintf("%q matches no parameter", pattern), "want names such as "+all[0].Name+", with * for any characters", "train.freeze")
		}
	}
	if !slices.ContainsFunc(all, func(p shard.Param) bool { return !frozen(c)(p) }) {
		r.Refuse("every parameter is frozen: there is nothing to train", "leave some to train", "train.freeze", "train.lora.targets", "train.lora.modules_to_save")
	}
}

// matches reports whether a name matches a well-formed pattern.
func matches(pattern, name string) bool {
	ok, _ := filepath.Match(pattern, name)
	return ok
}

// frozen returns a function that reports whether the job freezes a parameter.
func frozen(c *Job) func(shard.Param) bool {
	l := c.Train.LoRA
	return func(p shard.Param) bool {
		return l.Rank > 0 && !l.Trains(p.Name) ||
			slices.ContainsFunc(c.Train.Freeze, func(pattern string) bool { return matches(pattern, p.Name) })
	}
}

// Tunes reports whether the job trains only a part of the model.
func Tunes(c *Job) bool { return c.Train.LoRA.Rank > 0 || len(c.Train.Freeze) > 0 }
