//go:build linux

package socket_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zeroth/collective"
	"zeroth/collective/socket"
	"zeroth/device"
	"zeroth/device/cpu"
)

const lent = 4

// called prepends the peer's call to its frames.
func called(frames []byte) []byte {
	return append(frame(note, 0, 1, 0, collective.NoteLen, call(8)), frames...)
}

// lentAt returns a lent frame of n bytes at an offset of shared memory.
func lentAt(at uint64, n int) []byte {
	return frame(lent, 0, 1, 0, n, binary.LittleEndian.AppendUint64(nil, at))
}

// lending returns a call that lends n bytes at an offset of shared memory.
func lending(at, n uint64) []byte {
	b := binary.LittleEndian.AppendUint64(call(8), at)
	return frame(6, 0, 1, 0, collective.NoteLen+16, binary.LittleEndian.AppendUint64(b, n))
}

// memfd returns a file in memory with seals.
func memfd(t *testing.T, bytes int64, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Skip(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(bytes); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestBadMemory checks that a connection is closed if the peer's shared memory is missing, could be
// truncated, or is used out of range; it must not be read.
func TestBadMemory(t *testing.T) {
	for _, test := range []struct {
		name   string
		pass   func(*testing.T) []byte // file descriptors in the first message
		frames []byte
		want   string
	}{
		{"no files", func(*testing.T) []byte { return nil }, nil, "no shared memory: 0 files"},
		{"two files", func(t *testing.T) []byte {
			f := memfd(t, 4096, unix.F_SEAL_SHRINK)
			return unix.UnixRights(int(f.Fd()), int(f.Fd()))
		}, nil, "no shared memory"},
		{"no seal", func(t *testing.T) []byte { return unix.UnixRights(int(memfd(t, 4096, 0).Fd())) }, nil, "truncate"},
		{"beyond its end", sealed, called(lentAt(4096, 16)), "is used up to 4112"},
		{"over its end", sealed, called(lentAt(4090, 16)), "is used up to 4106"},
		{"far away", sealed, called(lentAt(1<<63-1, 16)), "of shared memory"},
		{"negative", sealed, called(lentAt(1<<63+5, 16)), "of shared memory"},
		{"of another length", sealed, called(lentAt(0, 12)), "16 are expected"},
		{"beyond its end with a call", sealed, lending(4096, 16), "is used up to 4112"},
		{"far away with a call", sealed, lending(1<<63-1, 16), "of shared memory"},
		{"without end with a call", sealed, lending(0, 1<<64-16), "of shared memory"},
		{"nothing with a call", sealed, lending(0, 0), "0 bytes"},
		{"twice", sealed, append(lending(0, 16), bytes.Repeat(lending(0, 16), 3)...), "lends too much memory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ln := listen(t, "unix")
			defer ln.Close()
			a, b := pair(t, ln)
			defer b.Close()
			lost := make(chan error, 1)
			n := socket.New(socket.Config{Processes: 2, PerProcess: 1, Groups: [][]int{{0, 1}}, Share: memory(t), Lost: func(_ int, err error) { lost <- err }})
			defer n.Close()
			n.Add(1, a)
			d := cpu.NewHost(1)
			defer d.Close()
			q := d.NewQueue("comm")
			defer q.Close()
			collective.AllGather(collective.NewWired(n.Wire(0, 0)), q, device.OfF32(make([]float32, 8)))
			if _, _, err := b.(*net.UnixConn).WriteMsgUnix([]byte{'m'}, test.pass(t), nil); err != nil {
				t.Fatal(err)
			}
			head := make([]byte, 1+24+collective.NoteLen)
			for got := 0; got < len(head); { // its memory and its call: it now expects the part
				n, err := b.Read(head[got:])
				if err != nil {
					break // it has closed the connection already
				}
				got += n
			}
			b.Write(test.frames) // fails if it has closed the connection
			select {
			case err := <-lost:
				if !strings.Contains(err.Error(), test.want) {
					t.Errorf("lost by %q, want %q", err, test.want)
				}
			case <-time.After(patience):
				t.Fatal("the peer was not given up")
			}
			if err := q.Wait(); test.name != "twice" && err != error(collective.ErrPeerLost{Rank: 1}) { // what is lent first completes the operation
				t.Errorf("error %v, want the loss of rank 1", err)
			}
		})
	}
}

func sealed(t *testing.T) []byte {
	return unix.UnixRights(int(memfd(t, 4096, unix.F_SEAL_SHRINK).Fd()))
}

// TestMemoryIsGivenBack checks that released memory is no longer mapped, and zero when allocated
// again.
func TestMemoryIsGivenBack(t *testing.T) {
	m := memory(t)
	var all [][]byte
	for i := range 5 {
		b, err := m.Take(10_000 + i)
		if err != nil {
			t.Fatal(err)
		}
		for i := range b {
			if b[i] != 0 {
				t.Fatalf("byte %d is %d", i, b[i])
			}
			b[i] = 1
		}
		if all = append(all, b); i%2 == 1 {
			m.Give(all[0])
			all = all[1:]
		}
	}
	for _, b := range all {
		if b[0] != 1 || b[len(b)-1] != 1 {
			t.Error("memory that was not given back has changed")
		}
		m.Give(b)
	}
}

// TestLentTooMuch checks that unexpected lent memory ends the group without being read.
func TestLentTooMuch(t *testing.T) {
	t.Parallel() // it waits for a second
	ln := listen(t, "unix")
	defer ln.Close()
	a, b := pair(t, ln)
	defer b.Close()
	n := socket.New(socket.Config{Processes: 2, PerProcess: 1, Groups: [][]int{{0, 1}}, Share: memory(t)})
	defer n.Close()
	n.Add(1, a)
	if _, _, err := b.(*net.UnixConn).WriteMsgUnix([]byte{'m'}, sealed(t), nil); err != nil {
		t.Fatal(err)
	}
	d := cpu.NewHost(1)
	defer d.Close()
	q := d.NewQueue("comm")
	defer q.Close()
	collective.AllGather(collective.NewWired(n.Wire(0, 0)), q, device.OfF32(make([]float32, 8)))
	if _, err := b.Write(lending(0, 20)); err != nil {
		t.Fatal(err)
	}
	if err := q.Wait(); err == nil || !strings.Contains(err.Error(), "rank 1 lends 20 bytes") {
		t.Errorf("error %v", err)
	}
}

// TestLostMemoryIsUnmapped checks that the memory of a process that was lost is no longer mapped after the next
// change of groups.
func TestLostMemoryIsUnmapped(t *testing.T) {
	ln := listen(t, "unix")
	defer ln.Close()
	d := cpu.NewHost(1)
	defer d.Close()
	mem := []*socket.Memory{memory(t), memory(t)}
	w := newSharedWorld(t, ln, 2, 1, [][]int{count(2)}, nil, mem)
	defer w.close()
	var all sync.WaitGroup
	for r, n := range w.nets {
		b, err := mem[r].Take(1 << 16)
		if err != nil {
			t.Fatal(err)
		}
		defer mem[r].Give(b)
		q := d.NewQueue("comm")
		defer q.Close()
		all.Go(func() {
			collective.AllGather(collective.NewWired(n.Wire(0, r)), q, floats(b))
			if err := q.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	mapped := func() int {
		text, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skip(err)
		}
		return strings.Count(string(text), "memfd:zeroth")
	}
	before, n := mapped(), w.nets[0]
	for epoch := 1; mapped() == before && epoch < 200; epoch++ { // the connection's reader ends soon
		n.Drop(1, errors.New("lost"))
		n.Halt(1)
		n.Reform(epoch, [][]int{{0}}, func(int) int { return 0 })
		time.Sleep(10 * time.Millisecond)
	}
	if after := mapped(); after != before-1 {
		t.Errorf("%d mappings of shared memory, %d before", after, before)
	}
}
