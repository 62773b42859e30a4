package tests

import (
	"fmt"
	"testing"

	"zeroth/collective"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/shard"
	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// portion is the World of one of several simulated processes: some ranks of groups shared by all
// of them.
type portion struct {
	setup.Alone
	here   []int
	groups []collective.Ranks // groups of all ranks
}

func (p portion) Self() setup.Self {
	return setup.Self{At: collective.Placement{Local: p.here, HostRanks: len(p.groups), HostOffset: p.here[0]}}
}

func (p portion) Connect(shard.Mesh) (*setup.Connection, error) {
	c := &setup.Connection{}
	for _, r := range p.here {
		c.Groups = append(c.Groups, p.groups[r])
	}
	return c, nil
}

// TestRanksMayLiveElsewhere checks that a job whose ranks are opened in parts, each knowing only
// its own ranks, trains bit-identically to one opened as a whole.
func TestRanksMayLiveElsewhere(t *testing.T) {
	nightly.Parallel(t)
	for _, sets := range [][]string{
		{"parallel.ranks=4", "zero.stage=3"},
		{"parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2", "zero.stage=2", "train.accumulate=2"},
		{"parallel.ranks=3", "zero.stage=1", "zero.offload.optimizer=host"},
		{"parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2", "zero.stage=3", "optimizer.type=muon", "device=cpu"},
		{"parallel.ranks=4", "parallel.pipeline=2", "zero.stage=3", "train.accumulate=4"},
		{"parallel.ranks=4", "parallel.context=2", "zero.stage=2", "model.context=8"},
	} {
		c := cfg(t, sets...)
		want := trainWith(t, c, setup.Hooks{})
		groups := collective.LocalWorld(spec.Mesh(c))
		got, turn := zerotest.Outcome{State: map[string][]float32{}}, make(chan struct{}, 1)
		ends := make(chan error, 2)
		for _, here := range [][]int{{1}, ([]int{0, 2, 3})[:c.Parallel.Ranks-1]} {
			ranks, err := setup.Open(setup.InWorld(c, portion{here: here, groups: groups}, setup.Hooks{}))
			if err != nil {
				t.Fatal(err)
			}
			defer zerotest.CloseAll(ranks)
			for at, r := range ranks {
				if r.LocalIndex != at || r.Rank != here[at] {
					t.Errorf("%v: rank %d at place %d, want %d at %d", sets, r.Rank, r.LocalIndex, here[at], at)
				}
			}
			go func() { ends <- zerotest.TrainInto(c, ranks, &got, turn) }()
		}
		for range 2 {
			if err := <-ends; err != nil {
				t.Fatal(err)
			}
		}
		zerotest.SameBits(t, fmt.Sprint(sets), got, want)
	}
}
