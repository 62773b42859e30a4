package rendezvous_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/collective/rendezvous"
	"zeroth/tests/nightly"
)

var token = []byte("0123456789abcdef0123456789abcdef")

// TestMain runs many tests at a time, because they wait more than they compute, and checks that none
// leaves a goroutine behind.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// config returns the configuration of process p of a world on loopback.
func config(p, processes int, ln net.Listener) rendezvous.Config {
	c := rendezvous.Config{Processes: processes, PerProcess: 2, Addrs: []string{ln.Addr().String()}, Token: token,
		Wait: 30 * time.Second, Heartbeat: 50 * time.Millisecond, DeadAfter: 20 * time.Second,
		Me: rendezvous.Member{Process: p, Host: fmt.Sprintf("h%d", p), Pid: 100 + p}}
	if p == 0 {
		c.Listener = ln
	}
	return c
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// joinAll makes all processes join concurrently, with configurations modified by change.
func joinAll(t testing.TB, processes int, change func(p int, c *rendezvous.Config)) ([]*rendezvous.Star, []error) {
	t.Helper()
	ln := listen(t)
	stars, errs := make([]*rendezvous.Star, processes), make([]error, processes)
	var all sync.WaitGroup
	for p := range processes {
		c := config(p, processes, ln)
		if change != nil {
			change(p, &c)
		}
		all.Go(func() { stars[p], errs[p] = rendezvous.Join(t.Context(), c) })
	}
	all.Wait()
	return stars, errs
}

// joined is like joinAll, but fails the test on an error.
func joined(t testing.TB, processes int, change func(p int, c *rendezvous.Config)) []*rendezvous.Star {
	t.Helper()
	stars, errs := joinAll(t, processes, change)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return stars
}

func closeAll(stars []*rendezvous.Star) {
	var all sync.WaitGroup
	for _, s := range stars {
		all.Go(s.Close)
	}
	all.Wait()
}

// agree makes every process agree on its facts.
func agree(t testing.TB, stars []*rendezvous.Star, facts func(p int) []rendezvous.Fact) []error {
	errs := make([]error, len(stars))
	var all sync.WaitGroup
	for p, s := range stars {
		all.Go(func() { errs[p] = s.Agree(t.Context(), facts(p)) })
	}
	all.Wait()
	return errs
}

func TestAgree(t *testing.T) {
	stars := joined(t, 4, nil)
	defer closeAll(stars)
	for _, s := range stars {
		if s.Session != stars[0].Session || len(s.Session) != 32 || s.Members[3].Host != "h3" || s.Members[1].Pid != 101 {
			t.Errorf("session %q, members %v", s.Session, s.Members)
		}
	}
	same := func(p int) []rendezvous.Fact {
		return []rendezvous.Fact{{Name: "version", Value: "1"}, {Name: "job", Value: "aa"}}
	}
	for range 2 {
		for p, err := range agree(t, stars, same) {
			if err != nil {
				t.Errorf("process %d: %v", p, err)
			}
		}
	}
	for p, s := range slices.Backward(stars) { // process 0 last
		if p == 0 {
			s.Share(t.Context(), "runs/1")
		}
	}
	for p, s := range stars[1:] {
		if got, err := s.Share(t.Context(), "mine"); got != "runs/1" || err != nil {
			t.Errorf("process %d: %q %v", p+1, got, err)
		}
	}
	const want = "the processes differ in job: ranks 4,5 (\"h2\"): bb\x1b; ranks 0-3,6,7 (\"h0\", \"h1\", \"h3\"): aa\nthe processes differ in data: ranks 0,1 (\"h0\"): 1; ranks 2-7 (\"h1\", \"h2\", \"h3\"): 2"
	for p, err := range agree(t, stars, func(p int) []rendezvous.Fact {
		f := append(same(p), rendezvous.Fact{Name: "data", Value: fmt.Sprint(min(p, 1) + 1)})
		if p == 2 {
			f[1].Value = "bb\x1b"
		}
		return f
	}) {
		if err == nil || err.Error() != strings.ReplaceAll(want, "\x1b", "?") {
			t.Errorf("process %d: %v\nwant %s", p, err, want)
		}
	}
}

// TestWhoIsMissing tests a process that never joins.
func TestWhoIsMissing(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	errs := make(chan error, 2)
	for _, p := range []int{0, 1} {
		c := config(p, 4, ln)
		c.Wait = 2 * time.Second
		go func() { _, err := rendezvous.Join(t.Context(), c); errs <- err }()
	}
	for range 2 {
		err := <-errs
		if !errors.As(err, new(rendezvous.Missing)) || !strings.Contains(err.Error(), "ranks 4-7 have not joined: no answer within 2s") {
			t.Errorf("error %v", err)
		}
	}
}

func TestWrongToken(t *testing.T) {
	t.Parallel()
	for _, wrong := range [][]byte{nil, []byte("another")} {
		_, errs := joinAll(t, 2, func(p int, c *rendezvous.Config) {
			if c.Wait = time.Second; p == 1 {
				c.Token = wrong
			}
		})
		if !errors.Is(errs[1], rendezvous.ErrRefused) || errors.As(errs[1], new(rendezvous.Missing)) {
			t.Errorf("the process with the wrong token: %v", errs[1])
		}
		if errs[0] == nil || !strings.Contains(errs[0].Error(), "ranks 2,3 have not joined") {
			t.Errorf("process 0: %v", errs[0])
		}
	}
}

// TestImpostor checks that nothing is sent to a listener that does not know the token.
func TestImpostor(t *testing.T) {
	ln := listen(t)
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.ReadFull(c, make([]byte, 48))
		c.Write(make([]byte, 32))
		io.ReadFull(c, make([]byte, 32))
		c.Write(append([]byte{1}, make([]byte, 32)...))
		if n, _ := c.Read(make([]byte, 1)); n > 0 {
			t.Error("the impostor was told something")
		}
	}()
	if _, err := rendezvous.Join(t.Context(), config(1, 2, ln)); !errors.Is(err, rendezvous.ErrRefused) {
		t.Errorf("error %v", err)
	}
}

func TestTwiceTheSameRank(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	errs := make(chan error, 3)
	for _, p := range []int{0, 1, 1} {
		c := config(p, 3, ln)
		c.Wait = 2 * time.Second
		go func() { _, err := rendezvous.Join(t.Context(), c); errs <- err }()
	}
	var all []string
	for range 3 {
		all = append(all, fmt.Sprint(<-errs))
	}
	if said := strings.Join(all, "\n"); !strings.Contains(said, `process 1 has already joined, from host "h1": two were started as ranks 2,3`) || !strings.Contains(said, "ranks 4,5 have not joined") {
		t.Errorf("errors %s", said)
	}
}

// TestStrangers connects peers that send garbage, nothing, too much, or a replay, more of them than
// are served at once, while a world forms.
func TestStrangers(t *testing.T) {
	nightly.Parallel(t)
	ln := listen(t)
	addr := ln.Addr().String()
	var strangers sync.WaitGroup
	var open []net.Conn
	dial := func() net.Conn {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		return c
	}
	for _, say := range []string{"", "GET / HTTP/1.1\r\n\r\n", "ZEROTH-3", strings.Repeat("ZEROTH-3", 20000)} {
		for range 8 {
			c := dial()
			strangers.Go(func() { io.WriteString(c, say) })
		}
	}
	done := make(chan error, 1)
	go func() {
		c := config(0, 2, ln)
		s, err := rendezvous.Join(t.Context(), c)
		if err == nil {
			defer s.Close()
			<-s.Ended()
		}
		done <- err
	}()
	recorded := make([]byte, 48)
	copy(recorded, "ZEROTH-3")
	binary.LittleEndian.PutUint32(recorded[8:], 1)
	c := dial()
	c.Write(recorded)
	c.Write(make([]byte, 32)) // an answer to another challenge
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if b, _ := io.ReadAll(c); len(b) > 32 && b[32] != 0 {
		t.Errorf("a replayed answer was welcome")
	}
	s, err := rendezvous.Join(t.Context(), config(1, 2, ln))
	if err != nil {
		t.Fatal(err)
	}
	s.Fail(errors.New("enough"))
	s.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, c := range open {
		c.Close()
	}
	strangers.Wait()
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("the door is open after all have come")
	}
}

// TestOversizedFrame tests an authenticated process that announces a frame of a gigabyte.
func TestOversizedFrame(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	errs := make(chan error, 1)
	go func() {
		c := config(0, 2, ln)
		c.Wait = time.Second
		_, err := rendezvous.Join(t.Context(), c)
		errs <- err
	}()
	c, err := rendezvous.Caller{Process: 1, Token: token}.Dial(t.Context(), "tcp", []string{ln.Addr().String()}, "control ")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0x40})
	if err := <-errs; err == nil || !strings.Contains(err.Error(), "have not joined") {
		t.Errorf("error %v", err)
	}
}

// ends checks the error of every process but one.
func ends(t *testing.T, stars []*rendezvous.Star, but int, want string) {
	t.Helper()
	for p, s := range stars {
		if p == but {
			continue
		}
		select {
		case <-s.Ended():
		case <-time.After(20 * time.Second):
			t.Fatalf("process %d does not hear of the end", p)
		}
		if err := s.Err(); err == nil || err.Error() != want {
			t.Errorf("process %d: %v, want %s", p, err, want)
		}
	}
}

func TestFailure(t *testing.T) {
	for _, p := range []int{0, 2} {
		stars := joined(t, 4, nil)
		stars[p].Fail(errors.New("disk full"))
		ends(t, stars, p, fmt.Sprintf(`rank %d ("h%d"): disk full`, 2*p, p))
		closeAll(stars)
	}
}

// relay forwards a process's connection until it is stopped.
type relay struct {
	ln    net.Listener
	mu    sync.Mutex
	conns []net.Conn
	mute  bool
}

func newRelay(t *testing.T, to string) *relay {
	r := &relay{ln: listen(t)}
	go func() {
		for {
			a, err := r.ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				return
			}
			r.mu.Lock()
			r.conns = append(r.conns, a, b)
			r.mu.Unlock()
			go r.carry(a, b)
			go r.carry(b, a)
		}
	}()
	t.Cleanup(r.cut)
	return r
}

func (r *relay) carry(to, from net.Conn) {
	b := make([]byte, 1<<12)
	for {
		n, err := from.Read(b)
		r.mu.Lock()
		mute := r.mute
		r.mu.Unlock()
		if err != nil {
			to.Close()
			return
		}
		if !mute {
			to.Write(b[:n])
		}
	}
}

func (r *relay) cut() {
	r.ln.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
}

// TestCutOff cuts a process's connection, or stops forwarding.
func TestCutOff(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		ln := listen(t)
		r := newRelay(t, ln.Addr().String())
		stars := make([]*rendezvous.Star, 3)
		var all sync.WaitGroup
		for p := range stars {
			all.Go(func() {
				c := config(p, 3, ln)
				if c.DeadAfter = time.Second; p == 2 {
					c.Addrs = []string{r.ln.Addr().String()}
				}
				var err error
				if stars[p], err = rendezvous.Join(t.Context(), c); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		begin, want := time.Now(), "connection lost"
		if silent {
			want = "silent for 1s"
			r.mu.Lock()
			r.mute = true
			r.mu.Unlock()
		} else {
			r.cut()
		}
		ends(t, stars[:2], 2, `rank 4 ("h2"): `+want)
		t.Logf("silent %v: known after %v", silent, time.Since(begin))
		ends(t, stars[2:], 1, `rank 0 ("h0"): `+want)
		closeAll(stars)
	}
}

// TestBroke checks that a broken data connection ends the world for the same reason on all
// processes, whoever reports it, unless one of its ends has died, which is more informative.
func TestBroke(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		by   int
		b    rendezvous.Broken
		want string
	}{
		{1, rendezvous.Broken{Process: 2, Why: "reset"}, `rank 4 ("h2"): reset`},
		{1, rendezvous.Broken{Process: 2, Why: "forged", Sure: true}, `rank 4 ("h2"): forged`},
		{0, rendezvous.Broken{Process: 2, Why: "reset"}, `rank 4 ("h2"): reset`},
		{2, rendezvous.Broken{Process: 0, Why: "reset"}, `rank 0 ("h0"): reset`},
	} {
		stars := joined(t, 4, nil)
		stars[c.by].Broke(c.b)
		ends(t, stars, -1, c.want)
		closeAll(stars)
	}
	stars := joined(t, 4, nil)
	stars[2].Fail(errors.New("disk full"))
	stars[1].Broke(rendezvous.Broken{Process: 2, Why: "reset"})
	stars[3].Broke(rendezvous.Broken{Process: 2, Why: "reset"})
	ends(t, stars, -1, `rank 4 ("h2"): disk full`)
	closeAll(stars)
}

// TestBrokenByOneThatIsDone checks that a data connection that breaks because a process is done ends nothing, and
// that process 0 knows that it is done before the process closes the connection.
func TestBrokenByOneThatIsDone(t *testing.T) {
	t.Parallel()
	for _, done := range []int{0, 2} {
		stars := joined(t, 4, nil)
		stars[done].Done()
		for _, by := range []int{0, 1, 3} {
			if by != done {
				stars[by].Broke(rendezvous.Broken{Process: done, Why: "reset", Sure: true})
			}
		}
		if done > 0 {
			stars[done].Broke(rendezvous.Broken{Process: 1, Why: "reset", Sure: true})
		}
		closeAll(stars[1:]) // process 0 has read all reports before it reads that they are done
		stars[0].Close()
		for p, s := range stars {
			if err := s.Err(); err != nil {
				t.Errorf("process %d is done, and process %d ends with: %v", done, p, err)
			}
		}
	}
}

// TestDoneIsNoLoss checks that processes that close one after the other are not reported as lost.
func TestDoneIsNoLoss(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}} {
		stars := joined(t, 3, nil)
		for _, p := range order {
			stars[p].Close()
			time.Sleep(20 * time.Millisecond)
		}
		for p, s := range stars {
			if err := s.Err(); err != nil {
				t.Errorf("order %v, process %d: %v", order, p, err)
			}
		}
	}
}

// TestLeaveWhileOthersAgree makes a process leave while the others agree.
func TestLeaveWhileOthersAgree(t *testing.T) {
	for _, leaves := range []int{0, 2} {
		stars := joined(t, 3, nil)
		errs := make(chan error, 2)
		for p, s := range stars {
			if p != leaves {
				go func() { errs <- s.Agree(t.Context(), nil) }()
			}
		}
		stars[leaves].Close()
		for range 2 {
			if err := <-errs; err == nil || !strings.Contains(err.Error(), "has ended") {
				t.Errorf("process %d leaves: %v", leaves, err)
			}
		}
		for p, s := range stars {
			if p != leaves {
				s.Close()
			}
		}
	}
}

func TestJoinIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	ln := listen(t)
	go func() { time.Sleep(50 * time.Millisecond); cancel(errors.New("interrupted")) }()
	if _, err := rendezvous.Join(ctx, config(0, 2, ln)); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
}
