package setup_test

import (
	"testing"

	"zeroth/collective"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/optim"
)

// TestReductionsOfAStepAreFormulas compares the largest reductions that a dry step records, from
// which memory for reductions follows, with the sizes of shards, of the residual stream, and of keys
// and values.
func TestReductionsOfAStepAreFormulas(t *testing.T) {
	for _, sets := range [][]string{
		{"parallel.ranks=4", "zero.stage=3"},
		{"parallel.ranks=8", "parallel.replicate=2", "zero.stage=2", "precision=bf16"},
		{"parallel.ranks=4", "zero.stage=0", "train.accumulate=3"},
		{"parallel.ranks=8", "parallel.tensor=2", "parallel.context=2", "zero.stage=3", "model.family=llama", "model.kv_heads=2"},
		{"parallel.ranks=4", "parallel.tensor=2", "optimizer.type=muon", "zero.stage=2", "precision=bf16", "device=cpu"},
	} {
		c := spectest.Fitted(t, append(sets, "train.batch=null")...)
		d, err := setup.OpenDry(setup.Planned(c), 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Trainer.DryRun()
		m, rules := spec.Mesh(c), setup.Rules(c)
		part := c.Train.MicroBatch * c.Model.Context / max(1, m.Context)
		want := map[collective.Role]int{}
		add := func(role collective.Role, ranks, bytes int) {
			if ranks > 1 {
				want[role] = max(want[role], bytes)
			}
		}
		heads := c.Model.Heads
		if c.Model.Family == "llama" {
			heads = c.Model.KV
		}
		add(collective.Tensor, m.Tensor, part/max(1, m.Tensor)*c.Model.Width*c.Precision.Size())
		add(collective.Context, m.Context, part*2*heads/max(1, m.Tensor)*c.Model.Head()*4)
		for _, u := range d.Trainer.Units() {
			n, shard, replica := u.Own().Len(), collective.Shard, collective.Replica
			if m.Tensor > 1 && u.Layout.Params[0].Cut.Full == nil {
				if shard = collective.Joint; d.Groups.Shard.Size() == 1 {
					shard, replica = collective.Shard, collective.Joint
				}
			}
			size := 4
			if r, ok := rules[u.Rule].(optim.Whole); ok {
				size = max(size, r.Input().Size())
				if u.Layout.Params[0].Cut.Full != nil {
					add(collective.Updates, m.Tensor, r.Input().Size()*n*u.Shard.Size())
				}
			}
			add(shard, u.Shard.Size(), size*n)
			add(replica, u.Replica.Size(), size*n/u.Replica.Size())
		}
		for role, g := range d.Groups.All() {
			got := 0
			for s := range (*g).(collective.Dry).Sums {
				got = max(got, s.N*s.Type.Size())
			}
			if got != want[role] {
				t.Errorf("%v: reductions of the %v group have at most %d bytes, want %d", sets, role, got, want[role])
			}
		}
	}
}
