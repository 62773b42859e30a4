package rendezvous

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Config is a process in a world, and how it gets to the others.
type Config struct {
	Processes, PerProcess int          // process p has ranks [p × PerProcess, (p+1) × PerProcess)
	Addrs                 []string     // of process 0, who is at one of them
	Listener              net.Listener // of process 0
	Run                   string       // what tells this world from others at the same addresses
	Token                 []byte
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

// kinds of frames, and their most bytes.
const (
	kindMember = iota + 1
	kindTable
	kindRefuse
	kindFacts
	kindVerdict
	kindShare
	kindBeat
	kindEnd
	kinds
)

func (s *Star) most(kind uint32) int {
	switch kind {
	case kindTable:
		return 4096 + 1024*s.cfg.Processes
	case kindFacts, kindVerdict, kindShare:
		return 32 << 10
	case kindMember:
		return 1000
	case kindRefuse, kindEnd:
		return 8 << 10
	}
	return 0
}

type table struct {
	Session string   `json:"session"`
	Members []Member `json:"members"`
}

type message struct {
	Text    string `json:"text"`
	Missing bool   `json:"missing,omitempty"` // a refusal because not all have come
}

// Missing is a world that did not form in time: who has not come, or that process 0
// was not there. Nothing has begun; to start again may help.
type Missing string

func (m Missing) Error() string { return string(m) }

// late is the cause of a context that ended because processes did not come.
type late time.Duration

func (l late) Error() string { return fmt.Sprintf("nobody answered within %v", time.Duration(l)) }

// missing is the error as a Missing where it is that others did not come in time.
func missing(err error) error {
	if errors.As(err, new(late)) {
		return Missing(err.Error())
	}
	return err
}

// end is why a process ends, or another has; Why is empty for one that is done.
type end struct {
	Process int    `json:"process"`
	Why     string `json:"why"`
	After   bool   `json:"after,omitempty"`
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

	deserted chan struct{} // closed when process 0 is done, on the others
	facts    chan factsOf  // of process 0: what the others say
	said     chan string   // of the others: verdicts
	shared   chan string   // likewise: what process 0 shares
	all      sync.WaitGroup
}

type factsOf struct {
	process int
	facts   []Fact
	done    bool // it states nothing any more
}

// errDeserted is for who waits for a process 0 that has ended.
var errDeserted = errors.New("rank 0 has ended")

// peer is the connection to one process.
type peer struct {
	process int
	conn    net.Conn
	mu      sync.Mutex // of writing
	done    bool       // it has said that it is
}

// about is what connections to the star are for.
func (c Config) about() string { return "control " + c.Run }

// Join waits until all processes of the world have come. It is the first thing
// that they do together.
func Join(ctx context.Context, cfg Config) (*Star, error) {
	wait := cfg.Wait
	if cfg.Me.Process > 0 {
		wait += time.Second // process 0 may still say who is missing
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, late(cfg.Wait))
	defer cancel()
	s := &Star{cfg: cfg, peers: make([]*peer, cfg.Processes), ended: make(chan struct{}), closed: make(chan struct{}),
		deserted: make(chan struct{}), facts: make(chan factsOf, 2*cfg.Processes), said: make(chan string, 1), shared: make(chan string, 8)}
	var err error
	if cfg.Me.Process == 0 {
		err = s.host(ctx)
	} else {
		err = s.join(ctx)
	}
	if err != nil {
		s.cut()
		return nil, missing(err)
	}
	for _, p := range s.peers {
		if p != nil {
			s.all.Go(func() { s.listen(p) })
		}
	}
	s.all.Go(s.beat)
	return s, nil
}

// host lets all others in, and tells them of each other.
func (s *Star) host(ctx context.Context) error {
	door := NewDoor(Over(s.cfg.Listener, s.cfg.TLS), s.cfg.Token, s.cfg.about(), s.cfg.Processes, func(from string, err error) { s.note(fmt.Sprintf("refused a connection from %s: %v", from, err)) })
	defer door.Close()
	if err := s.open(s.cfg.Listener.Addr()); err != nil {
		return err
	}
	s.Members = make([]Member, s.cfg.Processes)
	s.Members[0] = s.cfg.Me
	for missing := s.cfg.Processes - 1; missing > 0; {
		g, err := door.Next(ctx)
		if err != nil {
			return s.give(fmt.Errorf("%s not come: %w", s.absent(), err))
		}
		if s.admit(g) {
			missing--
		}
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	s.Session = hex.EncodeToString(id[:])
	body, err := encode(table{s.Session, s.Members})
	if err != nil {
		return err
	}
	return s.tell(kindTable, body)
}

func (s *Star) open(local net.Addr) error {
	if s.cfg.Open == nil {
		return nil
	}
	return s.cfg.Open(local, &s.cfg.Me)
}

// admit takes a guest in as the process it says it is.
func (s *Star) admit(g Guest) bool {
	p := &peer{process: g.Process, conn: g}
	refuse := func(why string) bool {
		s.note(fmt.Sprintf("refused %s: %s", g.RemoteAddr(), why))
		body, _ := encode(message{Text: why})
		_ = p.send(kindRefuse, body)
		_ = g.Close()
		return false
	}
	if g.Process < 1 || g.Process >= s.cfg.Processes {
		return refuse(fmt.Sprintf("there is no process %d in a world of %d processes", g.Process, s.cfg.Processes))
	}
	if s.peers[g.Process] != nil {
		return refuse(fmt.Sprintf("process %d has come already: two were started as rank %d", g.Process, g.Process*s.cfg.PerProcess))
	}
	var m Member
	_ = g.SetReadDeadline(time.Now().Add(shake))
	kind, body, err := s.receive(g)
	if err == nil {
		err = decode(kind, kindMember, body, &m)
	}
	if err != nil || m.Process != g.Process {
		return refuse(fmt.Sprintf("it does not introduce itself: %v", err))
	}
	s.peers[g.Process], s.Members[g.Process] = p, m
	return true
}

// give tells all who have come why it ends.
func (s *Star) give(err error) error {
	body, _ := encode(message{Text: err.Error(), Missing: errors.As(err, new(late))})
	_ = s.tell(kindRefuse, body) // who is gone need not hear
	return err
}

func (s *Star) absent() string {
	var names []int
	for i, p := range s.peers {
		if i > 0 && p == nil {
			names = append(names, i)
		}
	}
	if len(names)*s.cfg.PerProcess == 1 {
		return s.ranks(names) + " has"
	}
	return s.ranks(names) + " have"
}

// join goes to process 0 and learns of the others.
func (s *Star) join(ctx context.Context) error {
	c, err := Caller{s.cfg.Me.Process, s.cfg.Token, s.cfg.TLS}.Dial(ctx, "tcp", s.cfg.Addrs, s.cfg.about())
	if err != nil {
		return fmt.Errorf("rank 0 at %w", err)
	}
	p := &peer{process: 0, conn: c}
	s.peers[0] = p
	if err := s.open(c.LocalAddr()); err != nil {
		return err
	}
	body, err := encode(s.cfg.Me)
	if err == nil {
		err = p.send(kindMember, body)
	}
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	kind, body, err := s.receive(c)
	if !stop() {
		return fmt.Errorf("rank 0 at %v: %w", c.RemoteAddr(), context.Cause(ctx))
	}
	var t table
	var m message
	switch {
	case err != nil:
		return fmt.Errorf("rank 0 at %v: %w", c.RemoteAddr(), err)
	case kind == kindRefuse && decode(kind, kindRefuse, body, &m) == nil && m.Missing:
		return Missing("rank 0: " + printable(m.Text))
	case kind == kindRefuse && m.Text != "":
		return fmt.Errorf("rank 0: %s", printable(m.Text))
	}
	if err := decode(kind, kindTable, body, &t); err != nil || len(t.Members) != s.cfg.Processes {
		return fmt.Errorf("rank 0 at %v tells of %d processes, want %d: %w", c.RemoteAddr(), len(t.Members), s.cfg.Processes, err)
	}
	s.Session, s.Members = t.Session, t.Members
	return nil
}

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

func (s *Star) why(err error) error {
	if err == nil {
		return nil
	}
	if lost := s.Err(); lost != nil {
		return lost
	}
	return err
}

// Lose ends the world as a process was found to be lost by other means.
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
		kind, body, err := s.receive(p.conn)
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

func (p *peer) isDone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
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

// send writes a frame; who does not take it within five seconds never will.
func (p *peer) send(kind uint32, body []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := binary.LittleEndian.AppendUint32(nil, kind)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	_ = p.conn.SetWriteDeadline(time.Now().Add(shake))
	_, err := p.conn.Write(append(b, body...))
	return err
}

// receive reads a frame whose length its kind allows.
func (s *Star) receive(c net.Conn) (kind uint32, body []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return 0, nil, err
	}
	kind, n := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
	if kind == 0 || kind >= kinds || int64(n) > int64(s.most(kind)) {
		return 0, nil, fmt.Errorf("a frame of kind %d and %d bytes", kind, n)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(c, body)
	return kind, body, err
}

func encode(v any) ([]byte, error) { return json.Marshal(v) }

func decode(kind, want uint32, body []byte, v any) error {
	if kind != want {
		return fmt.Errorf("a frame of kind %d, want %d", kind, want)
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if d.More() {
		return errors.New("more than one value in a frame")
	}
	return nil
}

// printable is text from elsewhere as it may be shown, of bounded length.
func printable(s string) string {
	if len(s) > 2000 {
		s = s[:2000] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' || strconv.IsGraphic(r) {
			return r
		}
		return '?'
	}, s)
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
	close(s.closed)
	if s.Err() == nil {
		body, _ := encode(end{Process: s.cfg.Me.Process})
		_ = s.tell(kindEnd, body) // likewise
	}
	s.cut()
	s.all.Wait()
}
