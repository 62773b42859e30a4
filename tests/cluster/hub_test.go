//go:build faults && linux

package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// hub is an Ethernet between hosts that can delay and drop frames. Host i has the address
// 02:00:00:00:00:i.
type hub struct {
	taps  []*os.File
	queue []chan frame // queues, by destination host

	mu     sync.Mutex
	rng    *rand.Rand
	delay  time.Duration
	loss   float64                          // fraction of lost frames
	cut    map[[2]int]bool                  // from, to: drop everything
	change func(from, to int, frame []byte) // changes passing frames; may be nil
	all    sync.WaitGroup
}

type frame struct {
	at time.Time // time of arrival
	b  []byte
}

const (
	tunSetIff = 0x400454ca
	iffTap    = 0x0002
	iffNoPI   = 0x1000
	frameLen  = 2048
)

// newHub creates a network device for each name; the hub serves them until close.
func newHub(names []string) (*hub, error) {
	h := &hub{cut: map[[2]int]bool{}, rng: rand.New(rand.NewPCG(0, 0))}
	for _, name := range names {
		fd, err := syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		var req [40]byte // struct ifreq
		copy(req[:], name)
		*(*uint16)(unsafe.Pointer(&req[16])) = iffTap | iffNoPI
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), tunSetIff, uintptr(unsafe.Pointer(&req[0]))); errno != 0 {
			return nil, fmt.Errorf("%s: %w", name, errno)
		}
		h.taps = append(h.taps, os.NewFile(uintptr(fd), name))
		h.queue = append(h.queue, make(chan frame, 4096))
	}
	for i := range names {
		h.all.Go(func() { h.read(i) })
		h.all.Go(func() { h.write(i) })
	}
	return h, nil
}

// close closes the devices.
func (h *hub) close() {
	for _, t := range h.taps {
		t.Close()
	}
	for _, q := range h.queue {
		close(q)
	}
	h.all.Wait()
}

func (h *hub) read(from int) {
	for {
		b := make([]byte, frameLen)
		n, err := h.taps[from].Read(b)
		if err != nil {
			if pe, ok := err.(*os.PathError); ok && pe.Err == os.ErrClosed {
				return
			}
			time.Sleep(10 * time.Millisecond) // the host's end is down
			continue
		}
		if n >= 14 {
			h.pass(from, b[:n])
		}
	}
}

// pass puts a frame into the queues of its destinations.
func (h *hub) pass(from int, b []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := time.Now().Add(h.delay)
	for to := range h.taps {
		if to == from || h.cut[[2]int{from, to}] || b[0]&1 == 0 && int(b[5]) != to || h.loss > 0 && h.rng.Float64() < h.loss {
			continue
		}
		if h.change != nil {
			h.change(from, to, b)
		}
		func() {
			defer func() { _ = recover() }() // the hub is closing
			select {
			case h.queue[to] <- frame{at, b}:
			default: // full: dropped, as by a switch
			}
		}()
	}
}

func (h *hub) write(to int) {
	for f := range h.queue[to] {
		if d := time.Until(f.at); d > 0 {
			time.Sleep(d)
		}
		_, _ = h.taps[to].Write(f.b) // fails if the host is down
	}
}

// set sets the delay and the loss of all links.
func (h *hub) set(seed uint64, delay time.Duration, loss float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rng, h.delay, h.loss, h.change = rand.New(rand.NewPCG(seed, 1)), delay, loss, nil
	clear(h.cut)
}

// sever drops all frames from one host to another.
func (h *hub) sever(from, to int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut[[2]int{from, to}] = true
}

// network is a set of hosts on a hub; each host is a network namespace.
type network struct {
	*hub
	hosts []string
	proxy *proxy // may be nil
}

// newNetwork creates a number of hosts, which are removed after the test.
func newNetwork(t *testing.T, name string, hosts int) *network {
	t.Helper()
	n := &network{}
	var devices []string
	for i := range hosts {
		n.hosts = append(n.hosts, fmt.Sprintf("%sh%d", name, i))
		devices = append(devices, fmt.Sprintf("%st%d", name, i))
	}
	var err error
	if n.hub, err = newHub(devices); err != nil {
		t.Skipf("no hosts can be made here: %v", err)
	}
	t.Cleanup(n.close)
	for i, host := range n.hosts {
		if out, err := ip("netns", "add", host); err != nil {
			t.Skipf("no hosts can be made here: %v %s", err, out)
		}
		t.Cleanup(func() { ip("netns", "del", host) })
		for _, args := range [][]string{
			{"link", "set", devices[i], "netns", host}, {"-n", host, "link", "set", devices[i], "name", "eth0", "address", fmt.Sprintf("02:00:00:00:00:%02x", i)},
			{"-n", host, "addr", "add", address(i) + "/24", "dev", "eth0"}, {"-n", host, "link", "set", "lo", "up"}, {"-n", host, "link", "set", "eth0", "up"},
		} {
			if out, err := ip(args...); err != nil {
				t.Skipf("no hosts can be made here: ip %q: %v %s", args, err, out)
			}
		}
	}
	return n
}

// address returns the IP address of a host.
func address(i int) string { return fmt.Sprintf("10.77.0.%d", i+1) }

// link sets a host's device up or down.
func (n *network) link(t *testing.T, host int, state string) {
	t.Helper()
	if out, err := ip("-n", n.hosts[host], "link", "set", "eth0", state); err != nil {
		t.Fatalf("link %s: %v %s", state, err, out)
	}
}
