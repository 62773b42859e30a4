package rendezvous

import "time"

// dumpPause is how long process 0 ignores further requests for dumps: a launcher sends its signal
// to every process, and each sends a request.
const dumpPause = time.Second

// Dump requests dumps from all processes, including this one; see Dumps. Requests go through
// process 0.
func (s *Star) Dump() {
	if s.cfg.Me.Process > 0 {
		_ = s.peers[0].send(kindDump, nil) // listen detects its loss
		return
	}
	s.mu.Lock()
	again := time.Since(s.dumped) < dumpPause
	if !again {
		s.dumped = time.Now()
	}
	s.mu.Unlock()
	if !again {
		_ = s.broadcast(kindDump, nil) // listen detects lost peers
		s.requestDump()
	}
}

func (s *Star) requestDump() {
	select {
	case s.dumps <- struct{}{}:
	default: // a pending request has the same effect
	}
}

// handleDump processes another process's request, or process 0's command to dump.
func (s *Star) handleDump() {
	if s.cfg.Me.Process == 0 {
		s.Dump()
	} else {
		s.requestDump()
	}
}

// Dumps receives a value when a process requests dumps.
func (s *Star) Dumps() <-chan struct{} { return s.dumps }
