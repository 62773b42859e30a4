package hf

import (
	"testing"

	"zeroth/nn"
)

// TestPublishedCounts compares the parameters of each built-in shape with the number that
// the model's page on the Hub shows.
func TestPublishedCounts(t *testing.T) {
	if n := len(Published()); n < 20 {
		t.Fatalf("%d published models", n)
	}
	for _, s := range Published() {
		m, _, err := ReadModel(s.Config)
		if err != nil {
			t.Errorf("%s: %v", s.Name, err)
			continue
		}
		n := int64(0)
		for _, p := range Parameters(m.Network(nn.LoRA{})) {
			n += int64(p.Numel())
		}
		if n != s.Parameters {
			t.Errorf("%s has %d parameters, its page says %d", s.Name, n, s.Parameters)
		}
		if found, ok := FindPublished(s.Repository); !ok || found.Name != s.Name {
			t.Errorf("%s is found as %q", s.Repository, found.Name)
		}
	}
	if _, ok := FindPublished("llama-3-8b"); !ok {
		t.Error("the name's case matters")
	}
}
