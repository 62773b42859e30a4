//go:build mpi && cgo

package mpi

// #include "shim.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"sync"

	"zeroth/collective"
)

// The requests of a port are in lists, kinds of them per peer. The requests of a list complete in
// the order in which they were posted.
const (
	controlIn = iota
	controlOut
	dataIn
	dataOut
	kinds
)

const (
	control = 0 // kinds of tags
	data    = 1

	kindNote = 1 // kinds of control messages
	kindLeft = 2

	headLen    = 13
	controlLen = headLen + collective.ReasonLen
)

// port is one rank's end of a group. Until it ends, the goroutines that post and poll drive MPI's
// progress; after that, a goroutine of the port does.
type port struct {
	net     *Net
	channel int
	rank    int
	names   []int // world ranks
	peers   []peer

	mu       sync.Mutex
	more     sync.Cond          // signals that unused became true
	fronts   []C.uint64_t       // (Size × kinds) the first request of each list, or 0
	lists    [][]request        // (Size × kinds)
	turn     int                // list to test first
	done     C.z_done           // result of a test
	news     []collective.Event // pending Left events
	spare    [][]byte           // (controlLen) for control messages
	peerLeft error              // why the first peer left
	broken   bool               // a peer was lost
	ended    error
	unused   bool   // since the end: MPI no longer uses posted memory
	quiet    bool   // since the end: all peers have left, and all messages have arrived
	longest  int    // bytes of the longest frame posted so far
	scratch  []byte // destination of ignored frames
}

// peer is the state of another rank. Counts are of frames.
type peer struct {
	sent, received uint64
	leaves         bool // it has ended its wire because of why, after sending that many frames to this rank
	frames         uint64
	why            error
	reported       bool // its end was reported
	lost           bool
}

func newPort(n *Net, channel, rank int, names []int) *port {
	p := &port{net: n, channel: channel, rank: rank, names: names, peers: make([]peer, len(names)),
		fronts: make([]C.uint64_t, len(names)*kinds), lists: make([][]request, len(names)*kinds)}
	p.more.L = &p.mu
	for r := range names {
		if r != rank {
			p.listen(r, make([]byte, controlLen))
		}
	}
	return p
}

func (p *port) Rank() int      { return p.rank }
func (p *port) Size() int      { return len(p.names) }
func (p *port) Name(r int) int { return p.names[r] }
func (p *port) Host(r int) int { return p.net.host(p.names[r]) }

func (p *port) Note(to int, n collective.Note) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended == nil {
		p.sendControl(to, kindNote, n[:])
	}
}

func (p *port) Send(to int, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil || p.peers[to].lost {
		return
	}
	p.peers[to].sent++
	r, err := isend(b, p.net.processOf(p.names[to]), p.net.tag(p.channel, p.names[p.rank], p.names[to], data))
	p.push(to, dataOut, r, err)
}

func (p *port) Recv(from int, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended == nil {
		p.longest = max(p.longest, len(b))
		p.receive(from, b, false)
	}
}

// Done implements collective.Wire: nothing is lent.
func (p *port) Done(int) {}

func (p *port) Poll() (collective.Event, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for polls := 0; p.ended == nil; polls++ {
		if len(p.news) > 0 {
			e := p.news[0]
			p.news = p.news[:copy(p.news, p.news[1:])]
			return e, nil
		}
		e, is, any := p.ask()
		if is && p.ended == nil {
			return e, nil
		}
		if any {
			polls = 0
			continue
		}
		p.mu.Unlock()
		pause(polls)
		p.mu.Lock()
	}
	for !p.unused {
		p.more.Wait()
	}
	return collective.Event{}, p.ended
}

func (p *port) Ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

func (p *port) Abort(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(why)
}

// Callers of the functions below hold p.mu.

// push appends a request to a list. An MPI error ends the wire.
func (p *port) push(peer, kind int, r request, err error) {
	if err != nil {
		p.end(err)
		return
	}
	at := peer*kinds + kind
	if len(p.lists[at]) == 0 {
		p.fronts[at] = r.handle
	}
	p.lists[at] = append(p.lists[at], r)
}

// pop removes the first request, which is complete, from a list.
func (p *port) pop(at int) request {
	list := p.lists[at]
	r := list[0]
	n := copy(list, list[1:])
	list[n] = request{}
	p.lists[at] = list[:n]
	if p.fronts[at] = 0; n > 0 {
		p.fronts[at] = list[0].handle
	}
	return r
}

// listen posts memory for the next control message of a peer.
func (p *port) listen(from int, b []byte) {
	r, err := irecv(b, p.net.processOf(p.names[from]), p.net.tag(p.channel, p.names[from], p.names[p.rank], control))
	p.push(from, controlIn, r, err)
}

// receive posts memory for the next frame of a peer.
func (p *port) receive(from int, b []byte, scratch bool) {
	if p.peers[from].lost {
		return
	}
	r, err := irecv(b, p.net.processOf(p.names[from]), p.net.tag(p.channel, p.names[from], p.names[p.rank], data))
	r.scratch = scratch
	p.push(from, dataIn, r, err)
}

// sendControl sends a control message.
func (p *port) sendControl(to int, kind byte, body []byte) {
	if p.peers[to].lost {
		return
	}
	var b []byte
	if n := len(p.spare); n > 0 {
		b, p.spare = p.spare[n-1], p.spare[:n-1]
	} else {
		b = make([]byte, controlLen)
	}
	b = b[:headLen+len(body)]
	b[0] = kind
	binary.LittleEndian.PutUint32(b[1:], uint32(len(body)))
	binary.LittleEndian.PutUint64(b[5:], p.peers[to].sent)
	copy(b[headLen:], body)
	r, err := isend(b, p.net.processOf(p.names[to]), p.net.tag(p.channel, p.names[p.rank], p.names[to], control))
	p.push(to, controlOut, r, err)
}

// ask tests for a completed request. any reports whether there was one, is whether it is an event.
func (p *port) ask() (e collective.Event, is, any bool) {
	if len(p.fronts) == 0 {
		return e, false, false
	}
	code := test(p.fronts, p.turn, &p.done)
	at := int(p.done.index)
	if at < 0 {
		return e, false, false
	}
	p.turn = (at + 1) % len(p.fronts)
	r := p.pop(at)
	if err := failed(code); err != nil {
		if p.end(fmt.Errorf("rank %d: %w", p.names[at/kinds], err)); at%kinds == controlIn {
			p.abandon(at / kinds) // it sends no more control messages
			return e, false, true
		}
	}
	e, is = p.finished(at/kinds, at%kinds, r)
	return e, is, true
}

// finished processes a completed request.
func (p *port) finished(from, kind int, r request) (e collective.Event, is bool) {
	it := &p.peers[from]
	e.Peer = from
	switch kind {
	case dataOut:
		e.Kind = collective.Sent
		return e, true
	case controlOut:
		p.spare = append(p.spare, r.b[:controlLen])
		return e, false
	case controlIn:
		return p.handleControl(from, r.b)
	}
	if p.done.cancelled != 0 {
		if !r.scratch && !it.reported { // a frame for it may be on its way
			p.receive(from, p.nowhere(), true)
		}
		return e, false
	}
	it.received++
	if p.ended == nil && int(p.done.bytes) != len(r.b) {
		p.end(fmt.Errorf("rank %d sends %d bytes, %d are expected", p.names[from], p.done.bytes, len(r.b)))
		return e, false
	}
	p.checkLeft(from)
	e.Kind = collective.Received
	return e, true
}

// handleControl processes a control message.
func (p *port) handleControl(from int, b []byte) (e collective.Event, is bool) {
	it := &p.peers[from]
	n, length := int(p.done.bytes), 0
	if n >= headLen {
		length = int(binary.LittleEndian.Uint32(b[1:]))
	}
	switch {
	case n < headLen || length != n-headLen:
	case b[0] == kindNote && length == collective.NoteLen:
		e = collective.Event{Kind: collective.Noted, Peer: from, Note: collective.Note(b[headLen:])}
		p.listen(from, b)
		return e, true
	case b[0] == kindLeft:
		it.leaves, it.frames = true, binary.LittleEndian.Uint64(b[5:])
		it.why = collective.DecodeReason(b[headLen:n])
		p.checkLeft(from)
		return e, false
	}
	p.end(fmt.Errorf("rank %d sends %d invalid bytes", p.names[from], n))
	return e, false
}

// checkLeft reports a peer that has left once all of its frames have arrived, and cancels receives
// posted for more.
func (p *port) checkLeft(from int) {
	it := &p.peers[from]
	if !it.leaves || it.received < it.frames || it.reported {
		return
	}
	it.reported = true
	p.leave(from, it.why)
	if p.ended != nil {
		p.giveUp(from)
	}
}

// lost ends the wire because a process was lost.
func (p *port) lost(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = true
	p.end(why)
}

// lose abandons a peer of the lost process. lost must have been called.
func (p *port) lose(r int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r != p.rank && !p.peers[r].lost {
		p.abandon(r)
		p.peers[r].reported = true
	}
}

// leave reports that a peer has left.
func (p *port) leave(r int, why error) {
	p.news = append(p.news, collective.Event{Kind: collective.Left, Peer: r, Why: why})
	if p.peerLeft == nil {
		p.peerLeft = why
	}
}

// Lost returns why the first peer left, as far as this rank knows, or nil. Broken reports that a
// peer was lost.
func (p *port) Lost() (why error, broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peerLeft, p.broken
}
