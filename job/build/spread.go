package build

import (
	"zeroth/job/config"
	"zeroth/shard"
)

// Spread is a Launch to plan for, not to run: ranks of so many processes, on so many
// hosts. The zero Spread is one process.
type Spread struct {
	OneProcess
	Processes, Hosts int
	GPU              bool // ranks are on GPUs of their own, on hosts that have NCCL
}

// Of is the job as a run in this spread would place it: on GPUs ranks of several processes
// have NCCL, but for those that talk in secret.
func (s Spread) Of(c *config.Config) *config.Config {
	x := *c
	Place(&x, placed{s, s.addsUp(c)})
	return &x
}

// addsUp says whether ranks of the job have NCCL.
func (s Spread) addsUp(c *config.Config) bool {
	p := c.Parallel
	secret := p.TLS != (config.TLS{}) && p.Collective != "nccl"
	return s.GPU && (p.Collective == "nccl" || s.Processes > 1 && !secret)
}

// Communicators are those that a rank of the job would have in this spread.
func (s Spread) Communicators(c *config.Config) []Communicator {
	x := *c
	x.Parallel.Here.NCCL = s.addsUp(c)
	return Communicators(&x)
}

// placed is a Spread of ranks that add up by NCCL, or do not.
type placed struct {
	Spread
	nccl bool
}

func (p placed) NCCL() bool   { return p.nccl }
func (p placed) Staged() bool { return p.Processes > 1 && !p.nccl }

// Here is the ranks of the first process.
func (s Spread) Here(m shard.Mesh) []int {
	return s.OneProcess.Here(m)[:m.World()/max(1, s.Processes)]
}

// Beside is the ranks of a host.
func (s Spread) Beside(m shard.Mesh) int {
	hosts := max(1, s.Hosts)
	return (m.World() + hosts - 1) / hosts
}

// HostsOf is the numbers of the ranks' hosts.
func (s Spread) HostsOf(m shard.Mesh) []int {
	if s.Processes <= 1 {
		return nil
	}
	of := make([]int, m.World())
	for r := range of {
		of[r] = r * s.Hosts / len(of)
	}
	return of
}
