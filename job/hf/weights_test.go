package hf

import (
	"testing"

	"zeroth/nn"
)

// TestParameters checks that every parameter is listed once, even if its unit is used twice.
func TestParameters(t *testing.T) {
	g := nn.GPT2{Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 8, Vocab: 32}}
	n, names := 0, map[string]bool{}
	for _, p := range Parameters(g.Model()) {
		if names[p.Name] {
			t.Errorf("%s twice", p.Name)
		}
		names[p.Name] = true
		n += p.Numel()
	}
	if want := (32+8)*8 + 2*8 + 2*(12*8*8+13*8); n != want {
		t.Errorf("%d elements, want %d", n, want)
	}
}
