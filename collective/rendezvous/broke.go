package rendezvous

import (
	"fmt"
	"time"
)

// When a data connection breaks, the processes at its ends blame each other. Only process 0
// receives both reports and knows of other losses, so it decides, and all processes name the same
// rank. A process that is done closes its connections: that is no loss, even if the other end has not read
// all that was sent.

// Broken reports a data connection that a process has given up.
type Broken struct {
	Process int    `json:"process"` // at the other end
	Why     string `json:"why"`     // what happened, from the view of the reporter
	Sure    bool   `json:"sure"`    // Process is certainly at fault, and alive
}

// confirm is how long process 0 waits before it ends the world because of a broken data connection:
// if one of the two processes has died, its control connection breaks, too, which is more
// informative.
const confirm = 500 * time.Millisecond

// Broke reports that the data connection to another process broke. The world ends because of it
// after confirm at the latest, for the same reason on all processes.
func (s *Star) Broke(b Broken) {
	if s.cfg.Me.Process == 0 {
		s.broke(0, b)
		return
	}
	if body, err := encode(b); err == nil {
		_ = s.peers[0].send(kindBroke, body) // listen detects its loss
	}
}

// handleBroke processes a report, on process 0 only.
func (s *Star) handleBroke(p *peer, body []byte) error {
	var b Broken
	if err := decode(kindBroke, kindBroke, body, &b); err != nil {
		return err
	}
	if s.cfg.Me.Process != 0 || b.Process < 0 || b.Process >= s.cfg.Processes || b.Process == p.process {
		return fmt.Errorf("it reports a broken connection to process %d", b.Process)
	}
	s.broke(p.process, b)
	return nil
}

// broke ends the world because of a report, at once if both processes are known to be alive, unless this
// process or one of them is done.
func (s *Star) broke(by int, b Broken) {
	if s.isDone(0) || s.isDone(by) || s.isDone(b.Process) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return
	default:
	}
	wait := confirm
	if b.Sure || b.Process == 0 || s.reports[[2]int{b.Process, by}] {
		wait = 0
	}
	if s.reports == nil {
		s.reports = map[[2]int]bool{}
	}
	s.reports[[2]int{by, b.Process}] = true
	s.all.Go(func() {
		select {
		case <-time.After(wait):
			if !s.isDone(0) {
				s.end(Lost{Process: b.Process, Why: b.Why})
			}
		case <-s.ended:
		case <-s.closed:
		}
	})
}
