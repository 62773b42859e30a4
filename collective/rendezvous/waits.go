package rendezvous

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"zeroth/collective"
)

// askTimeout is how long process 0 waits for answers; resultTimeout is how long other processes
// wait for its conclusion. The latter is longer, so that the conclusion can name a process that
// does not answer.
const askTimeout, resultTimeout = 2 * time.Second, 4 * time.Second

// mostWaits limits the Waits of a rank in an answer; waitBytes limits the bytes of a Wait without
// its ranks.
const mostWaits, waitBytes = 8, 1000

// inquiry is a question of process 0 to all processes, with their answers.
type inquiry struct {
	waits []collective.Wait // from the processes that have answered
	by    map[int]bool      // processes that have answered
	all   chan struct{}     // closed when all have answered
}

// found is the result of the last inquiry.
type found struct {
	text string
	at   time.Time
	next chan struct{} // closed when there is a newer result
}

// Answer sets the function that returns the waits of this process's ranks. It may be called from
// any goroutine and does not block.
func (s *Star) Answer(f func() []collective.Wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = f
}

// Ask describes what blocks all ranks in the end: process 0 collects the waits of all ranks and
// follows them. It returns "" if nothing does, or if there is no answer in time.
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
		_ = s.peers[0].send(kindLate, nil) // listen detects its loss
	}
	select {
	case <-next:
	case <-time.After(resultTimeout):
	case <-s.deserted:
	case <-s.ended:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.found.text
}

// inquire starts an inquiry of process 0, unless one is in progress.
func (s *Star) inquire() {
	q := &inquiry{by: map[int]bool{}, all: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return
	default:
	}
	if s.inquiry != nil {
		return
	}
	s.inquiry = q
	s.all.Go(func() {
		_ = s.broadcast(kindAsk, nil) // processes that do not answer are named
		s.answered(0, s.localWaits())
		select {
		case <-q.all:
		case <-time.After(askTimeout):
		case <-s.closed:
		}
		s.mu.Lock()
		s.inquiry = nil
		s.mu.Unlock()
		text := printable(collective.RootCause(q.waits, s.named))
		s.publish(text)
		body, _ := encode(message{Text: text})
		_ = s.broadcast(kindStuck, body)
	})
}

// localWaits returns this process's answer.
func (s *Star) localWaits() []collective.Wait {
	s.mu.Lock()
	f := s.waits
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	all := f()
	return all[:min(len(all), mostWaits*s.cfg.PerProcess)]
}

// answered records the answer of a process.
func (s *Star) answered(process int, all []collective.Wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.inquiry
	if q == nil || q.by[process] {
		return // too late
	}
	q.waits = append(q.waits, all...)
	if q.by[process] = true; len(q.by) == s.cfg.Processes {
		close(q.all)
	}
}

// publish stores a result and wakes those who wait for it.
func (s *Star) publish(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.found.next)
	s.found = found{text, time.Now(), make(chan struct{})}
}

// handleWaits processes a frame of an inquiry: process 0 asks and publishes the result, the others
// request it and answer.
func (s *Star) handleWaits(p *peer, kind uint32, body []byte) error {
	if first := s.cfg.Me.Process == 0; first != (kind == kindLate || kind == kindWaits) {
		return fmt.Errorf("a frame of kind %d from process %d", kind, p.process)
	}
	switch kind {
	case kindLate:
		s.inquire()
	case kindAsk:
		s.all.Go(func() {
			body, _ := encode(s.localWaits())
			_ = p.send(kindWaits, body) // listen detects its loss
		})
	case kindStuck:
		var m message
		if err := decode(kind, kindStuck, body, &m); err != nil {
			return err
		}
		s.publish(printable(m.Text))
	case kindWaits:
		var w []collective.Wait
		if err := decode(kind, kindWaits, body, &w); err != nil {
			return err
		}
		for _, x := range w {
			if s.processOf(x.Rank) != p.process || slices.ContainsFunc(x.For, func(r int) bool { return s.processOf(r) < 0 }) {
				return errors.New("it reported ranks of other processes")
			}
		}
		s.answered(p.process, w)
	}
	return nil
}

func (s *Star) ranksInAll() int { return s.cfg.Processes * s.cfg.PerProcess }
