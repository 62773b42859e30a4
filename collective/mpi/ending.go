//go:build mpi && cgo

package mpi

// #include "shim.h"
import "C"

import (
	"sync"
	"time"

	"zeroth/collective"
)

// end ends the wire, once: it notifies the peers, cancels posted receives, and starts a goroutine
// that runs until the peers have ended, too. The caller holds p.mu.
func (p *port) end(why error) {
	if p.ended != nil {
		return
	}
	p.ended = why
	reason := collective.EncodeReason(why)
	for r := range p.peers {
		if r != p.rank {
			p.sendControl(r, kindLeft, reason)
			p.giveUp(r)
		}
	}
	p.net.all.Go(p.drain)
}

// giveUp cancels the receives posted for a peer. A frame that is already arriving still fills its
// memory.
func (p *port) giveUp(from int) {
	at := from*kinds + dataIn
	for i := len(p.lists[at]) - 1; i >= 0; i-- { // backwards: a frame that arrives now finds memory of its length
		r := &p.lists[at][i]
		handle := &r.handle
		if i == 0 {
			handle = &p.fronts[at]
		}
		if !r.cancelled {
			r.cancelled = true
			cancel(handle)
		}
	}
}

// drain runs until every peer has left and all their messages have arrived. In a hurry, it gives up
// peers that do not respond within farewell.
func (p *port) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var since time.Time // of the hurry
	for polls := 0; !p.over(); polls++ {
		if _, _, any := p.ask(); any {
			polls = 0
			continue
		}
		p.mu.Unlock()
		pause(polls)
		p.mu.Lock()
		select {
		case <-p.net.cfg.Hurry:
			if since.IsZero() {
				since = time.Now()
			}
		default:
		}
		if !since.IsZero() && time.Since(since) > farewell {
			for r := range p.peers {
				p.abandon(r)
			}
		}
	}
}

// over reports whether everything is complete. It also signals when posted memory is no longer in
// use.
func (p *port) over() bool {
	if !p.unused && !p.inUse() {
		p.unused = true
		p.more.Broadcast()
	}
	return p.unused && p.allLeft()
}

// inUse reports whether MPI uses memory posted before the end.
func (p *port) inUse() bool {
	for r := range p.peers {
		if len(p.lists[r*kinds+dataOut]) > 0 {
			return true
		}
		for _, in := range p.lists[r*kinds+dataIn] {
			if !in.scratch {
				return true
			}
		}
	}
	return false
}

// allLeft reports whether all peers have left and no message is outstanding. It sets quiet if no
// peer was lost.
func (p *port) allLeft() bool {
	quiet := true
	for r := range p.peers {
		switch it := &p.peers[r]; {
		case r == p.rank:
		case it.lost:
			quiet = false
		case !it.reported || p.waits(r):
			return false
		}
	}
	p.quiet = quiet
	return true
}

// waits reports whether a request to or from a peer is incomplete.
func (p *port) waits(r int) bool {
	for at := r * kinds; at < (r+1)*kinds; at++ {
		if len(p.lists[at]) > 0 {
			return true
		}
	}
	return false
}

// nowhere returns scratch memory for a frame of any length.
func (p *port) nowhere() []byte {
	if len(p.scratch) < p.longest {
		p.scratch = make([]byte, p.longest)
	}
	return p.scratch
}

// abandon leaves outstanding requests of a peer to MPI and ignores it from now on.
func (p *port) abandon(r int) {
	p.peers[r].lost = true
	abandoned.Lock()
	defer abandoned.Unlock()
	for at := r * kinds; at < (r+1)*kinds; at++ {
		abandoned.all = append(abandoned.all, p.lists[at]...)
		p.lists[at], p.fronts[at] = nil, 0
	}
}

// abandoned holds requests that may never complete. Their memory is not reused, since a process
// that was considered lost may come back.
var abandoned struct {
	sync.Mutex
	all []request
}
