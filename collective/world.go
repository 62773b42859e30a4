package collective

import (
	"errors"
	"slices"

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

// SavesGroup is the number in MeshGroups of the group for checkpoints.
const SavesGroup = 1

// MeshGroups is the world ranks of each group that the ranks of a mesh use over
// wires: all ranks; all ranks once more, for checkpoints that are made beside
// training; each shard group; each replica group.
func MeshGroups(m shard.Mesh) [][]int {
	all := make([]int, m.World())
	for r := range all {
		all[r] = r
	}
	groups := [][]int{all, all}
	for r := range all {
		if m.ShardRank(r) == 0 {
			groups = append(groups, m.ShardGroup(r))
		}
	}
	for r := range all {
		if m.ReplicaRank(r) == 0 {
			groups = append(groups, m.ReplicaGroup(r))
		}
	}
	return groups
}

// WiredWorld is the groups of world rank r over wires: wire gives the end that
// rank at has in a group of MeshGroups. As in LocalWorld, the rank passes on whom
// it lost in one of its groups.
func WiredWorld(m shard.Mesh, r int, wire func(group, at int) Wire) Ranks {
	f := &failure{why: ErrPeerLost{r}}
	var mine []Group // world, shard, replica
	for i, names := range MeshGroups(m) {
		if at := slices.Index(names, r); at >= 0 && i != SavesGroup {
			mine = append(mine, newWired(wire(i, at), f, Cheapest))
		}
	}
	return Ranks{World: mine[0], Shard: mine[1], Replica: mine[2]}
}

// Placement is where the ranks of a job are, as seen from one process.
type Placement struct {
	Here   []int // world ranks in this process, ascending
	Beside int   // ranks that share this machine, those Here among them
	Before int   // of those, how many come before the ranks Here
	NCCL   bool  // ranks on GPUs add up by NCCL, in communicators of their own
	Staged bool  // what ranks exchange passes through memory that the host can address
	Hosts  []int // the number of each world rank's host; nil: all ranks are in one process
}

// InOneProcess is the placement of so many ranks in one process.
func InOneProcess(ranks int) Placement {
	at := Placement{Here: make([]int, ranks), Beside: ranks}
	for r := range ranks {
		at.Here[r] = r
	}
	return at
}
