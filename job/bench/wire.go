package bench

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/job/world"
	"zeroth/shard"
)

// member is this process's end of a world of one rank a process, as it is measured.
type member struct {
	*world.World
	ranks  int
	me     int
	group  collective.Group
	wire   collective.Wire // beside the group: frames without sums
	host   *cpu.Device
	queue  *cpu.Queue
	groups collective.Ranks
}

// join connects all processes.
func join(w *world.World) (*member, error) {
	n := len(w.Members())
	all, err := w.Groups(shard.Mesh{Shard: n, Replicate: 1})
	if err != nil {
		return nil, err
	}
	f := &member{World: w, ranks: n, me: w.Process(), groups: all[0], group: all[0].World, host: cpu.NewHost(1)}
	if mem := w.Memory(); mem != nil {
		f.host.Share(mem) // as training has it
	}
	f.wire, f.queue = w.Wire(f.me), f.host.NewQueue("comm")
	return f, nil
}

func (f *member) close() {
	_ = f.groups.Close() // the world's end tells what was wrong
	f.queue.Close()
	f.host.Close()
}

// do issues an operation and waits for it.
func (f *member) do(op func(collective.Group, device.Queue, device.Buffer), b device.Buffer) error {
	op(f.group, f.queue, b)
	return f.queue.Wait()
}

// together is process 0's x on all, and no process goes on before all have come.
func (f *member) together(x float32) (float32, error) {
	all := make([]float32, f.ranks)
	all[f.me] = x
	err := f.do(collective.AllGather, device.OfF32(all))
	return all[0], err
}

// sum adds up what processes have measured.
func (f *member) sum(x []float64) ([]float64, error) {
	n := (len(x) + f.ranks - 1) / f.ranks * f.ranks
	all := append(slices.Clone(x), make([]float64, n-len(x))...)
	err := f.do(collective.AllReduce, device.OfF64(all))
	return all[:len(x)], err
}

// Frames of streams are those of collectives, unless there are so many peers that
// their memory would be more than streamBytes.
const (
	frameBytes  = 1 << 20
	framesAhead = 2
	streamBytes = 256 << 20
)

// streaming is a rank's frames to and from its peers.
type streaming struct {
	wire  collective.Wire
	out   []byte
	in    map[int][][]byte // by peer: memory for frames ahead
	peers []int
	early []collective.Note // of a peer that was done first
}

func newStreaming(w collective.Wire, peers []int) *streaming {
	size := min(frameBytes, streamBytes/framesAhead/max(1, len(peers)))
	s := &streaming{wire: w, out: make([]byte, size), in: map[int][][]byte{}, peers: peers}
	for _, p := range peers {
		for range framesAhead {
			s.in[p] = append(s.in[p], make([]byte, size))
		}
	}
	return s
}

// flow is what has gone to a peer and come from it, in frames.
type flow struct{ allowed, sent, written, posted, received int }

// run sends so many bytes to each peer and receives as many, at most two frames in
// flight to each, and returns the seconds that took. Nothing is added: it is what
// the wire can carry.
func (s *streaming) run(bytes int) (seconds float64, err error) {
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
			f.written++ // it is counted once
			open--
		}
	}
	return time.Since(begin).Seconds(), nil
}

// post has memory for the peer's next frame and lets it know.
func (s *streaming) post(peer int, f *flow, n int) {
	s.wire.Recv(peer, s.in[peer][f.posted%framesAhead][:n])
	f.posted++
	s.wire.Note(peer, collective.Note{})
}

// roundTrips sends a note to and fro, times; the second of the two answers. It
// returns the seconds of the median one.
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
			return 0, errors.New("the peers of a round trip got something else")
		}
		if !first {
			w.Note(peer, collective.Note{})
		}
		took[i] = time.Since(begin).Seconds()
	}
	slices.Sort(took)
	return took[times/2], nil
}

// Link is what the connection of two processes was measured to carry.
type Link struct {
	A, B      int     // processes
	SameHost  bool    // they see the same files, and each other's sockets
	By        string  // "unix", "tcp" or "mpi"
	RoundTrip float64 // seconds, of 80 bytes
	Rate      float64 // bytes a second in each direction, both at once
}

// mostLinks is how many connections are measured, one after the other.
const mostLinks = 64

// pairs are the connections to measure: the first two processes of each host, and
// the first ones of the first host and of each other.
func pairs(hosts []int) (all [][2]int) {
	first, second := map[int]int{}, map[int]bool{}
	for p, host := range hosts {
		f, seen := first[host]
		switch {
		case !seen:
			first[host] = p
			if p > 0 {
				all = append(all, [2]int{0, p})
			}
		case !second[host]:
			second[host] = true
			all = append(all, [2]int{f, p})
		}
	}
	return all[:min(len(all), mostLinks)]
}

// What a link is measured by.
const (
	linkTrips = 200
	linkTime  = 100 * time.Millisecond
)

// Links measures the connections of a world of one rank a process, one after the
// other; all processes call it, and all get the result. What each says of itself, a
// few numbers, as many from all, all get as well, by process.
func Links(w *world.World, mine []float64) (links []Link, said [][]float64, err error) {
	f, err := join(w)
	if err != nil {
		return nil, nil, err
	}
	defer f.close()
	if said, err = f.tell(mine); err != nil {
		return nil, nil, err
	}
	hosts := w.HostsOf(shard.Mesh{Shard: f.ranks, Replicate: 1})
	chosen := pairs(hosts)
	found := make([]float64, 3*len(chosen))
	for i, pair := range chosen {
		if _, err := f.together(0); err != nil {
			return nil, nil, err
		}
		if pair[0] == f.me || pair[1] == f.me {
			if err := f.link(pair, found[3*i:]); err != nil {
				return nil, nil, fmt.Errorf("processes %d and %d: %w", pair[0], pair[1], err)
			}
		}
	}
	if found, err = f.sum(found); err != nil {
		return nil, nil, err
	}
	for i, pair := range chosen {
		links = append(links, Link{A: pair[0], B: pair[1], SameHost: hosts[pair[0]] == hosts[pair[1]],
			RoundTrip: found[3*i], Rate: found[3*i+1], By: world.Carriers[int(found[3*i+2])]})
	}
	return links, said, nil
}

// tell is what all processes say.
func (f *member) tell(mine []float64) (all [][]float64, err error) {
	b := device.OfF64(make([]float64, f.ranks*len(mine)))
	copy(collective.Own(f.group, b).F64(), mine)
	err = f.do(collective.AllGather, b)
	for p := range f.ranks {
		all = append(all, collective.Part(f.group, b, p).F64())
	}
	return all, err
}

// link measures a connection of this process; the first of the two notes what it
// was: seconds of a round trip, bytes a second, the number of what carries it.
func (f *member) link(pair [2]int, found []float64) error {
	first, peer := pair[0] == f.me, pair[0]
	if first {
		peer = pair[1]
	}
	trip, err := roundTrips(f.wire, peer, first, linkTrips)
	if err != nil {
		return err
	}
	s := newStreaming(f.wire, []int{peer})
	rate := 0.0
	for bytes := 4 * frameBytes; ; bytes *= 4 { // both sides know when it was enough: the first decides
		took, err := s.run(bytes)
		if err != nil {
			return err
		}
		rate = float64(bytes) / took
		more, err := s.goOn(peer, first, took < linkTime.Seconds() && bytes < 1<<30)
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	if first {
		found[0], found[1], found[2] = trip, rate, float64(slices.Index(world.Carriers, f.Carrier(peer)))
	}
	return nil
}

// goOn is the first one's word, on both.
func (s *streaming) goOn(peer int, first, more bool) (bool, error) {
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
