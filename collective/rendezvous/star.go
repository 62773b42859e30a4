package rendezvous

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"zeroth/collective"
)

// Config describes a process of a world and how it connects.
type Config struct {
	Processes, PerProcess int          // process p has ranks [p × PerProcess, (p+1) × PerProcess)
	Seats                 []int        // (Processes) what p is above, if processes of a larger world were lost; nil: p
	Addrs                 []string     // addresses of process 0, at least one of which is reachable
	Listener              net.Listener // of process 0
	Run                   string       // distinguishes this world from others at the same addresses
	Token                 []byte
	Hint                  string        // where the token comes from, for error messages; may be empty
	TLS                   *tls.Config   // nil: no TLS
	Wait                  time.Duration // timeout for all processes to join
	Heartbeat, DeadAfter  time.Duration
	Me                    Member
	// Open starts to accept data connections, once the address by which this process belongs to the
	// world is known, and stores their addresses in Me. It may be nil.
	Open func(local net.Addr, me *Member) error
	Note func(string) // receives harmless oddities; may be nil
}

// Member describes a process to the others.
type Member struct {
	Process int      `json:"process"`
	World   int      `json:"world"` // number of processes it was configured with; set by Join
	Host    string   `json:"host"`
	Boot    string   `json:"boot"`           // equal if processes share a kernel
	Sees    []string `json:"sees,omitempty"` // identifiers of visible file systems; processes with a common one see the same files
	Pid     int      `json:"pid"`
	Unix    string   `json:"unix,omitempty"` // addresses for data connections
	TCP     string   `json:"tcp,omitempty"`
	GPUs    []string `json:"gpus,omitempty"` // GPUs that its ranks may use
}

// Fact is a value on which all processes must agree.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Lost reports that a world ended because a process was lost, silent or failed.
type Lost struct {
	Process int
	Rank    int // the process's first rank
	Host    string
	Why     string // "connection lost", "silent for 15s", or the process's own message
	After   bool   // it ended as a consequence of a common failure; see After
	Here    bool   // the world ended on this process alone; see Abandon
	Told    bool   // process 0 has told this one, which may still hear the process
}

func (l Lost) Error() string {
	return fmt.Sprintf("rank %d (%s): %s", l.Rank, strconv.QuoteToGraphic(l.Host), l.Why)
}

// Differences describes the facts on which processes disagree, one per line.
type Differences string

func (d Differences) Error() string { return string(d) }

// Star is a process's end of the control plane.
type Star struct {
	cfg     Config
	Session string   // identifies this start of the world; 128 random bits
	Members []Member // by process

	mu     sync.Mutex
	peers  []*peer // on process 0: by process; on others: only process 0, at index 0
	lost   *Lost
	ended  chan struct{} // closed when lost is set
	closed chan struct{}

	settled     chan struct{} // closed when the join has succeeded or failed
	gone        chan *peer    // processes that disconnected before that
	refusals    int           // refused connections until then
	lastRefusal string        // address and reason of the last one

	deserted chan struct{} // closed when process 0 is done, on the others
	parted   chan struct{} // closed when process 0 knows that this process is done
	leaving  bool          // Done was called; guarded by mu
	facts    chan factsOf  // on process 0: facts of the others
	verdicts chan string   // on the others: verdicts
	shared   chan string   // on the others: values shared by process 0
	all      sync.WaitGroup

	reports map[[2]int]bool // on process 0: reporter and peer of broken data connections

	waits   func() []collective.Wait // waits of this process's ranks; guarded by mu, like reports, inquiry and found
	inquiry *inquiry                 // on process 0: the current inquiry
	found   found

	awake  collective.Awake
	dumps  chan struct{} // see Dumps
	dumped time.Time     // on process 0: time of the last forwarded request for dumps; guarded by mu
}

type factsOf struct {
	process int
	facts   []Fact
	done    bool // it will send no more facts
}

// errDeserted is the error of operations that wait for process 0 after it has ended.
var errDeserted = errors.New("rank 0 has ended")

// Ended is closed when the world has ended; Err then returns the reason.
func (s *Star) Ended() <-chan struct{} { return s.ended }

// Err returns the Lost that ended the world, or nil before.
func (s *Star) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		return nil
	}
	return *s.lost
}

// Lose ends the world on this process, which has detected by other means that a process is lost; on
// process 0 it ends the world for all.
func (s *Star) Lose(process int, why string) { s.end(Lost{Process: process, Why: why}) }

// Fail notifies the others that this process ends because of an error. Close without Fail notifies
// them that it is done.
func (s *Star) Fail(why error) { s.end(Lost{Process: s.cfg.Me.Process, Why: why.Error()}) }

// After notifies the others that this process ends because of a failure that they see, too. It does
// not name the rank at fault, but releases ranks that wait for this one.
func (s *Star) After(why error) {
	s.end(Lost{Process: s.cfg.Me.Process, Why: why.Error(), After: true})
}

// Abandon ends the world on this process alone: the other processes go on in a new world without the lost process.
func (s *Star) Abandon(process int, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		s.lost = &Lost{Process: process, Rank: s.ranksOf(process)[0], Host: s.Members[process].Host, Why: why, Here: true}
		close(s.ended)
	}
}

// end records the first loss. Process 0 distributes it.
func (s *Star) end(l Lost) {
	l.Rank = s.ranksOf(l.Process)[0]
	if s.Members != nil {
		l.Host = s.Members[l.Process].Host
	}
	l.Why = printable(l.Why)
	s.mu.Lock()
	first := s.lost == nil
	if first {
		s.lost = &l
		close(s.ended)
	}
	s.mu.Unlock()
	if first && (s.cfg.Me.Process == 0 || l.Process == s.cfg.Me.Process) {
		body, _ := encode(end{l.Process, l.Why, l.After})
		_ = s.broadcast(kindEnd, body) // peers that are gone need not receive it
	}
}

// listen processes a peer's frames until its connection ends.
func (s *Star) listen(p *peer) {
	in := &patient{peer: p, limit: s.cfg.DeadAfter, awake: &s.awake}
	for {
		in.arm()
		kind, body, err := s.receive(in)
		if err == nil {
			err = s.handle(p, kind, body)
		}
		if err == nil {
			continue
		}
		select {
		case <-s.closed:
			return
		default:
		}
		if p.isDone() {
			return
		}
		why := "connection lost"
		if errors.Is(err, os.ErrDeadlineExceeded) {
			why = fmt.Sprintf("silent for %v", s.cfg.DeadAfter)
		} else if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			why += ": " + err.Error()
		}
		s.end(Lost{Process: p.process, Why: why})
		return
	}
}

// handle processes a frame.
func (s *Star) handle(p *peer, kind uint32, body []byte) error {
	switch kind {
	case kindBeat:
		return nil
	case kindFacts:
		var f []Fact
		if err := decode(kind, kindFacts, body, &f); err != nil {
			return err
		}
		select {
		case s.facts <- factsOf{process: p.process, facts: f}:
			return nil
		default:
			return errors.New("it sent unexpected facts")
		}
	case kindVerdict:
		return offer(s.verdicts, kind, body)
	case kindShare:
		return offer(s.shared, kind, body)
	case kindEnd:
		var e end
		if err := decode(kind, kindEnd, body, &e); err != nil {
			return err
		}
		return s.handleEnd(p, e)
	case kindBroke:
		return s.handleBroke(p, body)
	case kindLate, kindAsk, kindWaits, kindStuck:
		return s.handleWaits(p, kind, body)
	case kindDump:
		s.handleDump()
		return nil
	}
	return fmt.Errorf("a frame of kind %d", kind)
}

// offer passes a message to its receiver, or returns an error if nobody expects it.
func offer(to chan string, kind uint32, body []byte) error {
	var m message
	if err := decode(kind, kind, body, &m); err != nil {
		return err
	}
	select {
	case to <- m.Text:
		return nil
	default:
		return errors.New("it sent an unexpected message")
	}
}

// handleEnd processes the end of a process. Process 0 reports any process, the others only
// themselves.
func (s *Star) handleEnd(p *peer, e end) error {
	if e.Process < 0 || e.Process >= s.cfg.Processes || p.process != 0 && e.Process != p.process {
		return fmt.Errorf("it reported the end of process %d", e.Process)
	}
	if e.Why != "" {
		s.end(Lost{Process: e.Process, Why: e.Why, After: e.After, Told: e.Process != p.process})
		return nil
	}
	if e.Process != p.process { // process 0 confirms
		select {
		case <-s.parted:
		default:
			close(s.parted)
		}
		return nil
	}
	p.mu.Lock()
	first := !p.done
	p.done = true
	p.mu.Unlock()
	if p.process > 0 {
		body, _ := encode(e)
		_ = p.send(kindEnd, body) // listen detects its loss
	}
	switch {
	case !first:
	case p.process == 0:
		close(s.deserted)
	default:
		select {
		case s.facts <- factsOf{process: p.process, done: true}:
		default: // the process has sent more facts than requested
		}
	}
	return nil
}

// patient reads from a peer until it is silent for limit, without the time in which this process
// was stopped: its peers may have been stopped with it, or their frames wait to be read.
type patient struct {
	*peer
	limit  time.Duration
	awake  *collective.Awake
	asleep time.Duration // awake.Lost when the limit was set
}

func (p *patient) arm() {
	p.asleep = p.awake.Lost()
	_ = p.conn.SetReadDeadline(time.Now().Add(p.limit)) // fails only on a closed connection
}

// Read implements io.Reader.
func (p *patient) Read(b []byte) (int, error) {
	for {
		n, err := p.in.Read(b)
		slept := p.awake.Lost() - p.asleep
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || slept == 0 {
			return n, err
		}
		p.asleep += slept
		_ = p.conn.SetReadDeadline(time.Now().Add(min(slept+2*p.awake.Period, p.limit))) // Lost may be two periods too small
	}
}

// beats is how many times per heartbeat a process checks that it runs.
const beats = 4

// beat periodically notifies the peers that this process is alive.
func (s *Star) beat() {
	t := time.NewTicker(s.awake.Period)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-t.C:
			if s.awake.Lost(); n%beats == 0 {
				_ = s.broadcast(kindBeat, nil) // listen detects lost peers
			}
		case <-s.closed:
			return
		}
	}
}

// broadcast sends a frame to every peer.
func (s *Star) broadcast(kind uint32, body []byte) (err error) {
	for _, p := range s.peers {
		if p != nil {
			err = errors.Join(err, p.send(kind, body))
		}
	}
	return err
}

func (s *Star) note(text string) {
	if s.cfg.Note != nil {
		s.cfg.Note(text)
	}
}

// cut closes all connections.
func (s *Star) cut() {
	for _, p := range s.peers {
		if p != nil {
			_ = p.conn.Close()
		}
	}
}

// Done announces that this process is done, unless the world has ended, and waits until process 0 knows. After
// that the process may close its data connections, at whose other ends slow processes may still listen.
func (s *Star) Done() {
	s.mu.Lock()
	first := !s.leaving && s.lost == nil
	s.leaving = true
	s.mu.Unlock()
	if !first {
		return
	}
	body, _ := encode(end{Process: s.cfg.Me.Process})
	_ = s.broadcast(kindEnd, body) // listen detects lost peers
	if s.cfg.Me.Process == 0 {
		return
	}
	select {
	case <-s.parted:
	case <-s.deserted:
	case <-s.ended:
	case <-time.After(s.cfg.DeadAfter):
	}
}

// isDone reports whether a process has announced that it is done, on process 0.
func (s *Star) isDone(process int) bool {
	if process > 0 {
		p := s.peers[process]
		return p != nil && p.isDone()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving
}

// Close announces that this process is done and closes the control plane.
func (s *Star) Close() {
	s.Done()
	s.mu.Lock() // no inquiry starts after it
	close(s.closed)
	s.mu.Unlock()
	s.cut()
	s.all.Wait()
}
