package rendezvous

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"zeroth/collective"
)

// asking is how long process 0 waits for what the others answer, and a process for
// what process 0 makes of it: it is more, so that who does not answer is found by one.
const asking, told = 2 * time.Second, 4 * time.Second

// mostWaits is how many Waits are taken of a rank, and waitBytes how long one is but for the
// ranks that it waits for.
const mostWaits, waitBytes = 8, 1000

// inquiry is one question of process 0's to all, and what they have answered.
type inquiry struct {
	waits []collective.Wait // of the processes that have answered
	by    map[int]bool      // process: it has
	all   chan struct{}     // closed when all have
}

// found is what came of the last inquiry, and when.
type found struct {
	text string
	at   time.Time
	next chan struct{} // closed when there is another
}

// Answer has f say for whom the ranks of this process wait, from now on. Any goroutine
// may call it, and it waits for nobody.
func (s *Star) Answer(f func() []collective.Wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = f
}

// Ask is for whom all wait in the end: ranks that wait for others have others ask, and
// process 0 follows who waits for whom. It is empty if nobody does, or nobody says so in
// time.
func (s *Star) Ask() string {
	s.mu.Lock()
	if !s.found.at.IsZero() && time.Since(s.found.at) < collective.Fresh {
		defer s.mu.Unlock()
		return s.found.text
	}
	next := s.found.next
	s.mu.Unlock()
	if s.cfg.Me.Process == 0 {
		s.inquire()
	} else {
		_ = s.peers[0].send(kindLate, nil) // listen finds out if it is gone
	}
	select {
	case <-next:
	case <-time.After(told):
	case <-s.deserted:
	case <-s.ended:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.found.text
}

// inquire has process 0 ask all, unless it is at it.
func (s *Star) inquire() {
	q := &inquiry{by: map[int]bool{}, all: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return
	default:
	}
	if s.asked != nil {
		return
	}
	s.asked = q
	s.all.Go(func() {
		_ = s.tell(kindAsk, nil) // who does not answer is named
		s.answered(0, s.mine())
		select {
		case <-q.all:
		case <-time.After(asking):
		case <-s.closed:
		}
		s.mu.Lock()
		s.asked = nil
		s.mu.Unlock()
		text := printable(collective.InTheEnd(q.waits, s.named))
		s.find(text)
		body, _ := encode(message{Text: text})
		_ = s.tell(kindStuck, body)
	})
}

// mine is what this process answers.
func (s *Star) mine() []collective.Wait {
	s.mu.Lock()
	f := s.waits
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	all := f()
	return all[:min(len(all), mostWaits*s.cfg.PerProcess)]
}

// answered notes where the ranks of a process are.
func (s *Star) answered(process int, all []collective.Wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.asked
	if q == nil || q.by[process] {
		return // it comes too late
	}
	q.waits = append(q.waits, all...)
	if q.by[process] = true; len(q.by) == s.cfg.Processes {
		close(q.all)
	}
}

// find keeps what was found, and wakes who waits for it.
func (s *Star) find(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.found.next)
	s.found = found{text, time.Now(), make(chan struct{})}
}

// hearWaits takes what belongs to an inquiry: process 0 asks and tells, the others want to
// know and answer.
func (s *Star) hearWaits(p *peer, kind uint32, body []byte) error {
	if first := s.cfg.Me.Process == 0; first != (kind == kindLate || kind == kindWaits) {
		return fmt.Errorf("a frame of kind %d from process %d", kind, p.process)
	}
	switch kind {
	case kindLate:
		s.inquire()
	case kindAsk:
		s.all.Go(func() {
			body, _ := encode(s.mine())
			_ = p.send(kindWaits, body) // likewise
		})
	case kindStuck:
		var m message
		if err := decode(kind, kindStuck, body, &m); err != nil {
			return err
		}
		s.find(printable(m.Text))
	case kindWaits:
		var w []collective.Wait
		if err := decode(kind, kindWaits, body, &w); err != nil {
			return err
		}
		for _, x := range w {
			if x.Rank < 0 || x.Rank/s.cfg.PerProcess != p.process || slices.ContainsFunc(x.For, func(r int) bool { return r < 0 || r >= s.ranksInAll() }) {
				return errors.New("it tells of ranks that it cannot know of")
			}
		}
		s.answered(p.process, w)
	}
	return nil
}

func (s *Star) ranksInAll() int { return s.cfg.Processes * s.cfg.PerProcess }
