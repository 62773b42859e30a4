package spec

import (
	"fmt"
	"strings"
	"testing"
	"zeroth/config"

	"github.com/google/go-cmp/cmp"

	"zeroth/job/jobtest"
	"zeroth/shard"
)

const grouped = jobtest.Least + `model: {layers: 2, heads: 1, width: 8, context: 16}
optimizer:
  lr: 1e-3
  groups:
    - {match: "transformer.h.0.*.bias", lr: 1e-4}
    - match: "*.bias"
      weight_decay: 0.5
    - {match: "transformer.wte.*", lr: 2e-3, weight_decay: 0}
    - {match: "transformer.h.?.ln_*", lr: 1e-5}
    - {match: "transformer.h.1.*", lr: 3e-3}
`

// TestFirstGroupCounts checks that the first matching group sets how a parameter is updated.
// Omitted settings and ungrouped parameters have the same values as without groups.
func TestFirstGroupCounts(t *testing.T) {
	jobtest.InFolder(t, grouped)
	c := mustLoad(t)
	for _, x := range []struct {
		name string
		kind shard.Group
		want Updated
	}{
		{"transformer.h.0.attn.c_attn.bias", shard.Plain, Updated{0, 1e-4, 0}},
		{"transformer.h.1.attn.c_attn.bias", shard.Plain, Updated{1, 1e-3, 0.5}},
		{"transformer.ln_f.bias", shard.Plain, Updated{1, 1e-3, 0.5}},
		{"transformer.wte.weight", shard.Decayed, Updated{2, 2e-3, 0}},
		{"transformer.h.1.ln_1.weight", shard.Plain, Updated{3, 1e-5, 0}},
		{"transformer.h.1.mlp.c_fc.weight", shard.Decayed, Updated{4, 3e-3, 0.1}},
		{"transformer.h.0.mlp.c_fc.weight", shard.Decayed, Updated{-1, 1e-3, 0.1}},
		{"transformer.ln_f.weight", shard.Plain, Updated{-1, 1e-3, 0}},
	} {
		if got := c.Update(shard.Param{Name: x.name, Group: x.kind}); got != x.want {
			t.Errorf("%s: %+v, want %+v", x.name, got, x.want)
		}
	}
	const w = 8
	want := []string{
		`"transformer.h.0.*.bias" vectors: 88 parameters, lr 1e-4, weight decay 0`, // attention 3w and w, MLP 4w and w, 2 norms
		`"*.bias": 96 parameters, lr 1e-3, weight decay 0.5`,
		`"transformer.wte.*": 2,048 parameters, lr 2e-3, weight decay 0`,
		`"transformer.h.?.ln_*" vectors: 32 parameters, lr 1e-5, weight decay 0`,
		`"transformer.h.1.*" matrices: 768 parameters, lr 3e-3, weight decay 0.1`,
		`matrices: 896 parameters, lr 1e-3, weight decay 0.1`, // block 0 and the positions
		`vectors: 8 parameters, lr 1e-3, weight decay 0`,      // the last norm
	}
	var got []string
	sum := int64(0)
	for _, g := range Groups(c) {
		got, sum = append(got, g.String()), sum+g.Parameters
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if all := int64(12*w*w*2 + 13*w*2 + 256*w + 16*w + 2*w); sum != all {
		t.Errorf("%d parameters are in groups, the model has %d", sum, all)
	}

	again, err := Load("job.yaml", []string{"optimizer.groups=" + c.Text("optimizer.groups")})
	if err != nil || again.Text("optimizer.groups") != c.Text("optimizer.groups") {
		t.Errorf("%s\nis read as %v (%v)", c.Text("optimizer.groups"), again, err)
	}
	jobtest.Write(t, "again.yaml", string(c.YAML()))
	if again, err = Load("again.yaml", nil); err != nil || cmp.Diff(again.Optimizer, c.Optimizer) != "" {
		t.Errorf("%s\nis read as %+v (%v)", c.YAML(), again, err)
	}
	if Groups(mustLoad(t, "optimizer.groups=null")) != nil {
		t.Error("a job without groups has some")
	}
}

// TestGroupProblems checks that all problems of groups are reported at once, each at its own
// place.
func TestGroupProblems(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least+`optimizer:
  groups:
    - {match: "*.bias", lr: fast, weight_decay: -1, decay: 0}
    - {lr: 1e-4}
    - "*.bias"
    - {match: "[a", lr: 1e-4}
    - {match: "*.bias", momentum: 1}
`)
	_, err := Load("job.yaml", nil)
	want := `job.yaml:4:29: optimizer.groups[0].lr: fast is not a number; want a positive number, such as 1e-4
job.yaml:4:49: optimizer.groups[0].weight_decay: -1 is out of range; want a number of at least 0, such as 0
job.yaml:4:53: optimizer.groups[0].decay: unknown key; want one of match, lr, weight_decay, type
job.yaml:5:8: optimizer.groups[1]: lacks match; want {match: "*.bias", lr: 1e-4, weight_decay: 0}
job.yaml:6:7: optimizer.groups[2]: "*.bias" is not a mapping; want a group of parameters, such as {match: "*.bias", lr: 1e-4, weight_decay: 0}
job.yaml:7:15: optimizer.groups[3].match: "[a" is not a pattern; want a pattern of names, such as "*.bias"
job.yaml:8:25: optimizer.groups[4].momentum: unknown key; want one of match, lr, weight_decay, type`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// TestIdleGroups checks that groups without effect are rejected, with similar parameter names as
// advice.
func TestIdleGroups(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least+`optimizer:
  groups:
    - {match: "*.wieght", lr: 1e-4}
    - {match: "h.*"}
    - {match: "*.bias", lr: 1e-4}
    - {match: "transformer.h.3.*.bias", weight_decay: 0}
    - {match: "model.layers.*.q_proj.weight", weight_decay: 0}
`)
	_, err := Load("job.yaml", nil)
	want := `job.yaml:4:8: optimizer.groups[0]: "*.wieght" matches no trained parameter; there are transformer.wte.weight, transformer.wpe.weight, transformer.ln_f.weight
job.yaml:5:8: optimizer.groups[1]: the group sets nothing for its parameters; want lr, weight_decay or both in addition to match
job.yaml:7:8: optimizer.groups[3]: all 6 parameters that "transformer.h.3.*.bias" matches belong to earlier groups; put it first, or remove it
job.yaml:8:8: optimizer.groups[4]: "model.layers.*.q_proj.weight" matches no trained parameter; there are transformer.h.*.attn.c_proj.weight, transformer.h.*.mlp.c_proj.weight, transformer.h.*.attn.c_attn.weight`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	var many []string
	for i := range config.MostGroups + 1 {
		many = append(many, fmt.Sprintf(`{match: "*.%d.*", lr: 1}`, i))
	}
	_, err = Load("job.yaml", []string{"optimizer.groups=[" + strings.Join(many, ", ") + "]"})
	if err == nil || !strings.Contains(err.Error(), "optimizer.groups: 101 items, more than 100") {
		t.Error(err)
	}
	if _, err = Load("job.yaml", []string{"optimizer.groups=[{match: '" + strings.Repeat("*a", 200) + "', lr: 1}]"}); err == nil || !strings.Contains(err.Error(), "a pattern of 400 bytes, more than 200") {
		t.Error(err)
	}
}

// TestGroupsOfGivenNetwork checks that groups apply to the parameters of a network given by the
// caller.
func TestGroupsOfGivenNetwork(t *testing.T) {
	jobtest.InFolder(t, grouped)
	net := Network(mustLoad(t))
	c := mustLoad(t, "model=null", "model.family=program")
	if _, err := c.With(Own{Model: net}); err != nil {
		t.Error(err)
	}
	still := net.Frozen(func(p shard.Param) bool { return strings.HasPrefix(p.Name, "transformer.wte.") })
	if _, err := c.With(Own{Model: still}); err == nil || !strings.Contains(err.Error(), `job.yaml:9:8: optimizer.groups[2]: "transformer.wte.*" matches no trained parameter`) {
		t.Error(err)
	}
}

// TestMuonHasMatrices checks that Muon updates all matrices but those at the ends, unless a group
// chooses otherwise, and AdamW the rest with settings of its own; and that reports distinguish the
// two.
func TestMuonHasMatrices(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least+`model: {layers: 2, heads: 1, width: 8, context: 16}
optimizer:
  type: muon
  lr: 0.02
  adamw: {lr: 1e-3}
  groups:
    - {match: "transformer.h.1.mlp.*.weight", type: adamw}
    - {match: "transformer.wpe.weight", type: muon, weight_decay: 0}
    - {match: "transformer.h.?.attn.c_proj.*", lr: 0.01}
`)
	c := mustLoad(t)
	want := []string{
		`"transformer.h.1.mlp.*.weight" adamw matrices: 512 parameters, lr 1e-3, weight decay 0.1`,
		`"transformer.wpe.weight" muon: 128 parameters, lr 0.02, weight decay 0`,
		`"transformer.h.?.attn.c_proj.*" muon matrices: 128 parameters, lr 0.01, weight decay 0.1`,
		`"transformer.h.?.attn.c_proj.*" adamw vectors: 16 parameters, lr 0.01, weight decay 0`,
		`muon matrices: 896 parameters, lr 0.02, weight decay 0.1`,
		`adamw matrices: 2,048 parameters, lr 1e-3, weight decay 0.1`,
		`adamw vectors: 208 parameters, lr 1e-3, weight decay 0`,
	}
	var got []string
	for _, g := range Groups(c) {
		got = append(got, g.String())
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	jobtest.Write(t, "again.yaml", string(c.YAML()))
	if again, err := Load("again.yaml", nil); err != nil || cmp.Diff(again.Optimizer, c.Optimizer) != "" {
		t.Errorf("%s\nis read as %+v (%v)", c.YAML(), again, err)
	}
	for _, u := range Network(c).Units() {
		for _, p := range u.Params {
			if p.Rule != u.Params[0].Rule {
				t.Errorf("unit %s has several rules", u.Name)
			}
		}
	}
}

// TestMuonKeys checks the defaults that depend on Muon, and the settings that conflict with it.
func TestMuonKeys(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	o := mustLoad(t, "optimizer.type=muon").Optimizer
	if d := cmp.Diff(config.Optimizer{Type: "muon", LR: 1e-3, Eps: 1e-7, WeightDecay: 0.1, Momentum: 0.95, Nesterov: true, Steps: 5, Adjust: "original",
		AdamW: config.AdamW{LR: 6e-4, Betas: [2]float64{0.9, 0.95}, Eps: 1e-8, WeightDecay: 0.1}}, o); d != "" {
		t.Error(d)
	}
	o = mustLoad(t, "optimizer={type: muon, lr: 2e-4, weight_decay: 0, adjust_lr_fn: match_rms_adamw}").Optimizer
	if o.AdamW.LR != 2e-4 || o.AdamW.WeightDecay != 0 {
		t.Errorf("AdamW has %+v", o.AdamW)
	}
	for sets, want := range map[string]string{
		"optimizer={type: muon, betas: [0.9, 0.9]}":                         "optimizer.betas: not used: muon has none; its AdamW uses optimizer.adamw.betas; remove it (--set optimizer.betas=null removes it)",
		"optimizer={ns_steps: 5}":                                           "optimizer.ns_steps: not used: adamw has no ns_steps; remove it (--set optimizer.ns_steps=null removes it)",
		"optimizer={type: sgd, adamw: {lr: 1e-3}}":                          "optimizer.adamw.lr: not used: sgd has no adamw.lr; remove it (--set optimizer.adamw.lr=null removes it)",
		"optimizer={type: muon, ns_steps: 100}":                             "optimizer.ns_steps: 100 is more than 99; want a whole number from 1 to 99",
		"optimizer={type: muon, adjust_lr_fn: orignal}":                     "optimizer.adjust_lr_fn: orignal is not a valid value; did you mean original?; want original, match_rms_adamw or spectral_unclamped",
		`optimizer={type: muon, groups: [{match: "*.h.0.*", type: muon}]}`:  `optimizer.groups[0]: Muon is for matrices, and "*.h.0.*" matches transformer.h.0.ln_1.weight; want a pattern that matches only matrices`,
		`optimizer={groups: [{match: "*.h.0.*", type: adamw}]}`:             "optimizer.groups[0]: type is for a job with Muon; this one's parameters are all updated by adamw; remove it, or want optimizer.type: muon",
		"optimizer={type: muon, groups: [{match: \"*.h.0.*\", type: sgd}]}": "optimizer.groups[0].type: sgd is not a valid value; want adamw or muon",
	} {
		_, err := Load("job.yaml", strings.Split(strings.ReplaceAll(sets, " optimizer=", "\noptimizer="), "\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\ngot  %v\nwant %s", sets, err, want)
		}
	}
}
