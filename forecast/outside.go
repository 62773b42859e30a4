package forecast

import (
	"zeroth/internal/setup"
	"zeroth/job/spec"
)

// Estimate is memory outside our allocator, as published by others: between Low and High bytes.
type Estimate struct {
	Name      string `json:"name"`
	Low       int64  `json:"low"`
	High      int64  `json:"high"`
	Source    string `json:"source"`
	ChangedBy string `json:"changed_by,omitempty"`
}

// Outside estimates the device memory of a rank besides the plan's allocations. On a GPU this is
// the context and the buffers of communicators. Our arenas have no slack, and freed memory is not
// cached.
func Outside(c *spec.Job, m Machine) []Estimate {
	if !m.GPU {
		return nil
	}
	const mb = 1e6
	list := []Estimate{
		{Name: "CUDA context and kernels", Low: 300 * mb, High: 1000 * mb, Source: "pytorch issues 107667 and 28394: 0.3 GB with lazy loading, to 1 GB"},
		{Name: "cuBLAS work space", Low: 4 << 20, High: 32 << 20, Source: "llm.c: 32 MiB on Hopper"},
	}
	if c.Optimizer.Type == "muon" { // its updates multiply matrices concurrently with modules
		list[1].Low, list[1].High = 2*list[1].Low, 2*list[1].High
	}
	if least, most := communicators(c, m); most > 0 {
		list = append(list, Estimate{
			Name: "registered memory, rounded up", Low: 0, High: 512 << 20,
			Source: "ncclMemAlloc rounds to the recommended multicast granularity: 512 MiB on an H100", ChangedBy: "ZEROTH_NCCL_REGISTER=0",
		}, Estimate{
			Name: "communicator buffers", Low: 500 * mb * least, High: 1600 * mb * most,
			Source: "nccl issues 964, 864, 1685 and 2363: 0.5 to 1.6 GB each", ChangedBy: "parallel.replicate 1 needs fewer groups",
		})
	}
	return list
}

// communicators returns how many communicators a rank has. If the spread over processes is unknown, the bounds are those of a single process and
// of one process per rank.
func communicators(c *spec.Job, m Machine) (least, most int64) {
	one, each := m.Spread, m.Spread
	if m.Spread.Processes == 0 {
		one.GPU, each = true, setup.Spread{Processes: c.Parallel.Ranks, Hosts: 1, GPU: true}
	}
	return one.Communicators(c), each.Communicators(c)
}

// Sum returns the sum of the estimates, in bytes.
func Sum(list []Estimate) (low, high int64) {
	for _, e := range list {
		low, high = low+e.Low, high+e.High
	}
	return low, high
}
