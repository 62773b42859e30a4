//go:build mpi && cgo

package mpi

import (
	"fmt"
	"sync"
	"time"

	"zeroth/collective"
)

// Net is a process's end of the messages of a world, after Join. A program may have several in
// sequence, each created after the previous one was closed.
type Net struct {
	cfg   Config
	ports map[end]*port
	all   sync.WaitGroup // ports that have ended and wait for their peers
}

// end identifies a rank of a group.
type end struct{ group, rank int }

// New returns a process of the world.
func New(cfg Config) *Net {
	if cfg.PerProcess > MostPerProcess {
		panic(fmt.Sprintf("mpi: %d ranks a process, at most %d", cfg.PerProcess, MostPerProcess))
	}
	n := &Net{cfg: cfg, ports: map[end]*port{}}
	channels := channels(cfg.Groups)
	for g, names := range cfg.Groups {
		for r, name := range names {
			if n.processOf(name) == cfg.Process {
				n.ports[end{g, r}] = newPort(n, channels[g], r, names)
			}
		}
	}
	return n
}

// channels numbers the groups such that no two ranks are in two groups with the same number.
func channels(groups [][]int) []int {
	var of []int
	var taken []map[int]bool // by number: the ranks in its groups
	for _, names := range groups {
		c := 0
		for c < len(taken) && intersects(taken[c], names) {
			c++
		}
		if c == len(taken) {
			taken = append(taken, map[int]bool{})
		}
		for _, name := range names {
			taken[c][name] = true
		}
		of = append(of, c)
	}
	return of
}

func intersects(all map[int]bool, names []int) bool {
	for _, name := range names {
		if all[name] {
			return true
		}
	}
	return false
}

func (n *Net) processOf(worldRank int) int { return worldRank / n.cfg.PerProcess }

// host returns the host number of a world rank.
func (n *Net) host(worldRank int) int {
	if n.cfg.Hosts == nil {
		return 0
	}
	return n.cfg.Hosts[n.processOf(worldRank)]
}

// tag returns the tag of control or data messages from one rank to another.
func (n *Net) tag(channel, from, to, kind int) int {
	per := n.cfg.PerProcess
	return ((channel*per+from%per)*per+to%per)*2 + kind
}

// Wire returns the end of a rank of this process in a group.
func (n *Net) Wire(group, rank int) collective.Wire {
	p := n.ports[end{group, rank}]
	if p == nil {
		panic(fmt.Sprintf("mpi: rank %d of group %d is not of process %d", rank, group, n.cfg.Process))
	}
	return p
}

// End ends every wire because a process was lost. MPI keeps the memory of frames that were being
// sent to it or received from it until the program ends.
func (n *Net) End(process int) {
	why := collective.ErrPeerLost{Rank: process * n.cfg.PerProcess}
	for _, p := range n.ports {
		p.lost(why)
		for r, name := range p.names {
			if n.processOf(name) == process {
				p.lose(r)
			}
		}
	}
}

// farewell is how long a process in a hurry waits for the others.
const farewell = time.Second

// Close ends every open wire on behalf of this process and waits until all peers have ended theirs.
// It returns false if some have not, because they were lost or there was a hurry.
func (n *Net) Close() bool {
	for _, p := range n.ports {
		p.Abort(collective.ErrPeerLost{Rank: n.cfg.Process * n.cfg.PerProcess})
	}
	n.all.Wait()
	for _, p := range n.ports {
		if !p.quiet {
			return false
		}
	}
	return true
}
