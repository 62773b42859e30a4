package nn

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// TestOneFrozen freezes each parameter of each model: it must have no gradient, and those of all
// others must have the same bits.
func TestOneFrozen(t *testing.T) {
	nightly.Parallel(t)
	for _, c := range subjects {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c, device.F32)
			grads := func() (all [][][]byte) {
				r.train(SaveAll)
				for _, dw := range r.dw {
					var own [][]byte
					for _, b := range dw {
						if b.N > 0 {
							own = append(own, bytes.Clone(b.Raw()))
						} else {
							own = append(own, nil)
						}
					}
					all = append(all, own)
				}
				return all
			}
			want := grads()
			for i, m := range r.model.Modules {
				for j, p := range m.Params() {
					had := r.dw[i][j]
					r.dw[i][j] = device.Buffer{} // also for modules that share the unit
					for k, own := range grads() {
						for l, g := range own {
							if g != nil && !bytes.Equal(g, want[k][l]) {
								t.Errorf("%s frozen: the gradient of %s differs", p.Name, r.model.Modules[k].Params()[l].Name)
							}
						}
					}
					r.dw[i][j] = had
				}
			}
		})
	}
}

// TestFrozenUnits checks that units with both kinds of parameters are split where they meet,
// consistently in all modules that use them.
func TestFrozenUnits(t *testing.T) {
	g := GPT2{Shape: Shape{Layers: 2, Heads: 1, Width: 4, Context: 4, Vocab: 5}}
	m := g.Model().Frozen(func(p shard.Param) bool { return strings.Contains(p.Name, "wpe") || strings.Contains(p.Name, ".h.1.") })
	var names []string
	for _, u := range m.Units() {
		for _, p := range u.Params {
			if p.Frozen != u.Params[0].Frozen {
				t.Errorf("unit %s has both kinds", u.Name)
			}
		}
		if u.Params[0].Frozen {
			names = append(names, u.Name)
		}
	}
	if want := []string{"root+1", "h.1"}; !slices.Equal(names, want) || len(m.Units()) != 5 {
		t.Errorf("of %d units %v are frozen, want %v", len(m.Units()), names, want)
	}
}
