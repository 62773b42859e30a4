// Package socket carries collective.Wire over stream sockets: Unix sockets
// between processes of a host, TCP between hosts, memory between ranks of one
// process.
//
// Two processes have one connection, for all groups and all their ranks. A
// frame is a header of 24 bytes and what it says follows:
//
//	magic uint32, kind uint32, group uint32, from uint32, to uint32, length uint32   (little-endian; ranks are of the group)
//	note   a collective.Note, length 80
//	data   length bytes, for which the receiver has posted memory of that length; then uint32 1, or 0 if the sender
//	       gave it up meanwhile and the bytes mean nothing
//	lent   length bytes that are at uint64 of the sender's shared memory, for a receiver on its host, until it says done; it
//	       has posted memory for them, too
//	lending a note, length 96, and at uint64 of the sender's shared memory uint64 bytes, which are lent likewise without
//	       that memory is posted for them, until the receiver has borrowed and read them, or is in no operation that does
//	done   the sender of this frame does not read the oldest lent frame any more, length 0
//	left   why the rank ended its wire, at most 4,096 bytes
//
// On plain TCP each header, and each body but an empty one, is followed by its CRC32C (uint32).
// That of data covers its last uint32, too, and nothing else if that is 0. A receiver acts on
// no byte that it has not compared: a mismatch ends the connection with a Damaged. Unix sockets,
// shared memory and TLS carry no checksums.
//
// Nothing is allocated by what a header says, except for a reason. A frame that
// nobody expects ends the connection. Connections come authenticated: see
// package rendezvous.
package socket

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"zeroth/collective"
)

// Config is a process in a world of equal processes: process p has ranks
// [p × PerProcess, (p+1) × PerProcess).
type Config struct {
	Process, Processes, PerProcess int
	Groups                         [][]int // world ranks of each group; a group's number is its index
	Hosts                          []int   // (Processes) the number of each one's host; nil: all have one
	// Share is memory that this process's frames may be in: processes that are connected by
	// Unix sockets, and share some too, read it where it is. May be nil; that is the same
	// for all processes. It is the caller's to close, after the Net.
	Share *Memory
	// Lost hears, once, of a process whose connection broke while one of its ranks
	// had not left. May be nil.
	Lost func(process int, err error)
}

// Net is a process's end of the connections of a world.
type Net struct {
	cfg   Config
	ports map[end]*port

	mu    sync.Mutex
	links []*link        // by process; nil: none yet, or this process
	all   sync.WaitGroup // goroutines of links
	over  sync.Once      // ends the wires and has the links finish
}

// end is one rank of a group.
type end struct{ group, rank int }

// New is a process without connections. The wires of its groups work once all
// processes that have ranks in them are Added.
func New(cfg Config) *Net {
	n := &Net{cfg: cfg, ports: map[end]*port{}, links: make([]*link, cfg.Processes)}
	for g, names := range cfg.Groups {
		for r, name := range names {
			if n.processOf(name) == cfg.Process {
				n.ports[end{g, r}] = newPort(n, g, r, names)
			}
		}
	}
	return n
}

// portsWith are the ports of groups that have ranks of a process, by group and rank.
func (n *Net) portsWith(process int) (all []*port) {
	for _, p := range n.ports {
		if slices.ContainsFunc(p.names, func(name int) bool { return n.processOf(name) == process }) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *port) int { return cmp.Or(a.group-b.group, a.rank-b.rank) })
	return all
}

func (n *Net) processOf(worldRank int) int { return worldRank / n.cfg.PerProcess }

// host is the number of a world rank's host.
func (n *Net) host(worldRank int) int {
	if n.cfg.Hosts == nil {
		return 0
	}
	return n.cfg.Hosts[n.processOf(worldRank)]
}

// Wire is the end of a rank, of this process, of a group.
func (n *Net) Wire(group, rank int) collective.Wire {
	p := n.ports[end{group, rank}]
	if p == nil {
		panic(fmt.Sprintf("socket: rank %d of group %d is not of process %d", rank, group, n.cfg.Process))
	}
	return p
}

// Ahead is how many bytes a Unix socket takes before the peer has read them; the system
// may allow less. With its usual 208 KiB a stream of 64 MiB both ways is slower by a
// tenth (BenchmarkGroup).
const Ahead = 384 << 10

// Add takes over the connection to a process.
func (n *Net) Add(process int, c net.Conn) {
	if u, ok := c.(*net.UnixConn); ok {
		_ = u.SetWriteBuffer(Ahead) // else it is the system's
	}
	l := newLink(n, process, c)
	l.shares = n.cfg.Share.pass(c)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links[process] != nil || process == n.cfg.Process {
		panic(fmt.Sprintf("socket: a second connection to process %d", process))
	}
	n.links[process] = l
	n.all.Go(l.read)
	n.all.Go(l.write)
}

// link is the connection to the process of a world rank.
func (n *Net) link(worldRank int) *link {
	l := n.linked(worldRank)
	if l == nil {
		panic(fmt.Sprintf("socket: rank %d is not connected", worldRank))
	}
	return l
}

// linked is link, nil where there is none yet.
func (n *Net) linked(worldRank int) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.links[n.processOf(worldRank)]
}

func (n *Net) connected() []*link {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*link
	for _, l := range n.links {
		if l != nil {
			all = append(all, l)
		}
	}
	return all
}

// farewell is how long Close waits for what is still to be sent: the reasons of the ends.
// End waits less: others hear of the same loss by themselves.
const farewell, shortFarewell = time.Second, 500 * time.Millisecond

// Close ends every wire that is still open as this process's own end, sends what is
// queued, closes the connections and waits for their goroutines.
func (n *Net) Close() {
	n.end(n.cfg.Process, farewell)
	n.all.Wait()
	if n.unread(farewell) {
		for _, l := range n.connected() {
			l.theirs.close()
		}
	}
}

// End ends every wire because a process was lost: with one of them gone, no operation of
// the world can matter any more, whether it waits for that process, for another that is
// just as silent, or for a rank that waits for either. Within shortFarewell nobody
// is in the memory of an operation any more, and all connections are closed.
func (n *Net) End(process int) {
	n.end(process, shortFarewell)
	n.mu.Lock()
	l := n.links[process]
	n.mu.Unlock()
	if l != nil {
		l.fail(errors.New("given up"))
	}
}

// end ends every wire, by the loss of a process or, if it is this one, as its own end,
// and has the connections send what is queued, for so long at most, and close. Only the
// first call counts.
func (n *Net) end(process int, most time.Duration) {
	n.over.Do(func() {
		for _, p := range n.ports {
			p.abandon(collective.ErrPeerLost{Rank: process * n.cfg.PerProcess}, process != n.cfg.Process)
		}
		for _, l := range n.connected() {
			n.all.Go(func() { l.finish(most) })
		}
	})
}

// unread waits until no rank reads memory of a peer, for so long at most; one that
// is stuck keeps it.
func (n *Net) unread(most time.Duration) bool {
	for end := time.Now().Add(most); ; time.Sleep(time.Millisecond) {
		reading := false
		for _, p := range n.ports {
			reading = p.reading() || reading
		}
		if !reading || time.Now().After(end) {
			return !reading
		}
	}
}

// lose tells every wire of a connection that broke.
func (n *Net) lose(process int, err error) {
	first, news := process*n.cfg.PerProcess, false
	for _, p := range n.ports {
		for r, name := range p.names {
			if n.processOf(name) == process {
				news = p.breaks(r, collective.ErrPeerLost{Rank: first}) || news
				p.forgotten(r)
			}
		}
	}
	if news && n.cfg.Lost != nil {
		n.cfg.Lost(process, err)
	}
}
