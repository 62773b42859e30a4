package world

import (
	"errors"
	"slices"
	"time"

	"zeroth/collective"
)

// Frames of streams have the size of collectives' frames, at most FrameBytes, or less if the
// memory for all peers would exceed streamBytes.
const (
	FrameBytes  = 1 << 20
	framesAhead = 2
	streamBytes = 256 << 20
)

// Stream sends and receives frames between a rank and its peers.
type Stream struct {
	wire  collective.Wire
	out   []byte
	in    map[int][][]byte // by peer: memory for expected frames
	peers []int
	early []collective.Note // notes of a peer that finished first
}

// NewStream allocates memory for frames to and from peers. Frames are sent from out, of at
// most FrameBytes, which may be memory that peers read; nil allocates it.
func NewStream(w collective.Wire, peers []int, out []byte) *Stream {
	if out == nil {
		out = make([]byte, min(FrameBytes, streamBytes/framesAhead/max(1, len(peers))))
	}
	size := len(out)
	s := &Stream{wire: w, out: out, in: map[int][][]byte{}, peers: peers}
	for _, p := range peers {
		for range framesAhead {
			s.in[p] = append(s.in[p], make([]byte, size))
		}
	}
	return s
}

// flow counts frames sent to and received from a peer.
type flow struct{ allowed, sent, written, posted, received int }

// Run sends bytes to each peer and receives as many, with at most two frames in flight to
// each, and returns the seconds. Nothing is added up: this is the rate of the wire. Memory
// that a peer lends is copied.
func (s *Stream) Run(bytes int) (seconds float64, err error) {
	frames := (bytes + len(s.out) - 1) / len(s.out)
	flows := map[int]*flow{}
	begin := time.Now()
	for _, p := range s.peers {
		flows[p] = &flow{}
		for range min(framesAhead, frames) {
			s.post(p, flows[p], bytes/frames)
		}
	}
	for open := len(s.peers); open > 0; {
		e, err := s.wire.Poll()
		if err != nil {
			return 0, err
		}
		f := flows[e.Peer]
		switch e.Kind {
		case collective.Noted:
			if f.allowed == frames {
				s.early = append(s.early, e.Note)
				break
			}
			f.allowed++
		case collective.Sent:
			f.written++
		case collective.Received:
			if e.Lent != nil {
				copy(s.in[e.Peer][f.received%framesAhead], e.Lent)
				s.wire.Done(e.Peer)
			}
			if f.received++; f.posted < frames {
				s.post(e.Peer, f, bytes/frames)
			}
		case collective.Left:
			return 0, e.Why
		}
		for f.sent < f.allowed {
			s.wire.Send(e.Peer, s.out[:bytes/frames])
			f.sent++
		}
		if f.written == frames && f.received == frames {
			f.written++ // counts it only once
			open--
		}
	}
	return time.Since(begin).Seconds(), nil
}

// post provides memory for the peer's next frame and notifies the peer.
func (s *Stream) post(peer int, f *flow, n int) {
	s.wire.Recv(peer, s.in[peer][f.posted%framesAhead][:n])
	f.posted++
	s.wire.Note(peer, collective.Note{})
}

// roundTrips sends a note back and forth, times; the second of the pair answers. It returns
// the median seconds.
func roundTrips(w collective.Wire, peer int, first bool, times int) (seconds float64, err error) {
	took := make([]float64, times)
	for i := range took {
		begin := time.Now()
		if first {
			w.Note(peer, collective.Note{})
		}
		e, err := w.Poll()
		switch {
		case err != nil:
			return 0, err
		case e.Kind == collective.Left:
			return 0, e.Why
		case e.Kind != collective.Noted || e.Peer != peer:
			return 0, errors.New("the peers of a round trip received something else")
		}
		if !first {
			w.Note(peer, collective.Note{})
		}
		took[i] = time.Since(begin).Seconds()
	}
	slices.Sort(took)
	return took[times/2], nil
}

// goOn returns the first's decision whether to continue on both sides of a pair.
func (s *Stream) goOn(peer int, first, more bool) (bool, error) {
	if first {
		n := collective.Note{}
		if more {
			n[0] = 1
		}
		s.wire.Note(peer, n)
		return more, nil
	}
	if len(s.early) > 0 {
		n := s.early[0]
		s.early = s.early[1:]
		return n[0] == 1, nil
	}
	e, err := s.wire.Poll()
	if err == nil && e.Kind == collective.Left {
		err = e.Why
	}
	return e.Note[0] == 1, err
}

// Probe describes how a connection is measured: by Trips round trips of a note, and by streams
// of From bytes and four times as many each, until one takes Long or has Most bytes.
type Probe struct {
	Trips, From, Most int
	Long              time.Duration
}

// Run measures a wire to a peer: the seconds of a round trip, and the bytes per second in each
// direction at once. first is true on one side; out is as in NewStream.
func (p Probe) Run(w collective.Wire, peer int, first bool, out []byte) (trip, rate float64, err error) {
	if trip, err = roundTrips(w, peer, first, p.Trips); err != nil {
		return 0, 0, err
	}
	s := NewStream(w, []int{peer}, out)
	for bytes := p.From; ; bytes *= 4 { // both sides must agree when to stop: the first decides
		took, err := s.Run(bytes)
		if err != nil {
			return 0, 0, err
		}
		rate = float64(bytes) / took
		more, err := s.goOn(peer, first, took < p.Long.Seconds() && bytes < p.Most)
		if err != nil || !more {
			return trip, rate, err
		}
	}
}
