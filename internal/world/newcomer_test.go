package world

import (
	"net"
	"testing"

	"zeroth/collective/socket"
	"zeroth/internal/launch"
)

// watched is a connection that says when it is closed.
type watched struct {
	net.Conn
	closed chan struct{}
}

func (c watched) Close() error {
	defer func() { c.closed <- struct{}{} }()
	return c.Conn.Close()
}

// TestEarlierAttemptEndsLate checks that an attempt to join does not fail because a connection of the attempt before it
// ends, and that one that fails ends its own: the others may wait for an answer, and the process cannot join meanwhile.
func TestEarlierAttemptEndsLate(t *testing.T) {
	t.Parallel()
	w := &World{cfg: Config{Process: launch.Process{Rank: 1, World: 2}, PerProcess: 1}}
	w.net = socket.New(socket.Config{Process: 1, Processes: 2, PerProcess: 1})
	w.crew = &crew{w: w, places: 2, try: &newcomer{heard: map[int]bool{}, news: make(chan struct{}, 1)}}
	attempt := func(seat int) (near watched, far net.Conn) {
		a, b := net.Pipe()
		near = watched{a, make(chan struct{}, 9)}
		w.crew.attemptNet(seat).AddNew(0, near)
		return near, b
	}
	why := func() string {
		w.crew.mu.Lock()
		defer w.crew.mu.Unlock()
		return w.crew.try.why
	}
	first, far := attempt(3)
	second, other := attempt(5)
	_ = far.Close()
	<-first.closed
	if why() != "" {
		t.Errorf("the first attempt's connection ends the second: %s", why())
	}
	_ = other.Close()
	<-second.closed
	if why() == "" {
		t.Error("the second attempt does not end with its connection")
	}
	third, _ := attempt(7)
	w.cfg.Back, w.cfg.Ports = []string{"127.0.0.1"}, []int{1} // where nobody answers
	if _, err := w.crew.attempt(t.Context()); err == nil {
		t.Error("an attempt succeeds without the others")
	}
	<-third.closed
}
