package setup

import (
	"zeroth/device/cpu"
	"zeroth/job/shadow"
)

// shadow makes the queues of modules and updates compare each operation with the CPU's kernels.
// The plan does not include the host memory for it.
func (r *Rank) shadow(c *Job) (err error) {
	host := cpu.NewHost(c.workers())
	if r.shadows, err = reserved(host, sizes(c.Job)); err != nil {
		return err
	}
	for _, role := range []QueueRole{Compute, Update} {
		r.Queues[role] = shadow.New(r.Queues[role].(shadow.Inner), host.NewQueue("shadow"), host)
	}
	return nil
}
