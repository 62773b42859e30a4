package world_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/collective"
	"zeroth/collective/rendezvous"
	"zeroth/job/launch"
	"zeroth/job/world"
	"zeroth/shard"
)

// frame is bytes as package socket describes them, from rank 1 to rank 0 of the group of
// all ranks, over TCP.
func frame(kind uint32, length int, body ...byte) (b []byte) {
	for _, x := range []uint32{0x3148545a, kind, 0, 1, 0, uint32(length)} {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	if b = sealed(b); len(body) > 0 {
		b = append(b, sealed(body)...)
	}
	return b
}

// sealed is b with its checksum.
func sealed(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// note is that of an operation on a type.
func note(op, of byte) []byte {
	n := make([]byte, collective.NoteLen)
	n[0], n[1], n[2] = 1, op, of
	binary.LittleEndian.PutUint32(n[4:], 1<<20)
	binary.LittleEndian.PutUint64(n[16:], 2)
	return frame(1, len(n), n...)
}

// A process that has the token, and has come in, sends what none may once the world is
// made: the other names it and what it was, ends, and takes no memory for what it
// claims. No listener is open by then.
func TestForgedFrames(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Run("", func(t *testing.T) { // returns when all cases have
		for name, c := range map[string]struct {
			bytes []byte
			want  string
		}{
			"too long":   {frame(2, 1<<30), "rank 1 sends 1073741824 "},
			"wrong kind": {frame(77, 1<<30), "rank 1 (\"forger\"): its data connection was closed: a frame of kind 77 and 1073741824 bytes"},
			"wrong op":   {note(0, 0), "rank 1 all-gather of 2 fp32"},
			"no op":      {note(200, 0), "rank 1 calls unknown operation 200"},
			"no type":    {note(0, 99), "rank 1 calls unknown operation 0 of type 99"},
			"no frame":   {[]byte(strings.Repeat("GET / HTTP/1.1", 10)), "a frame from rank 1 to rank 0 arrived damaged"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w, forger, c1 := withForger(t)
				if w.Listening() {
					t.Errorf("%s: a listener is still open", name)
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				if _, err := c1.Write(c.bytes); err != nil {
					t.Fatal(err)
				}
				_, err := sum(w.ranks[0].World, 0)
				runtime.ReadMemStats(&after)
				if errors.As(err, new(collective.ErrPeerLost)) {
					<-w.Self().Ended // of which Explain tells
				}
				if err = w.Explain(err); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: error %v, want %q", name, err, c.want)
				}
				if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
					t.Errorf("%s: %d bytes allocated", name, n)
				}
				w.end(err)
				c1.Close()
				forger.Close()
			})
		}
	})
}

// A process that has the token announces the operation that the other is in, and sends
// nothing more, or half of a frame: the operation ends at its deadline, which names it.
func TestForgerThatStops(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Run("", func(t *testing.T) { // returns when all cases have
		for name, sends := range map[string][]byte{
			"its call alone": note(1, 0),
			"half a frame":   append(note(1, 0), frame(2, 4, 1, 2)...),
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w, forger, c1 := withForger(t)
				g, ended := collective.Watchdog(w.ranks[0].World, 200*time.Millisecond), make(chan error, 1)
				go func() {
					_, err := sum(g, 0)
					ended <- err
				}()
				// Process 0 has memory for data when it has announced its own operation.
				if _, err := io.ReadFull(c1, make([]byte, len(note(1, 0)))); err != nil {
					t.Fatal(err)
				}
				if _, err := c1.Write(sends); err != nil {
					t.Fatal(err)
				}
				err := <-ended
				var late collective.ErrLate
				if !errors.As(err, &late) || !slices.Equal(late.For, []int{1}) {
					t.Errorf("%s: error %v, want that rank 1 is late", name, err)
				}
				_ = g.Close()
				w.end(err)
				c1.Close()
				forger.Close()
			})
		}
	})
}

// entered is a world whose other process the test plays.
type entered struct {
	*world.World
	ranks []collective.Ranks
}

// end is how a run ends that has failed.
func (w entered) end(err error) {
	w.Fail(err)
	_ = w.ranks[0].Close()
	w.Close()
}

// withForger is process 0 of two, the star of the other, and its data connection.
func withForger(t *testing.T) (entered, *rendezvous.Star, net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	token, result := []byte("0123456789abcdef"), make(chan entered, 1)
	come := make(chan *world.World, 1)
	go func() {
		w, err := world.Enter(t.Context(), world.Config{
			Process:    launch.Process{World: 2, Host: "127.0.0.1", Ports: []int{ln.Addr().(*net.TCPAddr).Port}},
			PerProcess: 1, Listener: ln, Transport: "tcp", Token: token, Heartbeat: 100 * time.Millisecond, DeadAfter: 20 * time.Second,
		})
		if err != nil {
			t.Error(err)
		}
		come <- w
		with, err := w.Connect(shard.Mesh{Shard: 2, Replicate: 1})
		if err != nil {
			t.Error(err)
		}
		result <- entered{w, with.Groups}
	}()
	star, err := rendezvous.Join(t.Context(), rendezvous.Config{Processes: 2, PerProcess: 1, Addrs: []string{ln.Addr().String()}, Token: token,
		Wait: 20 * time.Second, Heartbeat: 100 * time.Millisecond, DeadAfter: 20 * time.Second, Me: rendezvous.Member{Process: 1, Host: "forger"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := star.Agree(t.Context(), []rendezvous.Fact{{Name: "what carries data", Value: "sockets"}, {Name: "who sums gradients", Value: "ranks, in rank order"}}); err != nil {
		t.Fatal(err)
	}
	w := <-come
	c, err := rendezvous.Caller{Process: 1, Token: token}.Dial(t.Context(), "tcp", []string{w.At(0)}, "data "+star.Session)
	if err != nil {
		t.Fatal(err)
	}
	return <-result, star, c
}

// A bit that changes between two processes ends the job on all: each names the ranks, the
// host and the operation.
func TestDamageIsExplained(t *testing.T) {
	defer goleak.VerifyNone(t)
	worlds := enter(t, 3, 1, "tcp")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var relays sync.WaitGroup
	relays.Go(func() { damage(t, &relays, ln, worlds[1].At(1), 40_000) })
	worlds[2].Redirect(1, ln.Addr().String())
	got := connect(worlds, shard.Mesh{Shard: 3, Replicate: 1})
	var ranks sync.WaitGroup
	for p, e := range got {
		if e.err != nil {
			t.Fatal(e.err)
		}
		ranks.Go(func() {
			var err error
			for err == nil {
				_, err = sum(e.ranks[0].World, p)
			}
			why := worlds[p].Explain(err)
			if want := regexp.MustCompile(`rank 1 \(".+"\): a frame from rank 2 to rank 1 arrived damaged(| during operation \d+ \((all-gather|reduce-scatter) of .*\)): .*; rank 2 is on ".+"`); !want.MatchString(why.Error()) {
				t.Errorf("rank %d: %v\nwant %v", p, why, want)
			}
			worlds[p].Fail(err)
		})
	}
	ranks.Wait()
	closeAll(worlds)
	relays.Wait()
}

// damage passes one connection on to addr and changes a bit of its byte number at.
func damage(t *testing.T, all *sync.WaitGroup, ln net.Listener, addr string, at int) {
	from, err := ln.Accept()
	if err != nil {
		t.Error(err)
		return
	}
	to, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	all.Go(func() {
		_, _ = io.Copy(from, to) // until one of them is closed
		_ = from.Close()
	})
	b := make([]byte, 4096)
	for read := 0; err == nil; {
		var n int
		n, err = from.Read(b)
		if i := at - read; i >= 0 && i < n {
			b[i] ^= 8
		}
		read += n
		_, _ = to.Write(b[:n]) // the reader finds out that it is closed
	}
	_ = to.Close()
}
