package world

import (
	"errors"
	"net"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/collective/rendezvous"
	"zeroth/job/launch"
)

// At is where a process accepts data by TCP, until all are connected.
func (w *World) At(process int) string { return w.star.Members[process].TCP }

// Redirect has a process be dialled at another address.
func (w *World) Redirect(process int, addr string) { w.star.Members[process].TCP = addr }

// Numbers are those of hosts, for tests.
func Numbers(all []rendezvous.Member) []int { return numbers(all) }

// Of is a world as a process of it sees it, for tests.
func Of(rank, perProcess int, all []rendezvous.Member) *World {
	return &World{cfg: Config{Process: launch.Process{Rank: rank, World: len(all)}, PerProcess: perProcess}, star: &rendezvous.Star{Members: all}, hosts: numbers(all)}
}

// AGPUEach is aGPUEach, for tests.
func (w *World) AGPUEach() error { return w.aGPUEach() }

// RemoveDead is removeDead, for tests.
func RemoveDead(folder string) { removeDead(folder) }

// Sees are the names of what this process sees, for tests.
func Sees(folder string) []string { return sees(folder) }

// Listening is whether another process can still connect.
func (w *World) Listening() bool {
	for _, ln := range append(w.listeners, w.cfg.Listener) {
		if !errors.Is(ln.(*net.TCPListener).SetDeadline(time.Now()), net.ErrClosed) {
			return true
		}
	}
	return false
}

// PutOn has the processes be on hosts of these numbers.
func (w *World) PutOn(hosts []int) { w.hosts = hosts }

// Links are those by which groups choose.
func (w *World) Links() collective.Links { return w.links }

// Shared is memory that processes of the host read, until the end of the test.
func (w *World) Shared(t *testing.T, bytes int) []byte {
	mem, err := w.mem.Take(bytes)
	if err != nil {
		t.Fatal(err)
	}
	return mem
}

// Out is what a stream sends.
func (s *Stream) Out() []byte { return s.out }

// In is the memory for a frame of a peer.
func (s *Stream) In(peer, frame int) []byte { return s.in[peer][frame%framesAhead] }

// UserToken is userToken, for tests.
func UserToken() (token []byte, file string, err error) { return userToken() }

// Unreachable is unreachable, for tests.
func Unreachable(all []rendezvous.Member) error { return unreachable(all) }

// Via has this process reach the data of others, by their numbers, at other addresses.
func (w *World) Via(way func(process int, addr string) string) {
	for p := range w.star.Members {
		m := &w.star.Members[p]
		m.TCP = way(p, m.TCP)
	}
}
