package nn

import (
	"slices"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// neighbours moves the parameters and gradients of each unit to one buffer each, as they are in a
// unit's slot.
func (r *rig) neighbours() {
	units := map[string]int{}
	for i, unit := range unitsOf(r.model) {
		if first, shared := units[unit]; shared {
			r.w[i], r.dw[i] = r.w[first], r.dw[first]
			continue
		}
		units[unit] = i
		n, at := 0, 0
		for _, p := range r.model.Modules[i].Params() {
			n += p.Numel()
		}
		w, dw := r.poisoned(r.dt, n), r.poisoned(device.F32, n)
		for j, old := range r.w[i] {
			r.w[i][j], r.dw[i][j] = w.Slice(at, at+old.N), dw.Slice(at, at+old.N)
			copy(r.w[i][j].Raw(), old.Raw())
			at += old.N
		}
	}
}

// TestJoinedAgrees checks that joined products compute what separate ones do: losses to the bit,
// since forward passes have the same sums, and gradients within rounding. Adapters keep products
// separate.
func TestJoinedAgrees(t *testing.T) {
	nightly.Parallel(t)
	eachType(t, func(r *rig) {
		r.neighbours()
		r.train(SaveAll)
		losses := slices.Clone(r.bt.Loss.F32())
		want := map[string][]float64{}
		for name, dw := range r.named() {
			want[name] = r.values(dw)
		}
		adapters := slices.ContainsFunc(r.model.Modules[1].Params(), func(p shard.Param) bool { return strings.Contains(p.Name, "lora_A") })
		r.model = r.model.Joined(1)
		if b, ok := r.model.Modules[1].(*llamaBlock); ok && (b.joined.weight.exist() == adapters || b.gateUp.weight.exist() == adapters) {
			t.Errorf("joined %t and %t, with adapters %t", b.joined.weight.exist(), b.gateUp.weight.exist(), adapters)
		}
		r.train(SaveAll)
		if !slices.Equal(losses, r.bt.Loss.F32()) {
			t.Errorf("losses are %v, with separate products %v", r.bt.Loss.F32(), losses)
		}
		for name, dw := range r.named() {
			r.near(name, dw, 1, want[name], deep[r.dt])
		}
	})
}

// TestJoinedNeighbours checks that only weights that follow each other in a unit, all trained or
// all frozen, are joined.
func TestJoinedNeighbours(t *testing.T) {
	l := Llama{Shape: Shape{Layers: 1, Heads: 2, Width: 8, Context: 4, Vocab: 5}, KV: 1, FFN: 8, BiasQKV: true}
	named := func(part string) func(shard.Param) bool {
		return func(p shard.Param) bool { return strings.Contains(p.Name, part) }
	}
	for name, m := range map[string]*Model{
		"all":               l.Model().Joined(4),
		"all frozen":        l.Model().Frozen(named("proj")).Joined(1),
		"ruled":             l.Model().Ruled([]string{"a", "b"}, func(p shard.Param) int { return len(p.Shape) - 1 }).Joined(1),
		"gaps: no":          l.Model().Joined(8), // between biases
		"one frozen: no":    l.Model().Frozen(named("k_proj.weight")).Joined(1),
		"a bias frozen: no": l.Model().Frozen(named("v_proj.bias")).Joined(1),
		"a rule of its own: no": l.Model().Ruled([]string{"a", "b"}, func(p shard.Param) int {
			if named("q_proj.weight")(p) {
				return 1
			}
			return 0
		}).Joined(1),
	} {
		if got, want := m.Modules[1].(*llamaBlock).joined.weight.exist(), !strings.HasSuffix(name, ": no"); got != want {
			t.Errorf("%s: joined %t", name, got)
		}
	}
}
