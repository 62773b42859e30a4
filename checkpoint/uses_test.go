package checkpoint

import (
	"slices"
	"strings"
	"testing"
)

// A manifest lists what not every program knows, and a reader refuses what it does not know, by
// name. One that uses nothing of the kind says nothing.
func TestUses(t *testing.T) {
	m := &manifest{Format: format, Seq: 1, Nonce: strings.Repeat("0", 32), Writers: 1, Files: []fileEntry{{Name: stateName, SHA256: digest(nil)}, {Name: partName(0), SHA256: digest(nil)}}}
	if b := string(mustJSON(m)); strings.Contains(b, `"uses"`) {
		t.Errorf("%s", b)
	}
	m.Uses = uses([]Tensor{{Name: "a", Kind: Previous}, {Name: "a", Kind: Master}, {Name: "b", Kind: Previous}}, format)
	if want := []string{"parameters from before the last update"}; !slices.Equal(m.Uses, want) {
		t.Errorf("uses %q, want %q", m.Uses, want)
	}
	known := string(mustJSON(m))
	if _, err := parseManifest([]byte(known)); err != nil && strings.Contains(err.Error(), "does not know") {
		t.Error(err)
	}
	strange := strings.Replace(known, "parameters from before the last update", "quantum state", 1)
	if _, err := parseManifest([]byte(strange)); err == nil || !strings.Contains(err.Error(), `it uses "quantum state", which this program does not know`) {
		t.Errorf("error %v", err)
	}
}
