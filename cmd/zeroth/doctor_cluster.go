package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"zeroth/collective/mpi"
	"zeroth/internal/machine"
	"zeroth/internal/show"
	"zeroth/internal/world"
	"zeroth/job/bench"
)

// cluster runs "zeroth doctor --cluster".
func (a *app) cluster(ctx context.Context, m *joining) (err error) {
	ctx, release := a.untilSignal(ctx, func() {}, nil)
	defer release()
	defer func() { err = stopped(ctx, err) }()
	row := a.row
	if m.Rank > 0 {
		a.quiet, row = true, func(string, string, ...any) {}
	}
	row("launcher", "%s", describeLauncher(m))
	for _, n := range m.Notes {
		row("", "%s", n)
	}
	if m.World > 1 {
		row("process", "%d of %d", m.Rank, m.World)
		row("address", "%s", describeAddress(m))
		row("token", "%s", describeToken())
	}
	row("data", "%s", describeTransport(m))
	row("cores", "%s", cores(machine.Processors()))
	row("network", "%s", describeNetwork("/"))
	if m.World == 1 {
		row("", "nothing to measure with one process; zeroth launch -n 2 -- doctor --cluster measures this machine")
		return nil
	}
	w, err := m.meet(ctx, func(string) {})
	if err != nil {
		return err
	}
	defer w.Close()
	rdma, speed := network("/")
	links, reports, err := bench.Links(w, []float64{float64(runtime.NumCPU()), float64(world.HostProcessors()), float64(len(rdma)), speed})
	if err != nil {
		w.Fail(err)
		return w.Explain(err)
	}
	if m.Rank > 0 {
		return nil
	}
	if mpi.Version() != "" {
		row("library", "%s", mpi.Version())
	}
	a.findings(m, w, links, reports)
	return nil
}

// Indexes of the numbers that each process reports about itself.
const (
	reportAllowed = iota // processors it may run on
	reportTotal          // processors of its host
	reportRDMA           // devices for remote memory
	reportSpeed          // bytes per second of the fastest Ethernet
)

func describeLauncher(m *joining) string {
	switch m.By {
	case "":
		return "none: neither a launcher's variables nor --world are set"
	case "flags":
		return "none: --world, --rank and --addr are given"
	}
	return m.By + ", found by the variables it sets"
}

func describeAddress(m *joining) string {
	s := "process 0 listens at " + m.Addrs()[0]
	if n := len(m.Ports) - 1; n > 0 {
		s += fmt.Sprintf(", or at one of %d other ports if that is in use", n)
	}
	if m.bind != "" {
		s += "; this host is reached at " + m.bind
	}
	return s
}

func describeToken() string {
	for _, name := range []string{"ZEROTH_TOKEN", "ZEROTH_TOKEN_FILE"} {
		if _, ok := os.LookupEnv(name); ok {
			return "from " + name
		}
	}
	return "none: only processes of this user on this host can join"
}

// describeTransport describes what would carry data, and why.
func describeTransport(m *joining) string {
	switch {
	case m.World == 1:
		return "through memory, within one process"
	case m.transport != "auto":
		return "over " + m.transport + ", set by --transport"
	case m.UnderMPI() && mpi.Built:
		return "over MPI, which launched the processes"
	case m.UnderMPI():
		return "over sockets: " + m.By + " launched the processes, but this binary was built without MPI (CGO_ENABLED=1 go build -tags mpi ./cmd/zeroth)"
	}
	return "over Unix sockets within a host and TCP between hosts; MPI did not launch the processes"
}

// network returns the names of this host's devices for remote memory (InfiniBand, RoCE), and
// the bytes per second of its fastest other interface, 0 if unknown.
func network(root string) (rdma []string, speed float64) {
	all, _ := filepath.Glob(filepath.Join(root, "sys/class/infiniband/*")) // the pattern is well formed
	for _, dir := range all {
		rdma = append(rdma, filepath.Base(dir))
	}
	all, _ = filepath.Glob(filepath.Join(root, "sys/class/net/*/speed"))
	for _, file := range all {
		b, err := os.ReadFile(file) // fails for interfaces that are down or have no speed
		mbit, bad := strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
		if err == nil && bad == nil && mbit > 0 {
			speed = max(speed, mbit*1e6/8)
		}
	}
	return rdma, speed
}

func describeNetwork(root string) string {
	rdma, speed := network(root)
	var words []string
	if speed > 0 {
		words = append(words, fmt.Sprintf("the fastest interface carries %.3g GB/s", speed/1e9))
	}
	if len(rdma) > 0 {
		words = append(words, "RDMA devices: "+strings.Join(rdma, " "))
	}
	if len(words) == 0 {
		return "no RDMA devices found, and the speed of interfaces is unknown"
	}
	return strings.Join(words, "; ")
}

// maxListed is the most processes that are listed.
const maxListed = 64

// findings prints tables of processes and connections, and advice.
func (a *app) findings(m *joining, w *world.World, links []bench.Link, reports [][]float64) {
	t := show.Columns{Align: "rlrl"}
	t.Add("process", "host", "pid", "processors")
	members := w.Members()
	for p, process := range members[:min(len(members), maxListed)] {
		allowed, total := int(reports[p][reportAllowed]), int(reports[p][reportTotal])
		words := world.BindingWarning(m.By, allowed, total, w.OnHostOf(p))
		if words == "" {
			words = fmt.Sprintf("%d of %d", allowed, max(allowed, total))
		}
		t.Add(strconv.Itoa(p), show.Brief(process.Host), strconv.Itoa(process.Pid), words)
	}
	a.say("\n%s", &t)
	if more := len(members) - maxListed; more > 0 {
		a.say("and %d more\n", more)
	}
	t = show.Columns{Align: "llrr"}
	t.Add("processes", "over", "round trip", "rate each way")
	for _, l := range links {
		where := "two hosts"
		if l.SameHost {
			where = "one host"
		}
		t.Add(fmt.Sprintf("%d and %d, %s", l.A, l.B, where), l.By, fmt.Sprintf("%.1f µs", 1e6*l.RoundTrip), fmt.Sprintf("%.2f GB/s", l.Rate/1e9))
	}
	a.say("\n%s\n", &t)
	for _, line := range advice(links, reports) {
		a.say("%v\n", line)
	}
}

// advice recommends faster transports, from the measurements and the devices of hosts.
func advice(links []bench.Link, reports [][]float64) (lines []string) {
	var rdma, speed, reached float64
	for _, r := range reports {
		rdma, speed = max(rdma, r[reportRDMA]), max(speed, r[reportSpeed])
	}
	between, within := false, false // hosts, over TCP
	for _, l := range links {
		switch {
		case l.SameHost && l.By == "tcp":
			within = true
		case !l.SameHost && l.By == "tcp":
			between, reached = true, max(reached, l.Rate)
		}
	}
	if within {
		lines = append(lines, "processes of one host use TCP; Unix sockets would be faster: use transport auto and a shared folder for temporary files (TMPDIR)")
	}
	switch {
	case between && rdma > 0:
		lines = append(lines, "hosts use TCP, but have RDMA devices that MPI would use: build with CGO_ENABLED=1 go build -tags mpi ./cmd/zeroth and start with mpirun or mpiexec")
	case between && speed > 0 && reached < speed/2:
		lines = append(lines, fmt.Sprintf("TCP reaches %.2f of the %.2f GB/s of the fastest interface; check for a slower interface on the way (--bind, parallel.bind) and busy processors", reached/1e9, speed/1e9))
	case between:
		lines = append(lines, "no faster option found than TCP between hosts")
	case !within:
		lines = append(lines, "no faster option found")
	}
	return lines
}
