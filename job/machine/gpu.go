package machine

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"zeroth/device/cuda/driver"
)

// GPU is a GPU of this machine.
type GPU struct {
	Ordinal      int // the driver's number
	Name         string
	Major, Minor int    // compute capability
	Memory       int64  // bytes
	Free         int64  // bytes, of all that use it; Memory where the driver does not tell
	PCI          string // its address, the same in every process of the machine
}

// Library is one that was found.
type Library struct {
	Path, Version string
	Registers     string // of NCCL: what memory it can know, "nothing", "buffers" or "windows"
}

// AddsUp says that NCCL, which this is, adds up, and what that means, or moves what ranks
// add up exactly.
func (l Library) AddsUp(exactly bool) string {
	what := "adds up gradients, in an order of its own: other bits than with parallel.collective: exact"
	if exactly {
		what = "moves gradients, which ranks add up exactly"
	}
	known := "no memory is registered"
	if l.Registers != "nothing" {
		known = "memory is registered as " + l.Registers
	}
	return fmt.Sprintf("NCCL %s (%s) %s; %s", l.Version, l.Path, what, known)
}

func (g GPU) String() string { return fmt.Sprintf("GPU %d (%s)", g.Ordinal, g.Name) }

// UsableGPUs are the GPUs that ranks can compute on, at least one, or why there is
// none. It looks once.
func UsableGPUs() ([]GPU, error) { return usable() }

var usable = sync.OnceValues(func() ([]GPU, error) {
	all, err := gpus()
	if err != nil {
		return nil, err
	}
	var old []string
	able := slices.DeleteFunc(slices.Clone(all), func(g GPU) bool {
		if g.Major < driver.LeastMajor {
			old = append(old, fmt.Sprintf("%v has compute capability %d.%d", g, g.Major, g.Minor))
		}
		return g.Major < driver.LeastMajor
	})
	if len(able) == 0 {
		return nil, fmt.Errorf("%s: the kernels want %d.0 or newer (A100, RTX 30, and since)", strings.Join(old, ", "), driver.LeastMajor)
	}
	return able, nil
})
