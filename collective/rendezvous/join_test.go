package rendezvous_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"zeroth/collective/rendezvous"
	"zeroth/tests/nightly"
)

// joins runs a process that joins a world and returns a channel for its error.
func joins(t *testing.T, c rendezvous.Config) chan error {
	done := make(chan error, 1)
	go func() {
		s, err := rendezvous.Join(t.Context(), c)
		if err == nil {
			s.Close()
		}
		done <- err
	}()
	return done
}

// TestStartedAsOfAnotherWorld checks that processes configured for another world get an error, and
// that process 0 reports whom it refused.
func TestStartedAsOfAnotherWorld(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		process, world int
		says           string
	}{
		{1, 4, `it was started as one of 4 processes (on host "h1"), but process 0 as one of 3 (on host "h0"); use the same number everywhere`},
		{3, 4, "there is no process 3 in a world of 3 processes"},
		{1, 2, "it was started as one of 2 processes"},
	} {
		ln := listen(t)
		zero := config(0, 3, ln)
		zero.Wait = 500 * time.Millisecond
		host := joins(t, zero)
		err := <-joins(t, config(c.process, c.world, ln))
		if !rendezvous.Wrong(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("process %d of %d: %v, want %s", c.process, c.world, err, c.says)
		}
		err = <-host
		if !errors.As(err, new(rendezvous.Missing)) || !strings.Contains(err.Error(), "ranks 2-5 have not joined: no answer within 500ms; a connection was refused, from 127.0.0.1:") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("process 0: %v", err)
		}
	}
}

// TestGoneBeforeAllHadCome checks that a process that is lost during the join can be replaced.
func TestGoneBeforeAllHadCome(t *testing.T) {
	nightly.Parallel(t)
	ln := listen(t)
	r := newRelay(t, ln.Addr().String())
	notes := make(chan string, 8)
	zero := config(0, 3, ln)
	zero.Note = func(s string) { notes <- s }
	host := joins(t, zero)
	lost := config(1, 3, ln)
	lost.Addrs, lost.Me.Host = []string{r.ln.Addr().String()}, "lost"
	first := joins(t, lost)
	for { // until it has sent its Member
		if c, err := (rendezvous.Caller{Process: 1, Token: token}).Dial(t.Context(), "tcp", lost.Addrs[:1], "control "); err == nil {
			answer, _ := io.ReadAll(c)
			c.Close()
			if bytes.Contains(answer, []byte("has already joined, from host \\\"lost\\\"")) {
				break
			}
		}
	}
	r.cut()
	if err := <-first; !errors.As(err, new(rendezvous.Missing)) || !strings.Contains(err.Error(), "connection lost before all had joined") {
		t.Errorf("who is lost: %v", err)
	}
	for !strings.Contains(<-notes, `ranks 2,3 ("lost") disconnected before all had joined`) {
	}
	for p, done := range map[int]chan error{1: joins(t, config(1, 3, ln)), 2: joins(t, config(2, 3, ln)), 0: host} {
		if err := <-done; err != nil {
			t.Errorf("process %d: %v", p, err)
		}
	}
}

// TestProcess0IsGoneBeforeAllHadCome checks that losing process 0 during the join is a Missing.
func TestProcess0IsGoneBeforeAllHadCome(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	r := newRelay(t, ln.Addr().String())
	zero := config(0, 3, ln)
	zero.Wait = 2 * time.Second
	host := joins(t, zero)
	c := config(1, 3, ln)
	c.Addrs, c.Wait = []string{r.ln.Addr().String()}, 2*time.Second
	done := joins(t, c)
	time.Sleep(100 * time.Millisecond) // before or after it has sent its Member
	r.cut()
	if err := <-done; !errors.As(err, new(rendezvous.Missing)) {
		t.Errorf("error %v", err)
	}
	<-host
}

// TestNotZeroth tests peers that are another program or another version of zeroth, on both sides.
func TestNotZeroth(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n": "the listener there is not zeroth",
		"ZEROTH-9" + strings.Repeat("\x00", 24):                                             "it runs another version of zeroth",
	} {
		ln := listen(t)
		var all sync.WaitGroup
		all.Go(func() {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			io.WriteString(c, answer)
			io.Copy(io.Discard, c)
		})
		if err := <-joins(t, config(1, 2, ln)); !rendezvous.Wrong(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
		ln.Close()
		all.Wait()
	}
	ln := listen(t)
	c := config(0, 2, ln)
	c.Wait = time.Second
	host := joins(t, c)
	other, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	fmt.Fprintf(other, "ZEROTH-9%40s", "")
	if answer, err := io.ReadAll(other); err != nil || !bytes.HasPrefix(answer, []byte("ZEROTH-3")) || len(answer) != 32 {
		t.Errorf("another version hears %q (%v)", answer, err)
	}
	if err := <-host; err == nil || !strings.Contains(err.Error(), "it runs another version of zeroth") {
		t.Errorf("process 0: %v", err)
	}
}

// TestManyDifferences checks that jobs that differ in everything get a verdict that fits a frame.
func TestManyDifferences(t *testing.T) {
	stars := joined(t, 3, func(_ int, c *rendezvous.Config) { c.Me.Host = "one" })
	defer closeAll(stars)
	for p, err := range agree(t, stars, func(p int) (all []rendezvous.Fact) {
		for key := range 200 {
			all = append(all, rendezvous.Fact{Name: fmt.Sprint("key", key), Value: strings.Repeat(fmt.Sprint(p, "<"), 50)})
		}
		return all
	}) {
		if d := rendezvous.Differences(""); !errors.As(err, &d) || !strings.Contains(err.Error(), "in key0: rank") || !strings.HasSuffix(err.Error(), "\nand in 180 more") || strings.Contains(err.Error(), `"one"`) {
			t.Errorf("process %d: %v", p, err)
		}
	}
}
