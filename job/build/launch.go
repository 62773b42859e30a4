package build

import (
	"runtime"

	"zeroth/collective"
	"zeroth/device/cpu"
	"zeroth/job/config"
	"zeroth/shard"
)

// Launch is how the ranks of a job are spread over processes, and what they talk
// through. No code above asks whether all of them live in this one.
type Launch interface {
	// Here is the ranks that live in this process, ascending.
	Here(m shard.Mesh) []int
	// Beside is how many ranks share this machine, those Here among them.
	Beside(m shard.Mesh) int
	// Before is how many of those come before the ranks Here.
	Before(m shard.Mesh) int
	// NCCL says that ranks on GPUs add up by NCCL, in communicators of their own.
	NCCL() bool
	// Staged says that what ranks exchange passes through memory that the host can
	// address.
	Staged() bool
	// HostsOf is the number of each world rank's host; nil if all ranks are of one
	// process, which needs no memory for what is on its way.
	HostsOf(m shard.Mesh) []int
	// Memory is where ranks take the memory from that their groups send, after Groups,
	// so that processes of one host can read it; nil: anywhere.
	Memory() cpu.Memory
	// Groups opens the groups of the ranks Here, in their order. The ranks close
	// them.
	Groups(m shard.Mesh) ([]collective.Ranks, error)
	// OnLate has recorders, of the ranks Here, ask all ranks for whom they wait when an
	// operation is late, and answer when others ask. Where all ranks are Here their groups
	// know that.
	OnLate(recs []*collective.Recorder)
	// Saves opens one more group of all ranks, in which checkpoints are made beside
	// training; likewise.
	Saves(m shard.Mesh) ([]collective.Group, error)
}

// OneProcess is the Launch of a job whose ranks are goroutines of this process.
type OneProcess struct{}

// Here is all ranks.
func (OneProcess) Here(m shard.Mesh) []int {
	all := make([]int, m.World())
	for r := range all {
		all[r] = r
	}
	return all
}

// Beside is all of them.
func (OneProcess) Beside(m shard.Mesh) int { return m.World() }

// Before is none.
func (OneProcess) Before(shard.Mesh) int { return 0 }

// NCCL is false: in one process it is used if the job says so.
func (OneProcess) NCCL() bool { return false }

// Staged is false: ranks of a process reach each other's memory.
func (OneProcess) Staged() bool { return false }

// Memory is nil: ranks of a process reach each other's memory.
func (OneProcess) Memory() cpu.Memory { return nil }

// HostsOf is nil.
func (OneProcess) HostsOf(shard.Mesh) []int { return nil }

// OnLate does nothing: groups in memory know for whom all wait.
func (OneProcess) OnLate([]*collective.Recorder) {}

// Groups are in memory.
func (OneProcess) Groups(m shard.Mesh) ([]collective.Ranks, error) {
	return collective.LocalWorld(m), nil
}

// Saves is one in memory.
func (OneProcess) Saves(m shard.Mesh) ([]collective.Group, error) {
	var groups []collective.Group
	for _, g := range collective.NewLocal(m.World()) {
		groups = append(groups, g)
	}
	return groups, nil
}

// Place notes in the job which of its ranks are this process's.
func Place(c *config.Config, l Launch) {
	m := config.Mesh(c)
	here := l.Here(m)
	if len(here) < m.World() {
		c.Parallel.Here = config.Here{First: here[0], Ranks: len(here), Before: l.Before(m), Beside: l.Beside(m), Staged: l.Staged(), NCCL: l.NCCL()}
	} else {
		c.Parallel.Here = config.Here{NCCL: l.NCCL() || c.On() == "cuda" && c.Parallel.Collective == "nccl"}
	}
	c.Parallel.Hosts = nil
	if !c.Parallel.Here.NCCL { // what it moves does not bounce
		c.Parallel.Hosts = l.HostsOf(m)
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
