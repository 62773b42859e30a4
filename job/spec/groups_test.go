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
	said.Same(t, "all", err)
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
	said.Same(t, "all", err)
	var many []string
	for i := range config.MostGroups + 1 {
		many = append(many, fmt.Sprintf(`{match: "*.%d.*", lr: 1}`, i))
	}
	_, err = Load("job.yaml", []string{"optimizer.groups=[" + strings.Join(many, ", ") + "]"})
	said.Same(t, "many", err)
	_, err = Load("job.yaml", []string{"optimizer.groups=[{match: '" + strings.Repeat("*a", 200) + "', lr: 1}]"})
	said.Same(t, "a long pattern", err)
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
	for _, sets := range []string{
		"optimizer={type: muon, betas: [0.9, 0.9]}",
		"optimizer={ns_steps: 5}",
		"optimizer={type: sgd, adamw: {lr: 1e-3}}",
		"optimizer={type: muon, ns_steps: 100}",
		"optimizer={type: muon, adjust_lr_fn: orignal}",
		`optimizer={type: muon, groups: [{match: "*.h.0.*", type: muon}]}`,
		`optimizer={groups: [{match: "*.h.0.*", type: adamw}]}`,
		"optimizer={type: muon, groups: [{match: \"*.h.0.*\", type: sgd}]}",
	} {
		_, err := Load("job.yaml", strings.Split(strings.ReplaceAll(sets, " optimizer=", "\noptimizer="), "\n"))
		said.Same(t, sets, err)
	}
}
