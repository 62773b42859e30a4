package socket_test

import (
	"io"
	"sync"
	"testing"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
)

// whole is the elements of the float32 buffer that is gathered or reduced: 64 MiB.
const whole = 16 << 20

// BenchmarkStream sends as many bytes both ways over a bare connection as a
// gather of two ranks does: what the wire can carry.
func BenchmarkStream(b *testing.B) {
	for _, network := range []string{"unix", "tcp"} {
		b.Run(network, func(b *testing.B) {
			ln := listen(b, network)
			defer ln.Close()
			x, y := pair(b, ln)
			defer x.Close()
			defer y.Close()
			from, to := make([]byte, 1<<20), [2][]byte{make([]byte, 1<<20), make([]byte, 1<<20)}
			b.SetBytes(4 * whole / 2)
			for b.Loop() {
				var all sync.WaitGroup
				for i, c := range []io.ReadWriter{x, y} {
					all.Go(func() {
						for range 4 * whole / 2 / len(from) {
							c.Write(from)
						}
					})
					all.Go(func() {
						for range 4 * whole / 2 / len(from) {
							io.ReadFull(c, to[i])
						}
					})
				}
				all.Wait()
			}
		})
	}
}

// BenchmarkGroup is a gather and a reduction of 64 MiB between two processes; the
// bytes are those of one direction.
func BenchmarkGroup(b *testing.B) {
	for _, network := range []string{"unix", "tcp"} {
		for name, do := range map[string]func(collective.Group, device.Queue, device.Buffer){"gather": collective.AllGather, "reduce": collective.ReduceScatter} {
			b.Run(network+"/"+name, func(b *testing.B) {
				w := newWorld(b, network, 2, 1, [][]int{count(2)})
				defer w.close()
				var qs [2]*cpu.Queue
				var bufs [2]device.Buffer
				var gs [2]collective.Group
				for r := range qs {
					d := cpu.NewHost(1)
					defer d.Close()
					qs[r], bufs[r], gs[r] = d.NewQueue("comm"), device.OfF32(make([]float32, whole)), collective.NewWired(w.nets[r].Wire(0, r))
					defer qs[r].Close()
				}
				b.SetBytes(4 * whole / 2)
				for b.Loop() {
					for r := range qs {
						do(gs[r], qs[r], bufs[r])
					}
					for _, q := range qs {
						if err := q.Wait(); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}
