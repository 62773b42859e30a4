package socket_test

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/collective/socket"
	"zeroth/device"
	"zeroth/device/cpu"
)

// whole is the number of float32 elements gathered or reduced: 64 MiB.
const whole = 16 << 20

// BenchmarkGroup measures a gather, a reduction and both, of 64 MiB between two processes' ends,
// alternating with the best that the wire can do (see limits). GB/s are for one direction; the
// other values are the time of a limit as a share of the operation's.
func BenchmarkGroup(b *testing.B) {
	for _, network := range []string{"memory", "unix", "tcp"} {
		for _, op := range []struct {
			name            string
			gathers, reduce int64 // how often a part travels in each direction to be stored, and to be added
			do              func(collective.Group, device.Queue, device.Buffer)
		}{{"gather", 1, 0, collective.AllGather}, {"reduce", 0, 1, collective.ReduceScatter}, {"all-reduce", 1, 1, collective.AllReduce}} {
			b.Run(network+"/"+op.name, func(b *testing.B) {
				p := newBenchPair(b, network)
				times := op.gathers + op.reduce
				var limit, other, took time.Duration
				for b.Loop() {
					limit += least(p.stream)*time.Duration(op.gathers) + least(p.terms)*time.Duration(op.reduce)
					took += timed(func() { p.run(b, op.do) })
					other += timed(p.other) * time.Duration(times)
				}
				b.ReportMetric(float64(times*4*whole/2*int64(b.N))/took.Seconds()/1e9, "GB/s")
				b.ReportMetric(limit.Seconds()/took.Seconds(), "of-limit")
				b.ReportMetric(other.Seconds()/took.Seconds(), p.otherUnit())
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkLink transfers 64 MiB from one process's end to the other's, alternating with the limit:
// a stream over a bare connection, or a copy of shared memory.
func BenchmarkLink(b *testing.B) {
	for _, network := range []string{"memory", "unix", "tcp"} {
		b.Run(network, func(b *testing.B) {
			p := newBenchPair(b, network)
			send := func(g collective.Group, q device.Queue, x device.Buffer) { g.Broadcast(q, x) }
			p.run(b, send)
			p.oneWay()
			var limit, took time.Duration
			for b.Loop() {
				limit += timed(p.oneWay)
				took += timed(func() { p.run(b, send) })
			}
			rate := func(d time.Duration) float64 { return float64(4*whole*b.N) / d.Seconds() / 1e6 }
			b.ReportMetric(rate(took), "MB/s")
			b.ReportMetric(rate(limit), "raw-MB/s")
			b.ReportMetric(limit.Seconds()/took.Seconds(), "of-limit")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkOperation measures the latency of an operation between two processes, as used for
// divided matrices, alternating with the minimum: each writes what it sends to a bare connection
// and reads what it receives. An operation without data is an agreement, as before each NCCL
// operation. Trips are the operation's time divided by the limit's. A far connection takes 10 ms
// each way, so that only trips count.
func BenchmarkOperation(b *testing.B) {
	for _, network := range []string{"memory", "unix", "tcp", "far"} {
		times := 200
		if network == "far" {
			times = 20
		}
		for _, bytes := range []int{0, 4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", network, bytes), func(b *testing.B) {
				p := newBenchPair(b, network)
				bare := network
				if bare == "memory" {
					bare = "unix"
				}
				ln := benchListen(b, bare)
				defer ln.Close()
				x, y := pair(b, ln)
				defer x.Close()
				defer y.Close()
				conns, note := [2]net.Conn{x, y}, [2][]byte{make([]byte, max(collective.NoteLen, bytes/2)), make([]byte, max(collective.NoteLen, bytes/2))}
				trip := func() {
					p.both(func(r int) {
						for range times {
							done := make(chan struct{})
							go func() { conns[r].Write(p.bufs[r].Raw()[:len(note[r])]); close(done) }()
							io.ReadFull(conns[r], note[r])
							<-done
						}
					})
				}
				operations := func() {
					for range times {
						for r := range p.qs {
							collective.AllGather(p.gs[r], p.qs[r], p.bufs[r].Slice(0, bytes/4))
						}
					}
					for _, q := range p.qs {
						if err := q.Wait(); err != nil {
							b.Fatal(err)
						}
					}
				}
				var limit, took time.Duration
				for b.Loop() {
					limit += timed(trip)
					took += timed(operations)
				}
				b.ReportMetric(float64(took.Microseconds())/float64(times*b.N), "µs/op")
				b.ReportMetric(took.Seconds()/limit.Seconds(), "trips")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// benchListen is like listen, with the additional network "far".
func benchListen(b *testing.B, network string) net.Listener {
	if network == "far" {
		return farListener{listen(b, "tcp"), b, 10 * time.Millisecond}
	}
	return listen(b, network)
}

// farListener delays everything that is sent over its connections.
type farListener struct {
	net.Listener
	b     *testing.B
	delay time.Duration
}

// Accept returns the far end of two connections that are joined by delayed copies.
func (l farListener) Accept() (net.Conn, error) {
	near, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	ln := listen(l.b, "tcp")
	defer ln.Close()
	middle, far := pair(l.b, ln)
	go delayed(middle, near, l.delay)
	go delayed(near, middle, l.delay)
	return far, nil
}

// delayed copies a stream until it ends, each piece after a delay.
func delayed(to, from net.Conn, delay time.Duration) {
	type piece struct {
		due  time.Time
		data []byte
	}
	pieces := make(chan piece, 1024)
	go func() {
		for {
			b := make([]byte, 64<<10)
			n, err := from.Read(b)
			if err != nil {
				close(pieces)
				return
			}
			pieces <- piece{time.Now().Add(delay), b[:n]}
		}
	}()
	for p := range pieces {
		time.Sleep(time.Until(p.due))
		to.Write(p.data)
	}
	to.Close()
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// least returns the shorter of two times: after a copy that bypasses the caches, the first may take
// twice as long.
func least(f func()) time.Duration { return min(timed(f), timed(f)) }

// benchPair is two processes of one rank, and a connection in addition to theirs.
type benchPair struct {
	gs    [2]collective.Group
	qs    [2]*cpu.Queue
	bufs  [2]device.Buffer
	conns [2]io.ReadWriter // nil if memory is shared
	from  []byte
	to    [2][]byte
}

func newBenchPair(b *testing.B, network string) *benchPair {
	p := &benchPair{from: make([]byte, 1<<20), to: [2][]byte{make([]byte, 1<<20), make([]byte, 1<<20)}}
	shared := network == "memory"
	if shared {
		network = "unix"
	}
	ln := benchListen(b, network)
	defer ln.Close()
	var mem [2]*socket.Memory
	if shared {
		mem = [2]*socket.Memory{memory(b), memory(b)}
	}
	w := newSharedWorld(b, ln, 2, 1, [][]int{count(2)}, nil, mem[:])
	b.Cleanup(w.close)
	for r := range p.qs {
		d := cpu.NewHost(1)
		b.Cleanup(d.Close)
		x := make([]byte, 4*whole)
		if shared {
			var err error
			if x, err = mem[r].Take(4 * whole); err != nil {
				b.Fatal(err)
			}
		}
		p.bufs[r] = floats(x)
		p.qs[r], p.gs[r] = d.NewQueue("comm"), collective.NewWired(w.nets[r].Wire(0, r))
		b.Cleanup(p.qs[r].Close)
	}
	if !shared {
		x, y := pair(b, ln)
		b.Cleanup(func() { x.Close(); y.Close() })
		p.conns = [2]io.ReadWriter{x, y}
		for _, c := range []net.Conn{x, y} {
			if u, ok := c.(*net.UnixConn); ok {
				u.SetWriteBuffer(socket.Ahead)
			}
		}
	}
	p.run(b, collective.AllReduce)
	p.terms()
	p.stream()
	return p
}

// run performs an operation on both ranks.
func (p *benchPair) run(b *testing.B, do func(collective.Group, device.Queue, device.Buffer)) {
	for r := range p.qs {
		do(p.gs[r], p.qs[r], p.bufs[r])
	}
	for _, q := range p.qs {
		if err := q.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

// The limits are streams of the same bytes in both directions, between the same buffers: over a
// bare connection or, for shared memory, by copies (stream) and by additions in place (terms). An
// addition reads two values where a copy reads one, so a reduction cannot be as fast as a copy.
// Other is the copy for shared memory and, for a connection, a repeated stream of 1 MiB that stays
// in the caches.
func (p *benchPair) stream() {
	half := p.bufs[0].Bytes() / 2
	part := func(of, r int) []byte { return p.bufs[of].Raw()[r*half:][:half] }
	if p.conns[0] == nil {
		p.both(func(r int) { copy(part(r, 1-r), part(1-r, 1-r)) })
		return
	}
	p.send(1, func(r int) []byte { return part(r, 1-r) }, func(r int) []byte { return part(r, r) })
}

// oneWay measures the limit of a link.
func (p *benchPair) oneWay() {
	from, to := p.bufs[0].Raw(), p.bufs[1].Raw()
	p.both(func(r int) {
		switch {
		case p.conns[0] == nil && r == 1:
			copy(to, from)
		case p.conns[0] != nil && r == 0:
			p.conns[0].Write(from)
		case p.conns[0] != nil:
			io.ReadFull(p.conns[1], to)
		}
	})
}

// terms measures the limit of a reduction.
func (p *benchPair) terms() {
	if p.conns[0] != nil {
		p.stream()
		return
	}
	p.both(func(r int) {
		part := func(of int) device.Buffer { return collective.Part(p.gs[of], p.bufs[of], r) }
		p.qs[r].AddUp(part(r), []device.Buffer{part(0), part(1)})
	})
}

func (p *benchPair) other() {
	if p.conns[0] == nil {
		p.stream()
		return
	}
	p.send(p.bufs[0].Bytes()/2/len(p.from), func(int) []byte { return p.from }, func(r int) []byte { return p.to[r] })
}

func (p *benchPair) otherUnit() string {
	if p.conns[0] == nil {
		return "of-copy"
	}
	return "of-cached"
}

// both runs f for both ranks concurrently, on their queues.
func (p *benchPair) both(f func(r int)) {
	for r, q := range p.qs {
		q.Call("limit", func() error { f(r); return nil })
	}
	for _, q := range p.qs {
		_ = q.Wait() // the benchmark ends on an earlier failure
	}
}

// send makes each rank send and receive several times over the bare connection.
func (p *benchPair) send(times int, from, to func(r int) []byte) {
	p.both(func(r int) {
		sent := make(chan struct{})
		go func() {
			for range times {
				p.conns[r].Write(from(r))
			}
			close(sent)
		}()
		for range times {
			io.ReadFull(p.conns[r], to(r))
		}
		<-sent
	})
}
