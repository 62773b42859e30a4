package collective

import (
	"errors"
	"iter"
	"slices"
	"sync"

	"zeroth/shard"
)

// Ranks holds one rank's ends of the groups of a mesh.
type Ranks struct {
	World   Group // all ranks
	Shard   Group // ranks that together hold one copy of the state
	Replica Group // ranks that hold the same shard
	Ends    Group // Replica of the first and the last pipeline stage together; nil on other stages and without a pipeline
	Tensor  Group // ranks that divide matrices (tensor parallelism); nil if none do
	Updates Group // the ranks of Tensor, for whole-matrix updates that overlap other operations
	Joint   Group // Tensor and Shard together (Replica if Shard is one rank); nil if Tensor is
	Context Group // ranks that divide positions (context parallelism); nil if none do
	Experts Group // ranks that divide experts, together with those of Tensor; nil if none do

	// Shard, Replica and Joint of experts; nil if Experts is.
	ExpertShard, ExpertReplica, ExpertJoint Group

	// Links are the rank's pipeline links: groups of two in which rank 0 sends and rank 1 receives.
	// They are nil without a pipeline.
	Links [PipelineLinks]Group
}

// Link is the purpose of one of a rank's pipeline links.
type Link uint8

// The links of a rank. Stages form a ring: the first stage follows the last.
const (
	ToNext        Link = iota // outputs of this stage
	FromPrevious              // outputs of the previous stage
	ToPrevious                // gradients of this stage's input
	FromNext                  // gradients of the next stage's input
	PipelineLinks             // number of links
)

// Role is the purpose of a group of a mesh.
type Role uint8

// The roles of groups, in the order in which they are opened.
const (
	World Role = iota
	Saves      // all ranks, for checkpoints saved while training continues
	Shard
	Replica
	Ends
	Tensor
	Updates
	Joint
	Context
	Experts
	ExpertShard
	ExpertReplica
	ExpertJoint
	Forward  // links from each stage to the next
	Backward // links from each stage to the previous one
	roles
)

func (r Role) String() string {
	return [roles]string{"world", "saves", "shard", "replica", "ends", "tensor", "updates", "joint", "context", "experts", "expert shard", "expert replica", "expert joint", "forward link", "backward link"}[r]
}

// slot returns the field for the group of a role in which the rank has index at, or nil for Saves,
// which is not a field.
func (r *Ranks) slot(role Role, at int) *Group {
	return [roles]*Group{&r.World, nil, &r.Shard, &r.Replica, &r.Ends, &r.Tensor, &r.Updates, &r.Joint, &r.Context,
		&r.Experts, &r.ExpertShard, &r.ExpertReplica, &r.ExpertJoint,
		&r.Links[ToNext+Link(at&1)], &r.Links[ToPrevious+Link(at&1)]}[role]
}

// All yields the rank's groups.
func (r *Ranks) All() iter.Seq2[Role, *Group] {
	return func(yield func(Role, *Group) bool) {
		for role := range roles {
			for at := range 2 {
				if g := r.slot(role, at); g != nil && *g != nil && (at == 0 || role >= Forward) && !yield(role, g) {
					return
				}
			}
		}
	}
}

// Ordered yields the groups in the order in which they are opened, which is consistent across
// ranks.
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
		if from := inspectable(r.Links[FromPrevious]); from.Name(0) > from.Name(1) { // the next stage of the last one is the first
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

// meshGroup is the role and the world ranks of a group.
type meshGroup struct {
	role  Role
	ranks []int
}

// table lists the groups of a mesh.
func table(m shard.Mesh) (all []meshGroup) {
	add := func(role Role, groups [][]int) {
		for _, g := range groups {
			all = append(all, meshGroup{role, g})
		}
	}
	for _, g := range dimensions(m) {
		if g.role == Ends {
			add(Ends, bothEnds(m))
			continue
		}
		add(g.role, m.Groups(g.axes...))
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

// groupAxes is a role with the dimensions along which the group's ranks differ.
type groupAxes struct {
	role Role
	axes []shard.Axis
}

// dimensions lists the roles of a mesh's groups, except links. Here, Ends groups also contain the
// ranks of inner pipeline stages.
func dimensions(m shard.Mesh) []groupAxes {
	world := []shard.Axis{shard.Pipeline, shard.Replicate, shard.Shard, shard.Expert, shard.Context, shard.Tensor}
	share, same := m.Holders()
	all := []groupAxes{{World, world}, {Saves, world}, {Shard, share}, {Replica, same}}
	if m.Pipeline > 1 {
		all = append(all, groupAxes{Ends, append([]shard.Axis{shard.Pipeline}, same...)})
	}
	if m.Tensor > 1 {
		inner := []shard.Axis{shard.Tensor}
		all = append(all, groupAxes{Tensor, inner}, groupAxes{Updates, inner}, groupAxes{Joint, JointAxes(m, m.Holders)})
	}
	if m.Context > 1 {
		all = append(all, groupAxes{Context, []shard.Axis{shard.Context}})
	}
	if m.Expert > 1 {
		share, same := m.ExpertHolders()
		all = append(all, groupAxes{Experts, []shard.Axis{shard.Expert, shard.Tensor}}, groupAxes{ExpertShard, share}, groupAxes{ExpertReplica, same})
		if m.Tensor > 1 {
			all = append(all, groupAxes{ExpertJoint, JointAxes(m, m.ExpertHolders)})
		}
	}
	return all
}

// JointAxes returns the dimensions along which the ranks of a Joint group differ, given those of Shard and Replica.
func JointAxes(m shard.Mesh, holders func() (share, same []shard.Axis)) []shard.Axis {
	share, same := holders()
	if m.Size(share...) > 1 {
		return append(share, shard.Tensor)
	}
	return append(same, shard.Tensor)
}

// MeshGroups returns the world ranks of each group of a mesh. Transports identify groups by their
// index in it; the group for Saves has index SavesGroup.
func MeshGroups(m shard.Mesh) (groups [][]int) {
	for _, g := range table(m) {
		groups = append(groups, g.ranks)
	}
	return groups
}

// RoleGroups returns the world ranks of each group with a role.
func RoleGroups(m shard.Mesh, role Role) (groups [][]int) {
	for _, g := range table(m) {
		if g.role == role {
			groups = append(groups, g.ranks)
		}
	}
	return groups
}

// SavesGroup is the index of the group for Saves in MeshGroups.
const SavesGroup = 1

// bothEnds lists the groups of ranks of the first and the last stage that hold the same shard.
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

// LocalWorld opens the groups of a mesh of goroutine ranks; element r belongs to world rank r.
// Errors name world ranks. A rank that loses a peer in one group and closes the others passes on
// the peer's name, so that ranks that share no group with the rank that closed first name it, too.
func LocalWorld(m shard.Mesh) []Ranks {
	ranks, failures := make([]Ranks, m.World()), make([]*failure, m.World())
	for r := range failures {
		failures[r] = &failure{why: ErrPeerLost{r}}
	}
	for _, g := range table(m) {
		if g.role == Saves {
			continue
		}
		theirs := make([]*failure, len(g.ranks))
		for i, r := range g.ranks {
			theirs[i] = failures[r]
		}
		for i, l := range newLocal(g.ranks, theirs) {
			*ranks[g.ranks[i]].slot(g.role, i) = l
		}
	}
	return ranks
}

// WiredWorld opens the groups of world rank r over wires; wire returns the end of the rank with
// index at in a group of MeshGroups. As in LocalWorld, a rank passes on the name of the peer it
// lost.
func WiredWorld(m shard.Mesh, r int, wire func(group, at int) Wire) (ranks Ranks) {
	f := &failure{}
	for i, g := range table(m) {
		if at := slices.Index(g.ranks, r); at >= 0 && g.role != Saves {
			w := wire(i, at)
			f.why = ErrPeerLost{w.Name(at)} // may differ from r, if ranks of a larger world were lost
			*ranks.slot(g.role, at) = newWired(w, f, Cheapest)
		}
	}
	return ranks
}

// Placement describes where the ranks of a job run, as seen from one process.
type Placement struct {
	Local      []int // world ranks in this process, ascending; read-only
	HostRanks  int   // number of ranks on this machine, including Local
	HostOffset int   // number of those that precede Local
	NCCL       bool  // GPU ranks reduce with NCCL, in communicators of their own
	Staged     bool  // exchanged data passes through memory that the host can address
	Hosts      []int // host number of each world rank; nil if all ranks are in one process
}

// InOneProcess returns the placement of a number of ranks in one process.
func InOneProcess(ranks int) Placement { return Placement{Local: firstRanks(ranks), HostRanks: ranks} }

// first holds the ranks that firstRanks has returned the beginning of; a search for settings asks
// for those of 16,384 ranks thousands of times.
var first struct {
	sync.Mutex
	ranks []int
}

// firstRanks returns the ranks below n, shared by all callers.
func firstRanks(n int) []int {
	first.Lock()
	defer first.Unlock()
	for r := len(first.ranks); r < n; r++ {
		first.ranks = append(first.ranks, r)
	}
	return first.ranks[:n:n]
}
