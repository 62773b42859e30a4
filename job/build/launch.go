package build

import (
	"runtime"

	"zeroth/collective"
	"zeroth/device/cpu"
	"zeroth/job/config"
	"zeroth/shard"
)

// Launch spreads the ranks of a job over processes and connects them. No code above asks
// whether all ranks live in this process.
type Launch interface {
	// Place returns where the ranks of a mesh are.
	Place(m shard.Mesh) collective.Placement
	// Groups opens the groups of the ranks in this process, in their order. The ranks
	// close them.
	Groups(m shard.Mesh) ([]collective.Ranks, error)
	// Saves opens one more group of all ranks, in which checkpoints are made during
	// training; likewise, and after Groups.
	Saves(m shard.Mesh) ([]collective.Group, error)
	// Memory returns where ranks allocate what their groups send, so that processes of one
	// host can read it; nil: anywhere. It comes after Groups.
	Memory() cpu.Memory
	// OnLate makes the recorders of the ranks in this process ask all ranks whom they wait
	// for when an operation is late, and answer when others ask.
	OnLate(recs []*collective.Recorder)
}

// OneProcess is the Launch of a job whose ranks are goroutines of this process. They reach
// each other's memory, and their groups know whom all wait for.
type OneProcess struct{}

// Place implements Launch.
func (OneProcess) Place(m shard.Mesh) collective.Placement {
	all := make([]int, m.World())
	for r := range all {
		all[r] = r
	}
	return collective.Placement{Here: all, Beside: len(all)}
}

// Groups implements Launch.
func (OneProcess) Groups(m shard.Mesh) ([]collective.Ranks, error) {
	return collective.LocalWorld(m), nil
}

// Saves implements Launch.
func (OneProcess) Saves(m shard.Mesh) ([]collective.Group, error) {
	var groups []collective.Group
	for _, g := range collective.NewLocal(m.World()) {
		groups = append(groups, g)
	}
	return groups, nil
}

// Memory implements Launch.
func (OneProcess) Memory() cpu.Memory { return nil }

// OnLate implements Launch.
func (OneProcess) OnLate([]*collective.Recorder) {}

// Place notes in the job which of its ranks are this process's.
func Place(c *config.Config, l Launch) {
	m := config.Mesh(c)
	at := l.Place(m)
	if len(at.Here) < m.World() {
		c.Parallel.Here = config.Here{First: at.Here[0], Ranks: len(at.Here), Before: at.Before, Beside: at.Beside, Staged: at.Staged, NCCL: at.NCCL}
	} else {
		c.Parallel.Here = config.Here{NCCL: at.NCCL || c.On() == "cuda" && c.Parallel.Collective == "nccl"}
	}
	c.Parallel.Hosts = nil
	if !c.Parallel.Here.NCCL { // what it moves does not bounce
		c.Parallel.Hosts = at.Hosts
	}
}

// Workers is how many of the machine's processors a rank's kernels are split
// over where all ranks of the job share them.
func Workers(c *config.Config) int { return shareOf(c.Parallel.Ranks) }

// shareOf is one rank's share of the processors among so many.
func shareOf(ranks int) int { return max(1, usable/ranks) }

// usable is how many processors the process may use, before it has left some to others of
// its host.
var usable = runtime.GOMAXPROCS(0)
