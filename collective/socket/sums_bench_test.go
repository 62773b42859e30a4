//go:build linux

package socket_test

import (
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/collective/socket"
	"zeroth/device"
	"zeroth/device/cpu"
)

// withoutSums is a TCP connection whose frames carry no checksums.
type withoutSums struct{ *net.TCPConn }

// BenchmarkSums measures the cost of checksums: operations of 64 MiB, and fifty of 4 KiB, between
// two processes' ends over TCP, alternating with the same ones without checksums, on loopback and
// on connections paced by the kernel to 10 Gbit/s in each direction. GB/s are for one direction;
// time and CPU are medians of the pairs' ratios of durations and of processor times of both ends.
func BenchmarkSums(b *testing.B) {
	for _, wire := range []struct {
		name string
		rate int // bytes per second; 0: unlimited
	}{{"loopback", 0}, {"10Gbit", 1_250_000_000}} {
		for _, op := range []struct {
			name  string
			times float64 // half of 64 MiB travels in each direction
			do    func(collective.Group, device.Queue, device.Buffer)
		}{{"gather", 1, collective.AllGather}, {"reduce", 1, collective.ReduceScatter}, {"all-reduce", 2, collective.AllReduce}, {"gathers-of-4KiB", small * smallLen / float64(whole), gatherSmall}} {
			b.Run(wire.name+"/"+op.name, func(b *testing.B) {
				plain, summed := newSumsPair(b, wire.rate, false), newSumsPair(b, wire.rate, true)
				var rates, without, longer, cpu []float64
				for b.Loop() {
					p, pc := plain.timed(b, op.do)
					s, sc := summed.timed(b, op.do)
					rates, without = append(rates, op.times*4*whole/2/s/1e9), append(without, op.times*4*whole/2/p/1e9)
					longer, cpu = append(longer, s/p), append(cpu, sc/pc)
				}
				b.ReportMetric(median(without), "GB/s-without")
				b.ReportMetric(median(rates), "GB/s")
				b.ReportMetric(median(longer), "time")
				b.ReportMetric(median(cpu), "CPU")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// small is a number of operations of smallLen float32.
const small, smallLen = 50, 1024

func gatherSmall(g collective.Group, q device.Queue, b device.Buffer) {
	for range small {
		collective.AllGather(g, q, b.Slice(0, smallLen))
	}
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// newSumsPair returns two ranks over TCP with a rate limit.
func newSumsPair(b *testing.B, rate int, sums bool) *benchPair {
	ln := listen(b, "tcp")
	defer ln.Close()
	x, y := pair(b, ln)
	w, p := &world{}, &benchPair{}
	for r, c := range []net.Conn{x, y} {
		if rate > 0 {
			pace(b, c.(*net.TCPConn), rate)
		}
		if !sums {
			c = withoutSums{c.(*net.TCPConn)}
		}
		n := socket.New(socket.Config{Process: r, Processes: 2, PerProcess: 1, Groups: [][]int{count(2)}})
		n.Add(1-r, c)
		w.nets = append(w.nets, n)
		d := cpu.NewHost(1)
		b.Cleanup(d.Close)
		p.bufs[r] = floats(make([]byte, 4*whole))
		p.qs[r], p.gs[r] = d.NewQueue("comm"), collective.NewWired(n.Wire(0, r))
		b.Cleanup(p.qs[r].Close)
	}
	b.Cleanup(w.close)
	p.run(b, collective.AllReduce)
	return p
}

// pace makes the kernel limit the rate of a connection.
func pace(b *testing.B, c *net.TCPConn, rate int) {
	const maxPacingRate = 47 // SO_MAX_PACING_RATE
	raw, err := c.SyscallConn()
	if err == nil {
		wrong := raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, maxPacingRate, rate) })
		if err == nil {
			err = wrong
		}
	}
	if err != nil {
		b.Fatal(err)
	}
}

// timed returns the wall time and the processor time of an operation on both ranks, in seconds.
func (p *benchPair) timed(b *testing.B, do func(collective.Group, device.Queue, device.Buffer)) (wall, cpu float64) {
	used := func() float64 {
		var r syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // cannot fail
		return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
	}
	cpu = -used()
	begin := time.Now()
	p.run(b, do)
	wall = time.Since(begin).Seconds()
	return wall, cpu + used()
}
