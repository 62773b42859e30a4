//go:build faults && linux

package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// layout describes how a job is spread over hosts.
type layout struct {
	hosts, per int  // per: processes per host
	each       int  // ranks per process
	apart      bool // neighbouring ranks are on different hosts
	shard      int  // parallel.shard: fewer than all ranks means hybrid sharding
	proxied    bool // hosts reach each other through a proxy
	memory     bool // processes of a host share memory; otherwise all use TCP
}

// newLayout returns a random layout of 3 × 1, 2 × 2, 3 × 2 or 2 × 3 processes.
func newLayout(rng *rand.Rand) layout {
	size := [][2]int{{3, 1}, {2, 2}, {3, 2}, {2, 3}}[rng.IntN(4)]
	l := layout{hosts: size[0], per: size[1], each: 1 + rng.IntN(2), apart: rng.IntN(4) == 0, proxied: rng.IntN(3) == 0, memory: rng.IntN(2) == 0}
	l.shard = l.ranks()
	var parts []int
	for n := 2; n < l.ranks(); n++ {
		if l.ranks()%n == 0 {
			parts = append(parts, n)
		}
	}
	if hybrid := rng.IntN(2) == 0; hybrid && parts != nil {
		l.shard = parts[rng.IntN(len(parts))]
	}
	return l
}

func (l layout) String() string {
	s := fmt.Sprintf("%d hosts × %d processes × %d ranks, shard %d", l.hosts, l.per, l.each, l.shard)
	return s + fmt.Sprintf(", apart %v, proxied %v, memory %v", l.apart, l.proxied, l.memory)
}

func (l layout) processes() int { return l.hosts * l.per }
func (l layout) ranks() int     { return l.processes() * l.each }

// host returns the host of a process.
func (l layout) host(process int) int {
	if l.apart {
		return process % l.hosts
	}
	return process / l.per
}

// of returns the processes of a host.
func (l layout) of(host int) (all []int) {
	for p := range l.processes() {
		if l.host(p) == host {
			all = append(all, p)
		}
	}
	return all
}

// sets returns the job settings of the layout.
func (l layout) sets() []string {
	transport := "tcp"
	if l.memory {
		transport = "auto"
	}
	all := []string{"--set", "parallel.transport=" + transport, "--set", fmt.Sprint("parallel.ranks=", l.ranks())}
	if l.shard < l.ranks() {
		all = append(all, "--set", fmt.Sprint("parallel.shard=", l.shard), "--set", fmt.Sprint("parallel.replicate=", l.ranks()/l.shard))
	}
	return all
}

// start starts the processes of a job.
func (n *network) start(l layout, exe, dir string, env []string, args ...string) (all []*process, err error) {
	for p := range l.processes() {
		proc, err := n.process(l, p, exe, dir, env, args...)
		if err != nil {
			end(all)
			return nil, err
		}
		all = append(all, proc)
	}
	return all, nil
}

// process starts a process of a job. Each host has its own name and folder for temporary files.
func (n *network) process(l layout, p int, exe, dir string, env []string, args ...string) (*process, error) {
	at := address
	if l.proxied {
		at = proxied
	}
	host := l.host(p)
	tmp := filepath.Join(dir, fmt.Sprint("tmp", host))
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return nil, err
	}
	env = append([]string{"ZEROTH_TOKEN=a token of sixteen bytes and more", fmt.Sprint("ZEROTH_WORLD_SIZE=", l.processes()), fmt.Sprint("ZEROTH_RANK=", p),
		"ZEROTH_ADDR=" + at(l.host(0)) + ":29400", "GOMAXPROCS=1", "TMPDIR=" + tmp}, env...)
	words := []string{"netns", "exec", n.hosts[host], "unshare", "--uts", "sh", "-c", `hostname "$0" && exec "$@"`, name(host), exe, "train", "job.yaml", "--set", "parallel.bind=" + at(host)}
	return run(dir, env, "ip", append(words, args...)...)
}

// name returns the name of a host.
func name(host int) string { return fmt.Sprint("host", host) }

// listens waits until no process on the layout's hosts accepts connections.
func (n *network) listens(l layout) (problems []string) {
	for i := range l.hosts {
		open, err := n.listening(i)
		for stop := time.Now().Add(time.Second); open > 0 && time.Now().Before(stop); open, err = n.listening(i) {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil || open > 0 {
			problems = append(problems, fmt.Sprintf("host %d: %d ports are left open (%v)", i, open, err))
		}
	}
	return problems
}

// key identifies a reference: all settings that the bits of a run depend on.
func (x trial) key(steps int) string {
	return fmt.Sprintf("%d-%d-%d-%d", x.ranks(), x.shard, x.stage, steps)
}
