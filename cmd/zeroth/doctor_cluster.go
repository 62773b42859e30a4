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
	"zeroth/job/bench"
	"zeroth/job/machine"
	"zeroth/job/show"
	"zeroth/job/world"
)

// cluster is "zeroth doctor --cluster".
func (a *app) cluster(ctx context.Context, m *joining) (err error) {
	ctx, release := a.untilSignal(ctx, func() {}, nil)
	defer release()
	defer func() { err = stopped(ctx, err) }()
	row := a.row
	if m.Rank > 0 {
		a.quiet, row = true, func(string, string, ...any) {}
	}
	row("launcher", "%s", launcherOf(m))
	for _, n := range m.Notes {
		row("", "%s", n)
	}
	if m.World > 1 {
		row("place", "process %d of %d", m.Rank, m.World)
		row("address", "%s", addressOf(m))
		row("token", "%s", tokenOf())
	}
	row("carrier", "%s", carrierOf(m))
	row("cores", "%s", cores(machine.Processors()))
	row("network", "%s", networkOf("/"))
	if m.World == 1 {
		row("", "one process: there is nothing to measure; zeroth launch -n 2 -- doctor --cluster measures this machine")
		return nil
	}
	w, err := m.meet(ctx, func(string) {})
	if err != nil {
		return err
	}
	defer w.Close()
	fast, speed := network("/")
	links, said, err := bench.Links(w, []float64{float64(runtime.NumCPU()), float64(processors()), float64(len(fast)), speed})
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
	a.findings(m, w, links, said)
	return nil
}

// What a process says of itself, in the order of the numbers.
const (
	saysMay   = iota // processors it may run on
	saysAll          // processors of its host
	saysFast         // devices of fast networks
	saysSpeed        // bytes a second of the fastest Ethernet
)

func launcherOf(m *joining) string {
	switch m.By {
	case "":
		return "none: no launcher's variables are set, and no --world"
	case "flags":
		return "none: --world, --rank and --addr say it"
	}
	return m.By + ", by the variables it sets"
}

func addressOf(m *joining) string {
	s := "process 0 listens at " + m.Addrs()[0]
	if n := len(m.Ports) - 1; n > 0 {
		s += fmt.Sprintf(", or if that is taken at one of %d other ports", n)
	}
	if m.bind != "" {
		s += "; this host is reached at " + m.bind
	}
	return s
}

func tokenOf() string {
	for _, name := range []string{"ZEROTH_TOKEN", "ZEROTH_TOKEN_FILE"} {
		if _, ok := os.LookupEnv(name); ok {
			return "from " + name
		}
	}
	return "none: only processes of this user on this host can join"
}

// carrierOf is what would carry data, and why.
func carrierOf(m *joining) string {
	built := "CGO_ENABLED=1 go build -tags mpi ./cmd/zeroth"
	switch {
	case m.World == 1:
		return "memory: the ranks of one process share it"
	case m.transport != "auto":
		return m.transport + ", as --transport says"
	case m.UnderMPI() && mpi.Built:
		return "MPI, which has launched the processes"
	case m.UnderMPI():
		return "sockets, though " + m.By + " has launched the processes: this zeroth is built without it (" + built + ")"
	}
	return "Unix sockets between processes of one host, TCP between others: no MPI has launched them"
}

// network is this host's devices of networks that remote memory is reached by
// (InfiniBand, RoCE, and what else the kernel lists there), and the bytes a second of
// its fastest other interface, 0 where the system does not tell.
func network(root string) (fast []string, speed float64) {
	all, _ := filepath.Glob(filepath.Join(root, "sys/class/infiniband/*")) // the pattern is well formed
	for _, dir := range all {
		fast = append(fast, filepath.Base(dir))
	}
	all, _ = filepath.Glob(filepath.Join(root, "sys/class/net/*/speed"))
	for _, file := range all {
		b, err := os.ReadFile(file) // fails for interfaces that are down or have no speed
		mbit, bad := strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
		if err == nil && bad == nil && mbit > 0 {
			speed = max(speed, mbit*1e6/8)
		}
	}
	return fast, speed
}

func networkOf(root string) string {
	fast, speed := network(root)
	var words []string
	if speed > 0 {
		words = append(words, fmt.Sprintf("its fastest interface carries %.3g GB/s", speed/1e9))
	}
	if len(fast) > 0 {
		words = append(words, "devices for remote memory: "+strings.Join(fast, " "))
	}
	if len(words) == 0 {
		return "this system tells of no interface's speed and of no device for remote memory"
	}
	return strings.Join(words, "; ")
}

// mostShown is how many processes are listed.
const mostShown = 64

// findings are the tables of what was measured, and what follows.
func (a *app) findings(m *joining, w *world.World, links []bench.Link, said [][]float64) {
	t := show.Columns{Align: "rlrl"}
	t.Add("process", "host", "pid", "processors")
	members := w.Members()
	for p, it := range members[:min(len(members), mostShown)] {
		may, all := int(said[p][saysMay]), int(said[p][saysAll])
		words := bound(m.By, may, all, w.OnHostOf(p))
		if words == "" {
			words = fmt.Sprintf("%d of %d", may, max(may, all))
		}
		t.Add(strconv.Itoa(p), show.Brief(it.Host), strconv.Itoa(it.Pid), words)
	}
	a.say("\n%s", &t)
	if more := len(members) - mostShown; more > 0 {
		a.say("and %d more\n", more)
	}
	t = show.Columns{Align: "llrr"}
	t.Add("between", "over", "round trip", "both ways, each")
	for _, l := range links {
		where := "other hosts"
		if l.SameHost {
			where = "one host"
		}
		t.Add(fmt.Sprintf("%d and %d, %s", l.A, l.B, where), l.By, fmt.Sprintf("%.1f µs", 1e6*l.RoundTrip), fmt.Sprintf("%.2f GB/s", l.Rate/1e9))
	}
	a.say("\n%s\n", &t)
	for _, line := range advice(links, said) {
		a.say("%v\n", line)
	}
}

// advice recommends faster transports, from the measurements and the devices of hosts.
func advice(links []bench.Link, said [][]float64) (lines []string) {
	var fast, speed, reached float64
	for _, s := range said {
		fast, speed = max(fast, s[saysFast]), max(speed, s[saysSpeed])
	}
	apart, near := false, false
	for _, l := range links {
		switch {
		case l.SameHost && l.By == "tcp":
			near = true
		case !l.SameHost && l.By == "tcp":
			apart, reached = true, max(reached, l.Rate)
		}
	}
	if near {
		lines = append(lines, "processes of one host use TCP; Unix sockets would be faster: use transport auto and a shared folder for temporary files (TMPDIR)")
	}
	switch {
	case apart && fast > 0:
		lines = append(lines, "hosts use TCP, but have RDMA devices that MPI would use: build with CGO_ENABLED=1 go build -tags mpi ./cmd/zeroth and start with mpirun or mpiexec")
	case apart && speed > 0 && reached < speed/2:
		lines = append(lines, fmt.Sprintf("TCP reaches %.2f of the %.2f GB/s of the fastest interface; check for a slower interface on the way (--bind, parallel.bind) and busy processors", reached/1e9, speed/1e9))
	case apart:
		lines = append(lines, "no faster option found than TCP between hosts")
	case !near:
		lines = append(lines, "no faster option found")
	}
	return lines
}
