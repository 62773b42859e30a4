package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/checkpoint/foreign"
)

const (
	plainFixture = "../../checkpoint/foreign/testdata/dcp/plain/pytorch_model.bin"
	dcpFixture   = "../../checkpoint/foreign/testdata/dcp/fsdp2-fp32-w2"
)

// TestImportNeedsTheStep checks that moments without a step are refused, because their bias
// correction is unknown.
func TestImportNeedsTheStep(t *testing.T) {
	f, err := OpenForeign(filepath.Join(dcpFixture, "step-3"), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Step, f.Skipped = 0, 0 // writes no step
	folder := filepath.Join(t.TempDir(), "dcp")
	if err := os.Mkdir(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteTorch(t.Context(), "dcp", folder, checkpoint.F32, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	g, err := OpenForeign(folder, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := g.Import(t.Context(), filepath.Join(t.TempDir(), "to"), checkpoint.Options{}, nil); err == nil || !strings.Contains(err.Error(), folder+" has moments of AdamW, but no step") {
		t.Error(err)
	}
}

// TestForeignNames checks that if a tensor has two names, the model may use the second, and that a
// parameter with an unsupported type, or stored only as another, is not reported as missing.
func TestForeignNames(t *testing.T) {
	const words, head = "transformer.wte.weight", "lm_head.weight"
	for _, test := range []struct {
		owner, want string // new name of the tensor with two names
		leftOut     []string
	}{
		{owner: head},
		{owner: "transformer.wpe.weight2", want: words + " is missing"},
		{owner: "other", leftOut: []string{words + " (F64)"}, want: words + " (F64) has a type that is not supported"},
	} {
		ck, err := foreign.Open(plainFixture)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		if err := ck.Rename(map[string]string{words: test.owner}); err != nil {
			t.Fatal(err)
		}
		ck.LeftOut, ck.Same = test.leftOut, map[string]string{}
		if test.want == "" {
			ck.Same[words] = test.owner
		}
		f := &Foreign{Checkpoint: ck}
		err = f.open(plainFixture, dcpFixture, "")
		if test.want == "" && (err != nil || f.names[head] != words || len(f.Spare) > 0) {
			t.Errorf("%v, names %v, spare %v", err, f.names, f.Spare)
		}
		if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
}
