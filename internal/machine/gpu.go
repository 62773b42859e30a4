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
	Ordinal      int // number assigned by the driver
	Name         string
	Major, Minor int    // compute capability
	Memory       int64  // bytes
	Free         int64  // bytes not used by any process; Memory if the driver does not report it
	PCI          string // PCI address, the same in every process of the machine
	Apart        []int  // ordinals of the GPUs whose memory its kernels cannot address
}

// Library is a library that was found.
type Library struct {
	Path, Version string
	Registers     string // for NCCL, the memory it can register: "nothing", "buffers" or "windows"
}

// AddsUp describes NCCL's role: it sums gradients, with which consequence, or only moves what
// ranks sum exactly.
func (l Library) AddsUp(exactly bool) string {
	what := "sums gradients in its own order: results differ in their last bits from parallel.collective: exact"
	if exactly {
		what = "moves gradients, which ranks sum exactly"
	}
	registered := "no memory is registered"
	if l.Registers != "nothing" {
		registered = "memory is registered as " + l.Registers
	}
	return fmt.Sprintf("NCCL %s (%s) %s; %s", l.Version, l.Path, what, registered)
}

func (g GPU) String() string { return fmt.Sprintf("GPU %d (%s)", g.Ordinal, g.Name) }

// UsableGPUs returns the GPUs that ranks can compute on, at least one, or the reason why there
// is none. It queries the driver once.
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
		return nil, fmt.Errorf("%s: the kernels need %d.0 or newer (A100, RTX 30 and later)", strings.Join(old, ", "), driver.LeastMajor)
	}
	return able, nil
})
