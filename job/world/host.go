package world

import (
	"fmt"
	"os"

	"zeroth/collective/rendezvous"
	"zeroth/shard"
)

// A host is processes that reach each other's Unix sockets, and by them each other's
// memory: those that see the same files. Containers of a machine share its kernel and
// not that; what they share is a folder, where somebody has given them one. Where it is
// not known a process is by itself.

// longestPath is what the address of a Unix socket has room for.
const longestPath = 100

// folder is where this process's socket is, in a folder of its own.
func folder() string {
	if dir := os.TempDir(); len(dir) <= longestPath-40 {
		return dir
	}
	return "/tmp"
}

// numbers are those of the members' hosts: that of the first member which sees the same
// files.
func numbers(all []rendezvous.Member) []int {
	of, first := make([]int, len(all)), map[string]int{}
	for p, m := range all {
		of[p] = p
		for _, name := range m.Sees {
			if at, ok := first[name]; ok {
				of[p] = min(of[p], at)
			}
		}
		for _, name := range m.Sees {
			if _, ok := first[name]; !ok {
				first[name] = of[p]
			}
		}
	}
	return of
}

// SameHost is whether two processes are on one host.
func (w *World) SameHost(p, q int) bool { return w.hosts[p] == w.hosts[q] }

// HostsOf implements build.Launch.
func (w *World) HostsOf(m shard.Mesh) (numbers []int) {
	for r := range m.World() {
		numbers = append(numbers, w.hosts[r/w.cfg.PerProcess])
	}
	return numbers
}

// tellContainers says which processes share a machine and nothing on it.
func (w *World) tellContainers() {
	if w.cfg.Transport != "auto" {
		return
	}
	first := map[string]int{}
	for p, m := range w.star.Members {
		at, ok := first[m.Boot]
		if !ok {
			first[m.Boot] = p
			continue
		}
		if m.Boot != "" && w.hosts[p] != w.hosts[at] {
			w.note(fmt.Sprintf("processes %d and %d share a machine and not its files: TCP carries data between them; with a TMPDIR that both see memory would", at, p))
			return
		}
	}
}
