package rendezvous

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"time"

	"zeroth/collective"
)

// Missing reports that a world was not formed: processes are missing, or process 0 was unreachable
// or disappeared. Nothing has started, so trying again may help.
type Missing string

func (m Missing) Error() string { return string(m) }

// Gone is the error of a process that comes back and finds nobody to join.
type Gone string

func (g Gone) Error() string { return string(g) }

// Refusal reports why process 0 refuses a process that knows the token: the world has no such
// process.
type Refusal string

func (r Refusal) Error() string { return "rank 0: " + string(r) }

// Wrong reports whether an error requires a change of configuration before the processes can join.
func Wrong(err error) bool {
	return errors.As(err, new(Refusal)) || errors.Is(err, ErrRefused) || errors.Is(err, ErrUntrusted) || errors.Is(err, errStranger) || errors.Is(err, errVersion)
}

// late is the cause of a context that expired before all processes joined.
type late time.Duration

func (l late) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(l)) }

// missing converts an error to Missing if it is a timeout.
func missing(err error) error {
	if errors.As(err, new(late)) {
		return Missing(err.Error())
	}
	return err
}

// hinted adds to a refusal because of the token where this process's token comes from.
func (c *Config) hinted(err error) error {
	if c.Hint == "" || !errors.Is(err, ErrRefused) {
		return err
	}
	return fmt.Errorf("%w; %s", err, c.Hint)
}

// about returns the purpose of connections to the star.
func (c Config) about() string { return "control " + c.Run }

// Join waits until all processes of the world have joined. They must call it before anything else.
// The error is a Missing if some did not join. Wrong(err) is true if this process does not belong
// to that world.
func Join(ctx context.Context, cfg Config) (*Star, error) {
	wait := cfg.Wait
	if cfg.Me.Process > 0 {
		wait += time.Second // process 0 may still report who is missing
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, late(cfg.Wait))
	defer cancel()
	cfg.Me.World = cfg.Processes
	s := newStar(cfg)
	var err error
	if cfg.Me.Process == 0 {
		err = s.host(ctx)
	} else {
		err = s.join(ctx)
	}
	for _, p := range s.peers {
		if p != nil && cfg.Me.Process == 0 {
			_ = p.conn.SetReadDeadline(time.Unix(1, 0)) // ends awaitAll's read, so that it can proceed to listen
		}
	}
	close(s.settled)
	if err != nil {
		s.cut()
		s.all.Wait()
		return nil, missing(err)
	}
	s.all.Go(s.beat)
	return s, nil
}

func newStar(cfg Config) *Star {
	return &Star{cfg: cfg, awake: collective.Awake{Period: cfg.Heartbeat / beats}, peers: make([]*peer, cfg.Processes), ended: make(chan struct{}), closed: make(chan struct{}), settled: make(chan struct{}), gone: make(chan *peer),
		deserted: make(chan struct{}), parted: make(chan struct{}), facts: make(chan factsOf, 2*cfg.Processes), verdicts: make(chan string, 1), shared: make(chan string, 8), dumps: make(chan struct{}, 1), found: found{next: make(chan struct{})}}
}

// Again returns the star of processes that are connected already: conns has the connections to the
// others on process 0, and only the one to process 0 elsewhere. The star closes them.
func Again(cfg Config, session string, members []Member, conns []net.Conn) *Star {
	cfg.Me = members[cfg.Me.Process]
	s := newStar(cfg)
	s.Session, s.Members = session, members
	close(s.settled)
	for p, c := range conns {
		if c != nil {
			s.peers[p] = newPeer(p, c)
			s.all.Go(func() { s.listen(s.peers[p]) })
		}
	}
	s.all.Go(s.beat)
	return s
}

// host accepts all other processes and sends them the table of members.
func (s *Star) host(ctx context.Context) error {
	if err := s.open(s.cfg.Listener.Addr()); err != nil {
		return err
	}
	door := NewDoor(Over(s.cfg.Listener, s.cfg.TLS), s.cfg.Token, s.cfg.about(), s.cfg.Processes, s.refused)
	defer door.Close()
	s.Members = make([]Member, s.cfg.Processes)
	s.Members[0] = s.cfg.Me
	for missing := s.cfg.Processes - 1; missing > 0; {
		select {
		case g := <-door.in:
			if s.admit(g) {
				missing--
			}
		case p := <-s.gone:
			s.note(fmt.Sprintf("%s (%q) disconnected before all had joined", spans(s.ranksOf(p.process)), printable(s.Members[p.process].Host)))
			_ = p.conn.Close()
			s.peers[p.process] = nil
			missing++
		case <-ctx.Done():
			return s.giveUp(fmt.Errorf("%s not joined: %w%s", s.absent(), context.Cause(ctx), s.strangers()+door.Trouble()))
		}
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	s.Session = hex.EncodeToString(id[:])
	body, err := encode(table{s.Session, s.Members})
	if err != nil {
		return err
	}
	for _, p := range s.peers[1:] {
		// The table of a large world exceeds a socket's buffer, and a process on a busy machine may
		// take long to read it.
		_ = p.sendWithin(s.cfg.Wait, kindTable, body) // listen detects lost peers
	}
	return nil
}

func (s *Star) open(local net.Addr) error {
	if s.cfg.Open == nil {
		return nil
	}
	return s.cfg.Open(local, &s.cfg.Me)
}

// refused records a refused connection with the process it claims to be, or -1.
func (s *Star) refused(from string, process int, why error) {
	if process >= s.cfg.Processes {
		from += fmt.Sprintf(", which claims to be process %d", process)
	} else if process >= 0 {
		from += ", which claims to be " + spans(s.ranksOf(process))
	}
	text := fmt.Sprintf("%s: %v", from, s.cfg.hinted(why))
	s.mu.Lock()
	s.refusals++
	s.lastRefusal = text
	s.mu.Unlock()
	s.note("refused a connection from " + text)
}

// strangers describes the connections refused during the join.
func (s *Star) strangers() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.refusals {
	case 0:
		return ""
	case 1:
		return "; a connection was refused, from " + s.lastRefusal
	}
	return fmt.Sprintf("; %d connections were refused, the last from %s", s.refusals, s.lastRefusal)
}

// admit adds a guest as the process that it claims to be.
func (s *Star) admit(g Guest) bool {
	p := newPeer(g.Process, g)
	refuse := func(why string) bool {
		s.refused(g.RemoteAddr().String(), g.Process, errors.New(why))
		body, _ := encode(message{Text: why})
		_ = p.send(kindRefuse, body)
		_ = g.Close()
		return false
	}
	if g.Process < 1 || g.Process >= s.cfg.Processes {
		return refuse(fmt.Sprintf("there is no process %d in a world of %d processes", g.Process, s.cfg.Processes))
	}
	if s.peers[g.Process] != nil {
		return refuse(fmt.Sprintf("process %d has already joined, from host %q: two were started as %s", g.Process, printable(s.Members[g.Process].Host), spans(s.ranksOf(g.Process))))
	}
	var m Member
	_ = g.SetReadDeadline(time.Now().Add(shake))
	kind, body, err := s.receive(p.in)
	if err == nil {
		err = decode(kind, kindMember, body, &m)
	}
	switch {
	case err != nil || m.Process != g.Process:
		return refuse(fmt.Sprintf("it did not introduce itself: %v", err))
	case m.World != s.cfg.Processes:
		return refuse(fmt.Sprintf("it was started as one of %d processes (on host %q), but process 0 as one of %d (on host %q); use the same number everywhere", m.World, printable(m.Host), s.cfg.Processes, printable(s.cfg.Me.Host)))
	}
	_ = g.SetReadDeadline(time.Time{})
	s.peers[g.Process], s.Members[g.Process] = p, m
	s.all.Go(func() { s.awaitAll(p) })
	return true
}

// awaitAll listens to a process after all have joined; until then it sends nothing. A process that
// disconnects before is removed.
func (s *Star) awaitAll(p *peer) {
	_, _ = p.in.Peek(1)
	select {
	case s.gone <- p:
	case <-s.settled:
		if s.Session != "" {
			s.listen(p)
		}
	}
}

// giveUp notifies all joined processes that the join failed.
func (s *Star) giveUp(err error) error {
	body, _ := encode(message{Text: err.Error(), Missing: true})
	_ = s.broadcast(kindRefuse, body) // peers that are gone need not receive it
	return err
}

func (s *Star) absent() string {
	var names []int
	for i, p := range s.peers {
		if i > 0 && p == nil {
			names = append(names, i)
		}
	}
	ranks := s.ranksOf(names...)
	return spans(ranks) + collective.Plural(ranks, " has", " have")
}

// join connects to process 0 and receives the table of members.
func (s *Star) join(ctx context.Context) error {
	c, err := Caller{Process: s.cfg.Me.Process, Token: s.cfg.Token, TLS: s.cfg.TLS}.Dial(ctx, "tcp", s.cfg.Addrs, s.cfg.about())
	if err != nil {
		return fmt.Errorf("rank 0 at %w", s.cfg.hinted(err))
	}
	p := newPeer(0, c)
	s.peers[0] = p
	if err := s.open(c.LocalAddr()); err != nil {
		return err
	}
	body, err := encode(s.cfg.Me)
	if err == nil {
		err = p.send(kindMember, body)
	}
	if err == nil {
		err = s.learn(ctx, p)
	}
	if err == nil {
		s.all.Go(func() { s.listen(p) })
	}
	return err
}

// learn waits for the table from process 0.
func (s *Star) learn(ctx context.Context, p *peer) error {
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetReadDeadline(time.Unix(1, 0)) })
	kind, body, err := s.receive(p.in)
	if !stop() {
		return fmt.Errorf("rank 0 at %v: %w", p.conn.RemoteAddr(), context.Cause(ctx))
	}
	if err != nil {
		return Missing(fmt.Sprintf("rank 0 at %v: connection lost before all had joined: %v", p.conn.RemoteAddr(), err))
	}
	var t table
	var m message
	if kind == kindRefuse && decode(kind, kindRefuse, body, &m) == nil {
		if m.Missing {
			return Missing("rank 0: " + printable(m.Text))
		}
		return Refusal(printable(m.Text))
	}
	if err := decode(kind, kindTable, body, &t); err != nil {
		return fmt.Errorf("rank 0 at %v: %w", p.conn.RemoteAddr(), err)
	}
	if len(t.Members) != s.cfg.Processes {
		return fmt.Errorf("rank 0 at %v reports %d processes, want %d", p.conn.RemoteAddr(), len(t.Members), s.cfg.Processes)
	}
	s.Session, s.Members = t.Session, t.Members
	return nil
}
