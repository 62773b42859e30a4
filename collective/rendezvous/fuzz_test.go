package rendezvous

import (
	"io"
	"net"
	"testing"
	"time"
)

// pipe returns a connection whose other side has sent everything.
func pipe(said []byte) net.Conn {
	a, b := net.Pipe()
	go func() {
		_, _ = b.Write(said)
		_ = b.Close()
	}()
	go func() { _, _ = io.Copy(io.Discard, b) }()
	return a
}

// TestMessageBeforeEnd checks that a message sent by process 0 before its end is received,
// even if the end is noticed first.
func TestMessageBeforeEnd(t *testing.T) {
	for range 100 {
		s := &Star{lost: &Lost{Why: "that"}, ended: make(chan struct{}), verdicts: make(chan string, 1), deserted: make(chan struct{}), parted: make(chan struct{})}
		s.verdicts <- "this"
		close(s.ended)
		if text, err := s.await(t.Context(), s.verdicts); text != "this" || err != nil {
			t.Fatalf("heard %q, %v", text, err)
		}
		if text, err := s.await(t.Context(), s.verdicts); text != "" || err == nil {
			t.Fatalf("heard %q, %v, and nothing was said", text, err)
		}
	}
}

// FuzzHandshake sends arbitrary bytes without knowledge of the token.
func FuzzHandshake(f *testing.F) {
	f.Add([]byte("ZEROTH-3"))
	f.Add(append([]byte("ZEROTH-1"), make([]byte, 72)...))
	f.Add(append([]byte("ZEROTH-3"), make([]byte, 72)...))
	f.Fuzz(func(t *testing.T, said []byte) {
		c := pipe(said)
		defer c.Close()
		if _, err := admit(c, []byte("secret"), "fuzz"); err == nil {
			t.Error("somebody without the token was let in")
		}
		d := pipe(said)
		defer d.Close()
		if err := Greet(d, []byte("secret"), "fuzz", 1); err == nil {
			t.Error("an impostor was believed")
		}
	})
}

// FuzzFrames sends arbitrary bytes after authentication.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{kindBeat, 0, 0, 0, 0, 0, 0, 0})
	f.Add(append([]byte{kindEnd, 0, 0, 0, 23, 0, 0, 0}, `{"process":1,"why":"x"}`...))
	f.Add(append([]byte{kindFacts, 0, 0, 0, 28, 0, 0, 0}, `[{"name":"job","value":"a"}]`...))
	f.Add(append([]byte{kindBroke, 0, 0, 0, 23, 0, 0, 0}, `{"process":2,"why":"x"}`...))
	f.Fuzz(func(t *testing.T, said []byte) {
		s := &Star{cfg: Config{Processes: 3, PerProcess: 1, DeadAfter: time.Second, Heartbeat: time.Hour}, Members: make([]Member, 3), found: found{next: make(chan struct{})},
			ended: make(chan struct{}), closed: make(chan struct{}), deserted: make(chan struct{}), parted: make(chan struct{}), facts: make(chan factsOf, 3), verdicts: make(chan string, 1), shared: make(chan string, 8)}
		p := newPeer(1, pipe(said))
		s.peers = []*peer{nil, p, nil}
		s.listen(p) // until it ends
		p.conn.Close()
		if err := s.Err(); err == nil && !p.isDone() {
			t.Error("a peer that is gone was not missed")
		}
	})
}

// TestImpossibleReports checks that reports of broken connections are accepted only by process 0,
// and only of connections that exist.
func TestImpossibleReports(t *testing.T) {
	for me, processes := range map[int][]int{0: {-1, 1, 3}, 2: {0, 1, 2}} {
		s := &Star{cfg: Config{Processes: 3, PerProcess: 1, Me: Member{Process: me}}}
		for _, p := range processes {
			body, _ := encode(Broken{Process: p, Why: "x"})
			if err := s.handleBroke(newPeer(1, nil), body); err == nil {
				t.Errorf("process %d believes that process 1 lost its connection to process %d", me, p)
			}
		}
	}
}
