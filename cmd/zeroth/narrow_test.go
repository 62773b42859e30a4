//go:build unix

package main

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"zeroth/internal/input"
	"zeroth/job/hf"
	"zeroth/job/spec/spectest"
	"zeroth/nn"
	"zeroth/tests/nightly"
)

// TestExportRefusesOverflow checks that no format gets an infinity in place of a number that its type
// does not have: the tensor, the element and the value are named, and nothing is left.
func TestExportRefusesOverflow(t *testing.T) {
	nightly.Long(t)
	for _, c := range []struct {
		dtype, other, want string
		value              float32
	}{
		{"fp16", "bf16", "is -65520, which F16 rounds to infinity; want bf16 or fp32", -65520},
		{"bf16", "fp32", "is 3.4e+38, which BF16 rounds to infinity; want fp32", 3.4e38},
	} {
		folder := spectest.ModelFolder(t, hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 1, Heads: 2, Width: 8, Context: 8, Vocab: 16, Eps: 1e-5}})
		inFolder(t)
		path := filepath.Join(folder, "model.safetensors")
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		binary.LittleEndian.PutUint32(raw[len(raw)-8:], math.Float32bits(c.value)) // the last but one
		if err := os.WriteFile(path, raw, 0o666); err != nil {
			t.Fatal(err)
		}
		zeroth(t, 0, "ckpt", "import", folder, "--to", "ck")
		zeroth(t, 0, "ckpt", "export", "ck", "--to", "theirs", "--format", "torch")
		for _, from := range []string{"ck", "theirs"} {
			for _, form := range formats {
				to := from + "-" + form
				_, errs := zeroth(t, 2, "ckpt", "export", from, "--to", to, "--format", form, "--dtype", c.dtype)
				contains(t, errs, `element 126 of "transformer.wte.weight" `+c.want)
				if input.Exists(to) {
					t.Errorf("%s is left", to)
				}
				zeroth(t, 0, "ckpt", "export", from, "--to", to, "--format", form, "--dtype", c.other)
			}
		}
	}
}
