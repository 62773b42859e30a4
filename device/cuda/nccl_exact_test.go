//go:build cuda

package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cuda"
)

// TestNCCLExactSums checks that exact sums over NCCL have the bits of sums in rank order, whatever
// NCCL's own order is, for every type, in chunks and at once, in place and not.
func TestNCCLExactSums(t *testing.T) {
	if !again(t, 1, "FAKENCCL_RING=1") {
		return
	}
	c := newClique(t, overMemory)
	for _, ranks := range []int{2, 3, 5} {
		if ranks > len(c.devs) {
			t.Logf("%d ranks: this machine has %d GPUs", ranks, len(c.devs))
			break
		}
		ends, errs := c.join(ranks, mustID(t), never)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for _, dt := range []device.DType{device.F32, device.BF16, device.F16, device.F64} {
			for _, at := range []struct {
				part, chunk int // elements; bytes
				inPlace     bool
			}{{1000, 1 << 10, true}, {1000, 1 << 20, false}, {64, 256, false}, {3, 256, true}} {
				name := fmt.Sprintf("%d ranks, %d %v a part, chunks of %d bytes, in place: %v", ranks, at.part, dt, at.chunk, at.inPlace)
				exactSums(t, name, c, ends, dt, at.part, at.chunk, at.inPlace)
			}
		}
		for _, e := range ends {
			e.Abort()
		}
	}
}

func exactSums(t *testing.T, name string, c *clique, ends []*cuda.Communicator, dt device.DType, part, chunk int, inPlace bool) {
	t.Helper()
	n := len(ends)
	values := make([]device.Buffer, n)
	for r := range values {
		draw := rand.New(rand.NewPCG(uint64(r), uint64(part)))
		x := floats(n*part, func(int) float32 { return float32(draw.NormFloat64()) })
		values[r] = as(x.F32(), dt)
	}
	got := make([][]byte, n)
	var all sync.WaitGroup
	for r, end := range ends {
		all.Go(func() {
			d := c.devs[r]
			q := d.NewQueue("comm")
			defer q.Close()
			bounce := on(t, d, device.F32, cuda.ExactBounce(n, chunk)/4)
			whole, own := on(t, d, dt, n*part), on(t, d, dt, part)
			defer d.Free(bounce)
			defer d.Free(whole)
			defer d.Free(own)
			end.AddExactly(bounce)
			q.Copy(whole, values[r])
			to := own
			if inPlace {
				to = whole.Slice(r*part, (r+1)*part)
			}
			if err := end.ReduceScatter(q, to, whole); err != nil {
				t.Errorf("%s: rank %d: %v", name, r, err)
			}
			said := as(make([]float32, part), dt)
			q.Copy(said, to)
			if err := q.Wait(); err != nil {
				t.Errorf("%s: rank %d: %v", name, r, err)
			}
			got[r] = said.Raw()
		})
	}
	all.Wait()
	for r := range n {
		want := inOrder(t, c.devs[0], values, r, part)
		if !slices.Equal(got[r], want) {
			t.Errorf("%s: rank %d has other bits than a sum in rank order", name, r)
		}
	}
}

// as returns numbers as elements of a type, in host memory.
func as(x []float32, dt device.DType) device.Buffer {
	if dt != device.F64 {
		return device.Narrow(slices.Clone(x), dt)
	}
	wide := make([]float64, len(x))
	for i, v := range x {
		wide[i] = float64(v)
	}
	return device.OfF64(wide)
}

// inOrder returns the sum of part r of all ranks' values, computed by collective's oracle: the
// CPU's kernel.
func inOrder(t *testing.T, d *cuda.Device, values []device.Buffer, r, part int) []byte {
	q := d.NewQueue("host")
	defer q.Close()
	var src []device.Buffer
	for _, v := range values {
		src = append(src, v.Slice(r*part, (r+1)*part))
	}
	sum := as(make([]float32, part), values[0].Type)
	q.AddUp(sum, src)
	return sum.Raw()
}

func on(t *testing.T, d *cuda.Device, dt device.DType, n int) device.Buffer {
	b, err := d.Alloc(dt, n, device.Params)
	if err != nil {
		t.Error(err)
	}
	return b
}

// TestNCCLExactRefuses checks that too little bounce memory, and sums that would be rounded, are
// refused.
func TestNCCLExactRefuses(t *testing.T) {
	if !again(t, 2) {
		return
	}
	c := newClique(t, overMemory)
	ends, errs := c.join(2, mustID(t), never)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	d := c.devs[0]
	q := d.NewQueue("comm")
	defer q.Close()
	little, whole := on(t, d, device.F32, 1), on(t, d, device.F32, 4)
	defer d.Free(little)
	defer d.Free(whole)
	ends[0].AddExactly(little)
	say(t, ends[0].ReduceScatter(q, whole.Slice(0, 2), whole), "4 bytes of bounce memory for exact sums of 2 ranks")
	for _, e := range ends {
		e.Abort()
	}
}

var _ collective.Engine = (*cuda.Communicator)(nil)
