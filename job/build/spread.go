package build

import (
	"zeroth/collective"
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

// Place implements Launch for the first process.
func (p placed) Place(m shard.Mesh) collective.Placement {
	at := p.OneProcess.Place(m)
	at.Here = at.Here[:m.World()/max(1, p.Processes)]
	hosts := max(1, p.Hosts)
	at.Beside = (m.World() + hosts - 1) / hosts
	at.NCCL, at.Staged = p.nccl, p.Processes > 1 && !p.nccl
	if p.Processes > 1 {
		at.Hosts = make([]int, m.World())
		for r := range at.Hosts {
			at.Hosts[r] = r * p.Hosts / len(at.Hosts)
		}
	}
	return at
}
