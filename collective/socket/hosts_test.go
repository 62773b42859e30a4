package socket_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/tests/nightly"
)

// counting is a wire that counts the bytes sent within a host and to other hosts.
type counting struct {
	collective.Wire
	near, far *atomic.Int64
}

func (c counting) Send(to int, b []byte) {
	if c.Host(to) == c.Host(c.Rank()) {
		c.near.Add(int64(len(b)))
	} else {
		c.far.Add(int64(len(b)))
	}
	c.Wire.Send(to, b)
}

// onHosts runs an operation on all ranks of a group and returns the bytes sent.
func onHosts(t *testing.T, hosts []int, how collective.Routing, bufs []device.Buffer, do func(collective.Group, device.Queue, device.Buffer)) (near, far int64) {
	t.Helper()
	n := len(hosts)
	w := newWorld(t, "unix", n, 1, [][]int{count(n)}, hosts...)
	defer w.close()
	var sent [2]atomic.Int64
	var all sync.WaitGroup
	for r := range n {
		all.Go(func() {
			d := cpu.NewHost(1)
			defer d.Close()
			q := d.NewQueue("comm")
			defer q.Close()
			g := collective.NewWiredBy(counting{w.nets[r].Wire(0, r), &sent[0], &sent[1]}, how)
			do(g, q, bufs[r])
			if err := q.Wait(); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	all.Wait()
	return sent[0].Load(), sent[1].Load()
}

// random returns buffers of n random elements, the same for each call.
func random(ranks int, t device.DType, n int) (bufs []device.Buffer) {
	rng := rand.New(rand.NewPCG(5, uint64(ranks)))
	for range ranks {
		x := make([]float32, n)
		for i := range x {
			x[i] = rng.Float32() - 0.5
		}
		bufs = append(bufs, device.Narrow(x, t))
	}
	return bufs
}

// TestBytesOnTheWire checks that sums of many chunks have the same bits flat and by host, and that
// the bytes between hosts match the formulas: flat, each rank's share for every rank elsewhere; by
// host, a float32 sum of the whole for each border and each rank's part of the sums, and for a
// gather, each part once for every other host.
func TestBytesOnTheWire(t *testing.T) {
	nightly.Long(t)
	for _, hosts := range [][]int{{0, 0, 1, 1}, {0, 0, 0, 1, 1}, {0, 0, 1, 1, 2, 2}} {
		for _, dt := range []device.DType{device.F32, device.BF16} {
			ranks := len(hosts)
			part := 300_001 // elements: a chunk of 262,144, and more
			n, e := ranks*part, dt.Size()
			var on [3]int64 // ranks per host
			elsewhere := int64(0)
			for r, h := range hosts {
				on[h]++
				for _, x := range hosts[:r] {
					if x != h {
						elsewhere += 2
					}
				}
			}
			borders := int64(hosts[ranks-1])
			last := on[borders]
			flat := elsewhere * int64(part*e)
			reduce := borders*int64(n*4) + (int64(ranks)-last)*int64(part*e)
			gather := int64(ranks) * borders * int64(part*e)

			one, other := random(ranks, dt, n), make([]device.Buffer, ranks)
			for r, b := range one {
				other[r] = device.Narrow(make([]float32, n), dt)
				copy(other[r].Raw(), b.Raw())
			}
			_, far := onHosts(t, hosts, collective.Flat, one, collective.ReduceScatter)
			wire(t, hosts, dt, "flat reduction", far, flat)
			near, far := onHosts(t, hosts, collective.ByHost, other, collective.ReduceScatter)
			wire(t, hosts, dt, "reduction by host", far, reduce)
			var inside int64
			for _, k := range on {
				inside += max(0, k-1) * int64(n*e)
			}
			wire(t, hosts, dt, "reduction inside hosts", near, inside)
			for r := range one {
				if got, want := other[r].Slice(r*part, (r+1)*part), one[r].Slice(r*part, (r+1)*part); !bytes.Equal(got.Raw(), want.Raw()) {
					t.Errorf("%v: %v: rank %d: other bits by host", hosts, dt, r)
				}
			}
			_, far = onHosts(t, hosts, collective.ByHost, other, collective.AllGather)
			wire(t, hosts, dt, "gather by host", far, gather)
			_, far = onHosts(t, hosts, collective.Flat, one, collective.AllGather)
			wire(t, hosts, dt, "flat gather", far, flat)
			for r := range one {
				if !bytes.Equal(other[r].Raw(), one[r].Raw()) {
					t.Errorf("%v: %v: rank %d: another gather by host", hosts, dt, r)
				}
			}
		}
	}
}

func wire(t *testing.T, hosts []int, dt device.DType, what string, got, want int64) {
	t.Helper()
	if got != want {
		t.Errorf("%s of %v over hosts %s: %d bytes, want %d", what, dt, fmt.Sprint(hosts), got, want)
	}
}
