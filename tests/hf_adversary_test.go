package tests

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"zeroth/device"
	"zeroth/job/hf"
	"zeroth/nn"
)

// TestAdversary compares the folders that testdata/hf-families/adversary.py drew: the
// logits of every position are transformers', or the folder is refused by name. What
// transformers refuses, we may read.
func TestAdversary(t *testing.T) {
	dir := os.Getenv("ZEROTH_ADVERSARY")
	if dir == "" {
		t.Skip("ZEROTH_ADVERSARY is no folder of adversary.py's")
	}
	found, err := filepath.Glob(filepath.Join(dir, "*", "expect.json"))
	if err != nil || len(found) == 0 {
		t.Fatalf("%s: %d folders, %v", dir, len(found), err)
	}
	equal, refused, neither := 0, 0, 0
	for _, path := range found {
		folder := filepath.Dir(path)
		var want struct {
			Config  json.RawMessage
			Logits  [][]float64 // in float64
			Error   float64     // of transformers' own, in float32
			Refused string
		}
		raw, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(raw, &want)
		}
		if err != nil {
			t.Fatal(err)
		}
		m, notes, err := hf.ReadModel(want.Config)
		switch {
		case err != nil:
			refused++
			t.Logf("%s: refused: %v (transformers: %q)", filepath.Base(folder), err, want.Refused)
			continue
		case want.Refused != "":
			neither++
			t.Logf("%s: transformers refuses: %s; we read %s, notes %q", filepath.Base(folder), want.Refused, want.Config, notes)
			continue
		}
		equal++
		ids := make([]int32, len(want.Logits))
		for i := range ids {
			ids[i] = int32(7 * i % 61)
		}
		net, weights, most, off := m.Network(nn.LoRA{}), readModel(t, folder), 0.0, 0.0
		for at, logit := range want.Logits {
			if m.Scaling.Kind == device.RopeLong && (at < m.Scaling.Context) != (len(ids) <= m.Scaling.Context) {
				continue // a text that ends here turns otherwise
			}
			for i, x := range logits(t, net, weights, ids, at) {
				most, off = max(most, math.Abs(logit[i])), max(off, math.Abs(logit[i]-float64(x)))
			}
		}
		if !(off <= 1e-5*most+4*want.Error) {
			t.Errorf("%s: %s is off by %.3g of %.3g, transformers' float32 by %.3g (notes %q)", filepath.Base(folder), want.Config, off, most, want.Error, notes)
		}
	}
	t.Logf("%d folders: %d equal or off, %d refused, %d that transformers alone refuses", len(found), equal, refused, neither)
}
