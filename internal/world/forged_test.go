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
	"zeroth/internal/launch"
	"zeroth/internal/world"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// frame returns a frame of package socket from rank 1 to rank 0 of the group of all ranks, over
// TCP.
func frame(kind uint32, length int, body ...byte) (b []byte) {
	for _, x := range []uint32{0x3148545a, kind, 0, 1, 0, uint32(length)} {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	if b = sealed(b); len(body) > 0 {
		b = append(b, sealed(body)...)
	}
	return b
}

// sealed appends a checksum to b.
func sealed(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// note returns the frame that announces an operation on a dtype.
func note(op, of byte) []byte {
	n := make([]byte, collective.NoteLen)
	n[0], n[1], n[2] = 1, op, of
	binary.LittleEndian.PutUint32(n[4:], 1<<20)
	binary.LittleEndian.PutUint64(n[16:], 2)
	return frame(1, len(n), n...)
}

// TestForgedFrames checks that invalid frames from a process that has joined with the token end
// the other process with an error that names it and the fault, without allocating the memory that
// a frame claims. By then no listener is open.
func TestForgedFrames(t *testing.T) {
	nightly.Long(t)
	defer goleak.VerifyNone(t)
	t.Run("", func(t *testing.T) { // returns after all cases
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
					<-w.Self().Ended // Explain uses its reason
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

// TestForgerThatStops checks that if a process announces an operation and then sends nothing, or
// half a frame, the other's operation ends at its deadline with an error that names it.
func TestForgerThatStops(t *testing.T) {
	nightly.Long(t)
	defer goleak.VerifyNone(t)
	t.Run("", func(t *testing.T) { // returns after all cases
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
				// Once process 0 has announced its operation, it can receive data.
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

// entered is process 0 of a world in which the test plays process 1.
type entered struct {
	*world.World
	ranks []collective.Ranks
}

// end ends a failed run.
func (w entered) end(err error) {
	w.Fail(err)
	_ = w.ranks[0].Close()
	w.Close()
}

// withForger returns process 0 of two, and the other's control and data connections.
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
	if err := star.Agree(t.Context(), []rendezvous.Fact{{Name: "the transport of data", Value: "sockets"}, {Name: "the summing of gradients", Value: "ranks, in rank order"}}); err != nil {
		t.Fatal(err)
	}
	w := <-come
	c, err := rendezvous.Caller{Process: 1, Token: token}.Dial(t.Context(), "tcp", []string{w.At(0)}, "data "+star.Session)
	if err != nil {
		t.Fatal(err)
	}
	return <-result, star, c
}

// TestDamageIsExplained checks that a bit flipped between two processes ends the job on all of
// them, with errors that name the ranks, the host and the operation.
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

// damage forwards one connection to addr and flips a bit of byte number at.
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
		_, _ = io.Copy(from, to) // until one side closes
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
		_, _ = to.Write(b[:n]) // if it fails, the reader notices
	}
	_ = to.Close()
}
