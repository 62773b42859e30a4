package setup

import (
	"zeroth/device/cpu"
	"zeroth/job/shadow"
)

// shadow has the queues of modules and of updates compare each operation with the CPU's
// kernels. The host memory for that is no part of the plan.
func (r *Rank) shadow(c *Job) (err error) {
	host := cpu.NewHost(c.workers())
	if r.shadows, err = reserved(host, sizes(c.Config)); err != nil {
		return err
	}
	for _, i := range []int{0, 2} { // of Queues, all but the one for communication
		r.Queues[i] = shadow.New(r.Queues[i].(shadow.Inner), host.NewQueue("shadow"), host)
	}
	return nil
}
