package world_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/collective"
	"zeroth/collective/rendezvous"
	"zeroth/internal/world"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// proxy forwards connections and, as some load balancers and sidecars do, keeps one side open
// when the other ends.
type proxy struct {
	t       *testing.T
	mu      sync.Mutex
	open    []io.Closer
	carried [][2]*net.TCPConn
	frozen  bool
	all     sync.WaitGroup
}

func newProxy(t *testing.T) *proxy { return &proxy{t: t} }

// to returns an address that forwards to addr.
func (x *proxy) to(addr string) *net.TCPAddr {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		x.t.Fatal(err)
	}
	x.mu.Lock()
	x.open = append(x.open, ln)
	x.mu.Unlock()
	x.all.Go(func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", addr)
			if err != nil {
				a.Close()
				continue
			}
			pair := [2]*net.TCPConn{a.(*net.TCPConn), b.(*net.TCPConn)}
			x.mu.Lock()
			x.open, x.carried = append(x.open, a, b), append(x.carried, pair)
			x.mu.Unlock()
			x.all.Go(func() { x.carry(pair[0], pair[1]) })
			x.all.Go(func() { x.carry(pair[1], pair[0]) })
		}
	})
	return ln.Addr().(*net.TCPAddr)
}

func (x *proxy) carry(from, to net.Conn) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		x.mu.Lock()
		frozen := x.frozen
		x.mu.Unlock()
		if err != nil {
			return
		}
		if !frozen {
			_, _ = to.Write(b[:n]) // an end of one side is not forwarded to the other
		}
	}
}

// freeze stops forwarding and keeps all connections open.
func (x *proxy) freeze() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.frozen = true
}

func (x *proxy) close() {
	x.mu.Lock()
	for _, c := range x.open {
		c.Close()
	}
	x.mu.Unlock()
	x.all.Wait()
}

// enterHosts returns four processes on two hosts; the second host is reached through a proxy.
func enterHosts(t *testing.T, x *proxy, silence time.Duration) []*world.World {
	control := &net.TCPAddr{}
	var once sync.Once
	worlds, _ := enterWith(t, 4, 1, "tcp", func(c *world.Config) {
		c.DeadAfter = silence
		if c.Rank >= 2 {
			once.Do(func() { control = x.to(net.JoinHostPort(c.Host, strconv.Itoa(c.Ports[0]))) })
			c.Ports = []int{control.Port}
		}
	})
	for p, w := range worlds {
		w.Via(func(peer int, addr string) string {
			if p/2 != peer/2 && peer < p { // the dialing side
				return x.to(addr).String()
			}
			return addr
		})
	}
	return worlds
}

// lost repeats a sum over the given groups until it fails, and returns the reason that each
// process reports.
func lost(t *testing.T, worlds []*world.World, groups []collective.Group) (all []rendezvous.Lost) {
	t.Helper()
	all = make([]rendezvous.Lost, len(worlds))
	var done sync.WaitGroup
	for p, g := range groups {
		if g == nil {
			continue
		}
		done.Go(func() {
			limited := collective.Watchdog(g, time.Minute)
			var err error
			for err == nil {
				_, err = sum(limited, p)
			}
			_ = limited.Close()
			if err = worlds[p].Explain(err); !errors.As(err, &all[p]) {
				t.Errorf("process %d: %v, which names nobody", p, err)
			}
		})
	}
	done.Wait()
	return all
}

// TestSilentHost checks that when all processes of a host fall silent with their connections
// open, one of them is named, and that processes that wait for another one end as well: with
// hybrid sharding ranks 0 and 1 wait for ranks 2 and 3, each in its own group.
func TestSilentHost(t *testing.T) {
	t.Parallel()
	for _, m := range []shard.Mesh{{Shard: 2, Replicate: 2}, {Shard: 4, Replicate: 1}} {
		t.Run(fmt.Sprint(m.Shard), func(t *testing.T) {
			t.Parallel()
			silentHost(t, m)
		})
	}
}

func silentHost(t *testing.T, m shard.Mesh) {
	t.Helper()
	x := newProxy(t)
	worlds := enterHosts(t, x, 5*time.Second)
	groups := make([]collective.Group, 4)
	for p, e := range connect(worlds, m) {
		if e.err != nil {
			t.Fatal(e.err)
		}
		if groups[p] = e.ranks[0].Replica; m.Replicate == 1 {
			groups[p] = e.ranks[0].Shard
		}
	}
	x.freeze()
	for p, l := range lost(t, worlds, groups) {
		if other := l.Process / 2; other == p/2 || l.Why != "silent for 5s" && l.Why != "connection lost" || l.Host == "" {
			t.Errorf("%v: process %d says: %v", m, p, l)
		}
	}
	closeAll(worlds)
	x.close()
}

// TestDeadlineEndsAll checks that after a rank gives up at its deadline, a rank in another group
// ends too, without waiting for its own deadline.
func TestDeadlineEndsAll(t *testing.T) {
	nightly.Parallel(t)
	worlds := enter(t, 4, 1, "auto")
	var ranks []collective.Ranks
	for _, e := range connect(worlds, shard.Mesh{Shard: 2, Replicate: 2}) {
		if e.err != nil {
			t.Fatal(e.err)
		}
		ranks = append(ranks, e.ranks[0])
	}
	var all sync.WaitGroup
	all.Go(func() { // rank 3 takes part in neither group
		_, err := sum(collective.Watchdog(ranks[1].Replica, 100*time.Millisecond), 1)
		worlds[1].Fail(err)
	})
	all.Go(func() {
		begin := time.Now()
		_, err := sum(collective.Watchdog(ranks[2].Shard, 2*time.Minute), 2)
		if err = worlds[2].Explain(err); time.Since(begin) > time.Minute || !strings.Contains(err.Error(), "rank 1 waited 100ms for rank 3") {
			t.Errorf("rank 2 waited %v: %v", time.Since(begin), err)
		}
	})
	all.Wait()
	closeAll(worlds)
}

// TestDataConnectionBreaks checks that when a data connection between two live processes breaks,
// all processes name the same two with the reason.
func TestDataConnectionBreaks(t *testing.T) {
	nightly.Long(t)
	defer goleak.VerifyNone(t)
	for why, breaks := range map[string]func(pair [2]*net.TCPConn){
		"connection reset by peer": func(pair [2]*net.TCPConn) {
			for _, c := range pair { // prepare both first: the proxy closes one as soon as the other closes
				_ = c.SetLinger(0)
			}
			for _, c := range pair {
				c.Close()
			}
		},
		"closed at the other end": func(pair [2]*net.TCPConn) { _ = pair[0].CloseWrite() },
	} {
		for _, ends := range [][2]int{{0, 2}, {1, 2}} {
			x := newProxy(t)
			worlds, _ := enterAt(t, 3, 1, "tcp")
			worlds[ends[1]].Via(func(peer int, addr string) string {
				if peer == ends[0] {
					return x.to(addr).String()
				}
				return addr
			})
			groups := make([]collective.Group, 3)
			for p, e := range connect(worlds, shard.Mesh{Shard: 3, Replicate: 1}) {
				if e.err != nil {
					t.Fatal(e.err)
				}
				groups[p] = e.ranks[0].World
			}
			breaks(x.carried[0])
			all := lost(t, worlds, groups)
			for p, l := range all {
				named := l.Process == ends[0] || l.Process == ends[1]
				if other := ends[0] + ends[1] - l.Process; !named || l.Error() != all[0].Error() || !strings.HasPrefix(l.Why, "its data connection to "+rank(worlds[0], other)+" broke: ") {
					t.Errorf("%s, between %v: process %d says: %v", why, ends, p, l)
				}
			}
			// It depends on which side writes next, and on whether the first end to break closes its side before the other breaks.
			if !strings.HasSuffix(all[0].Why, why) && !strings.HasSuffix(all[0].Why, "broken pipe") && !strings.HasSuffix(all[0].Why, "closed at the other end") {
				t.Errorf("between %v: %v, want: %s", ends, all[0], why)
			}
			closeAll(worlds)
			x.close()
		}
	}
}

// rank returns how errors name the rank of a process.
func rank(w *world.World, p int) string { return fmt.Sprintf("rank %d (%q)", p, w.Members()[p].Host) }
