package socket_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/collective/socket"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/tests/nightly"
)

// TestDamageIsNamed flips one bit of what a process receives over TCP, anywhere in headers, notes
// and data: no operation may return a wrong sum, both ranks must fail, and the receiver must name
// the sender and the operation.
func TestDamageIsNamed(t *testing.T) {
	for seed := range nightly.Of(12, 500) {
		rng := rand.New(rand.NewPCG(uint64(seed), 23))
		n := 2 << (2 + rng.IntN(18)) // float32, up to 2 MiB
		d := newDamaged(t, rng.IntN(3*4*n), byte(1)<<rng.IntN(8))
		for step := 0; d.sum(t, step, n); step++ {
		}
		var why socket.Damaged
		select {
		case err := <-d.lost:
			if !errors.As(err, &why) || why.From != 1 || why.To != 0 {
				t.Errorf("seed %d: %v, want a damaged frame from rank 1 to rank 0", seed, err)
			}
			if during := why.During; during != "" && !strings.HasPrefix(during, "operation ") {
				t.Errorf("seed %d: during %q", seed, during)
			}
		case <-time.After(patience):
			t.Errorf("seed %d: nobody has named the damage", seed)
		}
		d.close()
	}
}

// damaged is two processes of one rank, whose connection flips a bit on the way to rank 0.
type damaged struct {
	nets [2]*socket.Net
	gs   [2]*collective.Wired
	qs   [2]*cpu.Queue
	lost chan error // why process 0 closed the connection
	dev  *cpu.Device
}

func newDamaged(t *testing.T, at int, bit byte) *damaged {
	ln := listen(t, "tcp")
	defer ln.Close()
	a, x := pair(t, ln)
	y, b := pair(t, ln)
	go relay(y, x, -1, 0)
	go relay(x, y, at, bit)
	d := &damaged{lost: make(chan error, 1), dev: cpu.NewHost(1)}
	for r, c := range []net.Conn{a, b} {
		cfg := socket.Config{Process: r, Processes: 2, PerProcess: 1, Groups: [][]int{{0, 1}}}
		if r == 0 {
			cfg.Lost = func(_ int, err error) { d.lost <- err }
		}
		d.nets[r] = socket.New(cfg)
		d.nets[r].Add(1-r, c)
		d.gs[r], d.qs[r] = collective.NewWired(d.nets[r].Wire(0, r)), d.dev.NewQueue("comm")
	}
	return d
}

// relay forwards what it reads, with the byte at an offset XORed with bit.
func relay(to, from net.Conn, at int, bit byte) {
	defer to.Close()
	b := make([]byte, 64<<10)
	for read := 0; ; {
		n, err := from.Read(b)
		if i := at - read; i >= 0 && i < n {
			b[i] ^= bit
		}
		read += n
		if _, wrong := to.Write(b[:n]); err != nil || wrong != nil {
			return
		}
	}
}

// sum adds n elements over both ranks and reports whether both have the result. A wrong result
// fails the test.
func (d *damaged) sum(t *testing.T, step, n int) (ok bool) {
	ok = true
	var x [2][]float32
	for r := range x {
		x[r] = make([]float32, n)
		for i := range x[r] {
			x[r][i] = float32(i%1000 + r + step)
		}
		collective.AllReduce(d.gs[r], d.qs[r], device.OfF32(x[r]))
	}
	for r, q := range d.qs {
		if q.Wait() != nil {
			ok = false
			continue
		}
		for i, is := range x[r] {
			if want := float32(2*(i%1000+step) + 1); is != want {
				t.Fatalf("rank %d, step %d: element %d is %g and not %g, and nothing was said", r, step, i, is, want)
			}
		}
	}
	return ok
}

func (d *damaged) close() {
	for r := range d.nets {
		_ = d.gs[r].Close()
		d.nets[r].Close()
		d.qs[r].Close()
	}
	d.dev.Close()
}

// TestOnlyPlainTCPHasSums compares the bytes of a note on connections of each kind: TLS
// authenticates its content, and Unix sockets do not leave the host.
func TestOnlyPlainTCPHasSums(t *testing.T) {
	t.Parallel() // it waits for a second
	const plain = 24 + collective.NoteLen
	for name, c := range map[string]struct {
		network string
		wrap    func(net.Conn) net.Conn
		want    int
	}{
		"tcp":     {"tcp", func(c net.Conn) net.Conn { return c }, plain + 8},
		"wrapped": {"tcp", func(c net.Conn) net.Conn { return struct{ net.Conn }{c} }, plain}, // like TLS
		"unix":    {"unix", func(c net.Conn) net.Conn { return c }, plain},
	} {
		ln := listen(t, c.network)
		a, b := pair(t, ln)
		ln.Close()
		n := socket.New(socket.Config{Processes: 2, PerProcess: 1, Groups: [][]int{{0, 1}}})
		n.Add(1, c.wrap(a))
		n.Wire(0, 0).Note(1, collective.Note{})
		n.Wire(0, 0).Note(1, collective.Note{})
		go n.Close() // ends the reads
		got, err := io.ReadAll(b)
		left := len(got) - 2*c.want
		if err != nil || left <= 0 || left > c.want {
			t.Errorf("%s: two notes and an end are %d bytes (%v), want twice %d and less than %d more", name, len(got), err, c.want, c.want)
		}
		b.Close()
	}
}
