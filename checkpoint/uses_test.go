package checkpoint

import (
	"slices"
	"strings"
	"testing"
)

// TestUses checks that a manifest lists the features it uses, if any, and that a reader refuses
// unknown features by name.
func TestUses(t *testing.T) {
	m := &manifest{Format: format, Seq: 1, Nonce: strings.Repeat("0", 32), Writers: 1, Files: []fileEntry{{Name: stateName, SHA256: digest(nil)}, {Name: partName(0), SHA256: digest(nil)}}}
	if b := string(mustJSON(m)); strings.Contains(b, `"uses"`) {
		t.Errorf("%s", b)
	}
	m.Tensors = []Tensor{{Name: "a", Kind: Previous}, {Name: "a", Kind: Master}, {Name: "b", Kind: Previous}}
	m.setUses()
	if want := []feature{"parameters from before the last update"}; !slices.Equal(m.Uses, want) {
		t.Errorf("uses %q, want %q", m.Uses, want)
	}
	known := string(mustJSON(m))
	if _, err := parseManifest([]byte(known)); err != nil && strings.Contains(err.Error(), "does not support") {
		t.Error(err)
	}
	m.Base = basePrefix + strings.Repeat("0", 64)
	m.setUses()
	if b := string(mustJSON(m)); !slices.Contains(m.Uses, "tensors in a base folder") || strings.Index(b, `"uses"`) > strings.Index(b, `"base"`) {
		t.Errorf("readers of earlier versions do not read first that there is a base folder: %s", b)
	}
	strange := strings.Replace(known, "parameters from before the last update", "quantum state", 1)
	if _, err := parseManifest([]byte(strange)); err == nil || !strings.Contains(err.Error(), `it uses "quantum state", which this version does not support`) {
		t.Errorf("error %v", err)
	}
}
