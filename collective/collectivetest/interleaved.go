package collectivetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"zeroth/collective"
	"zeroth/device"
)

// step is a line of a random program that all ranks run: an operation on one of the buffers.
// Afterwards every rank overwrites everything that the operation does not define and, in the next
// step with the same buffer, all of it.
type step struct {
	buf      int
	reduce   bool
	separate bool // the ranks' own parts are separate buffers
}

// testInterleaved runs random programs in which every rank issues each step on a random one of its
// two queues, ordered by marks, and overwrites its buffers as soon as it owns them again. After
// each step the buffer is compared with that of a serial run.
func testInterleaved(t *testing.T, open func(int) []collective.Group) {
	const steps = 40
	for size := 1; size <= 5; size++ {
		for seed := range uint64(4) {
			rng := rand.New(rand.NewPCG(seed, uint64(size)))
			prog := make([]step, steps)
			for i := range prog {
				prog[i] = step{rng.IntN(3), rng.IntN(2) == 0, rng.IntN(2) == 0}
			}
			withTeam(t, open(size), func(m *team) { m.interleave(seed, prog) })
		}
	}
}

// buffers returns the buffers of a rank's program.
func buffers(size int) [3]device.Buffer {
	return [3]device.Buffer{newGuarded(device.F32, 33*size).Buffer,
		newGuarded(device.BF16, 5*size).Buffer, newGuarded(device.F64, 300*size).Buffer}
}

// contents returns a rank's data for a step.
func contents(b device.Buffer, seed uint64, rank, step int) {
	fill(b, rand.New(rand.NewPCG(seed, uint64(rank)<<32|uint64(step))), true)
}

// scribble overwrites the parts of other ranks.
func scribble(b device.Buffer, size, rank int) {
	part := b.Bytes() / size
	for i := range b.Raw() {
		if i/part != rank {
			b.Raw()[i] = byte(i + rank)
		}
	}
}

// move copies src to dst and overwrites it, unless they are the same.
func move(dst, src device.Buffer) {
	if copy(dst.Raw(), src.Raw()); dst.Ptr != src.Ptr {
		scribble(src, 1, -1)
	}
}

// serial returns each rank's buffer after each step of a serial run: [step][rank].
func serial(size int, seed uint64, prog []step) [][]device.Buffer {
	after := make([][]device.Buffer, len(prog))
	for i, s := range prog {
		bufs := make([]device.Buffer, size)
		for r := range bufs {
			bufs[r] = buffers(size)[s.buf]
			contents(bufs[r], seed, r, i)
		}
		if s.reduce {
			reduce(bufs)
			for r, b := range bufs {
				scribble(b, size, r)
			}
		} else {
			gather(bufs)
		}
		after[i] = bufs
	}
	return after
}

func (m *team) interleave(seed uint64, prog []step) {
	size := m.size
	want := serial(size, seed, prog)
	m.must(func(r *rank) error {
		rng := rand.New(rand.NewPCG(seed, uint64(r.Rank())))
		bufs, separate := buffers(size), buffers(1)
		var prev device.Event
		for i, s := range prog {
			q, b := r.q[rng.IntN(2)], bufs[s.buf]
			q.After(prev)
			q.Do(func() error { contents(b, seed, r.Rank(), i); return nil })
			own, at := collective.Own(r, b), collective.Own(r, b)
			if s.separate {
				at = separate[s.buf]
			}
			if s.reduce {
				r.ReduceScatter(q, at, b)
				q.Do(func() error { move(own, at); scribble(b, size, r.Rank()); return nil })
			} else {
				q.Do(func() error { move(at, own); return nil })
				r.AllGather(q, b, at)
				q.Do(func() error { move(own, at); return nil })
			}
			q.Do(func() error {
				if err := difference(b, want[i][r.Rank()]); err != nil {
					return fmt.Errorf("step %d of %d: %w", i, len(prog), err)
				}
				return nil
			})
			prev = q.Mark()
		}
		return errors.Join(r.q[0].Wait(), r.q[1].Wait())
	})
}
