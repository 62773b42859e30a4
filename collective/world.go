package collective

import (
	"errors"
	"iter"
	"slices"

	"zeroth/shard"
)

// Ranks is one rank's end of the groups of a mesh.
type Ranks struct {
	World   Group // all ranks
	Shard   Group // those that together hold one copy of the state
	Replica Group // those that hold the same part of it
	Ends    Group // the replicas at both ends of a pipeline; nil at other stages, and without a pipeline
	Tensor  Group // those that divide matrices between them; nil if none do
	Updates Group // the same ranks, for updates of whole matrices beside that
	Joint   Group // of these and Shard together, or if that is the rank alone, Replica; nil as Tensor
	Context Group // those that divide positions between them; nil if none do

	// Links are the rank's ends of links in a pipeline: groups of two, of which rank 0 sends
	// and rank 1 receives. Without a pipeline they are nil.
	Links [PipelineLinks]Group
}

// Link is what a link of a pipeline's rank is for.
type Link uint8

// The links of a rank. Stages go around: the last rank's next is the first.
const (
	ToNext        Link = iota // outputs of a stage
	FromPrevious              // those of the stage before
	ToPrevious                // gradients of a stage's input
	FromNext                  // those of the stage behind
	PipelineLinks             // how many there are
)

// Role is what a group of a mesh is for.
type Role uint8

// The roles of groups, in the order in which they are opened.
const (
	World Role = iota
	Saves      // all ranks, for checkpoints that are made beside training
	Shard
	Replica
	Ends
	Tensor
	Updates
	Joint
	Context
	Forward  // links from each stage to the next
	Backward // and to the one before
	roles
)

func (r Role) String() string {
	return [roles]string{"world", "saves", "shard", "replica", "ends", "tensor", "updates", "joint", "context", "forward link", "backward link"}[r]
}

// of returns where the rank's group of a role is, in which it is at a place; nil for Saves,
// which others hold.
func (r *Ranks) of(role Role, at int) *Group {
	return [roles]*Group{&r.World, nil, &r.Shard, &r.Replica, &r.Ends, &r.Tensor, &r.Updates, &r.Joint, &r.Context,
		&r.Links[ToNext+Link(at&1)], &r.Links[ToPrevious+Link(at&1)]}[role]
}

// All yields the groups that the rank has.
func (r *Ranks) All() iter.Seq2[Role, *Group] {
	return func(yield func(Role, *Group) bool) {
		for role := range roles {
			for at := range 2 {
				if g := r.of(role, at); g != nil && *g != nil && (at == 0 || role >= Forward) && !yield(role, g) {
					return
				}
			}
		}
	}
}

// Ordered is All in the order in which groups are opened, of which those of all ranks are
// parts.
func (r *Ranks) Ordered() iter.Seq2[Role, *Group] {
	return func(yield func(Role, *Group) bool) {
		for role, g := range r.All() {
			if role < Forward && !yield(role, g) {
				return
			}
		}
		if r.Links[ToNext] == nil {
			return
		}
		links := []Link{FromPrevious, ToPrevious, ToNext, FromNext}
		if from := inspectable(r.Links[FromPrevious]); from.Name(0) > from.Name(1) { // the last stage's next is the first
			links = []Link{ToNext, FromNext, FromPrevious, ToPrevious}
		}
		for _, l := range links {
			if role := Forward + Role(l/2); !yield(role, &r.Links[l]) {
				return
			}
		}
	}
}

// Close closes the rank's groups.
func (r *Ranks) Close() error {
	var errs []error
	for _, g := range r.All() {
		errs = append(errs, (*g).Close())
	}
	return errors.Join(errs...)
}

// opened is a group of a mesh: its role and its world ranks.
type opened struct {
	role  Role
	ranks []int
}

// table lists the groups of a mesh.
func table(m shard.Mesh) (all []opened) {
	add := func(role Role, groups [][]int) {
		for _, g := range groups {
			all = append(all, opened{role, g})
		}
	}
	for _, of := range dimensions(m) {
		if of.role == Ends {
			add(Ends, bothEnds(m))
			continue
		}
		add(of.role, m.Groups(of.axes...))
	}
	if m.Pipeline > 1 {
		for _, g := range m.Groups(shard.Pipeline) {
			for i, r := range g {
				next := g[(i+1)%len(g)]
				add(Forward, [][]int{{r, next}})
				add(Backward, [][]int{{next, r}})
			}
		}
	}
	return all
}

// along is a role of groups and the dimensions in which their ranks differ.
type along struct {
	role Role
	axes []shard.Axis
}

// dimensions lists the roles of a mesh's groups but those of links. Groups for Ends lack the ranks
// between the first and the last stage.
func dimensions(m shard.Mesh) []along {
	world := []shard.Axis{shard.Pipeline, shard.Replicate, shard.Shard, shard.Context, shard.Tensor}
	share, same := m.Holders()
	all := []along{{World, world}, {Saves, world}, {Shard, share}, {Replica, same}}
	if m.Pipeline > 1 {
		all = append(all, along{Ends, append([]shard.Axis{shard.Pipeline}, same...)})
	}
	if m.Tensor > 1 {
		inner := []shard.Axis{shard.Tensor}
		all = append(all, along{Tensor, inner}, along{Updates, inner}, along{Joint, JointAxes(m)})
	}
	if m.Context > 1 {
		all = append(all, along{Context, []shard.Axis{shard.Context}})
	}
	return all
}

// JointAxes returns the dimensions in which ranks of a Joint group differ.
func JointAxes(m shard.Mesh) []shard.Axis {
	share, same := m.Holders()
	if m.Size(share...) > 1 {
		return append(share, shard.Tensor)
	}
	return append(same, shard.Tensor)
}

// MeshGroups returns the world ranks of each group of a mesh. A carrier between processes
// knows the groups by their places in it; that of the one group for Saves is SavesGroup.
func MeshGroups(m shard.Mesh) (groups [][]int) {
	for _, of := range table(m) {
		groups = append(groups, of.ranks)
	}
	return groups
}

// RoleGroups returns the world ranks of each group of a mesh that has a role.
func RoleGroups(m shard.Mesh, role Role) (groups [][]int) {
	for _, of := range table(m) {
		if of.role == role {
			groups = append(groups, of.ranks)
		}
	}
	return groups
}

// SavesGroup is the place of the group for Saves in MeshGroups.
const SavesGroup = 1

// bothEnds lists the groups of ranks with the same shard at the first and the last stage.
func bothEnds(m shard.Mesh) (groups [][]int) {
	_, same := m.Holders()
	for _, g := range m.Groups(append(same, shard.Pipeline)...) {
		groups = append(groups, slices.DeleteFunc(g, func(r int) bool {
			at := m.At(r, shard.Pipeline)
			return at > 0 && at < m.Pipeline-1
		}))
	}
	return groups
}

// LocalWorld opens the groups of a mesh of goroutine ranks; element r is world
// rank r's. All errors name world ranks. A rank that loses a peer in one of its
// groups and closes the others passes that peer's name on, so even ranks that
// share no group with the first rank that closed are told which it was.
func LocalWorld(m shard.Mesh) []Ranks {
	ranks, failures := make([]Ranks, m.World()), make([]*failure, m.World())
	for r := range failures {
		failures[r] = &failure{why: ErrPeerLost{r}}
	}
	for _, of := range table(m) {
		if of.role == Saves {
			continue
		}
		theirs := make([]*failure, len(of.ranks))
		for i, r := range of.ranks {
			theirs[i] = failures[r]
		}
		for i, l := range newLocal(of.ranks, theirs) {
			*ranks[of.ranks[i]].of(of.role, i) = l
		}
	}
	return ranks
}

// WiredWorld is the groups of world rank r over wires: wire gives the end that
// rank at has in a group of MeshGroups. As in LocalWorld, the rank passes on whom
// it lost in one of its groups.
func WiredWorld(m shard.Mesh, r int, wire func(group, at int) Wire) (ranks Ranks) {
	f := &failure{why: ErrPeerLost{r}}
	for i, of := range table(m) {
		if at := slices.Index(of.ranks, r); at >= 0 && of.role != Saves {
			*ranks.of(of.role, at) = newWired(wire(i, at), f, Cheapest)
		}
	}
	return ranks
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
