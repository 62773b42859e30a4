package world

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"zeroth/internal/input"
	"zeroth/internal/launch"
	"zeroth/internal/machine"
)

// chooseNCCL decides whether ranks on GPUs use NCCL, and whether it also adds up: each rank
// must have its own GPU, and the library must be found.
func (w *World) chooseNCCL() error {
	c := &w.cfg
	if len(c.GPUs) == 0 {
		return nil
	}
	lib, err := machine.NCCL()
	if err == nil {
		err = w.aGPUEach()
	}
	if err == nil && c.TLS != nil && c.Collective != "nccl" {
		err = errors.New("its connections are not encrypted, but parallel.tls is set; parallel.collective: nccl uses it nevertheless")
	}
	if err == nil && c.Master {
		err = errors.New("with parallel.master, rank 0 sums")
	}
	switch {
	case err == nil:
		w.nccl = lib.Version + ", " + lib.Registers + " registered"
		w.note(lib.AddsUp(c.Collective == "exact"))
		w.ownNetwork()
	case c.Collective == "nccl":
		return input.BadInput(fmt.Errorf("parallel.collective: nccl: %w", err))
	default:
		w.note("ranks sum exactly, through the host; NCCL would be faster: " + err.Error())
	}
	return nil
}

// aGPUEach returns an error if two ranks share a GPU. Ranks of a host divide its GPUs evenly,
// and containers of one machine may see the same ones.
func (w *World) aGPUEach() error {
	type gpu struct{ machine, at string }
	has := map[gpu]int{}
	for p, m := range w.star.Members {
		hostRanks, before := w.OnHostOf(p)*w.cfg.PerProcess, w.before(p)*w.cfg.PerProcess
		machine := cmp.Or(m.Boot, "host "+m.Host)
		if len(m.GPUs) == 0 {
			return fmt.Errorf("process %d has no GPU", p)
		}
		for i := range w.cfg.PerProcess {
			g := gpu{machine, m.GPUs[launch.GPU(before+i, hostRanks, len(m.GPUs))]}
			r := p*w.cfg.PerProcess + i
			if other, ok := has[g]; ok {
				return fmt.Errorf("ranks %d and %d of host %q share its GPU %s, but NCCL needs one per rank; want fewer parallel.ranks, or parallel.collective: exact", other, r, m.Host, g.at)
			}
			has[g] = r
		}
	}
	return nil
}

// ownNetwork restricts NCCL, whose connections need no token, to this host if all processes
// are on it.
func (w *World) ownNetwork() {
	if _, ok := os.LookupEnv("NCCL_COMM_ID"); ok {
		_ = os.Unsetenv("NCCL_COMM_ID") // fails only for invalid names
		w.note("NCCL_COMM_ID is ignored: processes agree on a secret id")
	}
	_, chosen := os.LookupEnv("NCCL_SOCKET_IFNAME")
	if hosts := w.hosts; !chosen && !slices.ContainsFunc(hosts, func(h int) bool { return h != hosts[0] }) {
		_ = os.Setenv("NCCL_SOCKET_IFNAME", "lo") // fails only for invalid names
	}
}

// addsUp returns the library that sums, so that all processes can agree on it.
func (w *World) addsUp() string {
	if w.nccl == "" {
		return "ranks, in rank order"
	}
	if w.cfg.Collective == "exact" {
		return "ranks, in rank order, with NCCL " + w.nccl
	}
	return "NCCL " + w.nccl
}
