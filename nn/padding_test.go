package nn

import (
	"math"
	"slices"
	"testing"

	"zeroth/device"
)

// TestPadding checks that as an input, the padding token gives its embedding no gradient, and as an
// output, if tied, an unchanged one. All other rows must have the same bits as without padding.
func TestPadding(t *testing.T) {
	const pad = 12
	for _, tied := range []bool{false, true} {
		var got [2][]float32 // without padding, with padding
		for i := range got {
			r := newRig(t, llamaSubject("", Llama{Tied: tied, Padded: i == 1, Pad: pad}), device.F32)
			if !slices.Contains(r.input, pad) {
				t.Fatalf("no %d among the inputs %v", pad, r.input)
			}
			r.train(SaveAll)
			got[i] = slices.Clone(r.named()["model.embed_tokens.weight"].F32())
			for j := range got[i] {
				row := j / r.width
				if row == pad && math.IsNaN(float64(got[i][j])) || row != pad && got[0][j] != got[i][j] {
					t.Errorf("tied %t: element %d of row %d is %g, %g without padding", tied, j%r.width, row, got[i][j], got[0][j])
				}
			}
			if row := got[i][pad*r.width:][:r.width]; i == 1 && slices.Equal(row, make([]float32, r.width)) == tied {
				t.Errorf("tied %t: the gradient of the padding's row is %v", tied, row)
			}
		}
		if slices.Equal(got[0], got[1]) {
			t.Errorf("tied %t: padding changes nothing", tied)
		}
	}
}
