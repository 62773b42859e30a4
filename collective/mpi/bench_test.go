//go:build mpi && cgo

package mpi_test

import (
	"testing"

	"zeroth/collective"
	"zeroth/collective/mpi"
	"zeroth/device"
	"zeroth/device/cpu"
)

// whole is the number of float32 elements gathered or reduced: 64 MiB.
const whole = 16 << 20

// BenchmarkRank measures a gather and a reduction of 64 MiB between two processes, and a transfer
// of as many bytes in both directions over the bare wire, in bytes per second and direction. Build
// it with go test -c, and run it with ZEROTH_MPI_TEST=1 and ZEROTH_MPI=libmpi.so.40 (or another
// library) by mpirun -n 2, with -test.run ^$ -test.bench . -test.benchtime 20x, so that both
// processes run the same number of iterations.
func BenchmarkRank(b *testing.B) {
	me, processes := part()
	if processes != 2 {
		b.Skip("not one of two processes under MPI")
	}
	d := cpu.NewHost(1)
	defer d.Close()
	q := d.NewQueue("comm")
	defer q.Close()
	n := mpi.New(mpi.Config{Process: me, PerProcess: 1, Groups: [][]int{{0, 1}, {0, 1}}})
	defer n.Close()
	g, bare := collective.NewWired(n.Wire(0, me)), n.Wire(1, me)
	x := device.OfF32(make([]float32, whole))
	run := func(name string, f func() error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(4 * whole / 2)
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("gather", func() error { collective.AllGather(g, q, x); return q.Wait() })
	run("reduce", func() error { collective.ReduceScatter(g, q, x); return q.Wait() })
	ahead := 0
	run("stream", func() error { return stream(bare, 1-me, x.Raw(), &ahead) })
}

// stream sends half of b to a peer and receives the other half, with two frames of 1 MiB in flight.
// A note from the peer grants memory; early notes for its next stream are counted in ahead.
func stream(w collective.Wire, peer int, b []byte, ahead *int) error {
	const frame, window = 1 << 20, 2
	count := len(b) / 2 / frame
	posted, sent, allowed, in, out := 0, 0, *ahead, 0, 0
	post := func() {
		if posted < count {
			w.Recv(peer, b[posted*frame:][:frame])
			posted++
			w.Note(peer, collective.Note{})
		}
	}
	for range window {
		post()
	}
	for in < count || out < count {
		e, err := w.Poll()
		if err != nil {
			return err
		}
		switch e.Kind {
		case collective.Noted:
			allowed++
		case collective.Received:
			in++
			post()
		case collective.Sent:
			out++
		}
		for ; sent < min(allowed, count); sent++ {
			w.Send(peer, b[len(b)/2+sent*frame:][:frame])
		}
	}
	*ahead = allowed - count
	return nil
}
