package collective

import (
	"reflect"
	"slices"
	"testing"

	"zeroth/shard"
)

// TestDryWorldIsTheTables compares the ranks and sizes of dry groups with the table of groups of a
// mesh.
func TestDryWorldIsTheTables(t *testing.T) {
	for _, m := range []shard.Mesh{
		{}, {Shard: 3}, {Replicate: 2, Shard: 2}, {Shard: 2, Tensor: 2}, {Replicate: 3, Tensor: 2}, {Pipeline: 2}, {Pipeline: 2, Replicate: 2},
		{Pipeline: 3, Replicate: 2, Shard: 2}, {Pipeline: 4, Replicate: 2, Shard: 3, Tensor: 2},
	} {
		for r := range m.World() {
			var want Ranks
			for _, of := range table(m) {
				if at := slices.Index(of.ranks, r); at >= 0 && of.role != Saves {
					*want.slot(of.role, at) = newDry(at, len(of.ranks))
				}
			}
			if got := DryWorld(m, r); !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, rank %d: %+v, want %+v", m, r, got, want)
			}
		}
	}
}
