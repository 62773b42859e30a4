//go:build big

package socket_test

import (
	"fmt"
	"sync"
	"testing"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
)

// TestMoreThanInt32 reduces and gathers a buffer with more bytes than an int32 can count. It takes
// 4.3 GB of memory: go test -tags big ./collective/socket -run TestMoreThanInt32.
func TestMoreThanInt32(t *testing.T) {
	const n = 1<<29 + 6 // float32
	w := newWorld(t, "unix", 2, 1, [][]int{count(2)})
	defer w.close()
	errs := make([]error, 2)
	var all sync.WaitGroup
	for r := range errs {
		all.Go(func() { errs[r] = bigAllReduce(collective.NewWired(w.nets[r].Wire(0, r)), n) })
	}
	all.Wait()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// bigAllReduce sums n values; element i is i mod 1001 on rank 0 and twice that on rank 1.
func bigAllReduce(g collective.Group, n int) error {
	d := cpu.NewHost(1)
	defer d.Close()
	q := d.NewQueue("comm")
	defer q.Close()
	b, err := d.Alloc(device.F32, n, device.UnitGrads)
	if err != nil {
		g.Close()
		return err
	}
	defer d.Free(b)
	x := b.F32()
	for i := range x {
		x[i] = float32(i % 1001 * (g.Rank() + 1))
	}
	collective.AllReduce(g, q, b)
	if err := q.Wait(); err != nil {
		return err
	}
	for i := range x {
		if want := float32(3 * (i % 1001)); x[i] != want {
			return fmt.Errorf("element %d is %g, want %g", i, x[i], want)
		}
	}
	return nil
}
