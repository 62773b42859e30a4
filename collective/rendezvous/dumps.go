package rendezvous

import "time"

// dumpPause is how long process 0 passes on no second request for dumps: a launcher sends
// its signal to every process, and each of them asks.
const dumpPause = time.Second

// OnDump has f be called whenever a process asks all of them to dump what their ranks did
// last, from now on. f does not block.
func (s *Star) OnDump(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dump = f
}

// Dump asks all processes to dump, this one too. Requests go through process 0.
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
		s.asksDump()
	}
}

// asksDump calls the function of OnDump.
func (s *Star) asksDump() {
	s.mu.Lock()
	f := s.dump
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

// hearDump takes a request of another process, or process 0's word to dump.
func (s *Star) hearDump() {
	if s.cfg.Me.Process == 0 {
		s.Dump()
	} else {
		s.asksDump()
	}
}
