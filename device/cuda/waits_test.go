//go:build cuda

package cuda_test

import (
	"fmt"
	"testing"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/cuda"
)

// TestWaits runs operations for which each wait for an event matters: each rank fills what others
// read right before one, and overwrites it right after.
func TestWaits(t *testing.T) {
	const ranks, n = 3, 64
	for r, err := range together(t, ranks, []int{0}, func(m member) error {
		mem, err := cuda.OpenPinned(0)
		if err != nil {
			return err
		}
		defer mem.Close()
		host := cpu.NewHostFrom(1, mem)
		defer host.Close()
		pinned := func() device.Buffer {
			b, err := host.Alloc(device.F32, ranks*n, device.Params)
			if err != nil {
				t.Error(err)
			}
			return b
		}
		x := m.alloc(device.F32, ranks*n)
		var in, out []device.Buffer
		const ops = 6
		for range ops {
			in, out = append(in, pinned()), append(out, pinned())
		}
		start, err := m.host.Alloc(device.F32, ranks, device.Params)
		if err != nil {
			return err
		}
		collective.AllGather(m.oracle, m.hq, start) // no rank waits anymore, so nothing runs before everything is issued
		if err := m.hq.Wait(); err != nil {
			return err
		}
		for i, h := range in {
			for j := range h.F32() {
				h.F32()[j] = float32(100*i + 10*m.g.Rank() + j%7)
			}
			m.r.Copy(x, h)
			m.q.After(m.r.Mark())
			if i%2 == 0 {
				collective.AllGather(m.g, m.q, x)
			} else {
				collective.ReduceScatter(m.g, m.q, x)
			}
			m.q.Copy(out[i], x)
			m.r.After(m.q.Mark())
			m.r.Zero(x)
		}
		collective.AllGather(m.oracle, m.hq, start) // a rank that waited while another issues would run the other's work at once
		for _, q := range []device.Queue{m.hq, m.q, m.r} {
			if err := q.Wait(); err != nil {
				return err
			}
		}
		for i, b := range out {
			for j, got := range b.F32() {
				part, want := j/n, float32(0)
				switch {
				case i%2 == 0:
					want = float32(100*i + 10*part + j%7)
				case part != m.g.Rank():
					continue
				default:
					for r := range ranks {
						want += float32(100*i + 10*r + j%7)
					}
				}
				if got != want {
					return fmt.Errorf("operation %d: element %d is %g, want %g", i, j, got, want)
				}
			}
		}
		for i := range in {
			host.Free(in[i])
			host.Free(out[i])
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
