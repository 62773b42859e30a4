package setup

import (
	"zeroth/collective"
	"zeroth/config"
	"zeroth/job/spec"
)

// Spread is a placement for planning, not for running: ranks in processes on hosts. The zero
// Spread is one process.
type Spread struct {
	Processes, Hosts int
	GPU              bool // each rank has a GPU, and hosts have NCCL
}

// Of returns the job as a run would place it. Ranks on GPUs of several processes use NCCL unless
// their traffic is encrypted.
func (s Spread) Of(c *spec.Job) *Job {
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
	return &Job{Job: c, At: at}
}

// addsUp reports whether ranks of the job use NCCL.
func (s Spread) addsUp(c *spec.Job) bool {
	p := c.Parallel
	secret := p.TLS != (config.TLS{}) && p.Collective != "nccl"
	return s.GPU && !p.Master && (p.Collective == "nccl" || s.Processes > 1 && !secret)
}

// Communicators returns the number of a rank's communicators in this spread.
func (s Spread) Communicators(c *spec.Job) int64 {
	return Communicators(&Job{Job: c, At: collective.Placement{NCCL: s.addsUp(c)}})
}
