package world

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"zeroth/collective"
	"zeroth/collective/rendezvous"
)

// A host is a set of processes that can use each other's Unix sockets and, through them, memory,
// because they see the same files. Containers of one machine share its kernel but not its files,
// unless they are given a common folder. If it is unknown what a process sees, it is a host of
// its own.

// longestPath is the longest path of a Unix socket, in bytes.
const longestPath = 100

// folder returns the folder of this process's socket.
func folder() string {
	if dir := os.TempDir(); len(dir) <= longestPath-40 {
		return dir
	}
	return "/tmp"
}

// numbers returns the number of each member's host: the index of the first member that sees
// the same files.
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

func sameHost(a, b rendezvous.Member) bool { return numbers([]rendezvous.Member{a, b})[1] == 0 }

// SameHost reports whether two processes are on one host.
func (w *World) SameHost(p, q int) bool { return w.hosts[p] == w.hosts[q] }

// together reports whether two processes share memory and processors: they are on one host or,
// if that is unknown, on hosts of the same name.
func (w *World) together(p, q int) bool {
	a, b := w.star.Members[p], w.star.Members[q]
	return w.SameHost(p, q) || len(a.Sees)+len(b.Sees) == 0 && a.Host == b.Host
}

// OnHostOf returns the number of processes on the host of process p, including p.
func (w *World) OnHostOf(p int) (n int) {
	for q := range w.star.Members {
		if w.together(p, q) {
			n++
		}
	}
	return n
}

// before returns the number of these processes before p.
func (w *World) before(p int) (n int) {
	for q := range p {
		if w.together(p, q) {
			n++
		}
	}
	return n
}

// placement returns where ranks are. Frames are in host memory, except those that NCCL sends.
func (w *World) placement() collective.Placement {
	me, per := w.cfg.Rank, w.cfg.PerProcess
	at := collective.Placement{Local: w.localRanks(), HostRanks: w.OnHostOf(me) * per, HostOffset: w.before(me) * per, NCCL: w.nccl != "", Staged: w.nccl == ""}
	for _, host := range w.hosts {
		at.Hosts = append(at.Hosts, slices.Repeat([]int{host}, per)...)
	}
	return at
}

// noteContainers reports processes that share a machine but no files.
func (w *World) noteContainers() {
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
			w.note(fmt.Sprintf("processes %d and %d share a machine but no files, so TCP carries data between them; a shared TMPDIR would allow shared memory", at, p))
			return
		}
	}
}

const (
	socketFolder = "zeroth-" // followed by digits
	socketName   = "data"
)

// deadAfter is the age from which a socket without a listener belongs to a dead process; the
// owner of a younger one may be about to listen.
const deadAfter = time.Minute

// removeDead removes the socket folders of this user's processes that were killed.
func removeDead(folder string) {
	all, err := filepath.Glob(filepath.Join(folder, socketFolder+"*", socketName))
	if err != nil {
		return // the folder's name contains a pattern
	}
	for _, name := range all {
		info, err := os.Lstat(name)
		if err != nil || info.Mode().Type() != fs.ModeSocket || time.Since(info.ModTime()) < deadAfter {
			continue
		}
		c, err := net.Dial("unix", name)
		if err == nil {
			_ = c.Close() // a live process treats it as a stranger
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(name)               // only its user may remove it
			_ = os.Remove(filepath.Dir(name)) // fails if it contains anything else
		}
	}
}
