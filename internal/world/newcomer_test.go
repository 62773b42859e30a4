package world

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"zeroth/collective/rendezvous"
	"zeroth/collective/socket"
	"zeroth/internal/input"
	"zeroth/internal/launch"
	"zeroth/internal/setup"
	"zeroth/shard"
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

// TestNewcomerSumsOtherwise checks that processes that would sum otherwise, by their library or by their job, are refused, that the
// others go on, and that one that sums as they do can come back.
func TestNewcomerSumsOtherwise(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	of := func(rank int) Config {
		return Config{
			Process:    launch.Process{Rank: rank, World: 3, Host: "127.0.0.1", Ports: []int{ln.Addr().(*net.TCPAddr).Port}},
			PerProcess: 1, Transport: "tcp", Token: []byte("0123456789abcdef"), Heartbeat: 100 * time.Millisecond, DeadAfter: 20 * time.Second,
			Survive: 1, Joins: true, Join: 30 * time.Second,
		}
	}
	worlds := make([]*World, 3)
	var all sync.WaitGroup
	for p := range worlds {
		all.Go(func() {
			c := of(p)
			if p == 0 {
				c.Listener = ln
			}
			w, err := Enter(t.Context(), c)
			if err == nil {
				err = w.Agree(t.Context(), []rendezvous.Fact{{Name: "train.sums", Value: "tree"}})
			}
			if err == nil {
				_, err = w.Connect(shard.Mesh{Shard: 1, Replicate: 3})
			}
			if worlds[p] = w; err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	sums := func(by string) {
		for _, w := range worlds[:2] {
			w.crew.mu.Lock()
			w.nccl = by
			w.crew.mu.Unlock()
			w.Wanted()
		}
	}
	sums("2.28.3, windows registered")
	worlds[2].Close()
	for p, w := range worlds[:2] {
		all.Go(func() {
			if c, err := w.Survive(t.Context(), setup.Standing{Steps: 1, Duty: setup.BetweenSteps}); err != nil || c.Replicas != 2 {
				t.Errorf("process %d: %v, %+v", p, err, c)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	back := of(2)
	back.Back = []string{back.Host}
	const want = "gradients would be summed by ranks, in rank order here, but the run sums them by NCCL 2.28.3, windows registered"
	if _, err := Enter(t.Context(), back); !input.IsInput(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	sums("")
	for sums, want := range map[string]string{"order": "differs in train.sums: order; the run: tree", "tree": "<nil>"} {
		late, err := Enter(t.Context(), back)
		if err != nil {
			t.Fatal(err)
		}
		if err := late.Agree(t.Context(), []rendezvous.Fact{{Name: "train.sums", Value: sums}}); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v, want %s", err, want)
		}
		late.Close()
	}
	for p, w := range worlds[:2] {
		if w.Wanted() || w.Err() != nil {
			t.Errorf("process %d: %v", p, w.Err())
		}
	}
	for _, w := range worlds[:2] {
		w.Close()
	}
}

// TestHearsayLosesNobody checks that a process that process 0 has lost loses process 0, and that another one loses neither.
func TestHearsayLosesNobody(t *testing.T) {
	members, conns := make([]rendezvous.Member, 3), [3][]net.Conn{make([]net.Conn, 3), make([]net.Conn, 3), make([]net.Conn, 3)}
	for p := range members {
		members[p] = rendezvous.Member{Process: p, World: 3}
		if p > 0 {
			conns[0][p], conns[p][0] = net.Pipe()
		}
	}
	var stars []*rendezvous.Star
	for p := range members {
		stars = append(stars, rendezvous.Again(rendezvous.Config{Me: members[p], Processes: 3, PerProcess: 1, Heartbeat: time.Minute, DeadAfter: time.Hour}, "", members, conns[p]))
	}
	stars[0].Lose(1, "silent")
	for me := 1; me < 3; me++ {
		<-stars[me].Ended()
		w := &World{star: stars[me]}
		w.cfg.Rank, w.cfg.World, w.cfg.PerProcess = me, 3, 1
		w.crew = newCrew(w, members, "")
		w.crew.begin(shard.Mesh{Shard: 1, Replicate: 3})
		w.crew.mourn(lostOf(stars[me]), seats(3))
		for _, event := range w.crew.waiting {
			event()
		}
		if m := w.crew.machine; !m.Changes() || m.Lost(0) != (me == 1) || m.Lost(3-me) {
			t.Errorf("process %d: changes %v, process 0 lost %v, %d lost %v", me, m.Changes(), m.Lost(0), 3-me, m.Lost(3-me))
		}
	}
	for _, c := range append(conns[1], conns[2]...) {
		if c != nil {
			_ = c.Close()
		}
	}
	for _, s := range stars {
		s.Close()
	}
}
