package collective

import (
	"errors"

	"zeroth/shard"
)

// Ranks is one rank's end of the groups of a mesh: all ranks; those that
// together hold one copy of the state; those that hold the same part of it.
type Ranks struct{ World, Shard, Replica Group }

// Close closes the rank's three groups.
func (r Ranks) Close() error {
	return errors.Join(r.World.Close(), r.Shard.Close(), r.Replica.Close())
}

// LocalWorld opens the groups of a mesh of goroutine ranks; element r is world
// rank r's. All errors name world ranks. A rank that loses a peer in one of its
// groups and closes the others passes that peer's name on, so even ranks that
// share no group with the first rank that closed are told which it was.
func LocalWorld(m shard.Mesh) []Ranks {
	n := m.World()
	all, failures := make([]int, n), make([]*failure, n)
	for r := range all {
		all[r], failures[r] = r, &failure{why: ErrPeerLost{r}}
	}
	ranks := make([]Ranks, n)
	open := func(names []int, place func(*Ranks) *Group) {
		theirs := make([]*failure, len(names))
		for i, r := range names {
			theirs[i] = failures[r]
		}
		for i, l := range newLocal(names, theirs) {
			*place(&ranks[names[i]]) = l
		}
	}
	open(all, func(r *Ranks) *Group { return &r.World })
	for r := range n {
		if m.ShardRank(r) == 0 {
			open(m.ShardGroup(r), func(r *Ranks) *Group { return &r.Shard })
		}
		if m.ReplicaRank(r) == 0 {
			open(m.ReplicaGroup(r), func(r *Ranks) *Group { return &r.Replica })
		}
	}
	return ranks
}
