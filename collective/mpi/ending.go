//go:build mpi && cgo

package mpi

// #include "shim.h"
import "C"

import (
	"sync"
	"time"

	"zeroth/collective"
)

// end ends the wire, once: peers are told, memory that waits for their frames is
// taken back, and a goroutine stays until they have ended, too. p.mu is held.
func (p *port) end(why error) {
	if p.ended != nil {
		return
	}
	p.ended = why
	reason := collective.EncodeReason(why)
	for r := range p.peers {
		if r != p.rank {
			p.tell(r, kindLeft, reason)
			p.giveUp(r)
		}
	}
	p.net.all.Go(p.drain)
}

// giveUp asks MPI for the memory that waits for frames of a peer. What a frame has
// begun to fill is still filled.
func (p *port) giveUp(from int) {
	at := from*kinds + dataIn
	for i := len(p.lists[at]) - 1; i >= 0; i-- { // backwards: a frame that comes now finds memory of its length
		r := &p.lists[at][i]
		handle := &r.handle
		if i == 0 {
			handle = &p.fronts[at]
		}
		if !r.cancelled {
			r.cancelled = true
			C.z_cancel(handle) // where it fails the request ends as others do
		}
	}
}

// drain goes on until every peer has left and all that was sent has come. In a
// hurry it gives up who does not come in a moment.
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

// over is whether nothing is under way any more, nor will be. Before that it tells
// who waits when the memory that was posted is free.
func (p *port) over() bool {
	if !p.unused && !p.inUse() {
		p.unused = true
		p.more.Broadcast()
	}
	return p.unused && p.allLeft()
}

// inUse is whether MPI has memory that was posted before the end.
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

// allLeft is whether nothing is under way, and nothing more will be; it is quiet
// then, if no peer was lost.
func (p *port) allLeft() bool {
	quiet := true
	for r := range p.peers {
		switch it := &p.peers[r]; {
		case r == p.rank:
		case it.lost:
			quiet = false
		case !it.told || p.waits(r):
			return false
		}
	}
	p.quiet = quiet
	return true
}

// waits is whether a request to or from a peer is not done.
func (p *port) waits(r int) bool {
	for at := r * kinds; at < (r+1)*kinds; at++ {
		if len(p.lists[at]) > 0 {
			return true
		}
	}
	return false
}

// nowhere is memory for a frame of any length that may come.
func (p *port) nowhere() []byte {
	if len(p.scratch) < p.longest {
		p.scratch = make([]byte, p.longest)
	}
	return p.scratch
}

// abandon leaves what is under way to or from a peer to MPI, and expects nothing
// more of it.
func (p *port) abandon(r int) {
	p.peers[r].lost = true
	abandoned.Lock()
	defer abandoned.Unlock()
	for at := r * kinds; at < (r+1)*kinds; at++ {
		abandoned.all = append(abandoned.all, p.lists[at]...)
		p.lists[at], p.fronts[at] = nil, 0
	}
}

// abandoned are requests that may never be done. Their memory is not used again: a
// process that was thought lost may come back.
var abandoned struct {
	sync.Mutex
	all []request
}
