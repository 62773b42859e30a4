package build

import (
	"strings"
	"testing"

	"zeroth/job/hf"
)

// Models that have no kernels on GPUs are refused by what they have.
func TestGPUsLack(t *testing.T) {
	for want, m := range map[string]hf.Model{
		"":                       {Width: 16384, Heads: 128},
		"heads 264 wide":         {Width: 1024, Heads: 4, HeadWidth: 264},
		"rows of 16640 elements": {Width: 16640, Heads: 130},
		"rows of 20480 elements": {Width: 8192, Heads: 80, HeadWidth: 256},
	} {
		if said := lacks(m); (want == "") != (said == "") || !strings.Contains(said, want) {
			t.Errorf("width %d, %d heads %d wide: %q, want %q", m.Width, m.Heads, m.Head(), said, want)
		}
	}
}
