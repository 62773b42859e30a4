// Package socket implements collective.Wire over stream sockets: Unix sockets between processes of
// a host, TCP between hosts, memory between ranks of a process.
//
// Two processes share one connection for all groups and ranks. A frame has a header of 24 bytes,
// followed by a body:
//
//	magic uint32, kind uint32, group uint32, from uint32, to uint32, length uint32   (little-endian; ranks within the group)
//	note     a collective.Note; length 80
//	data     length bytes, for which the receiver has posted memory of that length; then uint32 1, or 0 if the sender
//	         gave it up and the bytes are meaningless
//	lent     uint64 position in the sender's shared memory of length bytes, which a receiver on the same host may read
//	         until it sends done; the receiver has posted memory for them, too
//	lending  a note, then uint64 position and uint64 length of lent memory for which nothing is posted; length 96. It is
//	         lent until the receiver has borrowed and read it, or its operation needs it no more
//	done     the sender no longer reads the oldest lent frame; length 0
//	word     a message between processes, see Tell; group is its channel, and from and to are 0; at most 64 KiB
//	left     why the rank ended its wire; at most 4,096 bytes
//
// On plain TCP each header and each non-empty body is followed by its CRC32C (uint32). That of data
// includes the last uint32, or covers only it if it is 0. A receiver verifies all bytes before
// using them: a mismatch closes the connection with Damaged. Unix sockets, shared memory and TLS
// carry no checksums.
//
// Headers cause no allocations, except for a reason or a word. An unexpected frame closes the connection.
// Connections must be authenticated: see package rendezvous.
package socket

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"zeroth/collective"
)

// Config describes a process in a world of equal processes: process p has ranks [p × PerProcess,
// (p+1) × PerProcess).
type Config struct {
	Process, Processes, PerProcess int     // Processes numbers the places; a process that comes back has a larger Process
	Groups                         [][]int // world ranks of each group; a group's number is its index
	Hosts                          []int   // (Processes) host number of each process; nil if there is one host
	// Share is memory that may contain this process's frames: processes connected by Unix sockets
	// that share memory, too, read it directly. All processes must agree on whether it is nil. The
	// caller closes it, after the Net.
	Share *Memory
	// Lost is called once for each process whose connection broke before all of its ranks had left,
	// and with Told whenever a connection breaks. It may be nil.
	Lost func(process int, err error)

	// Told receives words, in the order in which a process sent them. It must not block. With nil,
	// words are violations of the protocol.
	Told func(process int, channel uint32, word []byte)
	// Heartbeat is the time between words that keep connections alive, and a process that sends
	// nothing for DeadAfter is lost; 0: connections break only if the system reports it.
	Heartbeat, DeadAfter time.Duration
}

// Net is a process's end of the connections of a world.
type Net struct {
	cfg  Config
	now  atomic.Pointer[map[end]*port] // ports of the latest epochs; a map does not change
	base int                           // number of the current epoch's first group

	mu      sync.Mutex
	links   map[int]*link  // by process, of those that are or were connected
	all     sync.WaitGroup // goroutines of links
	stopped chan struct{}  // closed by Close
	over    sync.Once      // ends the wires and finishes the links
	done    bool           // over; no connection is added
}

// end identifies a rank of a group.
type end struct{ group, rank int }

// New returns a process without connections. A group's wires work once all of its processes are
// Added.
func New(cfg Config) *Net {
	n := &Net{cfg: cfg, links: map[int]*link{}, stopped: make(chan struct{})}
	n.now.Store(&map[end]*port{})
	n.Reform(0, cfg.Groups, func(process int) int {
		if cfg.Hosts == nil {
			return 0
		}
		return cfg.Hosts[process]
	})
	if cfg.DeadAfter > 0 {
		n.all.Go(n.beat)
	}
	return n
}

// ports returns the ports of the latest epochs.
func (n *Net) ports() map[end]*port { return *n.now.Load() }

// portsWith returns the ports of groups that have ranks of a process, by group and rank.
func (n *Net) portsWith(process int) (all []*port) {
	for _, p := range n.ports() {
		if slices.ContainsFunc(p.names, func(name int) bool { return n.processOf(name) == process }) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *port) int { return cmp.Or(a.group-b.group, a.rank-b.rank) })
	return all
}

func (n *Net) processOf(worldRank int) int { return worldRank / n.cfg.PerProcess }

// Wire returns the end of a rank of this process in a group.
func (n *Net) Wire(group, rank int) collective.Wire {
	p := n.ports()[end{n.base + group, rank}]
	if p == nil {
		panic(fmt.Sprintf("socket: rank %d of group %d is not of process %d", rank, group, n.cfg.Process))
	}
	return p
}

// Ahead is the size of a Unix socket's send buffer in bytes; the system may limit it. With the
// default of 208 KiB, streaming 64 MiB in both directions is 10 % slower (BenchmarkGroup).
const Ahead = 384 << 10

// Add takes over the connection to a process and starts its goroutines.
func (n *Net) Add(process int, c net.Conn) {
	if u, ok := c.(*net.UnixConn); ok {
		_ = u.SetWriteBuffer(Ahead) // falls back to the system's default
	}
	if !n.AddNew(process, c) {
		panic(fmt.Sprintf("socket: a second connection to process %d", process))
	}
}

// AddNew is like Add for a process that has come later. It returns false, and closes the connection, if there
// is or was one to that process, or the wires have ended.
func (n *Net) AddNew(process int, c net.Conn) bool {
	l := newLink(n, process, c)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links[process] != nil || process == n.cfg.Process || n.done {
		_ = c.Close()
		return false
	}
	l.shares = n.cfg.Share.pass(c)
	n.links[process] = l
	n.all.Go(l.read)
	n.all.Go(l.write)
	return true
}

// link returns the connection to the process of a world rank.
func (n *Net) link(worldRank int) *link {
	l := n.linked(worldRank)
	if l == nil {
		panic(fmt.Sprintf("socket: rank %d is not connected", worldRank))
	}
	return l
}

// linked is like link, but returns nil without a connection.
func (n *Net) linked(worldRank int) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.links[n.processOf(worldRank)]
}

func (n *Net) connected() []*link {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*link
	for _, process := range slices.Sorted(maps.Keys(n.links)) {
		all = append(all, n.links[process])
	}
	return all
}

// farewell is how long Close waits for queued data, including the reasons of the ends, to be sent.
// End waits for less, since other processes detect the same loss themselves.
const farewell, shortFarewell = time.Second, 500 * time.Millisecond

// Close ends every open wire on behalf of this process, sends queued frames, closes the connections
// and waits for their goroutines.
func (n *Net) Close() {
	close(n.stopped)
	n.end(n.cfg.Process, farewell)
	n.all.Wait()
	if n.unread(farewell) {
		for _, l := range n.connected() {
			l.theirs.close()
		}
	}
}

// End ends every wire because a process was lost, after which no operation of the world can
// succeed. After shortFarewell at the latest, memory of operations is no longer accessed, and all
// connections are closed.
func (n *Net) End(process int) {
	n.end(process, shortFarewell)
	n.Drop(process, errGivenUp)
}

// errGivenUp is why a connection is closed whose process others have lost.
var errGivenUp = errors.New("given up")

// Drop closes the connection to a process.
func (n *Net) Drop(process int, why error) {
	n.mu.Lock()
	l := n.links[process]
	n.mu.Unlock()
	if l != nil {
		l.fail(why)
	}
}

// end ends every wire because of the loss of a process or, if it is this one, on its behalf. The
// connections send queued frames until the timeout and close. Only the first call counts.
func (n *Net) end(process int, most time.Duration) {
	n.over.Do(func() {
		n.mu.Lock()
		n.done = true
		n.mu.Unlock()
		for _, p := range n.ports() {
			p.abandon(n.lost(process), process != n.cfg.Process)
		}
		for _, l := range n.connected() {
			n.all.Go(func() { l.finish(most) })
		}
	})
}

// unread waits until no rank reads memory of a peer and returns true, or returns false at the
// timeout.
func (n *Net) unread(most time.Duration) bool {
	for end := time.Now().Add(most); ; time.Sleep(time.Millisecond) {
		reading := false
		for _, p := range n.ports() {
			reading = p.reading() || reading
		}
		if !reading || time.Now().After(end) {
			return !reading
		}
	}
}

// lost returns the error of a lost process. One that has come back has the ranks of its place.
func (n *Net) lost(process int) error {
	return collective.ErrPeerLost{Rank: process % n.cfg.Processes * n.cfg.PerProcess}
}

// lose notifies the wires of a broken connection.
func (n *Net) lose(process int, err error) {
	news := false
	for _, p := range n.ports() {
		for r, name := range p.names {
			if n.processOf(name) == process {
				news = p.breaks(r, n.lost(process)) || news
				p.forgotten(r)
			}
		}
	}
	if (news || n.cfg.Told != nil) && n.cfg.Lost != nil {
		n.cfg.Lost(process, err)
	}
}
