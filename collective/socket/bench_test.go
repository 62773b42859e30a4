package socket_test

import (
	"io"
	"sync"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/collective/socket"
	"zeroth/device"
	"zeroth/device/cpu"
)

// whole is the elements of the float32 buffer that is gathered or reduced: 64 MiB.
const whole = 16 << 20

// BenchmarkGroup is a gather, a reduction and both, of 64 MiB between two processes'
// ends, in turns with what the wire can do at best: as many bytes both ways over a
// bare connection, or, of shared memory, copied both ways. GB/s are of one direction,
// of-limit is the time of the limit as a share of the operation's.
func BenchmarkGroup(b *testing.B) {
	for _, network := range []string{"memory", "unix", "tcp"} {
		for _, op := range []struct {
			name  string
			times int64 // that a part goes each way
			do    func(collective.Group, device.Queue, device.Buffer)
		}{{"gather", 1, collective.AllGather}, {"reduce", 1, collective.ReduceScatter}, {"all-reduce", 2, collective.AllReduce}} {
			b.Run(network+"/"+op.name, func(b *testing.B) {
				p := newBenchPair(b, network)
				var limit, took time.Duration
				for b.Loop() {
					limit += timed(p.stream) * time.Duration(op.times)
					took += timed(func() { p.run(b, op.do) })
				}
				b.ReportMetric(float64(op.times*4*whole/2*int64(b.N))/took.Seconds()/1e9, "GB/s")
				b.ReportMetric(limit.Seconds()/took.Seconds(), "of-limit")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// benchPair is two ranks of a process each, and a connection beside theirs.
type benchPair struct {
	gs    [2]collective.Group
	qs    [2]*cpu.Queue
	bufs  [2]device.Buffer
	conns [2]io.ReadWriter // nil: the limit is copying
	from  []byte
	to    [2][]byte
}

func newBenchPair(b *testing.B, network string) *benchPair {
	p := &benchPair{from: make([]byte, 1<<20), to: [2][]byte{make([]byte, 1<<20), make([]byte, 1<<20)}}
	shared := network == "memory"
	if shared {
		network = "unix"
	}
	ln := listen(b, network)
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
	}
	p.run(b, collective.AllReduce)
	p.stream()
	return p
}

// run does an operation on both ranks.
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

// stream sends half a buffer each way, or copies it.
func (p *benchPair) stream() {
	var all sync.WaitGroup
	half := p.bufs[0].Bytes() / 2
	if p.conns[0] == nil {
		for r := range p.bufs {
			all.Go(func() { copy(p.bufs[r].Raw()[(1-r)*half:][:half], p.bufs[1-r].Raw()[(1-r)*half:]) })
		}
	} else {
		for i, c := range p.conns {
			all.Go(func() {
				for range half / len(p.from) {
					c.Write(p.from)
				}
			})
			all.Go(func() {
				for range half / len(p.from) {
					io.ReadFull(c, p.to[i])
				}
			})
		}
	}
	all.Wait()
}
