//go:build faults && linux

package cluster

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// proxy forwards TCP between hosts, as sidecars and load balancers do, and keeps one side of a
// connection open when the other ends.
//
// Hosts that use it listen at an address of 10.78.0.0/24. The address is their own, and all other
// hosts have a route to it through the namespace front. In front all these addresses are local,
// so it accepts what a host sends to another. The proxy connects to the real host from the
// namespace back, which has a route to it. Listeners use ports of a small range, and front
// listens on all of them.
type proxy struct {
	front, back string // namespaces
	gateway     string // address of front
	ports       []net.Listener
	todo        chan *relay
	accepts     sync.WaitGroup
	dials       sync.WaitGroup

	mu     sync.Mutex
	relays []*relay
}

// relay is a forwarded connection.
type relay struct {
	a, b *net.TCPConn // a: from the dialing side; b: to the listening side, nil if that failed
	to   string
	made chan struct{} // closed after dialing
	held [2]bool       // nothing is forwarded from a, or from b; guarded by the proxy's mu
	over bool          // one side has ended
}

const (
	controlPort = 29400
	firstPort   = 40000
	lastPort    = 40255
)

// proxied returns the address at which others reach a host through the proxy.
func proxied(host int) string { return fmt.Sprintf("10.78.0.%d", host+1) }

// newProxy makes the network's namespaces front and back forward what the namespaces before them
// send each other. It returns nil if that is not possible.
func newProxy(t *testing.T, n *network, front, back int) *proxy {
	t.Helper()
	x := &proxy{front: n.hosts[front], back: n.hosts[back], gateway: address(front), todo: make(chan *relay)}
	commands := [][]string{{"-n", x.front, "route", "add", "local", "10.78.0.0/24", "dev", "lo"}}
	for i := range min(front, back) {
		h := n.hosts[i]
		commands = append(commands, []string{"-n", h, "addr", "add", proxied(i) + "/32", "dev", "lo"}, x.route(n, i),
			[]string{"netns", "exec", h, "sh", "-c", fmt.Sprintf("echo %d %d > /proc/sys/net/ipv4/ip_local_port_range", firstPort, lastPort)},
			[]string{"-n", x.back, "route", "add", proxied(i) + "/32", "via", address(i)})
	}
	for _, c := range commands {
		if out, err := ip(c...); err != nil {
			t.Fatalf("ip %q: %v %s", c, err, out)
		}
	}
	opened := make(chan error)
	go func() { opened <- inside(x.front, x.listen) }()
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	for _, ln := range x.ports {
		x.accepts.Go(func() { x.accept(ln) })
	}
	for range 8 {
		x.dials.Go(func() { _ = inside(x.back, x.dial) })
	}
	t.Cleanup(x.close)
	return x
}

// route returns the arguments of ip that restore a host's route to the proxy, which it loses when
// its link goes down.
func (x *proxy) route(n *network, host int) []string {
	return []string{"-n", n.hosts[host], "route", "replace", "10.78.0.0/24", "via", x.gateway}
}

// inside runs f in a namespace, on a thread that ends with its goroutine.
func inside(namespace string, f func() error) error {
	runtime.LockOSThread()
	ns, err := os.Open("/var/run/netns/" + namespace)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	return f()
}

func (x *proxy) listen() error {
	for port := firstPort; port <= lastPort+1; port++ {
		at := port
		if port > lastPort {
			at = controlPort
		}
		ln, err := net.Listen("tcp4", fmt.Sprint(":", at))
		if err != nil {
			return err
		}
		x.ports = append(x.ports, ln)
	}
	return nil
}

func (x *proxy) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		r := &relay{a: c.(*net.TCPConn), to: c.LocalAddr().String(), made: make(chan struct{})}
		x.mu.Lock()
		x.relays = append(x.relays, r)
		x.mu.Unlock()
		x.todo <- r
	}
}

// dial connects to the hosts of accepted connections.
func (x *proxy) dial() error {
	for r := range x.todo {
		b, err := net.DialTimeout("tcp4", r.to, 5*time.Second)
		x.mu.Lock()
		if err == nil {
			r.b = b.(*net.TCPConn)
		}
		close(r.made)
		x.mu.Unlock()
		if err != nil { // nobody listens there yet
			_ = r.a.Close()
			continue
		}
		go x.carry(r, 0, r.a, r.b)
		go x.carry(r, 1, r.b, r.a)
	}
	return nil
}

// carry forwards what one side sends, until it ends.
func (x *proxy) carry(r *relay, side int, from, to net.Conn) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		x.mu.Lock()
		held := r.held[side]
		r.over = r.over || err != nil
		x.mu.Unlock()
		if err != nil {
			return
		}
		if !held {
			_, _ = to.Write(b[:n])
		}
	}
}

// data returns the open data connections from or to a host.
func (x *proxy) data(host int) (all []*relay) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.relays {
		from := r.a.RemoteAddr().(*net.TCPAddr).IP.String()
		if r.b != nil && !r.over && !strings.HasSuffix(r.to, fmt.Sprint(":", controlPort)) && (from == address(host) || strings.HasPrefix(r.to, proxied(host)+":")) {
			all = append(all, r)
		}
	}
	return all
}

// reset resets a connection on both sides.
func (x *proxy) reset(r *relay) {
	for _, c := range []*net.TCPConn{r.a, r.b} {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// halfClose ends the direction to the listening side and drops what the dialing side sends.
func (x *proxy) halfClose(r *relay) {
	x.mu.Lock()
	r.held[0] = true
	x.mu.Unlock()
	_ = r.b.CloseWrite()
}

// drop closes all connections.
func (x *proxy) drop() {
	x.mu.Lock()
	all := x.relays
	x.relays = nil
	x.mu.Unlock()
	for _, r := range all {
		<-r.made
		_ = r.a.Close()
		if r.b != nil {
			_ = r.b.Close()
		}
	}
}

func (x *proxy) close() {
	for _, ln := range x.ports {
		_ = ln.Close()
	}
	x.accepts.Wait()
	close(x.todo)
	x.dials.Wait()
	x.drop()
}
