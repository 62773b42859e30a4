package socket_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/collective/socket"
	"zeroth/device"
	"zeroth/device/cpu"
)

// patience is how long an immediate effect may take on a busy machine.
const patience = 20 * time.Second

// raw is rank 0 of two, whose peer is controlled by the test byte by byte.
type raw struct {
	net  *socket.Net
	conn net.Conn // the peer's end
	g    *collective.Wired
	q    *cpu.Queue
	lost chan error
}

func newRaw(t *testing.T) *raw { return newRawIn(t, 0, 1) }

// newRawIn is like newRaw for a group of two given ranks.
func newRawIn(t *testing.T, group ...int) *raw {
	ln := listen(t, "unix")
	defer ln.Close()
	a, b := pair(t, ln)
	r := &raw{conn: b, lost: make(chan error, 1)}
	r.net = socket.New(socket.Config{Processes: 2, PerProcess: 1, Groups: [][]int{group}, Lost: func(_ int, err error) { r.lost <- err }})
	r.net.Add(1, a)
	r.g = collective.NewWired(r.net.Wire(0, slices.Index(group, 0)))
	d := cpu.NewHost(1)
	r.q = d.NewQueue("comm")
	t.Cleanup(func() {
		b.Close()
		r.net.Close()
		r.q.Close()
		d.Close()
	})
	return r
}

// frame returns the bytes of a frame.
func frame(kind, group, from, to uint32, length int, body []byte) []byte {
	var b []byte
	for _, x := range []uint32{0x3148545a, kind, group, from, to, uint32(length)} {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return append(b, body...)
}

const note, data, left = 1, 2, 3

// call returns the note of a gather of n float32.
func call(n int) []byte {
	b := make([]byte, collective.NoteLen)
	b[0] = 1
	binary.LittleEndian.PutUint32(b[4:], 1<<20)
	binary.LittleEndian.PutUint64(b[16:], uint64(n))
	return b
}

// TestBadFrames sends invalid frames: the connection must be closed without other effects.
func TestBadFrames(t *testing.T) {
	flood := []byte{}
	for range collective.NotesAhead + 2 {
		flood = append(flood, frame(note, 0, 1, 0, collective.NoteLen, call(8))...)
	}
	tests := map[string]struct {
		bytes []byte
		want  string
	}{
		"no frame":          {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "invalid frame"},
		"kind":              {frame(9, 0, 1, 0, 0, nil), "kind 9"},
		"group":             {frame(note, 7, 1, 0, collective.NoteLen, call(8)), "group 7"},
		"rank of another":   {frame(note, 0, 0, 0, collective.NoteLen, call(8)), "from rank 0"},
		"no rank":           {frame(note, 0, 5, 0, collective.NoteLen, call(8)), "from rank 5"},
		"oversized note":    {frame(note, 0, 1, 0, 1<<31-1, nil), "2147483647 bytes"},
		"oversized reason":  {frame(left, 0, 1, 0, collective.ReasonLen+1, nil), "4097 bytes"},
		"oversized data":    {append(frame(note, 0, 1, 0, collective.NoteLen, call(8)), frame(data, 0, 1, 0, 1<<30, nil)...), "rank 1 sends 1073741824 "}, // more than expected, or before it is
		"data not expected": {bytes.Repeat(frame(data, 0, 1, 0, 16, append(make([]byte, 16), 1, 0, 0, 0)), 3), "unexpected bytes"},
		"unknown operation": {frame(note, 0, 1, 0, collective.NoteLen, append([]byte{1, 200}, make([]byte, 78)...)), ""},
		"cut short":         {frame(note, 0, 1, 0, collective.NoteLen, nil)[:10], ""},
		"notes":             {flood, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRaw(t)
			if name != "notes" { // nobody reads these
				collective.AllGather(r.g, r.q, device.OfF32(make([]float32, 8)))
			}
			if _, err := r.conn.Write(test.bytes); err != nil {
				t.Fatal(err)
			}
			if name == "cut short" {
				r.conn.Close()
			}
			if name == "unknown operation" {
				if err := r.q.Wait(); err == nil || !strings.Contains(err.Error(), "all processes must run the same version") {
					t.Errorf("error %v", err)
				}
				return
			}
			select {
			case err := <-r.lost:
				if !strings.Contains(err.Error(), test.want) {
					t.Errorf("lost by %q, want %q", err, test.want)
				}
			case <-time.After(patience):
				t.Fatal("the peer was not given up")
			}
			if err := r.q.Wait(); name != "notes" && err != error(collective.ErrPeerLost{Rank: 1}) {
				t.Errorf("error %v, want the loss of rank 1", err)
			}
		})
	}
}

// TestReceiverLeavesMemory closes a rank that is receiving a frame into its memory from a peer that
// has stopped half way.
func TestReceiverLeavesMemory(t *testing.T) {
	r := newRaw(t)
	b := make([]float32, 1<<18)
	collective.AllGather(r.g, r.q, device.OfF32(b))
	half := len(b) / 2 * 4                                                              // bytes of the peer's part
	if _, err := io.ReadFull(r.conn, make([]byte, 24+collective.NoteLen)); err != nil { // the rank's call, which grants memory for the part
		t.Fatal(err)
	}
	if _, err := r.conn.Write(append(frame(note, 0, 1, 0, collective.NoteLen, call(len(b))), frame(data, 0, 1, 0, half, make([]byte, half/2))...)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // for it to arrive
	r.g.Close()
	if err := r.q.Wait(); err != collective.ErrClosed {
		t.Errorf("error %v", err)
	}
	for i := range b {
		b[i] = 1
	}
	go io.Copy(io.Discard, r.conn) // drains what the rank has sent, so that it can end
	if _, err := r.conn.Write(append(make([]byte, half/2), 1, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.conn.Write(frame(note, 9, 1, 0, collective.NoteLen, nil)); err != nil { // read after that
		t.Fatal(err)
	}
	r.conn.SetReadDeadline(time.Now().Add(patience))
	time.Sleep(50 * time.Millisecond)
	for i, x := range b {
		if x != 1 {
			t.Fatalf("element %d of the rank's memory was written after its queue was done", i)
		}
	}
}

// TestSenderLeavesMemory closes a rank that is sending to a peer that does not read: the frame must
// be marked as given up and followed by the reason.
func TestSenderLeavesMemory(t *testing.T) {
	r := newRaw(t)
	const n = 1 << 19 // float32, two chunks
	b := make([]float32, 2*n)
	collective.AllGather(r.g, r.q, device.OfF32(b))
	if _, err := r.conn.Write(frame(note, 0, 1, 0, collective.NoteLen, call(len(b)))); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // for it to fill the socket
	r.g.Abort(errors.New("out of order"))
	done := make(chan error, 1)
	go func() { done <- r.q.Wait() }()
	select {
	case err := <-done:
		if err == nil || err.Error() != "out of order" {
			t.Errorf("error %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the rank waits for its peer to read")
	}
	for i := range b {
		b[i] = 1
	}
	r.conn.SetReadDeadline(time.Now().Add(patience))
	head := make([]byte, 24)
	read := func(n int) []byte {
		b := make([]byte, n)
		if _, err := io.ReadFull(r.conn, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	read(24 + collective.NoteLen)
	whole := read(24 + 1<<20 + 4)
	if whole[len(whole)-4] != 0 {
		t.Error("the frame says that it is whole")
	}
	if i := bytes.IndexByte(whole[24:], 0x3f); i >= 0 {
		t.Errorf("byte %d of the frame was read after the queue was done", i)
	}
	copy(head, read(24))
	if head[4] != left {
		t.Fatalf("a frame of kind %d follows", head[4])
	}
	if why := collective.DecodeReason(read(int(binary.LittleEndian.Uint32(head[20:])))); why.Error() != "out of order" {
		t.Errorf("reason %v", why)
	}
}

// TestPeerLeavesBeforeItHasRead closes the peer after it has sent everything that an operation
// needs, while the rank is still writing to it: the operation must end.
func TestPeerLeavesBeforeItHasRead(t *testing.T) {
	r := newRaw(t)
	const n = 1 << 18 // float32, one chunk
	collective.AllGather(r.g, r.q, device.OfF32(make([]float32, 2*n)))
	if _, err := io.ReadFull(r.conn, make([]byte, 24+collective.NoteLen)); err != nil { // its note: it has posted memory
		t.Fatal(err)
	}
	if _, err := r.conn.Write(append(frame(note, 0, 1, 0, collective.NoteLen, call(2*n)), frame(data, 0, 1, 0, 4*n, append(make([]byte, 4*n), 1, 0, 0, 0))...)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // for the rank to read it
	r.conn.Close()
	done := make(chan error, 1)
	go func() { done <- r.q.Wait() }()
	select {
	case <-done: // with or without an error
	case <-time.After(patience):
		r.g.Close() // to end the test
		t.Fatal("the operation waits for a frame to be read that nobody reads")
	}
}

// TestLinkLosesItsPeer kills a peer before or during a link's operation: both a sender and a
// receiver must name it.
func TestLinkLosesItsPeer(t *testing.T) {
	const n = 4 << 18 // float32, four chunks, of which at most two are in flight
	its := call(n)
	its[1] = 2 // a broadcast
	none := make([]byte, 1<<20)
	for name, test := range map[string]struct {
		group []int
		peer  func(r uint32) []byte // what it has sent, as rank r of the group
	}{
		"sends, not come":    {[]int{0, 1}, func(uint32) []byte { return nil }},
		"sends, come":        {[]int{0, 1}, func(r uint32) []byte { return frame(note, 0, r, 1-r, len(its), its) }},
		"receives, not come": {[]int{1, 0}, func(uint32) []byte { return nil }},
		"receives, come":     {[]int{1, 0}, func(r uint32) []byte { return frame(note, 0, r, 1-r, len(its), its) }},
		"receives, half a frame": {[]int{1, 0}, func(r uint32) []byte {
			return append(frame(note, 0, r, 1-r, len(its), its), frame(data, 0, r, 1-r, len(none), none[:len(none)/2])...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRawIn(t, test.group...)
			r.g.Broadcast(r.q, device.OfF32(make([]float32, n)))
			if _, err := io.ReadFull(r.conn, make([]byte, 24+collective.NoteLen)); err != nil { // the rank is waiting
				t.Fatal(err)
			}
			if _, err := r.conn.Write(test.peer(uint32(slices.Index(test.group, 1)))); err != nil {
				t.Fatal(err)
			}
			r.conn.Close()
			if err := r.q.Wait(); err != error(collective.ErrPeerLost{Rank: 1}) {
				t.Errorf("error %v, want the loss of rank 1", err)
			}
		})
	}
}

// TestCloseBeforeAllAreConnected closes a world that lost a process while connecting: the processes
// connected so far must be notified.
func TestCloseBeforeAllAreConnected(t *testing.T) {
	t.Parallel() // it waits for a second
	here, there := net.Pipe()
	n := socket.New(socket.Config{Process: 2, Processes: 3, PerProcess: 1, Groups: [][]int{{0, 1, 2}}})
	n.Add(0, here)
	told := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(there)
		there.Close()
		told <- b
	}()
	n.Close()
	if b := <-told; len(b) < 24 || binary.LittleEndian.Uint32(b[4:]) != 3 {
		t.Errorf("the process that is connected hears %q", b)
	}
}

// TestReturnedRankHasTheNumberOfItsPlace checks that a process that has come back has the ranks of its place in errors.
func TestReturnedRankHasTheNumberOfItsPlace(t *testing.T) {
	n := socket.New(socket.Config{Processes: 2, PerProcess: 2, Groups: [][]int{{0, 2}}, Told: func(int, uint32, []byte) {}})
	defer n.Close()
	n.Reform(1, [][]int{{0, 7}}, func(int) int { return 0 }) // process 3 has the place of process 1
	g := collective.NewWired(n.Wire(0, 0))
	n.Halt(3)
	d := cpu.NewHost(1)
	defer d.Close()
	q := d.NewQueue("comm")
	defer q.Close()
	collective.AllGather(g, q, floats(make([]byte, 8)))
	if err := q.Wait(); g.Name(1) != 3 || err == nil || !strings.Contains(err.Error(), "peer 2 lost") {
		t.Errorf("rank %d, %v", g.Name(1), err)
	}
}
