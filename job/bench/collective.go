package bench

import (
	"fmt"
	"sync"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
)

// collective measures groups of goroutine ranks. The limit is the memory traffic they need: for a
// gather, each rank's copies from all others; for a reduction, reading all buffers and writing a
// part of each.
func (b *bench) collective() error {
	for _, ranks := range []int{2, 4} {
		for _, mb := range []int{1, 64} {
			err := onGroup(ranks, mb<<18, func(each func(op func(g collective.Group, q device.Queue, buf device.Buffer)) error) error {
				bytes, size := float64(mb<<20), float64(ranks)
				name := fmt.Sprintf("all-gather, %d ranks, %d MiB", ranks, mb)
				err := b.line("collective", name, 2*bytes*(size-1), "copy", func() error {
					return each(func(g collective.Group, q device.Queue, buf device.Buffer) { collective.AllGather(g, q, buf) })
				})
				if err != nil {
					return err
				}
				name = fmt.Sprintf("reduce-scatter, %d ranks, %d MiB", ranks, mb)
				return b.line("collective", name, bytes*(size+1), "triad", func() error {
					return each(func(g collective.Group, q device.Queue, buf device.Buffer) { collective.ReduceScatter(g, q, buf) })
				})
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// onGroup runs f with a group of ranks that have n floats each. each issues an operation on
// all ranks and waits for it.
func onGroup(size, n int, f func(each func(op func(collective.Group, device.Queue, device.Buffer)) error) error) error {
	groups := collective.NewLocal(size)
	queues, bufs, errs := make([]*cpu.Queue, size), make([]device.Buffer, size), make([]error, size)
	for r := range groups {
		d := cpu.NewHost(1)
		defer d.Close()
		mem, err := d.Alloc(device.F32, n, device.Workspace)
		if err != nil {
			return err
		}
		defer d.Free(mem)
		fillNoise(mem.F32())
		queues[r], bufs[r] = d.NewQueue("comm"), mem
		defer queues[r].Close()
	}
	return f(func(op func(collective.Group, device.Queue, device.Buffer)) error {
		var wg sync.WaitGroup
		for r, g := range groups {
			wg.Go(func() {
				op(g, queues[r], bufs[r])
				errs[r] = queues[r].Wait()
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// fillNoise writes numbers between -1 and 1.
func fillNoise(to []float32) {
	x := uint32(1)
	for i := range to {
		x = x*1664525 + 1013904223
		to[i] = float32(int32(x)) / (1 << 31)
	}
}
