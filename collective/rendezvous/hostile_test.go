package rendezvous_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zeroth/collective/rendezvous"
	"zeroth/tests/nightly"
)

// recorded forwards one connection to an address and records what the client sends.
func recorded(t *testing.T, to string) (addr string, said func() []byte) {
	t.Helper()
	ln := listen(t)
	var mu sync.Mutex
	var kept bytes.Buffer
	go func() {
		a, err := ln.Accept()
		ln.Close()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", to)
		if err != nil {
			a.Close()
			return
		}
		go func() { io.Copy(a, b); a.Close() }()
		buf := make([]byte, 1<<12)
		for {
			n, err := a.Read(buf)
			mu.Lock()
			kept.Write(buf[:n])
			mu.Unlock()
			if _, wrong := b.Write(buf[:n]); err != nil || wrong != nil {
				b.Close()
				return
			}
		}
	}()
	return ln.Addr().String(), func() []byte { mu.Lock(); defer mu.Unlock(); return bytes.Clone(kept.Bytes()) }
}

// TestRecordedIsRefused checks that replaying a member's messages does not authenticate.
func TestRecordedIsRefused(t *testing.T) {
	ln := listen(t)
	door := ln.Addr().String()
	refused := make(chan string, 8)
	stars, errs := make([]*rendezvous.Star, 3), make([]error, 3)
	var all sync.WaitGroup
	join := func(p int, at string) {
		c := config(p, 3, ln)
		if c.Addrs = []string{at}; p == 0 {
			c.Note = func(s string) { refused <- s }
		}
		all.Go(func() { stars[p], errs[p] = rendezvous.Join(t.Context(), c) })
	}
	join(0, door)
	proxy, said := recorded(t, door)
	join(1, proxy)
	const handshake = 48 + 32
	for len(said()) <= handshake { // including its Member
		time.Sleep(time.Millisecond)
	}
	for i, what := range [][]byte{said(), said()[:handshake]} {
		binary.LittleEndian.PutUint32(what[8:], uint32(1+i)) // a rank that has joined, and one that has not
		c, err := net.Dial("tcp", door)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(20 * time.Second))
		c.Write(what)
		answer, _ := io.ReadAll(c)
		if len(answer) > 32 && answer[32] != 0 {
			t.Error("what was recorded is welcome")
		}
		c.Close()
		if note := <-refused; !strings.Contains(note, "refused a connection from") || !strings.Contains(note, rendezvous.ErrRefused.Error()) {
			t.Error(note)
		}
	}
	join(2, door)
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	closeAll(stars)
}

// TestTenThousandConnections opens 500 connections, 10,000 in a nightly run, 32 of which send as
// slowly as possible. They must neither prevent a world from forming nor consume memory in
// proportion to their number.
func TestTenThousandConnections(t *testing.T) {
	nightly.Parallel(t)
	const slow, callers = 32, 50
	connections := nightly.Of(500, 10_000)
	ln := listen(t)
	addr := ln.Addr().String()
	ctx, over := context.WithCancel(t.Context())
	var strangers sync.WaitGroup
	var made atomic.Int64
	stranger := func(i int) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return // the door is closed: all have joined
		}
		defer c.Close()
		made.Add(1)
		hello := make([]byte, 80)
		copy(hello, "ZEROTH-3")
		binary.LittleEndian.PutUint32(hello[8:], 1)
		if i < slow {
			for _, b := range hello {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				select {
				case <-time.After(200 * time.Millisecond):
				case <-ctx.Done():
					return
				}
			}
			return
		}
		c.SetDeadline(time.Now().Add(20 * time.Second))
		c.Write([][]byte{hello, hello[:10], []byte("GET / HTTP/1.1\r\n\r\n"), bytes.Repeat([]byte{0xff}, 1<<16)}[i%4])
		io.Copy(io.Discard, c)
	}
	done := make(chan error, 1)
	var host *rendezvous.Star
	go func() {
		c := config(0, 2, ln)
		c.Wait = 2 * time.Minute
		var err error
		host, err = rendezvous.Join(ctx, c)
		done <- err
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	next := make(chan int)
	for range callers {
		strangers.Go(func() {
			for i := range next {
				stranger(i)
			}
		})
	}
	for i := range connections {
		next <- i
	}
	close(next)
	c := config(1, 2, ln)
	c.Wait = 2 * time.Minute
	guest, err := rendezvous.Join(t.Context(), c)
	if err = errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	over()
	strangers.Wait()
	runtime.ReadMemStats(&after)
	if made.Load() != int64(connections) {
		t.Errorf("%d connections were made, want %d", made.Load(), connections)
	}
	if grown := int64(after.Sys) - int64(before.Sys); grown > 256<<20 {
		t.Errorf("%d connections took %d MB", connections, grown>>20)
	}
	closeAll([]*rendezvous.Star{host, guest})
}
