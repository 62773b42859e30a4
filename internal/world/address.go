package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"zeroth/collective/rendezvous"
)

// local is an address of this host and the interface that has it.
type local struct {
	netip.Addr
	on string
}

// locals returns the addresses of this host.
func locals() (all []local, err error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue // not an IP address
			}
			at := p.Addr()
			if at.Is6() && at.IsLinkLocalUnicast() {
				at = at.WithZone(i.Name)
			}
			all = append(all, local{at, i.Name})
		}
	}
	return all, nil
}

// BindAddress returns the address of this host that parallel.bind names: an address, a network
// such as 10.0.0.0/16, an interface or a host. Of several addresses it prefers that of process
// 0, then those of the same family.
func BindAddress(bind, process0 string) (string, error) {
	if _, err := netip.ParseAddr(bind); err == nil || bind == "" {
		return bind, nil
	}
	all, err := locals()
	if err != nil {
		return "", err
	}
	var names []string
	for _, l := range all {
		names = append(names, fmt.Sprintf("%v (%s)", l.Addr, l.on))
	}
	network, err := netip.ParsePrefix(bind)
	if err != nil && strings.Contains(bind, "/") {
		return "", fmt.Errorf("%q is not a network; want one such as 10.0.0.0/16", bind)
	}
	isName := err != nil
	mine := slices.DeleteFunc(all, func(l local) bool {
		return isName && l.on != bind || !isName && !network.Contains(l.WithZone("").Unmap())
	})
	if len(mine) > 0 {
		return preferred(mine, process0).String(), nil
	}
	if isName {
		if _, err := net.LookupHost(bind); err == nil {
			return bind, nil // the caller resolves it
		}
		return "", fmt.Errorf("%q is neither an interface of this host with an address nor a known host; this host's addresses are %s", bind, strings.Join(names, ", "))
	}
	return "", fmt.Errorf("this host has no address in %s; its addresses are %s", bind, strings.Join(names, ", "))
}

// preferred returns the address that suits process 0's address best.
func preferred(mine []local, process0 string) netip.Addr {
	to, err := netip.ParseAddr(process0)
	distance := func(l local) int {
		switch {
		case err == nil && l.Addr == to:
			return 0
		case l.IsLinkLocalUnicast():
			return 3
		case l.Is4() == (err != nil || to.Is4()):
			return 1
		}
		return 2
	}
	return slices.MinFunc(mine, func(a, b local) int { return distance(a) - distance(b) }).Addr
}

// advice returns a likely error in the address of process 0 as seen from this host, or "".
func (c Config) advice() string {
	set := "ZEROTH_ADDR"
	if c.By == "flags" {
		set = "--addr"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	ips, err := new(net.Resolver).LookupIPAddr(ctx, c.Host)
	var unknown *net.DNSError
	switch {
	case c.LocalWorld == c.World: // the launcher says that all are on this host
	case errors.As(err, &unknown) && c.By == "Slurm":
		return fmt.Sprintf("; Slurm runs process 0 on node %q, and this host cannot resolve that name: set %s to ADDRESS:PORT in every process, with the IP address of that node ('scontrol show node %s' may have it as NodeAddr)", c.Host, set, c.Host)
	case errors.As(err, &unknown):
		return fmt.Sprintf("; this host cannot resolve the name %q of process 0's host: correct it, or set %s to ADDRESS:PORT with the IP address of that host", c.Host, set)
	case err == nil && !slices.ContainsFunc(ips, func(a net.IPAddr) bool { return !a.IP.IsLoopback() }):
		name := c.Host
		if at := ips[0].String(); at != name {
			name += " is " + at + " here, which"
		}
		return fmt.Sprintf("; %s is a loopback address, at which a host reaches only itself: if the processes are on several hosts, set %s to an address of process 0's host that all of them reach", name, set)
	}
	return ""
}

// unreachable returns an error, the same on all processes, if a process accepts data
// connections at an address that others cannot reach.
func unreachable(all []rendezvous.Member) error {
	for p, m := range all {
		at, err := netip.ParseAddrPort(m.TCP)
		if err != nil || !at.Addr().IsLoopback() || m.Boot == "" {
			continue
		}
		for _, other := range all {
			if other.Boot != "" && other.Boot != m.Boot {
				return fmt.Errorf("process %d on host %q accepts data connections at %v, a loopback address, which host %q cannot reach: set parallel.bind there to an address, an interface (eth0) or a network (10.0.0.0/16) that leads to the other hosts", p, m.Host, at.Addr(), other.Host)
			}
		}
	}
	return nil
}
