package world

import (
	"errors"
	"net"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/collective/rendezvous"
	"zeroth/internal/launch"
)

// At returns the TCP address at which a process accepts data connections.
func (w *World) At(process int) string { return w.star.Members[process].TCP }

// Redirect makes others connect to a process at another address.
func (w *World) Redirect(process int, addr string) { w.star.Members[process].TCP = addr }

// Numbers exports numbers for tests.
func Numbers(all []rendezvous.Member) []int { return numbers(all) }

// Of returns the world as process rank sees it.
func Of(rank, perProcess int, all []rendezvous.Member) *World {
	return &World{cfg: Config{Process: launch.Process{Rank: rank, World: len(all)}, PerProcess: perProcess}, star: &rendezvous.Star{Members: all}, hosts: numbers(all)}
}

// AGPUEach exports aGPUEach for tests.
func (w *World) AGPUEach() error { return w.aGPUEach() }

// RemoveDead exports removeDead for tests.
func RemoveDead(folder string) { removeDead(folder) }

// Sees exports sees for tests.
func Sees(folder string) []string { return sees(folder) }

// Listening reports whether other processes can still connect.
func (w *World) Listening() bool {
	for _, ln := range append(w.listeners, w.cfg.Listener) {
		if !errors.Is(ln.(*net.TCPListener).SetDeadline(time.Now()), net.ErrClosed) {
			return true
		}
	}
	return false
}

// PutOn assigns the processes to hosts by number.
func (w *World) PutOn(hosts []int) { w.hosts = hosts }

// Links returns the measured links.
func (w *World) Links() collective.Links { return w.links }

// Shared returns memory that all processes of the host can read until the test ends.
func (w *World) Shared(t *testing.T, bytes int) []byte {
	mem, err := w.mem.Take(bytes)
	if err != nil {
		t.Fatal(err)
	}
	return mem
}

// Out returns the buffer that a stream sends.
func (s *Stream) Out() []byte { return s.out }

// In returns the memory for a frame from a peer.
func (s *Stream) In(peer, frame int) []byte { return s.in[peer][frame%framesAhead] }

// UserToken exports userToken for tests.
func UserToken() (token []byte, file string, err error) { return userToken() }

// Unreachable exports unreachable for tests.
func Unreachable(all []rendezvous.Member) error { return unreachable(all) }

// Via makes this process connect to others' data addresses through way.
func (w *World) Via(way func(process int, addr string) string) {
	for p := range w.star.Members {
		m := &w.star.Members[p]
		m.TCP = way(p, m.TCP)
	}
}

// BeforeNetCloses calls f before this process closes its data connections.
func (w *World) BeforeNetCloses(f func()) { w.net = closing{w.net, f} }

type closing struct {
	carrier
	before func()
}

func (c closing) Close() {
	c.before()
	c.carrier.Close()
}

// Broke reports a broken data connection to a process.
func (w *World) Broke(process int) {
	w.star.Broke(rendezvous.Broken{Process: process, Why: "reset", Sure: true})
}

// Err returns the reason for which the world has ended, or nil.
func (w *World) Err() error { return w.star.Err() }
