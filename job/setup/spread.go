package setup

import (
	"zeroth/collective"
	"zeroth/job/config"
)

// Spread is a placement to plan for, not to run: ranks of so many processes, on so many
// hosts. The zero Spread is one process.
type Spread struct {
	Processes, Hosts int
	GPU              bool // ranks are on GPUs of their own, on hosts that have NCCL
}

// Of is the job as a run in this spread would place it: on GPUs ranks of several processes
// have NCCL, but for those that talk in secret.
func (s Spread) Of(c *config.Config) *Job {
	at := collective.InOneProcess(c.Parallel.Ranks)
	at.Local = at.Local[:len(at.Local)/max(1, s.Processes)]
	hosts := max(1, s.Hosts)
	at.HostRanks = (c.Parallel.Ranks + hosts - 1) / hosts
	at.NCCL = s.addsUp(c)
	at.Staged = s.Processes > 1 && !at.NCCL
	if s.Processes > 1 && !at.NCCL {
		at.Hosts = make([]int, c.Parallel.Ranks)
		for r := range at.Hosts {
			at.Hosts[r] = r * s.Hosts / len(at.Hosts)
		}
	}
	return &Job{Config: c, At: at}
}

// addsUp says whether ranks of the job have NCCL.
func (s Spread) addsUp(c *config.Config) bool {
	p := c.Parallel
	secret := p.TLS != (config.TLS{}) && p.Collective != "nccl"
	return s.GPU && !p.Master && (p.Collective == "nccl" || s.Processes > 1 && !secret)
}

// Communicators is how many ranks each communicator of a rank of the job would have in this spread.
func (s Spread) Communicators(c *config.Config) []int {
	return Communicators(&Job{Config: c, At: collective.Placement{NCCL: s.addsUp(c)}})
}
