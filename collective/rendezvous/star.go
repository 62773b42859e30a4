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

// Config is a process in a world, and how it gets to the others.
type Config struct {
	Processes, PerProcess int          // process p has ranks [p × PerProcess, (p+1) × PerProcess)
	Addrs                 []string     // of process 0, who is at one of them
	Listener              net.Listener // of process 0
	Run                   string       // what tells this world from others at the same addresses
	Token                 []byte
	Hint                  string        // where the token is from, for who has another; may be empty
	TLS                   *tls.Config   // nil: none
	Wait                  time.Duration // for all to come
	Heartbeat, DeadAfter  time.Duration
	Me                    Member
	// Open opens where the process accepts data connections, once it knows by which
	// of its addresses it is part of the world, and sets that in Me. May be nil.
	Open func(local net.Addr, me *Member) error
	Note func(string) // hears what is odd and does not matter; may be nil
}

// Member is what the others learn of a process.
type Member struct {
	Process int      `json:"process"`
	World   int      `json:"world"` // processes that it was told there are; Join sets it
	Host    string   `json:"host"`
	Boot    string   `json:"boot"`           // equal where processes share a kernel
	Sees    []string `json:"sees,omitempty"` // names of what files it sees; one in common: they see the same
	Pid     int      `json:"pid"`
	Unix    string   `json:"unix,omitempty"` // where it accepts data connections
	TCP     string   `json:"tcp,omitempty"`
	GPUs    []string `json:"gpus,omitempty"` // that its ranks may be on
}

// Fact is something on which all processes must agree.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Lost is the end of a world by the loss, the silence or the failure of a
// process.
type Lost struct {
	Process int
	Rank    int // its first
	Host    string
	Why     string // "connection lost", "silent for 15s", or what it said itself
	After   bool   // it has ended because of what ranks did together, and they know: see After
}

func (l Lost) Error() string {
	return fmt.Sprintf("rank %d (%s): %s", l.Rank, strconv.QuoteToGraphic(l.Host), l.Why)
}

// Differences is what the processes of a world do not agree on, a line for each.
type Differences string

func (d Differences) Error() string { return string(d) }

// Star is a process's end of the control plane.
type Star struct {
	cfg     Config
	Session string   // of this start of the world; 128 random bits
	Members []Member // by process

	mu     sync.Mutex
	peers  []*peer // process 0: by process, the others: that of process 0 alone, at 0
	lost   *Lost
	ended  chan struct{} // closed when lost is set
	closed chan struct{}

	settled     chan struct{} // closed when all have come, or not all will
	gone        chan *peer    // who has come and gone before that
	refusals    int           // connections, until then
	lastRefusal string        // from where, and why

	deserted chan struct{} // closed when process 0 is done, on the others
	facts    chan factsOf  // of process 0: what the others say
	said     chan string   // of the others: verdicts
	shared   chan string   // likewise: what process 0 shares
	all      sync.WaitGroup

	reports map[[2]int]bool // process 0: by whom a data connection was reported, and to whom

	waits func() []collective.Wait // of this process's ranks; with reports, asked and found under mu
	asked *inquiry                 // process 0: the one under way
	found found

	dumps  chan struct{} // of Dumps
	dumped time.Time     // process 0: when it last passed on a request for dumps; under mu
}

type factsOf struct {
	process int
	facts   []Fact
	done    bool // it states nothing any more
}

// errDeserted is for who waits for a process 0 that has ended.
var errDeserted = errors.New("rank 0 has ended")

// Ended is closed when the world has ended; Err then says why.
func (s *Star) Ended() <-chan struct{} { return s.ended }

// Err is the Lost that ended the world; nil before.
func (s *Star) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		return nil
	}
	return *s.lost
}

// Lose ends the world on this process alone, which has found out by other means that a
// process is lost; if this is process 0 it ends for all.
func (s *Star) Lose(process int, why string) { s.end(Lost{Process: process, Why: why}) }

// Fail tells the others why this process ends; Close without it tells them that
// it is done.
func (s *Star) Fail(why error) { s.end(Lost{Process: s.cfg.Me.Process, Why: why.Error()}) }

// After tells the others that this process ends because of what ranks did together,
// and how: they need not be told who it was, but one that is stuck has to hear that
// nobody waits for it any more.
func (s *Star) After(why error) {
	s.end(Lost{Process: s.cfg.Me.Process, Why: why.Error(), After: true})
}

// end is for the first who is lost; all hear of it from process 0.
func (s *Star) end(l Lost) {
	l.Rank = l.Process * s.cfg.PerProcess
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
		_ = s.tell(kindEnd, body) // who is gone need not hear
	}
}

// listen hears one peer until its connection ends.
func (s *Star) listen(p *peer) {
	for {
		_ = p.conn.SetReadDeadline(time.Now().Add(s.cfg.DeadAfter))
		kind, body, err := s.receive(p.in)
		if err == nil {
			err = s.hear(p, kind, body)
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

// hear takes what a peer says.
func (s *Star) hear(p *peer, kind uint32, body []byte) error {
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
			return errors.New("it states facts that nobody asked for")
		}
	case kindVerdict:
		return offer(s.said, kind, body)
	case kindShare:
		return offer(s.shared, kind, body)
	case kindEnd:
		var e end
		if err := decode(kind, kindEnd, body, &e); err != nil {
			return err
		}
		return s.hearEnd(p, e)
	case kindBroke:
		return s.hearBroke(p, body)
	case kindLate, kindAsk, kindWaits, kindStuck:
		return s.hearWaits(p, kind, body)
	case kindDump:
		s.hearDump()
		return nil
	}
	return fmt.Errorf("a frame of kind %d", kind)
}

// offer hands a message to who waits for it.
func offer(to chan string, kind uint32, body []byte) error {
	var m message
	if err := decode(kind, kind, body, &m); err != nil {
		return err
	}
	select {
	case to <- m.Text:
		return nil
	default:
		return errors.New("it says what nobody asked for")
	}
}

// hearEnd takes the end of a process. Process 0 speaks for all, others for
// themselves.
func (s *Star) hearEnd(p *peer, e end) error {
	if e.Process < 0 || e.Process >= s.cfg.Processes || p.process != 0 && e.Process != p.process {
		return fmt.Errorf("it tells of the end of process %d", e.Process)
	}
	if e.Why != "" {
		s.end(Lost{Process: e.Process, Why: e.Why, After: e.After})
		return nil
	}
	p.mu.Lock()
	first := !p.done
	p.done = true
	p.mu.Unlock()
	switch {
	case !first:
	case p.process == 0:
		close(s.deserted)
	default:
		select {
		case s.facts <- factsOf{process: p.process, done: true}:
		default: // it has stated more than anybody asked for
		}
	}
	return nil
}

// beat tells the peers, now and then, that this process is alive.
func (s *Star) beat() {
	t := time.NewTicker(s.cfg.Heartbeat)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			_ = s.tell(kindBeat, nil) // listen finds out who is gone
		case <-s.closed:
			return
		}
	}
}

// tell sends a frame to every peer.
func (s *Star) tell(kind uint32, body []byte) (err error) {
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

// Close says goodbye and ends the control plane.
func (s *Star) Close() {
	s.mu.Lock() // inquire begins nothing after it
	close(s.closed)
	s.mu.Unlock()
	if s.Err() == nil {
		body, _ := encode(end{Process: s.cfg.Me.Process})
		_ = s.tell(kindEnd, body) // likewise
	}
	s.cut()
	s.all.Wait()
}
