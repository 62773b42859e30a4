package rendezvous

import "time"

// dumpPause is how long process 0 passes on no second request for dumps: a launcher sends
// its signal to every process, and each of them asks.
const dumpPause = time.Second

// Dump asks all processes to dump, this one too: see Dumps. Requests go through process 0.
func (s *Star) Dump() {
	if s.cfg.Me.Process > 0 {
		_ = s.peers[0].send(kindDump, nil) // listen finds out if it is gone
		return
	}
	s.mu.Lock()
	again := time.Since(s.dumped) < dumpPause
	if !again {
		s.dumped = time.Now()
	}
	s.mu.Unlock()
	if !again {
		_ = s.tell(kindDump, nil) // likewise
		s.dumpHere()
	}
}

func (s *Star) dumpHere() {
	select {
	case s.dumps <- struct{}{}:
	default: // one that is not served yet asks for the same
	}
}

// hearDump takes a request of another process, or process 0's word to dump.
func (s *Star) hearDump() {
	if s.cfg.Me.Process == 0 {
		s.Dump()
	} else {
		s.dumpHere()
	}
}

// Dumps receives when a process has asked all to dump what their ranks did last.
func (s *Star) Dumps() <-chan struct{} { return s.dumps }
